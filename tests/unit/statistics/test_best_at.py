"""A metric that is best at a value: what is compared everywhere is the distance from it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from pandas.testing import assert_frame_equal
from scipy import stats
from sections import tables_of

from coupled_adam_bench.report.frequency import SECTION as FREQUENCY
from coupled_adam_bench.report.render import markdown, render_html, render_latex
from coupled_adam_bench.report.table import build_tables
from coupled_adam_bench.results.collect import results_frame
from coupled_adam_bench.results.groups import layout_of
from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.statistics import hypotheses, power
from coupled_adam_bench.statistics.compare import compare
from coupled_adam_bench.statistics.decisions import decide
from coupled_adam_bench.statistics.declared import Material
from coupled_adam_bench.statistics.lines import TOKENS, trend_of, upper_tail
from coupled_adam_bench.study.catalogue.metrics import METRICS, Metric, of_text
from coupled_adam_bench.study.plan import make_plan
from coupled_adam_bench.study.settings import parse_study

ROOT = Path(__file__).parents[3]
NAME = "pooled_calibration_rarest"
TEXT = -0.144
# Coupled Adam gives rare tokens too much, Adam a little too little: the higher one is the further
# one.
VALUES = {"adamw": [-0.20, -0.22, -0.23], "coupled_adam": [0.12, 0.13, 0.17]}
OWN = {"name": "tilt", "path": "numpy.median", "symbol": "T", "best_at": -0.144}


@pytest.fixture
def study(tiny_study: Callable[..., dict[str, Any]]) -> Callable[..., StudyResults]:
    """A study of one table with one column, at two numbers of tokens; ``best`` is what the text
    has, if measured."""

    def build(
        name: str = NAME, best: float | None = TEXT, comparison: str = "pair", **settings: Any
    ) -> StudyResults:
        block = {
            "table": "shown",
            "models": ["nano"],
            "tokens": [{"steps": 60, "label": "less"}, {"steps": 120, "label": "more"}],
            "optimizers": list(VALUES),
            "seeds": [1, 2, 3],
        }
        tables = {"shown": {"title": "Shown", "comparison": comparison, "columns": [name]}}
        settings = {"evaluation": {"metrics": [OWN]}} | settings
        plan = make_plan(parse_study(tiny_study(grid=[block], tables=tables, **settings)))
        layout = layout_of(plan)
        metric, rows = layout.metrics[name], []
        for cell in plan.cells.values():
            value = VALUES[cell.optimizer.key][cell.seed - 1] * cell.steps / 60
            rows.append((cell, metric.task, name, value, metric.unit))
            if best is not None and isinstance(metric.best_at, str):
                rows.append((cell, metric.task, metric.best_at, best, metric.unit))
        untested = StudyResults(layout, results_frame(plan, rows))
        return decide(untested)

    return build


def distances(key: str) -> list[float]:
    return [abs(value - TEXT) for value in VALUES[key]]


@pytest.mark.parametrize("name", [NAME, "tilt"])
def test_the_nearer_one_is_better_and_bold(study, name):
    found = study(name)
    row, *_ = compare(found).to_dict("records")
    expected = stats.ttest_ind(distances("adamw"), distances("coupled_adam"), alternative="less")
    assert (row["optimizer"], row["bold"]) == ("adamw", True)
    assert row["p_value"] == pytest.approx(expected.pvalue)
    assert row["mean"] == pytest.approx(sum(distances("adamw")) / 3)
    (table,) = build_tables(found)
    adam, coupled = table.rows[:2]
    # The table prints the values themselves.
    assert (adam.cells[0].text, adam.cells[0].bold) == ("\N{MINUS SIGN}0.22 (2)", True)
    assert (coupled.cells[0].text, coupled.cells[0].bold) == ("0.14 (3)", False)


def test_without_a_test_too(study):
    tests = compare(study(comparison="single_runs"))
    assert set(tests["optimizer"]) == {"adamw"}
    assert tests["bold"].all()


@pytest.mark.parametrize(("best", "winner"), [(0.2, "coupled_adam"), (-0.2, "adamw")])
def test_what_is_best_is_that_of_the_text(study, best, winner):
    assert compare(study(best=best))["optimizer"][0] == winner


def test_what_was_measured_by_an_older_version_has_no_better_side(study):
    found = study(best=None)
    assert not compare(found)["bold"].any()
    assert compare(found)["p_value"].isna().all()
    assert set(compare(found)["reason"]) == {
        f"results.csv has no {of_text(NAME)}, so what is best is not known; evaluate with this"
        " version"
    }
    (table,) = build_tables(found)
    assert "what is best was not measured, so nothing is bold." in " ".join(table.notes)


def test_what_is_best_is_looked_up_by_the_text(study):
    """Evaluations of two versions meet: one cell of the text has what is best, and all are
    compared."""
    whole = study()
    of_text_rows = whole.results["metric"] == of_text(NAME)
    last = list(whole.plan.cells)[-1]
    part = whole.results[~of_text_rows | (whole.results["cell"] == last)]
    found = StudyResults(whole.layout, part)
    tests = compare(found)
    assert_frame_equal(tests, compare(whole))
    assert not tests["reason"].any()
    lost = whole.results.assign(
        value=whole.results["value"].where(~of_text_rows | (whole.results["cell"] == last))
    )
    assert_frame_equal(compare(StudyResults(whole.layout, lost)), compare(whole))
    assert build_tables(decide(StudyResults(whole.layout, part))) == build_tables(whole)


def test_differences_trends_and_power_are_of_distances(study):
    found = study()
    group, metric = found.layout.groups["shown"][0], found.layout.metrics[NAME]
    expected = dict(
        enumerate(
            (b - a for a, b in zip(distances("adamw"), distances("coupled_adam"), strict=True)), 1
        )
    )
    facts = found.at(group, metric)
    assert facts["coupled_adam"].minus(facts["adamw"]) == pytest.approx(expected)
    trend = trend_of(found, found.layout.groups["shown"], metric, "coupled_adam", "adamw")
    assert trend.terms == (TOKENS,)
    slope = trend.fit.estimates[1]
    assert slope < 0  # the difference of the values grows by 0.36, that of the distances shrinks
    assert upper_tail(-slope, trend.fit.standard_error(1), trend.fit.df) < 0.05
    rows = Material(found).rows(power.STATISTIC)
    shown = [row["difference"] for row in rows if row["n_tokens"] == group.n_tokens]
    assert shown == pytest.approx([sum(expected.values()) / 3] * 2)


@pytest.mark.parametrize("test", ["t-test", "paired"])
def test_a_stated_hypothesis_is_of_the_distance(study, test, tmp_path):
    hypothesis = {
        "name": "one",
        "table": "shown",
        "metric": NAME,
        "better": "adamw",
        "than": "coupled_adam",
    }
    plan = {"hypotheses": [hypothesis | {"test": test, "tokens": "less"}], "seeds": [1, 2, 3]}
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(plan))
    (row,) = Material(study(stated=str(tmp_path / "plan.yaml"))).rows(hypotheses.STATISTIC)
    function = stats.ttest_ind if test == "t-test" else stats.ttest_rel
    expected = function(distances("adamw"), distances("coupled_adam"), alternative="less")
    assert row["p_value"] == pytest.approx(expected.pvalue)
    assert row["outcome"] == hypotheses.CONFIRMED


def test_arrows_and_notes_say_where_it_is_best(study):
    (shown,), (own,) = build_tables(study()), build_tables(study("tilt"))
    notes = " ".join(shown.notes)
    assert (
        "best at \N{MINUS SIGN}0.14, what the training text's own frequencies have, and compared"
        in notes
    )
    assert "→ text" in markdown(shown)
    assert r"$\to$ text" in render_latex(shown, ROOT / "templates")
    html = render_html(shown, ROOT / "templates")
    assert "nearer to what the frequencies of the training text have is better" in html
    assert "best at \N{MINUS SIGN}0.14 and compared" in " ".join(own.notes)
    assert r"$\to -0.144$" in render_latex(own, ROOT / "templates")


def test_every_metric_has_one_direction():
    assert {name for name, metric in METRICS.items() if metric.best_at is not None} == {
        "logit_mean",
        *(name for name in METRICS if "calibration" in name),
    }
    assert METRICS["logit_mean"].best_at == 0
    texts = {"latex": "", "html": "", "description": "", "task": "test", "stage": "test_loss"}
    for wrong in ({}, {"higher_is_better": True, "best_at": 0.0}):
        with pytest.raises(AssertionError):
            Metric("m", **texts, **wrong)


@pytest.mark.parametrize(
    "values", [{}, {"higher_is_better": True, "best_at": 0.0}], ids=["none", "both"]
)
def test_an_own_metric_needs_one_of_the_two(tiny_study, values):
    own = {name: value for name, value in OWN.items() if name != "best_at"} | values
    with pytest.raises(ValueError, match=r"higher_is_better, best_at: tilt needs one of the two"):
        parse_study(tiny_study(evaluation={"metrics": [own]}))


def test_the_report_prints_what_the_text_has(study):
    lines = [line for table in tables_of(FREQUENCY, Material(study())) for line in table]
    (line,) = {tuple(line) for line in lines if "frequencies of the training text" in line}
    assert "\N{MINUS SIGN}0.14" in line
    lines = [line for table in tables_of(FREQUENCY, Material(study(best=None))) for line in table]
    assert not any("frequencies of the training text" in line for line in lines)
