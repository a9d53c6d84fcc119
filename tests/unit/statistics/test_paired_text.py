"""``paired.csv`` from files beside evaluations that are drawn, not measured."""

import hashlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from coupled_adam_bench.records.kept import (
    DOCUMENTS,
    WINDOWS,
    Document,
    WindowLosses,
    pack_documents,
    pack_windows,
)
from coupled_adam_bench.records.stored import beside
from coupled_adam_bench.results.groups import layout_of
from coupled_adam_bench.results.tidy import typed_frame
from coupled_adam_bench.statistics.paired_text import STATISTIC, _documents, compare_text
from coupled_adam_bench.statistics.student import NO_SPREAD
from coupled_adam_bench.statistics.units import of_held_out
from coupled_adam_bench.study.plan import Plan, make_plan
from coupled_adam_bench.study.plan.cells import Cell
from coupled_adam_bench.study.settings import parse_study

N_WINDOWS, N_DOCUMENTS = 30, 50
HELD_OUT = np.arange(N_WINDOWS) ** 2 // 60
"""The held-out document of each window: fifteen of them, the first one much the longest."""
HOSTILE = 'a_%<b>", "metrics": {\u00fc'


def drawn(cell: Cell) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return the losses of the windows of a cell, and its accuracies by task: two of right or
    wrong, one between."""
    rng = np.random.default_rng([cell.seed, len(cell.optimizer.key)])
    better = 0.2 * (cell.optimizer.key == "coupled_adam")
    losses = 3 - better + 0.1 * rng.normal(size=N_WINDOWS)
    right = {
        task: (rng.random(N_DOCUMENTS) < 0.4 + better).astype(float) for task in ("race", HOSTILE)
    }
    return losses, right | {"mc2": rng.random(N_DOCUMENTS)}


def keep(files: Any, cell: Cell, stage: str, name: str, contents: bytes) -> Path:
    """Write an evaluation of a cell with a file beside it."""
    sha256 = hashlib.sha256(contents).hexdigest()
    path = files.evaluation(cell.id, stage, [], files={name: sha256})
    beside(path, name).write_bytes(contents)
    return beside(path, name)


def write_cell(files: Any, cell: Cell, starts: np.ndarray | None = None) -> list[Path]:
    files.run(cell.id)
    losses, right = drawn(cell)
    starts = np.arange(N_WINDOWS) * 16 if starts is None else starts
    windows = WindowLosses(starts, HELD_OUT, np.full(N_WINDOWS, 16), losses)
    lines = [
        Document(
            task,
            index,
            f"{index:016x}",
            HOSTILE,
            {"acc_norm": 0.5, "acc": float(value)},
            [-1.0, -2.5],
        )
        for task, values in right.items()
        for index, value in enumerate(values)
    ] + [Document("lambada", 0, "ab", "text", {"perplexity": 3.0}, [])]
    return [
        keep(files, cell, "test_loss", WINDOWS, pack_windows(windows)),
        keep(files, cell, "downstream", DOCUMENTS, pack_documents(lines)),
    ]


@pytest.fixture
def measured(tiny_plan: Plan, stored: Any, tmp_path: Path) -> Callable[..., pd.DataFrame]:
    """Write all cells but some, and return the comparisons."""

    def measure(
        plan: Plan = tiny_plan, without: int | None = None, own_windows: bool = False
    ) -> pd.DataFrame:
        files = stored(plan, tmp_path)
        for index, cell in enumerate(plan.cells.values()):
            if index != without:
                write_cell(
                    files, cell, np.arange(N_WINDOWS) + 1000 * cell.seed if own_windows else None
                )
        return typed_frame(compare_text(layout_of(plan).all_groups, tmp_path), STATISTIC.columns)

    return measure


@pytest.mark.parametrize(("gap", "p", "reason"), [(0.0, 1, ""), (0.25, math.nan, NO_SPREAD)])
def test_documents_that_differ_alike_have_no_test(gap, p, reason):
    """Scores of four documents, as a task has them that is scored by a probability."""
    ours, theirs = np.array([0.75, 0.5, 0.625, 0.875]), np.array([0.75, 0.5, 0.625, 0.875]) - gap
    task, mean = _documents([{"mc2": (ours, theirs)}])
    for found in (task, mean):
        assert found["difference"] == gap
        assert (found["p_value"], found["reason"]) == (pytest.approx(p, nan_ok=True), reason)
        assert math.isnan(found["low"]) and math.isnan(found["high"])


def row(frame: pd.DataFrame, seed: str, task: str) -> dict[str, Any]:
    (found,) = frame[(frame["seed"] == seed) & (frame["task"] == task)].to_dict("records")
    return found


def sides(plan: Plan, seed: int) -> tuple[Cell, Cell]:
    cells = {(cell.optimizer.key, cell.seed): cell for cell in plan.cells.values()}
    return cells["coupled_adam", seed], cells["adamw", seed]


def test_every_seed_by_independent_formulas(tiny_plan, measured):
    frame = measured()
    assert list(frame.columns) == list(STATISTIC.columns)
    assert len(frame) == 4 * (
        1 + 4
    )  # three seeds and all of them: the windows, three tasks and their average
    assert set(frame["reference"]) == {"adamw"}
    assert set(frame["reason"]) == {""}
    for seed in (1, 2, 3):
        (ours, our_right), (theirs, their_right) = map(drawn, sides(tiny_plan, seed))
        loss = row(frame, str(seed), "test")
        assert (loss["unit"], loss["metric"], loss["n"]) == ("held-out documents", "loss", 15)
        assert (loss["mean"], loss["mean_reference"]) == pytest.approx((ours.mean(), theirs.mean()))
        assert loss["difference"] == pytest.approx((ours - theirs).mean())
        of_documents = [(ours - theirs)[document == HELD_OUT].mean() for document in range(15)]
        assert (loss["n_better"], loss["n_worse"]) == (
            sum(np.array(of_documents) < 0),
            sum(np.array(of_documents) > 0),
        )
        lengths = np.bincount(HELD_OUT)
        left_out = [np.mean((ours - theirs)[document != HELD_OUT]) for document in range(15)]
        jackknife = math.sqrt(14 / 15 * sum((np.array(left_out) - loss["difference"]) ** 2))
        df = of_held_out(np.array(of_documents), lengths).df
        assert loss["high"] - loss["difference"] == pytest.approx(
            stats.t.isf(0.025, df) * jackknife
        )
        assert loss["p_value"] == pytest.approx(
            2 * stats.t.sf(abs(loss["difference"]) / jackknife, df)
        )
        for task in ("race", HOSTILE):
            a, b = our_right[task], their_right[task]
            found = row(frame, str(seed), task)
            discordant = int((a > b).sum()), int((a < b).sum())
            assert (found["n_better"], found["n_worse"]) == discordant
            assert found["p_value"] == pytest.approx(
                stats.binomtest(discordant[0], sum(discordant)).pvalue
            )
            assert (found["test"], found["n"]) == ("McNemar", N_DOCUMENTS)
        between = row(frame, str(seed), "mc2")
        expected = stats.ttest_rel(our_right["mc2"], their_right["mc2"])
        assert (between["test"], between["p_value"]) == (
            "paired t-test",
            pytest.approx(expected.pvalue),
        )
        average = row(frame, str(seed), "average")
        differences = [our_right[task] - their_right[task] for task in our_right]
        assert average["difference"] == pytest.approx(
            np.mean([each.mean() for each in differences])
        )
        error = np.sqrt(sum(each.var(ddof=1) / N_DOCUMENTS for each in differences)) / 3
        assert average["high"] - average["difference"] == pytest.approx(1.98 * error, rel=0.01)


def test_over_seeds_each_document_and_window_counts_once(tiny_plan, measured):
    frame = measured()
    values = [[drawn(cell) for cell in sides(tiny_plan, seed)] for seed in (1, 2, 3)]
    race = np.mean([ours[1]["race"] - theirs[1]["race"] for ours, theirs in values], axis=0)
    found = row(frame, "all", "race")
    assert (found["n"], found["test"]) == (N_DOCUMENTS, "paired t-test")
    assert found["p_value"] == pytest.approx(stats.ttest_1samp(race, 0).pvalue)
    windows = np.mean([ours[0] - theirs[0] for ours, theirs in values], axis=0)
    lengths = np.bincount(HELD_OUT)
    expected = of_held_out(np.bincount(HELD_OUT, windows) / lengths, lengths)
    found = row(frame, "all", "test")
    assert (found["n"], found["p_value"]) == (15, pytest.approx(expected.p_value))
    assert (found["low"], found["high"]) == pytest.approx(expected.interval)


def test_windows_of_their_own_for_each_seed_are_of_the_same_documents(tiny_plan, measured):
    frame = measured(own_windows=True)
    found = row(frame, "all", "test")
    singles = [row(frame, str(seed), "test") for seed in (1, 2, 3)]
    assert found["n"] == 15
    for name in ("mean", "mean_reference", "difference"):
        assert found[name] == pytest.approx(np.mean([single[name] for single in singles]))
    pd.testing.assert_frame_equal(
        frame, measured()
    )  # these documents have the same losses as all windows


def test_what_is_missing_is_a_gap_with_its_reason(tiny_plan, measured):
    frame = measured(without=1)  # adamw, seed 2
    for task in ("test", "average"):
        gap = row(frame, "2", task)
        assert "no such file" in gap["reason"]
        assert np.isnan(gap["difference"])
        assert gap["n"] == 0
        assert row(frame, "all", task)["reason"] == "seed 2: not there"
        assert row(frame, "3", task)["reason"] == ""


def test_evaluations_without_files_and_diverged_cells_are_gaps(
    tiny_plan, stored, measured, tmp_path
):
    measured()
    files = stored(tiny_plan, tmp_path)
    cells = list(tiny_plan.cells)
    files.evaluation(cells[0], "downstream", [])
    files.run(cells[1], status="diverged")
    for stage in ("test_loss", "downstream"):
        files.evaluation(cells[1], stage, [])
    frame = typed_frame(compare_text(layout_of(tiny_plan).all_groups, tmp_path), STATISTIC.columns)
    assert "no documents with acc" in row(frame, "1", "average")["reason"]
    assert row(frame, "1", "test")["reason"] == ""
    assert "has diverged" in row(frame, "2", "test")["reason"]
    assert "it has diverged" in row(frame, "2", "average")["reason"]


def test_other_documents_and_damaged_files_are_gaps(tiny_plan, stored, measured, tmp_path):
    measured()
    files = stored(tiny_plan, tmp_path)
    first, second, *_ = tiny_plan.cells.values()
    keep(
        files,
        first,
        "downstream",
        DOCUMENTS,
        pack_documents([Document("race", 9, "ff", 0, {"acc": 1.0}, [])]),
    )
    write_cell(files, second)[0].write_bytes(b"damaged")
    frame = typed_frame(compare_text(layout_of(tiny_plan).all_groups, tmp_path), STATISTIC.columns)
    assert "documents of" in row(frame, "1", "average")["reason"]
    assert "but its evaluation says" in row(frame, "2", "test")["reason"]


def test_one_seed_has_no_line_over_seeds_and_a_gap_needs_no_other(tiny_study, measured):
    settings = tiny_study()
    settings["grid"][0] |= {"table": "table2", "seeds": [7]}
    frame = measured(make_plan(parse_study(settings)))
    assert set(frame["seed"]) == {"7"}
    assert len(frame) == 5
