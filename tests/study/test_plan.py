"""Cells and plans: what is shared, what is added, what is read again; the learning rate."""

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny import changed, tiny_study

from coupled_adam_bench.study.optimizers import Optimizer
from coupled_adam_bench.study.plan import make_plan, read_plan, readable_count
from coupled_adam_bench.study.study import Study, parse_study
from coupled_adam_bench.study.training import Training


def one_block(**block: Any) -> Study:
    study = tiny_study()
    return parse_study(study | {"grid": [study["grid"][0] | block]})


def test_a_seed_more_adds_only_its_cells() -> None:
    before, after = make_plan(one_block()).cells, make_plan(one_block(seeds=[4, 1, 2, 3])).cells
    assert {cell: after[cell] for cell in before} == before
    assert {after[cell].seed for cell in after.keys() - before.keys()} == {4}
    assert len(after) == len(before) * 4 // 3


def test_two_studies_share_cells() -> None:
    ours = make_plan(one_block())
    theirs = parse_study(
        changed(tiny_study(), "data.max_tokens", None)
        | {"study": "other", "title": "Another", "grid": [{
            "models": ["small"], "tokens": [{"steps": 30, "label": "30"}], "seeds": [3, 1],
            "optimizers": [{"name": "sgd"}, {"name": "coupled_adam", "lr_factor": 1.0}],
        }]}
    )  # fmt: skip
    shared = make_plan(theirs).cells.keys() & ours.cells.keys()
    assert {(ours.cells[cell].optimizer.name, ours.cells[cell].seed) for cell in shared} == {
        ("coupled_adam", 1), ("coupled_adam", 3),
    }  # fmt: skip


def test_the_order_of_cells() -> None:
    study = one_block(table=None, tokens=[{"steps": 40}, {"steps": 30}], seeds=[2, 1])
    plan = make_plan(study)
    found = [(cell.steps, cell.optimizer.name, cell.seed) for cell in plan.cells_of(study.grid[0])]
    assert found == [
        (steps, name, seed)
        for steps in (40, 30) for name in ("adamw", "coupled_adam") for seed in (2, 1)
    ]  # fmt: skip
    assert [cell.n_tokens for cell in plan.cells.values()][::4] == [40 * 256, 30 * 256]


def test_tokens_are_whole_steps() -> None:
    plan = make_plan(one_block(tokens=["10K"]))
    cell = next(iter(plan.cells.values()))
    assert (cell.steps, cell.n_tokens, cell.tokens_label) == (39, 9984, "10K")


def test_a_plan_is_read_as_it_was_written(home: Path) -> None:
    study = one_block(
        optimizers=["adamw", {"name": "custom", "path": "tiny.changed", "key": "own"}]
    )
    plan, file = make_plan(study), home / "plan.json"
    plan.write(file)
    assert read_plan(file) == plan
    assert list(read_plan(file).cells.items()) == list(plan.cells.items())
    os.utime(file, (1, 1))
    plan.write(file)
    assert file.stat().st_mtime == 1
    make_plan(one_block()).write(file)
    assert file.stat().st_mtime > 1
    with pytest.raises(ValueError, match="no_cell"):
        plan.find(["no_cell"])


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (999, "999"),
        (1000, "1K"),
        (98_304, "98.3K"),
        (999_948_288, "1B"),
        (19_660_800_000, "19.7B"),
        (2 * 10**12, "2T"),
    ],
)
def test_readable_counts(count: int, text: str) -> None:
    assert readable_count(count) == text


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"name": "adamw"}, ("adamw", "Adam")),
        ({"name": "adamw", "amsgrad": True}, ("adamw_amsgrad", "Adam, AMSGrad")),
        ({"name": "adamw", "beta2": 0.999}, ("adamw_b2-0.999", "Adam, beta2 = 0.999")),
        (
            {"name": "coupled_adam", "scale_exponent": -5},
            ("coupled_adam_n-5", "Coupled Adam, n = -5"),
        ),
        ({"name": "sgd", "lr_factor": 300}, ("sgd_f300", "SGD, f = 300")),
        ({"name": "adamw", "label": "AdamW"}, ("adamw", "AdamW")),
        ({"name": "sgd", "key": "plain", "momentum": 0.0}, ("plain", "SGD, m = 0")),
        ({"name": "custom", "path": "a.B", "key": "b", "label": "B"}, ("b", "B")),
        ({"name": "custom", "path": "a.B", "key": "b"}, ("b", "b")),
    ],
)
def test_names_of_optimizers(settings: dict[str, Any], names: tuple[str, str]) -> None:
    assert Optimizer.model_validate(settings).names() == names


def nanogpt(step: int, warmup: int, steps: int, ratio: float) -> float:
    """Return nanoGPT's ``get_lr`` [C] for a peak of 1."""
    if step < warmup:
        return step / warmup
    return ratio + 0.5 * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup))) * (1 - ratio)


def test_learning_rates() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        steps, ratio = int(rng.integers(20, 400)), float(rng.uniform(0, 1))
        warmup, share = int(rng.integers(1, 10)), round(rng.uniform(0.1, 1.0), 2)
        given = {"warmup_steps": warmup, "min_lr_ratio": ratio, "decay_fraction": share}
        places = np.arange(steps)

        def rates(total: int = steps, **settings: Any) -> Any:
            training = Training(**settings)
            return np.array([training.learning_rate_factor(step, total) for step in range(total)])

        authors = [nanogpt(step, warmup, steps, ratio) for step in range(steps)]
        np.testing.assert_allclose(rates(**given, warmup_from="zero"), authors, rtol=1e-12)
        # The default warmup reaches the same peak from a rate above 0.
        first = np.minimum(1, (places + 1) / (warmup + 1))
        np.testing.assert_allclose(rates(**given, schedule="constant"), first, rtol=1e-12)
        line = np.interp(places, [warmup, steps], [1, ratio]) * np.where(places < warmup, first, 1)
        np.testing.assert_allclose(rates(**given, schedule="linear"), line, rtol=1e-12)
        # wsd: at the peak up to the first of its last steps, then a line to the end.
        begin = max(warmup, steps - math.ceil(round(share * steps, 9)))
        line = np.interp(places, [begin, steps], [1, ratio]) * np.where(places < warmup, first, 1)
        np.testing.assert_allclose(rates(**given, schedule="wsd"), line, rtol=1e-12)


def test_a_fraction_of_steps_is_that_of_the_decimal() -> None:
    # In floats 0.07 x 100 is 7.000000000000001, which would be 8 steps.
    assert Training(warmup_fraction=0.07).warmup(100) == 7
    assert Training(warmup_fraction=0.01).warmup(50_000) == 500
    assert Training(warmup_fraction=0.01).warmup(101) == 2


def test_settings_of_the_study_and_of_the_optimizer() -> None:
    training = Training(beta1=0.8, beta2=0.9, embedding_weight_decay=0.2)
    plain, own = Optimizer(name="adamw"), Optimizer(name="adamw", beta2=0.5, weight_decay=0.0)
    assert (training.betas(plain), training.embedding_decay(plain)) == ((0.8, 0.9), 0.2)
    assert (training.betas(own), training.embedding_decay(own)) == ((0.8, 0.5), 0.0)
