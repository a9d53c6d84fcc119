"""The regime of a study: occupancy of rows and sum of rates, against the definitions and the
paper's numbers."""

import math
from pathlib import Path

import numpy as np
import pytest
from sections import tables_of

from coupled_adam_bench.data.bins import UNIGRAM
from coupled_adam_bench.statistics.declared import Material
from coupled_adam_bench.statistics.occupancy import (
    STATISTIC,
    half_life,
    share_of_rows_forgotten,
    sum_of_rates,
)
from coupled_adam_bench.store.paths import data_dir
from coupled_adam_bench.study.plan import make_plan
from coupled_adam_bench.study.settings import load_study, parse_study

ROOT = Path(__file__).parents[3]


def test_a_token_is_forgotten_that_comes_less_than_once_in_adam_s_memory():
    counts = np.array([0, 1, 9, 11, 12, 967])  # of 1,000 tokens; 20 steps of 5 tokens read 100
    assert share_of_rows_forgotten(counts, 5, 0.95) == pytest.approx(3 / 6)


@pytest.mark.parametrize(("steps", "expected"), [(50_000, 16.5), (200_000, 66.0)])
def test_rates_of_the_paper_sum_to_what_the_report_says(steps, expected):
    plan = make_plan(load_study(ROOT / "workflow/config/paper_small.yaml"))
    cell = next(
        cell
        for cell in plan.cells.values()
        if (cell.model.name, cell.steps) == ("gpt2-125m", steps)
    )
    assert sum_of_rates(cell) == pytest.approx(expected, abs=0.01)
    warmup = sum(6e-4 * (step + 1) / 101 for step in range(100))
    decay = 6e-4 * (steps - 100) * (0.1 + 0.9 / 2)  # the mean of a cosine is its middle
    assert sum_of_rates(cell) == pytest.approx(warmup + decay, rel=1e-4)


@pytest.mark.parametrize(
    ("optimizer", "beta2"),
    [
        ("adamw", 0.95),
        ({"name": "adamw", "beta2": 0.999}, 0.999),
        ({"name": "coupled_adam", "beta2": 0.9}, 0.9),
        ({"embedding": {"name": "adamw", "beta2": 0.99}, "head": "adamw"}, 0.99),
        ("ember", 0.999),
        ({"name": "sgd", "lr_factor": 100}, math.nan),
    ],
)
def test_the_half_life_is_that_of_the_embedding_s_own_second_moment(tiny_study, optimizer, beta2):
    settings = tiny_study()
    settings["models"][0]["tied"] = False
    del settings["grid"][0]["table"]
    settings["grid"][0]["optimizers"] = [optimizer]
    cell = next(iter(make_plan(parse_study(settings)).cells.values()))
    # After so many steps of 64 tokens, a gradient has half of its weight.
    expected = 0.5 if math.isfinite(beta2) else math.nan
    assert beta2 ** (half_life(cell) / 64) == pytest.approx(expected, nan_ok=True)


def test_a_longer_memory_forgets_fewer_rows(tiny_study, results_of, tmp_path):
    settings = tiny_study()
    settings["grid"][0]["optimizers"] = ["adamw", {"name": "adamw", "beta2": 0.999}]
    plan = make_plan(parse_study(settings))
    cell = next(iter(plan.cells.values()))
    folder = data_dir(cell.data_id, tmp_path)
    folder.mkdir(parents=True)
    # Of 64 tokens a step, the second token comes once in 100 steps: Adam remembers 20, or 1,000.
    np.save(folder / UNIGRAM, np.array([6399, 1]))
    material = Material(results_of(plan, lambda *_: 1.0), tmp_path / "runs", tmp_path)
    rows = {row["cell"]: row["share_of_rows_forgotten"] for row in material.rows(STATISTIC)}
    shares = {cell.optimizer.key: rows[cell.id] for cell in plan.cells.values()}
    assert shares == {"adamw": 0.5, "adamw_b2-0.999": 0.0}


def test_the_section_sets_the_study_beside_the_paper(results_of, tiny_plan, tmp_path):
    material = Material(results_of(tiny_plan, lambda *_: 1.0), tmp_path / "runs", tmp_path)
    ((ours, paper),) = tables_of(STATISTIC, material)
    assert ours[2:4] == ["-", "-"]  # the text is not prepared here
    assert paper == [
        "Table 1 of the paper",
        "97,700 to 391,000",
        "0.544 to 2.18",
        "5.3",
        "6.87 to 66",
        "1,330,000",
        "-",
    ]
    assert ours[5:] == ["865", "-"]
    cell = next(iter(tiny_plan.cells.values()))
    folder = data_dir(cell.data_id, tmp_path)
    folder.mkdir(parents=True)
    np.save(folder / UNIGRAM, np.full(cell.vocab_size, 7))
    rows = Material(material.study, tmp_path / "runs", tmp_path).rows(STATISTIC)
    assert {row["cell"]: row["tokens_per_row"] for row in rows} == {
        cell.id: cell.n_tokens / cell.vocab_size for cell in tiny_plan.cells.values()
    }
    assert {row["cell"]: row["passes"] for row in rows} == {
        cell.id: cell.n_tokens / (7 * cell.vocab_size) for cell in tiny_plan.cells.values()
    }
    assert {row["share_of_rows_forgotten"] for row in rows} <= {0.0, 1.0}
    assert not any(math.isnan(row["sum_of_rates"]) for row in rows)
