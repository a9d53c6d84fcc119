"""Every number that an evaluation may have passes through the statistics and into print."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from research.plugins.speedup import Flips, Speedup
from research.plugins.trend import Growth

from coupled_adam_bench.records.stored import LARGEST, is_usable
from coupled_adam_bench.report.contents import statistics_of
from coupled_adam_bench.report.render import markdown, render_html, render_latex
from coupled_adam_bench.report.table import build_tables
from coupled_adam_bench.results.collect import read_results
from coupled_adam_bench.results.tidy import write_csv
from coupled_adam_bench.statistics.decisions import decide
from coupled_adam_bench.statistics.declared import Material
from coupled_adam_bench.statistics.plug_ins import declared_as
from coupled_adam_bench.study.catalogue.metrics import Metric
from coupled_adam_bench.study.plan import Plan, make_plan
from coupled_adam_bench.study.plan.cells import Cell
from coupled_adam_bench.study.settings import parse_study

TEMPLATES = Path(__file__).parents[3] / "templates"
OF_RESULTS = ("tests.csv", "paired.csv", "power.csv")
"""The statistics that are computed from results alone, along with those of plug-ins."""
PLUG_INS = (Growth, Speedup, Flips)


@pytest.fixture
def plan(tiny_study: Callable[..., dict]) -> Plan:
    grid = tiny_study()["grid"][0] | {
        "tokens": [{"steps": 20}, {"steps": 40}, {"steps": 80}],
        "seeds": [1, 2, 3],
    }
    return make_plan(parse_study(tiny_study(grid=[grid])))


@pytest.mark.parametrize("size", [LARGEST, 1e-320])
@pytest.mark.parametrize("kind", ["constant", "drawn"])
def test_statistics_and_tables_of_the_largest_numbers(plan, results_of, kind, size):
    draws = np.random.default_rng(0)

    def value(cell: Cell, metric: Metric) -> float:
        return size if kind == "constant" else size * draws.choice([-1.0, 0.5, 1.0])

    study = results_of(plan, value)
    study = decide(study)
    material = Material(study)
    for statistic in statistics_of(plan):
        if statistic.file in OF_RESULTS:
            material.frame(statistic)
    for plug_in in PLUG_INS:
        material.frame(declared_as(plug_in.__name__, plug_in()))
    for table in build_tables(study):
        for cell in (cell for row in table.rows for cell in row.cells):
            assert len(cell.text) < 30, cell.text
        for text in (
            render_latex(table, TEMPLATES),
            render_html(table, TEMPLATES),
            markdown(table),
        ):
            assert ("e+70" in text or "e+69" in text) == (size == LARGEST)


@pytest.mark.fault(
    "results",
    "A file of results that somebody hands in has a number of 1e71, or infinity.",
    "It is refused with a sentence that names the row and the largest size.",
)
@pytest.mark.parametrize("large", [1e71, -1e304, float("inf")])
def test_results_that_cannot_be_used(plan, results_of, tmp_path, large):
    results = results_of(plan, lambda cell, metric: 1.0).results
    path = tmp_path / "results.csv"
    results.loc[3, "value"] = float("nan")
    write_csv(results, path)
    pd.testing.assert_frame_equal(read_results(path), results)
    results.loc[5, "value"] = large
    write_csv(results, path)
    with pytest.raises(
        ValueError,
        match=r"results\.csv: 1 values are not numbers of at most 1e\+70 in size, such as",
    ):
        read_results(path)


def test_what_is_usable():
    assert all(map(is_usable, (0.0, float("nan"), -1e70, 1e70, 5e-324)))
    assert not any(map(is_usable, (1.1e70, -1e71, float("inf"), -float("inf"))))
