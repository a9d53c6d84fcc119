"""The shipped study of output embedding centering has the models and runs of arXiv 2601.02031."""

import csv
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from coupled_adam_bench.models.build import build_model
from coupled_adam_bench.study.plan import Plan, make_plan
from coupled_adam_bench.study.plan.schedule import learning_rate_factor
from coupled_adam_bench.study.settings import load_study

ROOT = Path(__file__).parents[4]
METHODS = {
    "adamw": ("adamw", ""),
    "adamw_z0.0001": ("z-loss", "0.0001"),
    "adamw_mu0.0001": ("mu-loss", "0.0001"),
    "adamw_mucenter": ("mu-centering", ""),
    "adamw_cap30": ("soft-cap", "30"),
}
"""The method and its weight in the file of published losses, by the study's key."""


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(load_study(ROOT / "research" / "oec" / "oec.yaml"))


def test_the_names_of_the_models_count_layers_and_one_of_both_matrices(plan):
    (study,) = plan.studies.values()
    untied, tied = study.models[:5], study.models[5:]
    sizes = {model.label: (model.n_layer, model.d_model, model.d_ffn) for model in untied}
    assert sizes == {
        "16M": (6, 224, 768),
        "29M": (9, 320, 1024),
        "57M": (12, 480, 1280),
        "109M": (15, 640, 1792),
        "221M": (21, 832, 2304),
    }
    for model, other in zip(untied, tied, strict=True):
        counted = model.n_params(50304, 2048) - 50304 * model.d_model
        assert float(model.label[:-1]) == pytest.approx(
            counted / 1e6, abs=0.6
        )  # 108.42M is called 109M
        assert (model.qk_norm, model.rope_fraction, model.tied, model.n_head) == (
            "shared",
            0.5,
            False,
            4,
        )
        names = {"name": f"{model.name}-tied", "label": f"{model.label} tied", "tied": True}
        assert other == model.model_copy(update=names)


@pytest.mark.parametrize("tied", [False, True])
def test_initial_values_are_the_authors(plan, tied):
    """The standard deviations of nanoGPT/model.py at 25c6fb9 for 16M, by their formulas."""
    (study,) = plan.studies.values()
    model = build_model(study.models[5 if tied else 0], 50304, 2048)
    stds = {
        name: value.std().item()
        for (name, _), (_, value) in zip(
            model.named_parameters(), model.initial_values(1, "xavier_linear"), strict=True
        )
        if value.ndim == 2
    }
    expected = {
        "embedding": 0.0063 if tied else 0.0668,
        "attn_qkv": 0.0473,
        "attn_proj": 0.00577,
        "mlp_gate_up": 0.0449,
        "mlp_proj": 0.0449,
        "head": 0.0063,
    }
    for name, std in stds.items():
        assert std == pytest.approx(expected[name.split(".")[-2]], rel=0.02), name
    assert study.training.init == "xavier_linear"


@pytest.mark.parametrize("peak", [3e-4, 3e-1])
def test_the_rate_ends_where_the_authors_ends(plan, peak):
    (study,) = plan.studies.values()
    rates = [
        peak * learning_rate_factor(step, 100_000, study.training, peak)
        for step in (0, 5_000, 52_500, 100_000)
    ]
    assert rates == pytest.approx([peak / 5001, peak, 1e-5 + (peak - 1e-5) / 2, 1e-5])
    assert (study.training.weight_decay, study.training.grad_clip, study.training.beta2) == (
        0,
        1,
        0.95,
    )


def test_its_candidates_are_the_published_runs(plan):
    with (ROOT / "tests/golden/published_oec.csv").open(encoding="utf-8") as file:
        published = {
            (row["model_label"], (row["method"], row["weight"]), float(row["learning_rate"]))
            for row in csv.DictReader(file)
            if (row["method"], row["weight"])
            != ("mu-loss", "0.1")  # beside the published figures and tables
        }
    tried = {
        (cell.model.label, METHODS[tuning.row.key], candidate.embedding_lr)
        for tuning in plan.tunings.values()
        for candidate in tuning.candidates
        for cell in candidate.cells
    }
    assert len(published) == 140
    assert published < tried
    more = tried - published
    assert {label for label, (method, _), _ in more if method != "soft-cap"} == {
        f"{label} tied" for label in ("16M", "29M", "57M", "109M", "221M")
    }
    assert len(plan.tuning_cells) == len(tried) == 350
    assert {cell.n_tokens for cell in plan.tuning_cells.values()} == {100_000 * 64 * 2048}


def test_the_published_matrix_is_compared_with_its_row(tmp_path):
    """All that we measure of a matrix stands beside what its authors published."""
    generator = np.random.default_rng(0)
    np.save(tmp_path / "matrix.npy", generator.normal(size=(40, 6)).astype(np.float32))
    np.save(tmp_path / "counts.npy", generator.integers(1, 99, 40))
    program = [sys.executable, ROOT / "research/oec/published.py", tmp_path / "matrix.npy"]
    bare = subprocess.run(program, capture_output=True, text=True, check=True).stdout
    whole = subprocess.run(
        [*program, "--counts", tmp_path / "counts.npy"], capture_output=True, text=True, check=True
    ).stdout
    assert re.search(r"^isotropy +0\.\d{4} +0\.124 ", bare, re.MULTILINE)
    assert re.search(r"^kappa +\d+\.\d{4} +0\.36 ", bare, re.MULTILINE)
    assert "rho, mean_projection_correlation: need --counts" in bare
    assert re.search(r"^rho +-?0\.\d{4} +-0\.693 ", whole, re.MULTILINE)
