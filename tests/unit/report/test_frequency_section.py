"""The section on frequency bands, logits and long rows."""

import math
from typing import Any

from sections import tables_of

from coupled_adam_bench.page.formats import difference_with_interval
from coupled_adam_bench.report.frequency import SECTION
from coupled_adam_bench.results.collect import results_frame
from coupled_adam_bench.results.groups import layout_of
from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.statistics.decisions import decide
from coupled_adam_bench.statistics.declared import Material
from coupled_adam_bench.study.catalogue.bands import BANDS
from coupled_adam_bench.study.catalogue.metrics import METRICS, Metric
from coupled_adam_bench.study.plan import Plan, make_plan
from coupled_adam_bench.study.plan.cells import Cell
from coupled_adam_bench.study.settings import parse_study

GAINS = {1: 0.25, 2: 0.5, 3: 0.75}


def value_of(cell: Cell, metric: Metric) -> float:
    """Coupled Adam is better by 0.25 times the seed in every band, and only Adam has a few long
    rows."""
    gain = GAINS[cell.seed] if cell.optimizer.name == "coupled_adam" else 0.0
    if metric.name.startswith("loss_"):
        return 7.0 + 0.125 * cell.seed - gain
    if "calibration" in metric.name:
        return -1.0 + gain
    if metric.name == "isotropy":
        return 0.01 if cell.optimizer.name == "adamw" else 0.9
    return 0.9 if metric.name == "isotropy_trimmed" else 2.0


def study_of(
    plan: Plan, value: Any = value_of, left_out: frozenset[str] = frozenset()
) -> StudyResults:
    rows = [
        (cell, metric.task, metric.name, value(cell, metric), metric.unit)
        for cell in plan.cells.values()
        for metric in METRICS.values()
        if metric.name not in left_out
    ]
    return StudyResults(layout_of(plan), results_frame(plan, rows))


def material_of(study: StudyResults, tmp_path: Any) -> Material:
    return Material(study, tmp_path, tmp_path)


def test_values_differences_and_long_rows(tiny_plan, tmp_path):
    material = material_of(study_of(tiny_plan), tmp_path)
    bands, matrix = tables_of(SECTION, material)
    assert [line[0] for line in bands[::2]] == [band.label for band in BANDS]
    for adam, coupled in zip(bands[::2], bands[1::2], strict=True):
        assert adam[2:] == ["7.25 (12)", "", "\u22121.00 (0)", "", "\u22121.00 (0)", ""]
        # Mean 0.5 and standard deviation 0.25 over three seeds: +-4.3027 x 0.25 / sqrt(3) = +-0.62.
        gain = "0.50 [\u22120.12, 1.12]"
        assert coupled[3::2] == ["\u22120.50 [\u22121.12, 0.12]", gain, gain]
    assert [[line[0], *line[-2:]] for line in matrix] == [
        ["Adam", "0.01 (0)", "0.90 (0)"],
        ["Coupled Adam", "0.90 (0)", "0.90 (0)"],
    ]


def test_a_missing_seed_is_a_gap(tiny_plan, tmp_path):
    lost = next(
        cell.id for cell in tiny_plan.cells.values() if cell.optimizer.name == "coupled_adam"
    )
    study = study_of(
        tiny_plan, lambda cell, metric: math.nan if cell.id == lost else value_of(cell, metric)
    )
    assert tables_of(SECTION, material_of(study, tmp_path))[0][1][2:] == ["-"] * 6


def test_equal_differences_have_no_interval(tiny_plan, tmp_path):
    """Three equal differences have no spread: an interval of dashes would say nothing."""

    def value(cell: Cell, metric: Metric) -> float:
        return 7.0 + 0.125 * cell.seed - 0.5 * (cell.optimizer.name == "coupled_adam")

    bands, _ = tables_of(SECTION, material_of(study_of(tiny_plan, value), tmp_path))
    assert bands[1][3::2] == ["\u22120.50"] * 3


def test_a_difference_of_the_section_is_that_of_the_decision(tiny_plan, tmp_path):
    study = decide(study_of(tiny_plan))
    (group, *_) = study.layout.groups["table1"]
    found = study.at(group, "loss_rarest")["coupled_adam"].against["adamw"]
    text = difference_with_interval(found.difference, found.low, found.high, 2)
    assert tables_of(SECTION, material_of(study, tmp_path))[0][1][3] == text


def test_one_seed_has_a_difference_without_an_interval(tiny_study, tmp_path):
    block = tiny_study()["grid"][0] | {"table": "table2", "seeds": [2]}
    study = study_of(make_plan(parse_study(tiny_study(grid=[block]))))
    assert tables_of(SECTION, material_of(study, tmp_path))[0][1][3] == "\u22120.50"


def test_results_of_before_have_no_section(tiny_plan, tmp_path):
    banded = frozenset(
        name for name in METRICS if name.startswith("loss_") or "calibration" in name
    )
    assert not list(SECTION.blocks(material_of(study_of(tiny_plan, left_out=banded), tmp_path)))
