"""The shipped study of output embedding centering has the models and runs of arXiv 2601.02031."""

import csv
from pathlib import Path

import pytest

from coupled_adam_bench.study import catalog
from coupled_adam_bench.study.config import load_study
from coupled_adam_bench.study.plan import Plan, make_plan

ROOT = Path(__file__).parents[3]
METHODS = {
    "adamw": ("adamw", ""),
    "adamw_z0.0001": ("z-loss", "0.0001"),
    "adamw_mu0.0001": ("mu-loss", "0.0001"),
    "adamw_mucenter": ("mu-centering", ""),
}
"""The method and its weight in the file of published losses, by the study's key."""


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(load_study(ROOT / "workflow" / "config" / "oec.yaml"))


def test_the_names_of_the_models_count_layers_and_one_of_both_matrices(plan):
    (study,) = plan.studies.values()
    sizes = {model.label: (model.n_layer, model.d_model) for model in study.models}
    assert sizes == {"16M": (6, 224), "29M": (9, 320), "57M": (12, 480), "109M": (15, 640), "221M": (21, 832)}
    for model in study.models:
        counted = model.n_params(50304, 2048) - 50304 * model.d_model
        # 108.42M is called 109M.
        assert float(model.label[:-1]) == pytest.approx(counted / 1e6, abs=0.6)
        assert (model.qk_norm, model.tied, model.n_head) == (True, False, 4)


def test_its_candidates_are_the_published_runs(plan):
    with Path(catalog.__file__).with_name("published_oec.csv").open(encoding="utf-8") as file:
        published = {
            (row["model_label"], (row["method"], row["weight"]), float(row["learning_rate"]))
            for row in csv.DictReader(file)
            if (row["method"], row["weight"]) != ("mu-loss", "0.1")  # beside the published figures and tables
        }
    tried = {
        (cell.model.label, METHODS[tuning.row.key], candidate.embedding_lr)
        for tuning in plan.tunings.values()
        for candidate in tuning.candidates
        for cell in candidate.cells
    }
    assert tried == published
    assert len(plan.tuning_cells) == len(published) == 140
    assert {cell.n_tokens for cell in plan.tuning_cells.values()} == {100_000 * 64 * 2048}
