"""The figure of Adam's second moment along runs: what a history has, the longest runs of each
model."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib import rc_context

from coupled_adam_bench.report.figures import figures_of
from coupled_adam_bench.report.figures.histories import second_moment
from coupled_adam_bench.report.figures.style import RC
from coupled_adam_bench.study.plan import Plan, make_plan
from coupled_adam_bench.study.settings import parse_study


@pytest.fixture
def plan(tiny_study: Any) -> Plan:
    """A plan of one model, 20 and 40 steps, Adam and Coupled Adam, and two seeds."""
    settings = tiny_study()
    settings["execution"]["geometry_per_decade"] = 4
    settings["grid"][0] |= {"tokens": [{"steps": 20}, {"steps": 40}], "seeds": [1, 2]}
    return make_plan(parse_study(settings))


def write_histories(plan: Plan, runs: Path) -> None:
    """Write slopes of 1 / step, 10 % more for the second seed; some steps have no geometry."""
    for cell in plan.cells.values():
        rows: list[dict[str, float]] = [{"step": 7, "loss": 4.0}]
        for step in (1, 10, cell.steps):
            row = {"step": step, "loss": 4.0}
            if cell.optimizer.key == "adamw":
                row |= {
                    "moment_slope": (0.9 + 0.1 * cell.seed) / step,
                    "moment_exponent": 0.5,
                    "moment_r_squared": 0.9,
                }
            rows.append(row)
        (runs / cell.id).mkdir(parents=True)
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (runs / cell.id / "history.jsonl").write_text(text)


def test_a_line_is_the_longest_run_against_the_tokens_read(plan, tmp_path, drawn_from):
    write_histories(plan, tmp_path)
    with rc_context(RC):
        slope, exponent, r_squared = second_moment(drawn_from(plan, tmp_path)).axes
    training = next(iter(plan.cells.values())).training
    batch_tokens = training.batch_sequences * training.seq_len
    for ax, values in ((slope, [1.05, 0.105, 1.05 / 40]), (exponent, [0.5] * 3)):
        (line,) = ax.lines
        np.testing.assert_array_equal(line.get_xdata(), batch_tokens * np.array([1, 10, 40]))
        np.testing.assert_allclose(line.get_ydata(), values)
        assert len(ax.collections) == 1  # the band over both seeds
    assert (slope.get_yscale(), exponent.get_yscale()) == ("log", "linear")
    assert r_squared.get_xlabel() == "tokens read so far"


def test_only_a_study_that_measures_runs_of_adam_has_it(tiny_study, plan):
    assert "second_moment" in figures_of(plan)
    settings = tiny_study()
    assert "second_moment" not in figures_of(make_plan(parse_study(settings)))
    settings["execution"]["geometry_per_decade"] = 4
    settings["grid"][0] |= {"table": None, "optimizers": ["coupled_adam"]}
    assert "second_moment" not in figures_of(make_plan(parse_study(settings)))
