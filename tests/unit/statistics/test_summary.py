import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from coupled_adam_bench.statistics import summary
from coupled_adam_bench.statistics.declared import Material
from coupled_adam_bench.statistics.summary import STATISTIC, improvement, summary_rows
from coupled_adam_bench.study.catalog.metrics import METRICS
from coupled_adam_bench.study.catalog.tables import PAPER_COLUMNS
from coupled_adam_bench.study.config import parse_study
from coupled_adam_bench.study.plan import Plan, make_plan


@pytest.mark.parametrize("shape", [(3, 3), (5, 2), (1, 4)])
def test_improvement_is_mann_and_whitneys_u(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(1)
    first, second = (rng.integers(0, 4, size=n).astype(float) for n in shape)  # with ties
    u = stats.mannwhitneyu(first, second).statistic
    assert improvement(first, second, True) == pytest.approx(u / math.prod(shape))
    assert improvement(first, second, False) == pytest.approx(1 - u / math.prod(shape))
    assert improvement(first, first, True) == pytest.approx(0.5)


def value(cell: Any, metric: Any) -> float:
    rng = np.random.default_rng([cell.seed, cell.steps, len(cell.optimizer.key), len(metric.name)])
    return float(rng.normal() + (cell.optimizer.key == "coupled_adam") + cell.steps / 60)


@pytest.fixture
def plan(tiny_study: Callable[..., dict[str, Any]]) -> Plan:
    """Two blocks, the second with one seed more."""
    block = {"table": "table1", "models": ["nano"], "optimizers": ["adamw", "coupled_adam"]}
    grid = [block | {"tokens": [{"steps": 60}]}, block | {"tokens": [{"steps": 120}], "seeds": [1, 2, 3, 4]}]
    return make_plan(parse_study(tiny_study(grid=grid)))


def summarized(study: Any) -> pd.DataFrame:
    return STATISTIC.frame(summary_rows(study))


def found(frame: pd.DataFrame, metric: str) -> dict[str, Any]:
    (row,) = frame[frame["metric"] == metric].to_dict("records")
    return row


def test_over_blocks_by_independent_formulas(plan: Plan, results_of: Any) -> None:
    frame = summarized(results_of(plan, value))
    assert list(frame.columns) == list(STATISTIC.columns)
    assert len(frame) == len(PAPER_COLUMNS)
    for name in ("loss", "acc"):
        samples: dict[tuple[str, int], list[float]] = {}
        for cell in plan.cells.values():
            samples.setdefault((cell.optimizer.key, cell.steps), []).append(value(cell, METRICS[name]))
        ours = {steps: values for (key, steps), values in samples.items() if key == "coupled_adam"}
        better = [
            stats.mannwhitneyu(samples["coupled_adam", steps], samples["adamw", steps]).statistic
            / len(ours[steps]) ** 2
            for steps in (60, 120)
        ]
        row = found(frame, name)
        assert (row["optimizer"], row["reference"], row["n_groups"], row["n_values"]) == (
            "coupled_adam",
            "adamw",
            2,
            14,
        )
        assert row["value"] == pytest.approx(np.mean(better) if name == "acc" else 1 - np.mean(better))
        assert 0 <= row["low"] <= row["value"] <= row["high"] <= 1


def test_resamples_stay_within_their_block(plan: Plan, results_of: Any) -> None:
    """The interval is that of an enumeration in which each block is resampled alone."""
    frame = summarized(results_of(plan, value))
    samples: dict[tuple[str, int], list[float]] = {}
    for cell in plan.cells.values():
        samples.setdefault((cell.optimizer.key, cell.steps), []).append(value(cell, METRICS["loss"]))
    rng = np.random.default_rng(5)
    resamples = {key: list(itertools.product(values, repeat=len(values))) for key, values in samples.items()}
    means = []
    for _ in range(2000):
        drawn = {key: np.array(every[rng.integers(len(every))]) for key, every in resamples.items()}
        means.append(np.mean([improvement(drawn["coupled_adam", n], drawn["adamw", n], False) for n in (60, 120)]))
    row = found(frame, "loss")
    assert (row["low"], row["high"]) == pytest.approx(np.quantile(means, [0.025, 0.975]).tolist(), abs=0.05)


def test_many_values_are_resampled_in_parts(plan: Plan, results_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = summarized(results_of(plan, value))
    pd.testing.assert_frame_equal(whole, summarized(results_of(plan, value)))
    monkeypatch.setattr(summary, "_VALUES_AT_ONCE", 700)
    parts = summarized(results_of(plan, value))
    assert (parts[["low", "high"]] != whole[["low", "high"]]).any(axis=None)
    assert (parts["low"] - whole["low"]).abs().median() < 0.05


def test_missing_values_and_single_runs(plan: Plan, tiny_study: Any, results_of: Any) -> None:
    def lacking(cell: Any, metric: Any) -> float:
        gone = cell.optimizer.key == "adamw" and cell.seed == 2 and metric.name == "loss"
        return math.nan if gone else value(cell, metric)

    frame = summarized(results_of(plan, lacking))
    row = found(frame, "loss")
    assert math.isnan(row["value"])
    assert row["reason"] == "adamw: 2 of 7 values missing"
    assert found(frame, "acc")["reason"] == ""
    settings = tiny_study()
    settings["grid"][0] |= {"table": "table2", "seeds": [1]}
    single = summarized(results_of(make_plan(parse_study(settings)), value))
    assert set(single["reason"]) == {"no interval: a group has one run"}
    assert single["value"].notna().all()
    assert single["low"].isna().all()


def test_file_comes_back_as_it_was(plan: Plan, results_of: Any, tmp_path: Path) -> None:
    material = Material(results_of(plan, value), study_dir=tmp_path)
    material.write(STATISTIC)
    written = STATISTIC.read(tmp_path / "summary.csv")
    pd.testing.assert_frame_equal(written, material.frame(STATISTIC), check_exact=True)
