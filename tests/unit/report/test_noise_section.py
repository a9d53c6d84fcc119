import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coupled_adam_bench.report.figures.sizes import noise
from coupled_adam_bench.report.noise import noise_section, root
from coupled_adam_bench.report.render import html_environment
from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.statistics.noise import noise_rows, write_noise_rows
from coupled_adam_bench.study.catalog.metrics import Metric
from coupled_adam_bench.study.cells import Cell
from coupled_adam_bench.study.config import parse_study
from coupled_adam_bench.study.plan import Plan, make_plan

TEMPLATES = Path(__file__).parents[3] / "templates"
Results = Callable[[Plan, Callable[[Cell, Metric], float]], StudyResults]


def value(cell: Cell, metric: Metric) -> float:
    if metric.name == "isotropy":
        return math.nan if cell.seed == 2 else 0.5
    return 0.5 + 0.1 * cell.seed + 0.02 * cell.data_seed**2 + 0.003 * ((cell.seed * cell.data_seed) % 2)


@pytest.fixture
def study(tiny_study: Any, results_of: Results, tmp_path: Path) -> StudyResults:
    settings = tiny_study()
    settings["models"][0]["label"] = "<script>$x_1$ & 5 %"
    crossed = {"table": None, "seeds": [1, 2], "data_seeds": [1, 2, 3], "optimizers": ["adamw"]}
    settings["grid"].append(settings["grid"][0] | crossed)
    found = results_of(make_plan(parse_study(settings)), value)
    sampled = {(cell, "loss"): 0.0025 for cell in found.plan.cells}
    write_noise_rows(noise_rows(found, sampled), tmp_path / "noise.csv")
    return found


def test_the_parts_of_every_group(study: StudyResults, tmp_path: Path) -> None:
    found = noise_section(study, tmp_path / "noise.csv")
    assert found is not None
    assert found.crossed
    assert [group[1:3] for group in found.groups] == [
        ("Adam", "3 seeds"), ("Coupled Adam", "3 seeds"), ("Adam", "2 seeds x 3 orders"),
    ]  # fmt: skip
    loss = found.groups[2][3][:4]
    assert [row.source for row in loss] == ["initial weights", "order of the data", "rest", "evaluation"]
    shares = [float(row.share.rstrip("%")) for row in loss[:3]]
    assert sum(shares) == pytest.approx(100, abs=1)
    assert (loss[3].sd, loss[3].interval, loss[3].share) == ("0.05", "-", "-")
    missing = next(row for row in found.groups[0][3] if row.metric and row.metric.name == "isotropy")
    assert (missing.sd, missing.reason) == ("-", "1 of 3 values missing")


def test_the_page_escapes_names(study: StudyResults, tmp_path: Path) -> None:
    noise = noise_section(study, tmp_path / "noise.csv")
    html = html_environment(TEMPLATES).get_template("noise.html.j2").render(noise=noise, plan=study.plan)
    assert "<script>" not in html
    assert "Where a block of the grid crosses" in html


def test_without_crossed_seeds_the_section_says_so(tiny_plan: Plan, results_of: Results, tmp_path: Path) -> None:
    study = results_of(tiny_plan, value)
    write_noise_rows(noise_rows(study, {}), tmp_path / "noise.csv")
    noise = noise_section(study, tmp_path / "noise.csv")
    html = html_environment(TEMPLATES).get_template("noise.html.j2").render(noise=noise, plan=study.plan)
    assert "their parts cannot be told apart" in html
    assert noise_section(study, tmp_path / "nowhere.csv") is None


def test_an_estimate_below_zero_is_said() -> None:
    assert root(-1.0) == 0.0
    assert root(4.0) == 2.0
    assert math.isnan(root(math.nan))


def test_the_figure_has_a_point_for_every_part(study: StudyResults, tmp_path: Path, drawn_from: Any) -> None:
    figure = noise(drawn_from(study.plan, Path(), study, tmp_path))
    assert len(figure.axes) == 4
    figure.savefig(tmp_path / "noise.svg")  # hostile labels are printed, not read
    labels = {name for ax in figure.axes for name in ax.get_legend_handles_labels()[1]}
    assert labels == {"seeds", "initial weights", "order of the data", "rest", "evaluation"}
    assert not any(ax.has_data() for ax in noise(drawn_from(study.plan, Path(), study, tmp_path / "none")).axes)
