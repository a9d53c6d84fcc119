import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sections import html_of, tables_of

from coupled_adam_bench.report.figures.sizes import noise
from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.statistics.declared import Material
from coupled_adam_bench.statistics.noise import STATISTIC, root
from coupled_adam_bench.study.catalog.metrics import Metric
from coupled_adam_bench.study.cells import Cell
from coupled_adam_bench.study.config import parse_study
from coupled_adam_bench.study.plan import Plan, make_plan

Results = Callable[[Plan, Callable[[Cell, Metric], float]], StudyResults]


def value(cell: Cell, metric: Metric) -> float:
    if metric.name == "isotropy":
        return math.nan if cell.seed == 2 else 0.5
    return 0.5 + 0.1 * cell.seed + 0.02 * cell.data_seed**2 + 0.003 * ((cell.seed * cell.data_seed) % 2)


@pytest.fixture
def material(tiny_study: Any, results_of: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Material:
    settings = tiny_study()
    settings["models"][0]["label"] = "<script>$x_1$ & 5 %"
    crossed = {"table": None, "seeds": [1, 2], "data_seeds": [1, 2, 3], "optimizers": ["adamw"]}
    settings["grid"].append(settings["grid"][0] | crossed)
    found = results_of(make_plan(parse_study(settings)), value)
    sampled = {(cell, "loss"): 0.0025 for cell in found.plan.cells}
    monkeypatch.setattr("coupled_adam_bench.statistics.noise.sampling_variances", lambda *_: sampled)
    return Material(found, tmp_path / "runs", tmp_path)


def test_the_parts_of_every_group(material: Material) -> None:
    (lines,) = tables_of(STATISTIC, material)
    loss = [line for line in lines if line[0].endswith("2 seeds x 3 orders")][:4]
    assert [line[2] for line in loss] == ["initial weights", "order of the data", "rest", "evaluation"]
    assert sum(float(line[6].rstrip("%")) for line in loss[:3]) == pytest.approx(100, abs=1)
    assert (loss[3][3], loss[3][4], loss[3][6]) == ("0.05", "-", "-")
    assert ["-", "1 of 3 values missing"] in [[line[3], line[-1]] for line in lines]


def test_the_page_escapes_names(material: Material) -> None:
    html = html_of(STATISTIC, material)
    assert "<script>" not in html
    assert "Where a block of the grid crosses" in html


def test_without_crossed_seeds_the_section_says_so(tiny_plan: Plan, results_of: Results, tmp_path: Path) -> None:
    html = html_of(STATISTIC, Material(results_of(tiny_plan, value), tmp_path / "runs", tmp_path))
    assert "their parts cannot be told apart" in html


def test_an_estimate_below_zero_is_said() -> None:
    assert root(-1.0) == 0.0
    assert root(4.0) == 2.0
    assert math.isnan(root(math.nan))


def test_the_figure_has_a_point_for_every_part(material: Material, tmp_path: Path) -> None:
    figure = noise(material)
    assert len(figure.axes) == 4
    figure.savefig(tmp_path / "noise.svg")  # hostile labels are printed, not read
    labels = {name for ax in figure.axes for name in ax.get_legend_handles_labels()[1]}
    assert labels == {"seeds", "initial weights", "order of the data", "rest", "evaluation"}
