"""Comparisons: who wins, from made-up runs, and a real one that is stopped and goes on."""

import math
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.random import default_rng
from pandas import DataFrame
from scipy import stats
from statsmodels.stats.multitest import multipletests

from coupled_adam_bench import compare
from coupled_adam_bench.study.optimizers import Optimizer
from coupled_adam_bench.tools.compare import (
    COLUMNS,
    RATES,
    _at_rate,
    _choose,
    _divergences,
    _losses,
    _table,
    _tests,
    _verdict,
)
from coupled_adam_bench.tools.start import environment


def runs(**losses: list[float | None]) -> DataFrame:
    """Return runs with these losses by optimizer, ``None`` where one has diverged."""
    rows = []
    for label, values in losses.items():
        for seed, loss in enumerate(values, 1):
            numbers = dict.fromkeys(COLUMNS, math.nan if loss is None else loss)
            status = "diverged" if loss is None else "completed"
            place = {"optimizer": label, "rate": 0.25, "seed": seed, "status": status, "step": 31}
            rows.append(place | numbers)
    return DataFrame(rows)


def winner(found: DataFrame, *at_edge: str) -> str | None:
    return _verdict(_losses(found), "A", set(at_edge))[0]


A = [5.0, 5.01, 5.02]
BETTER = [4.9, 4.911, 4.92]
NOISE = [5.05, 4.9, 5.02]


@pytest.mark.parametrize(
    ("losses", "won"),
    [
        ({"A": A, "B": BETTER}, "B"),
        ({"A": BETTER, "B": A}, "A"),
        ({"A": A, "B": NOISE}, None),
        ({"A": A, "B": A}, None),
        ({"A": A, "B": [4.9, 4.91, 4.92]}, None),  # the difference has no spread
        ({"A": A[:1], "B": BETTER[:1]}, None),
        ({"A": A, "B": BETTER, "C": [4.9, 4.93, 4.9]}, None),  # B and C are not told apart
        ({"A": A, "B": BETTER, "C": [5.1, 5.112, 5.12]}, "B"),
        ({"A": A, "B": [4.9, None, 4.92]}, None),
        ({"A": [5.0, None, 5.02], "B": BETTER, "C": A}, None),
    ],
)
def test_a_winner_is_better_than_each_other_one(losses: Any, won: str | None) -> None:
    assert winner(runs(**losses)) == won
    assert winner(runs(**losses), "B") is None  # while an edge stands


def test_the_tests_are_paired_and_corrected() -> None:
    draw = default_rng(3)
    losses = {label: draw.normal(5, 0.05, 4) for label in "ABCD"}
    tests = _tests(_losses(runs(**{label: list(values) for label, values in losses.items()})), "A")
    found = [stats.ttest_rel(losses[label], losses["A"]) for label in "BCD"]
    p_holm = multipletests([each.pvalue for each in found], method="holm")[1]
    intervals = np.array([each.confidence_interval() for each in found])
    assert [*tests.index] == ["B", "C", "D"]
    np.testing.assert_allclose(tests["p_holm"], p_holm, rtol=1e-9)
    np.testing.assert_allclose(tests[["low", "high"]], intervals, rtol=1e-9)


def test_a_divergence_has_its_step_rate_and_seed() -> None:
    (said,) = _divergences(runs(A=A, B=[5.0, None]))
    assert all(word in said for word in ("B", "31", "0.25", "seed 2"))
    table = _table(runs(A=A, B=[5.0, None, 5.0]), {"A"}).splitlines()
    assert "5.010 ± 0.010" in table[1] and "edge" in table[1] and "nan" not in "".join(table)


class Landscape:
    """Stands for a study: the loss is lowest at a rate that each optimizer has of its own."""

    def __init__(self, **best: float) -> None:
        self.best, self.tried = best, set[tuple[str, float]]()

    def run(self, _: Any, grid: list[tuple[str, float]], seeds: list[int], split: str) -> DataFrame:
        assert (seeds, split) == ([11], "val")
        self.tried |= set(grid)
        losses = [
            math.nan if label == "fragile" and rate > 1 else abs(math.log2(rate / self.best[label]))
            for label, rate in grid
        ]
        return DataFrame(grid, columns=["optimizer", "rate"]).assign(loss=losses)


def test_a_given_name_tells_its_rates_apart() -> None:
    entries = [_at_rate({"name": "adamw", "label": "Mine"}, rate) for rate in RATES]
    assert len({Optimizer(**entry).names()[1] for entry in entries}) == len(RATES)


def test_a_rate_beyond_the_edge_is_tried_twice_at_most() -> None:
    landscape = Landscape(inside=5, low=0.3, high=70, beyond=9999, fragile=0.3)
    rules: dict[str, Any] = dict.fromkeys(landscape.best)
    chosen, at_edge, _ = _choose(landscape, rules, list(RATES))  # type: ignore[arg-type]
    assert chosen == {"inside": 4, "low": 0.25, "high": 64, "beyond": 256, "fragile": 0.25}
    assert at_edge == {"beyond"}
    rates = {label: {rate for each, rate in landscape.tried if each == label} for label in rules}
    assert rates["inside"] == {1, 4, 16}
    assert rates["low"] == rates["fragile"] == {1 / 16, 0.25, 1, 4, 16}
    assert rates["high"] == rates["beyond"] == {4, 16, 64, 256}


OWN = """
import torch

class Fine(torch.optim.AdamW):
    pass

class Wrong:
    pass
"""


@pytest.mark.parametrize(
    ("optimizers", "named"),
    [
        ("adamw", "optimizers"),
        (["adamw"], "optimizers"),
        (["adamw", "adamww"], "adamw"),
        (["adamw", "{name: adamw, beta2: 3}"], "beta2"),
        (["adamw", "{name: adamw"], "YAML"),
        (["adamw", "nowhere.Fine"], "nowhere"),
        (["adamw", "own.Wrong"], "own.Wrong"),
        (["adamw", type("Mine", (), {"__module__": "__main__"})], "Mine"),
    ],
)
def test_what_is_no_optimizer_is_refused_before_anything_runs(
    home: Path, optimizers: Any, named: str
) -> None:
    (home / "own.py").write_text(OWN)
    with pytest.raises(ValueError, match=named) as refused:
        compare(optimizers)
    assert refused.value.__cause__ is None
    assert not (home / "results/runs").exists()


def test_a_stopped_comparison_goes_on(home: Path) -> None:
    (home / "own.py").write_text(OWN)
    own = "{name: custom, path: own.Fine, key: fine, arguments: {betas: [0.9, 0.95]}}"
    command = [sys.executable, "-m", "coupled_adam_bench", "compare", "adamw", own]
    command += ["--rates", "1", "--seeds", "1", "--tokens", "40K"]
    with subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE) as process:
        while process.poll() is None and not [*home.glob("results/runs/*/history.jsonl")]:
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        process.communicate()
    assert process.returncode == 130
    assert not [*home.glob("results/runs/*/run.json")]

    found = compare(["adamw", own], [1], 1, tokens="40K")
    assert found.runs["optimizer"].tolist() == ["Adam", "fine"]
    assert found.runs[[*COLUMNS]].notna().all(axis=None)
    # The same rule, but not the fused one: the losses differ by rounding.
    assert found.runs["loss"].iloc[0] == pytest.approx(found.runs["loss"].iloc[1], abs=2e-3)
    assert found.winner is None
    assert math.isnan(found.tests["p_holm"].item())
