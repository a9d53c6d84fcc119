"""``noise.csv`` of studies with known parts, against numbers by hand."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coupled_adam_bench.evaluation.kept import WINDOWS, WindowLosses, pack_windows
from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.statistics import sampling
from coupled_adam_bench.statistics.declared import Material
from coupled_adam_bench.statistics.noise import (
    EVALUATION,
    INIT,
    ORDER,
    REST,
    SEEDS,
    STATISTIC,
    noise_rows,
    seed_parts,
)
from coupled_adam_bench.statistics.sampling import variance_of_mean_loss
from coupled_adam_bench.statistics.variance_components import two_way
from coupled_adam_bench.store.files import write_bytes
from coupled_adam_bench.study.catalog.metrics import METRICS, Metric
from coupled_adam_bench.study.catalog.tables import PAPER_COLUMNS
from coupled_adam_bench.study.cells import Cell
from coupled_adam_bench.study.config import parse_study
from coupled_adam_bench.study.plan import Plan, make_plan

Results = Callable[[Plan, Callable[[Cell, Metric], float]], StudyResults]


def crossed(tiny_study: Any, **block: Any) -> Plan:
    """Two optimizers in a table with seeds 1 to 3, and a block that crosses seeds."""
    settings = tiny_study()
    block = {"table": None, "seeds": [1, 2], "data_seeds": [1, 2, 3], "optimizers": ["adamw"]} | block
    settings["grid"].append(settings["grid"][0] | block)
    return make_plan(parse_study(settings))


def value(cell: Cell, metric: Metric) -> float:
    return 0.5 + 0.1 * cell.seed + 0.02 * cell.data_seed**2 + 0.001 * (cell.seed * cell.data_seed) % 0.003


def rows_of(study: StudyResults, **wanted: Any) -> list[dict[str, Any]]:
    sampled = {(cell, "loss"): 1e-4 for cell in study.plan.cells}
    rows = list(noise_rows(study, sampled))
    return [row for row in rows if all(row[name] == wanted[name] for name in wanted)]


def test_crossed_seeds_are_split_by_the_analysis_of_variance(tiny_study: Any, results_of: Results) -> None:
    plan = crossed(tiny_study)
    rows = rows_of(results_of(plan, value), metric="loss", block="tiny grid.1")
    assert [row["source"] for row in rows] == [INIT, ORDER, REST, EVALUATION]
    cells = plan.blocks[1].cells
    assert [(cell.seed, cell.data_seed) for cell in cells] == [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (2, 3)]
    expected = two_way(np.array([value(cell, METRICS["loss"]) for cell in cells]).reshape(2, 3))
    assert [row["variance"] for row in rows[:3]] == pytest.approx([component.variance for component in expected])
    assert [row["df"] for row in rows] == [1, 2, 2, 0]
    assert {row["design"] for row in rows} == {"2 seeds x 3 orders"}
    assert rows[3]["variance"] == pytest.approx(1e-4)


def test_uncrossed_seeds_have_their_sum(tiny_study: Any, results_of: Results) -> None:
    rows = rows_of(results_of(crossed(tiny_study), value), metric="loss", block="tiny grid.0", optimizer="adamw")
    assert [row["source"] for row in rows] == [SEEDS, EVALUATION]
    plain = [value(cell, METRICS["loss"]) for cell in crossed(tiny_study).blocks[0].cells[:3]]
    assert rows[0]["variance"] == pytest.approx(np.var(plain, ddof=1))
    assert (rows[0]["df"], rows[0]["n"], rows[0]["design"]) == (2, 3, "3 seeds")


@pytest.mark.parametrize(
    ("block", "source"),
    [({"data_seeds": [7]}, INIT), ({"seeds": [1], "data_seeds": [1, 2]}, ORDER), ({"data_seeds": None}, SEEDS)],
)
def test_one_seed_of_a_kind_leaves_the_other(tiny_study: Any, results_of: Results, block: Any, source: str) -> None:
    rows = rows_of(results_of(crossed(tiny_study, **block), value), metric="loss", block="tiny grid.1")
    assert [row["source"] for row in rows] == [source, EVALUATION]
    assert rows[0]["df"] == 1


def test_missing_values_are_visible(tiny_study: Any, results_of: Results) -> None:
    def with_gap(cell: Cell, metric: Metric) -> float:
        return math.nan if (cell.seed, cell.data_seed) == (2, 3) else value(cell, metric)

    rows = rows_of(results_of(crossed(tiny_study), with_gap), metric="acc", block="tiny grid.1")
    assert [row["source"] for row in rows] == [INIT, ORDER, REST]
    assert all(math.isnan(row["variance"]) and row["reason"] == "1 of 6 values missing" for row in rows)
    ((source, component),), reason = seed_parts([1.0], 1, None)
    assert (source, component.df, reason) == (SEEDS, 0, "one run has no spread")


def test_the_same_cells_in_two_blocks_are_told_once(tiny_study: Any, results_of: Results) -> None:
    settings = tiny_study()
    settings["grid"].append(settings["grid"][0] | {"table": "table7"})
    study = results_of(make_plan(parse_study(settings)), value)
    assert {row["block"] for row in rows_of(study)} == {"tiny grid.0"}


def test_the_file_is_read_back_as_it_was_written(tiny_study: Any, results_of: Results, tmp_path: Path) -> None:
    material = Material(results_of(crossed(tiny_study), value), tmp_path / "runs", tmp_path)
    material.write(STATISTIC)
    found = STATISTIC.read(tmp_path / "noise.csv")
    assert found.equals(material.frame(STATISTIC))
    assert set(found["metric"]) > set(PAPER_COLUMNS)


def windows(n_targets: list[int], losses: list[float], documents: list[int] | None = None) -> WindowLosses:
    places = np.arange(len(losses))
    return WindowLosses(
        places, places if documents is None else np.array(documents), np.array(n_targets), np.array(losses)
    )


def test_the_variance_of_a_mean_of_documents() -> None:
    losses = np.random.default_rng(0).normal(3, 0.5, 200)
    found = variance_of_mean_loss(windows([16] * 200, losses.tolist()))
    assert found == pytest.approx(np.var(losses, ddof=1) / 200)
    # Pieces of one document count together: 16 targets of loss 3.5 and 8 of loss 5, without either 5 and 3.5.
    pieces = windows([4, 8, 12], [2.0, 5.0, 4.0], [7, 9, 7])
    assert variance_of_mean_loss(pieces) == pytest.approx(((5 - 4) ** 2 + (3.5 - 4) ** 2) / 2)
    assert math.isnan(variance_of_mean_loss(windows([5, 5], [2.0, 3.0], [1, 1])))
    assert variance_of_mean_loss(windows([4, 4], [2.0, 2.0])) == 0.0


def test_the_variance_of_a_mean_of_documents_is_that_of_new_texts() -> None:
    """Documents of drawn length have a level of their own, and their windows spread around it."""
    generator = np.random.default_rng(1)
    means, estimates = [], []
    for _ in range(2000):
        documents = np.repeat(np.arange(60), generator.integers(1, 9, 60))
        losses = generator.gamma(4, 1, 60)[documents] + generator.normal(size=len(documents))
        found = windows([16] * len(documents), losses.tolist(), documents.tolist())
        means.append(losses.mean())
        estimates.append(variance_of_mean_loss(found))
    assert np.mean(estimates) == pytest.approx(np.var(means, ddof=1), rel=0.1)


def test_sampling_variances_come_from_windows_and_standard_errors(tiny_plan: Plan, stored: Any, tmp_path: Path) -> None:
    import hashlib

    import pandas as pd

    files = stored(tiny_plan, tmp_path)
    first, second, *others = tiny_plan.cells
    for cell in (first, second):
        files.run(cell)
    contents = pack_windows(windows([16, 16, 8], [3.0, 3.5, 4.0]))
    sums = {WINDOWS: hashlib.sha256(contents).hexdigest()}
    path = files.evaluation(first, "test_loss", [("test", "loss", 3.4, "nat/token")], files=sums)
    write_bytes(path.with_name(f"{path.stem}.{WINDOWS}"), contents)
    files.evaluation(second, "test_loss", [("test", "loss", 3.4, "nat/token")])
    results = pd.DataFrame({"cell": [first], "task": ["average"], "metric": ["acc_stderr"], "value": [0.02]})
    found = sampling.sampling_variances(tiny_plan, results, tmp_path)
    assert found[first, "loss"] == variance_of_mean_loss(windows([16, 16, 8], [3.0, 3.5, 4.0]))
    assert math.isnan(found[second, "loss"])  # measured without keeping its windows
    assert all(math.isnan(found[cell, "loss"]) for cell in others)  # not measured yet
    assert found[first, "acc"] == pytest.approx(0.0004)
