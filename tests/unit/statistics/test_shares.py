"""Where a difference in loss lies, from evaluations whose bands are drawn, not measured."""

import math
from typing import Any

import numpy as np
import pytest
from coupled_adam_bench.study.catalogue.bands import NEVER_SEEN
from scipy import stats
from sections import tables_of

from coupled_adam_bench.statistics.declared import Material
from coupled_adam_bench.statistics.shares import LABELS, STATISTIC, WHOLE
from coupled_adam_bench.study.plan.cells import Cell

TARGETS = dict(zip(LABELS, (3, 7, 90, 400, 500), strict=True))


def losses_of(cell: Cell) -> dict[str, float]:
    """The loss of each band in a cell."""
    rng = np.random.default_rng([cell.seed, len(cell.optimizer.key)])
    return dict(zip(LABELS, 3 + rng.random(len(LABELS)), strict=True))


def write_cell(files: Any, cell: Cell, targets: dict[str, int] = TARGETS) -> None:
    losses = losses_of(cell)
    bands = [
        {"band": band, "targets": n, "loss": losses[band] if n else None}
        for band, n in targets.items()
    ]
    loss = sum(targets[band] * losses[band] for band in LABELS) / sum(targets.values())
    files.run(cell.id)
    files.evaluation(cell.id, "test_loss", [("test", "loss", loss, "nat/token")], bands=bands)


@pytest.fixture
def material(tiny_plan, stored, results_of, tmp_path):
    """Write all cells but some, and return what the statistic is made of."""

    def write(without: int | None = None, targets: dict[str, int] = TARGETS) -> Material:
        files = stored(tiny_plan, tmp_path)
        for index, cell in enumerate(tiny_plan.cells.values()):
            if index != without:
                write_cell(files, cell, targets)
        return Material(results_of(tiny_plan, lambda *_: 1.0), tmp_path, tmp_path)

    return write


def test_the_bands_sum_to_the_whole_and_are_the_differences_of_pairs_of_a_seed(material, tiny_plan):
    rows = {row["band"]: row for row in material().rows(STATISTIC)}
    assert list(rows) == [WHOLE, *LABELS]
    parts = [rows[band] for band in LABELS]
    assert math.fsum(row["difference"] for row in parts) == pytest.approx(
        rows[WHOLE]["difference"], abs=1e-12
    )
    assert [row["tokens"] for row in parts] == [0.003, 0.007, 0.09, 0.4, 0.5]
    by_key: dict[str, list[dict[str, float]]] = {}
    for cell in tiny_plan.cells.values():
        by_key.setdefault(cell.optimizer.key, []).append(losses_of(cell))
    for band in LABELS:
        row, share = rows[band], TARGETS[band] / 1000
        pairs = zip(by_key["coupled_adam"], by_key["adamw"], strict=True)
        differences = [share * (ours[band] - theirs[band]) for ours, theirs in pairs]
        interval = stats.ttest_1samp(differences, 0).confidence_interval()
        assert row["n"] == 3
        assert row["difference"] == pytest.approx(np.mean(differences))
        assert (row["low"], row["high"]) == pytest.approx(tuple(interval))
        assert (row["optimizer"], row["reference"]) == ("coupled_adam", "adamw")


def test_a_band_without_tokens_adds_nothing_and_is_not_shown(material):
    found = material(targets=TARGETS | {NEVER_SEEN: 0})
    rows = {row["band"]: row for row in found.rows(STATISTIC)}
    assert (rows[NEVER_SEEN]["tokens"], rows[NEVER_SEEN]["difference"]) == (0, 0)
    ((line,),) = tables_of(STATISTIC, found)
    assert line[2:4] == ["Coupled Adam", "Adam"]
    assert len(line) == 4 + 1 + 4 + 1  # the place and the pair, the whole, four bands, the reason
    (all_bands,) = tables_of(STATISTIC, material())
    assert len(all_bands[0]) == len(line) + 1


@pytest.mark.fault(
    "results",
    "one of the runs that are compared by band is missing or damaged",
    "`shares.csv` has no numbers of the comparison, and the reason",
)
def test_a_missing_cell_is_a_gap_with_its_reason(material):
    (row,) = material(without=4).rows(STATISTIC)
    assert (row["band"], row["n"]) == (WHOLE, 0)
    assert math.isnan(row["difference"])
    assert "run.json" in row["reason"]


def test_a_study_without_runs_has_no_section(results_of, tiny_plan, tmp_path):
    found = Material(results_of(tiny_plan, lambda *_: 1.0), tmp_path / "runs", tmp_path)
    assert tables_of(STATISTIC, found) == []
