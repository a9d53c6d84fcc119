"""The section on embeddings changed after training: its values by hand, gaps, and when it is
there."""

import math
from collections.abc import Callable

from sections import html_of, tables_of

from coupled_adam_bench.report.treatments import TREATMENTS
from coupled_adam_bench.report.treatments import VARIANTS as SECTION
from coupled_adam_bench.results.collect import results_frame
from coupled_adam_bench.results.groups import layout_of
from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.statistics.declared import Material
from coupled_adam_bench.study.catalogue.metrics import METRICS
from coupled_adam_bench.study.plan import Plan
from coupled_adam_bench.study.plan.cells import Cell
from embedding_geometry.matrix import VARIANTS

TRAINED = {"isotropy": "embeddings", "r_bar": "word_similarity"}


def value_of(cell: Cell, task: str, metric: str) -> float:
    """Differ between optimizers, treatments and metrics; seeds are 1, 2 and 3."""
    kind = (
        10 * (cell.optimizer.name == "adamw") + list(TREATMENTS).index(task) + 1
        if task in TREATMENTS
        else 0
    )
    return (
        0.3 + 0.01 * kind + 0.02 * cell.seed
        if metric == "isotropy"
        else 40 + kind + 3 * cell.seed**2
    )


def material(
    plan: Plan, tasks: list[str], value: Callable[[Cell, str, str], float] = value_of
) -> Material:
    rows = [
        (cell, task, name, value(cell, task, name), METRICS[name].unit)
        for cell in plan.cells.values()
        for name, trained in TRAINED.items()
        for task in [trained, *tasks]
    ]
    return Material(StudyResults(layout_of(plan), results_frame(plan, rows)))


def test_the_treatments_are_those_of_the_evaluation():
    assert list(TREATMENTS) == list(VARIANTS)


def test_values_by_hand(tiny_plan):
    (lines,) = tables_of(SECTION, material(tiny_plan, list(TREATMENTS)))
    # Over seeds 1, 2, 3: the mean is 2 (sd 1), that of squares 14/3 (sd 4.04).
    expected = [
        [label, treatment, f"{0.34 + 0.01 * kind:.2f} (2)", f"{54 + kind} (12)"]
        for label, adam in (("Adam", 10), ("Coupled Adam", 0))
        for treatment, kind in [
            ("as trained", 0),
            *((name, adam + n) for n, name in enumerate(TREATMENTS.values(), 1)),
        ]
    ]
    assert lines == expected


def test_what_is_missing_is_a_gap(tiny_plan):
    lost = next(cell for cell in tiny_plan.cells.values() if cell.optimizer.name == "coupled_adam")

    def value(cell: Cell, task: str, metric: str) -> float:
        gone = (cell.id, task, metric) == (lost.id, "embeddings_abtt", "r_bar")
        return math.nan if gone else value_of(cell, task, metric)

    (lines,) = tables_of(SECTION, material(tiny_plan, list(TREATMENTS), value))
    assert [line[:2] for line in lines if "-" in line] == [["Coupled Adam", "all-but-the-top"]]


def test_a_study_without_these_rows_has_no_section(tiny_plan):
    assert html_of(SECTION, material(tiny_plan, [])) == ""
    html = html_of(SECTION, material(tiny_plan, list(TREATMENTS)))
    assert "Nothing here is tested, and nothing is bold" in html and "<strong>" not in html
