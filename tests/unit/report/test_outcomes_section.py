"""The section "Who is better, and where": one outcome for each comparison, in sentences, cards and
tables."""

import html
import math
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from sections import grids, html_of, lines, tables_of, texts_of
from statsmodels.stats.multitest import multipletests

from coupled_adam_bench.page.blocks import Cell, Items
from coupled_adam_bench.page.formats import difference_with_interval, p_value
from coupled_adam_bench.report.in_short import QUESTIONS, pairs_of
from coupled_adam_bench.report.outcomes import SECTION, question
from coupled_adam_bench.report.reach import calibrations, reaches
from coupled_adam_bench.report.render import markdown, render_html
from coupled_adam_bench.report.table import build_tables
from coupled_adam_bench.results.collect import results_frame
from coupled_adam_bench.results.facts import CENTERED, Outcome
from coupled_adam_bench.results.groups import layout_of
from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.statistics.compare import compare
from coupled_adam_bench.statistics.decisions import decide
from coupled_adam_bench.statistics.declared import Material
from coupled_adam_bench.statistics.scores import verdicts
from coupled_adam_bench.study.catalogue.metrics import METRICS, Metric
from coupled_adam_bench.study.plan import Plan, make_plan
from coupled_adam_bench.study.settings import parse_study

Value = Callable[[Any, str, str], float]


def study_of(plan: Plan, value: Value) -> StudyResults:
    """Return results of a plan with a ``value`` of each cell, task and metric."""
    rows = [
        (cell, task, name, value(cell, task, name), METRICS[name].unit)
        for cell in plan.cells.values()
        for task, name in [
            *((metric.task, name) for name, metric in METRICS.items()),
            (CENTERED, "r_bar"),
        ]
    ]
    study = StudyResults(layout_of(plan), results_frame(plan, rows))
    return decide(study)


def drawn(cell: Any, task: str, name: str) -> float:
    """Return a number that depends on cell, task and metric alone; means differ between
    optimizers."""
    seed = [*f"{cell.optimizer.key} {cell.seed} {task} {name}".encode()]
    return float(np.random.default_rng(seed).normal(len(cell.optimizer.key) / 5))


@pytest.fixture
def rivals(tiny_study: Any) -> Plan:
    """Four optimizers in a table of the study's own; Adam is there at two learning rates."""
    table = {"title": "Rivals", "comparison": "each_other", "columns": ["loss", "isotropy"]}
    optimizers = ["ember", {"name": "adamw", "lr_factor": 3}, "coupled_adam", "adamw"]
    block = tiny_study()["grid"][0] | {
        "table": "rivals",
        "optimizers": optimizers,
        "seeds": [1, 2, 3, 4],
    }
    return make_plan(parse_study(tiny_study(tables={"rivals": table}, grid=[block])))


def test_comparisons_are_those_of_scipy_and_statsmodels(rivals):
    """The columns of the table are one family, over all pairs; the questions beside them another,
    against the references."""
    study = study_of(rivals, drawn)
    ((group,),) = study.layout.groups.values()

    def values(key: str, metric: Metric, task: str = "") -> list[float]:
        return [drawn(cell, task or metric.task, metric.name) for cell in group.cells[key]]

    columns, questions = [], []
    for metric, centered in QUESTIONS:
        is_column = metric.name in ("loss", "isotropy")
        sides = [*combinations(group.cells, 2)]
        if not is_column:
            against_adam = [(key, "adamw_f3") for key in group.cells if key != "adamw_f3"]
            sides = against_adam + [(key, "coupled_adam") for key in ("ember", "adamw")]
        if centered:
            sides = [(key, "adamw_f3") for key in group.cells if key != "adamw_f3"]
        for one, other in sides:
            theirs = values(other, metric, CENTERED if centered else "")
            test = stats.ttest_rel(values(one, metric), theirs)
            found = study.at(group, metric)[one].against[
                f"{other}, minus its mean" if centered else other
            ]
            ends = test.confidence_interval(0.95)
            assert [found.difference, found.low, found.high, found.p] == pytest.approx(
                [np.subtract(values(one, metric), theirs).mean(), *ends, test.pvalue]
            )
            (columns if is_column else questions).append((found, test.pvalue))
    assert (len(columns), len(questions)) == (12, 2 * 5 + 3)
    for family in (columns, questions):
        corrected = multipletests([p for _, p in family], method="holm")[1]
        assert [found.p_corrected for found, _ in family] == pytest.approx(corrected)
        assert {found.n_tests for found, _ in family} == {len(family)}


def shown(study: StudyResults, runs: Path) -> tuple[list[list[list[str]]], list[str]]:
    """Return the tables and the sentences of the section."""
    material = Material(study, runs)
    return tables_of(SECTION, material), [
        re.sub("<.*?>", "", text) for text in texts_of(SECTION, material)
    ]


def test_the_references_are_the_first_adam_and_coupled_adam(rivals, tmp_path):
    study = study_of(rivals, drawn)
    found = list(grids(SECTION.blocks(Material(study, tmp_path))))
    assert [grid.caption for grid in found] == ["Minus Adam, f = 3", "Minus Coupled Adam"]
    assert [["‡" in column.heading for column in grid.columns[3:]] for grid in found] == [
        [False] * 4 + [True],
        [False] * 4,
    ]
    # Two optimizers are compared once, so Adam is not there again.
    assert [[row["optimizer"] for row in grid.rows] for grid in found] == [
        ["ember", "coupled_adam", "adamw"],
        ["ember", "adamw"],
    ]


def test_the_error_of_a_calibration_over_documents_stands_beside_its_interval_over_seeds(
    tiny_plan,
):
    study = study_of(tiny_plan, lambda cell, task, name: 0.01 * cell.seed)
    rows = [
        (cell, "test", "pooled_calibration_rarest_stderr", 0.1 * cell.seed, "nat")
        for cell in tiny_plan.cells.values()
        if cell.optimizer.name == "adamw"
    ]
    study = replace(study, results=pd.concat([study.results, results_frame(tiny_plan, rows)]))
    ((group,),) = study.layout.groups.values()
    # 0.02 +- 4.303 x 0.01 / sqrt(3)
    assert calibrations(study, [group]) == [
        "Adam: 0.02 [0.00, 0.04], by documents ± 0.20",
        "Coupled Adam: 0.02 [0.00, 0.04]",
    ]


def told(study: StudyResults, tmp_path: Path) -> list[str]:
    """Return the sentences of "In short"."""
    items = next(
        block for block in SECTION.blocks(Material(study, tmp_path)) if isinstance(block, Items)
    )
    return [re.sub("<.*?>", "", item) for item in items.items]


def test_better_needs_the_correction(tiny_plan, tmp_path):
    """The two-sided p of 0.038 from t = 5 with 3 seeds would be significant, and is not after the
    correction over the eight columns of Table 1; every place says the same."""

    def value(cell: Any, task: str, name: str) -> float:
        if task == CENTERED or cell.optimizer.name == "adamw":
            return 0.0
        spread = (cell.seed - 2) * math.sqrt(3)  # the standard error of three such values is 1
        return 5.0 + spread if name == "isotropy" else spread

    study = study_of(tiny_plan, value)
    (grid,) = grids(SECTION.blocks(Material(study, tmp_path)))
    isotropy = grid.columns[5].text(grid.rows[0])
    # The interval has the half width 4.303, which is the quantile of Student's t with 2 degrees of
    # freedom.
    assert isinstance(isotropy, Cell)
    assert isotropy.text == "5.000 [0.697, 9.303] °"
    p = 2 * stats.t.sf(5, 2)
    assert f"two-sided p = {p:.4f}" in isotropy.title
    assert isotropy.title.endswith(f" = {8 * p:.4f}")
    assert isotropy.tone == ""
    said = " ".join(told(study, tmp_path))
    assert "5.000 higher, which is better, but not after the correction (95 % interval" in said
    assert f"p = {p:.4f}, corrected p = {8 * p:.4f})" in said
    # By the paper's rule it is bold, so the words say that this is another rule.
    ((group,),) = study.layout.groups.values()
    assert study.at(group, "isotropy")["coupled_adam"].bold
    assert "Two rules: bold in the tables is the paper's rule" in html.unescape(said)
    assert "1 of 1 in Table 1 (Iso)" in said
    counts = html.unescape(re.sub(r"\s+", " ", html_of(SECTION, Material(study, tmp_path))))
    assert "After correction: in 0." in counts


def test_a_harm_is_told_as_a_harm(tiny_plan, tmp_path):
    """The p of a loss that is higher is that of its interval, not 1 from a test of the other
    side."""

    def value(cell: Any, task: str, name: str) -> float:
        is_coupled = cell.optimizer.name == "coupled_adam" and task != CENTERED
        if name == "loss":
            return 1.0 + is_coupled * (0.489 + 0.198 * (cell.seed - 2))
        return 1.0 + is_coupled * (0.5 + (cell.seed - 2) / 1e6)

    study = study_of(tiny_plan, value)
    ((group,),) = study.layout.groups.values()
    loss = study.at(group, "loss")["coupled_adam"].against["adamw"]
    assert loss.outcome == Outcome.OPEN and loss.low < 0 < loss.high and 0.05 < loss.p < 0.06
    first = told(study, tmp_path)[0]
    assert "0.489 nat/token higher, which is not clearly different" in first
    assert f"p = {loss.p:.4f}, corrected p =" in first
    rarest = study.at(group, "loss_rarest")["coupled_adam"].against["adamw"]
    assert rarest.outcome == Outcome.WORSE
    assert "0.500 nat/token higher, which is worse (95 % interval" in first
    assert study.at(group, "loss_rarest")["adamw"].against["coupled_adam"].outcome == Outcome.BETTER


def test_gaps(tiny_plan, tiny_study, tmp_path):
    """What is missing in one seed is a gap; what was never measured is no column; one seed has no
    answers."""
    lost = next(
        cell.id for cell in tiny_plan.cells.values() if cell.optimizer.name == "coupled_adam"
    )

    def value(cell: Any, task: str, name: str) -> float:
        gone = cell.id == lost and name == "loss"
        never = task == CENTERED or name == "loss_rarest" or "calibration" in name
        return math.nan if gone or never else drawn(cell, task, name)

    (((_, _, _, isotropy, _),),), said = shown(study_of(tiny_plan, value), tmp_path)
    # A loss that lacks a seed is no column of numbers.
    assert isotropy != "-" and not any("calibrated" in text for text in said)
    block = tiny_study()["grid"][0] | {"table": "table2", "seeds": [2]}
    single = make_plan(parse_study(tiny_study(grid=[block])))
    tables, said = shown(study_of(single, drawn), tmp_path)
    assert tables == [] and said[0].startswith("Nothing was tested: a test needs two seeds")


def test_three_sentences_say_it_in_words(tiny_plan, tmp_path):
    """No sentence calls an optimizer better if the interval of the difference contains 0."""

    def value(cell: Any, task: str, name: str) -> float:
        if cell.optimizer.name == "adamw" or task == CENTERED:
            return 1.0
        return {"loss": 0.5, "isotropy": 1.4}.get(name, 1.0) + (cell.seed - 2) / 1000

    first, second, third, largest, *_ = told(study_of(tiny_plan, value), tmp_path)
    assert first.startswith("Coupled Adam against Adam at D = ")
    assert re.search("its test loss .* is 0.500 nat/token lower, which is better .95 %", first)
    assert "its loss of the rarest 1 % of the text" in first
    assert first.count("not clearly different") == 1
    assert second.startswith("Its isotropy") and "0.400 higher, which is better" in second
    assert third.startswith("Coupled Adam against Adam with the mean of its embedding subtracted")
    assert "The largest tested difference in loss from Adam is that of Coupled Adam" in largest


def test_the_largest_effect_is_told_and_a_failed_run_is_no_effect(tiny_study, tmp_path):
    table = {"title": "Rivals", "comparison": "each_other", "columns": ["loss", "isotropy"]}
    optimizers = ["adamw", "coupled_adam"]
    optimizers += [{"name": "sgd", "lr_factor": factor} for factor in (2, 4, 1e9)]
    block = tiny_study()["grid"][0] | {"table": "rivals", "optimizers": optimizers}
    plan = make_plan(parse_study(tiny_study(tables={"rivals": table}, grid=[block])))
    losses = {"adamw": 3.0, "coupled_adam": 2.9, "sgd_f2": 3.1, "sgd_f4": 2.3}

    def value(cell: Any, task: str, name: str) -> float:
        # Differences between optimizers have a spread, without which there is no test.
        spread = (1 + len(name) % 3) * (1 + len(cell.optimizer.key) % 4) / 1e4
        return losses.get(cell.optimizer.key, 1.9e7) + (cell.seed - 2) * spread

    said = told(study_of(plan, value), tmp_path)
    largest = next(
        text for text in said if text.startswith("The largest tested difference in loss from Adam")
    )
    assert "that of SGD, f = 4 at" in largest
    assert "against Adam, 0.700 nat/token lower" in largest
    assert "against Coupled Adam, 0.600 nat/token lower" in largest
    failed = next(text for text in said if text.startswith("Worse than guessing: "))
    assert "SGD, f = 1e+09" in failed and failed.count("SGD") == 1


def test_the_same_runs_in_two_tables_have_one_outcome(tiny_study, tmp_path):
    """The second table has more tests, after whose correction the same difference is not
    significant; it is decided in the first."""
    tables = {
        name: {"title": name, "comparison": "each_other", "columns": columns}
        for name, columns in (
            ("first", ["loss"]),
            ("second", ["loss", "isotropy", "mean_norm", "rho", "kappa"]),
        )
    }
    block = tiny_study()["grid"][0]
    sgd = {"name": "sgd", "lr_factor": 2}
    grid = [
        block | {"table": "first", "optimizers": ["adamw", "coupled_adam"]},
        block | {"table": "second", "optimizers": ["adamw", "coupled_adam", sgd]},
    ]
    plan = make_plan(parse_study(tiny_study(tables=tables, grid=grid)))

    def value(cell: Any, task: str, name: str) -> float:
        if name == "loss" and cell.optimizer.key == "coupled_adam":
            return 1.0 - 0.5 + 0.1 * (cell.seed - 2)
        return drawn(cell, task, name) if name != "loss" or cell.optimizer.key == "sgd_f2" else 1.0

    study = study_of(plan, value)
    (first,), (second,) = study.layout.groups.values()
    ours = [study.at(group, "loss")["coupled_adam"].against["adamw"] for group in (first, second)]
    assert ours[0] == replace(ours[1], row=ours[0].row)
    assert ours[0].outcome == Outcome.BETTER and ours[1].decided_in == "first"
    rows = compare(study)
    at = (rows["metric"] == "loss") & (rows["reference"] == "adamw")
    at &= rows["optimizer"] == "coupled_adam"
    assert (rows[at]["p_paired_holm"] < 0.05).tolist() == [True, False]
    # Where bold follows the correction, it is the same decision.
    settings = tiny_study(tables=tables, grid=grid) | {"statistics": {"bold": "holm"}}
    rows = compare(study_of(make_plan(parse_study(settings)), value))
    assert rows[at]["significant"].tolist() == [True, True]
    losses = [pair.loss for pair in pairs_of(study)]
    assert len(losses) == 3  # Coupled Adam and SGD against Adam, and SGD against Coupled Adam
    grid_of_adam, _ = grids(SECTION.blocks(Material(study, tmp_path)))
    assert [row["optimizer"] for row in grid_of_adam.rows] == ["coupled_adam", "sgd_f2"]


def test_other_seeds_of_the_same_place_are_told_apart(tiny_study, tmp_path):
    """Table 1 has two seeds and Table 7 three, so the same optimizer has two differences at one
    place."""
    block = tiny_study()["grid"][0] | {"optimizers": ["adamw", "coupled_adam"]}
    grid = [
        block | {"table": "table1", "seeds": [1, 2]},
        block | {"table": "table7", "seeds": [1, 2, 3]},
    ]
    study = study_of(make_plan(parse_study(tiny_study(grid=grid))), drawn)
    (found,) = grids(SECTION.blocks(Material(study, tmp_path)))
    assert [line[3] for line in lines(found)] == ["Table 1", "Table 7"]
    (once,) = grids(
        SECTION.blocks(Material(study_of(make_plan(parse_study(tiny_study())), drawn), tmp_path))
    )
    assert "Table" not in [column.heading for column in once.columns]


def test_what_has_no_spread_is_the_same_and_not_higher(tiny_plan, tmp_path):
    def value(cell: Any, task: str, name: str) -> float:
        if name == "loss_rarest":
            return 8.0
        gain = (cell.optimizer.name == "coupled_adam") * (1 + cell.seed / 1000)
        return 3.0 - gain + cell.seed / 100

    first, *_ = told(study_of(tiny_plan, value), tmp_path)
    assert "is the same in each seed, which is not clearly different (p = 1.0000" in first


def test_what_lacks_a_value_is_not_tested_and_not_worse(tiny_study, tmp_path):
    block = tiny_study()["grid"][0] | {"tokens": [{"steps": 60}, {"steps": 120}]}
    plan = make_plan(parse_study(tiny_study(grid=[block])))

    def value(cell: Any, task: str, name: str) -> float:
        is_lost = (cell.optimizer.name, cell.seed) == ("coupled_adam", 2) and name == "isotropy"
        return math.nan if is_lost else drawn(cell, task, name)

    study = study_of(plan, value)
    (verdict,) = verdicts(study)
    ((_, words),) = reaches(study, verdict)
    assert [metric.name for metric in words["not tested"]] == ["isotropy"]
    assert (verdict.untestable, verdict.total) == (2, 6)
    assert ", and 2 are not comparable." in html_of(SECTION, Material(study, tmp_path))


HOSTILE: dict[str, Callable[[int], float]] = {
    "ties": lambda seed: 0.5,
    "equal differences": lambda seed: 0.4 if seed else 0.5,
    "NaN": lambda seed: math.nan,
    "one NaN": lambda seed: math.nan if seed == 1 else 0.4 + seed / 100,
    "huge": lambda seed: 1e49 * seed,
    "last bit": lambda seed: 0.5 + seed * 1e-17,
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_numbers_are_rendered_without_a_claim(kind, tiny_plan, tmp_path, templates):
    def value(cell: Any, task: str, name: str) -> float:
        if cell.optimizer.name == "adamw":
            return 0.5
        return HOSTILE[kind](cell.seed)

    study = study_of(tiny_plan, value)
    material = Material(study, tmp_path)
    text = html_of(SECTION, material)
    assert ">nan<" not in text and "nan]" not in text and "inf]" not in text
    assert "[-, -]" not in text and "interval - to -" not in text
    for table in build_tables(study):
        assert "nan" not in render_html(table, templates).lower().replace("nano", "")
        assert "nan" not in markdown(table)
    ((group,),) = study.layout.groups.values()
    outcomes = {
        each.outcome
        for metric, _ in QUESTIONS
        for each in study.at(group, metric)["adamw"].against.values()
    }
    if kind in ("ties", "last bit", "huge"):
        assert outcomes == {Outcome.OPEN}
    if kind in ("NaN", "one NaN"):
        assert outcomes == {Outcome.UNTESTED}


@pytest.mark.parametrize(
    ("p", "level", "printed"),
    [
        (0.0499999, 0.05, "0.0499999"),
        (0.0500001, 0.05, "0.0500001"),
        (0.05, 0.05, "0.0500"),
        (0.0501, 0.05, "0.0501"),
        (0.00999996, 0.01, "0.00999996"),
        (0.00002, 0.05, "< 0.0001"),
        (0.00002, 0.00001, "0.00002"),
        (math.nan, 0.05, "-"),
    ],
)
def test_a_p_value_is_told_from_its_level(p, level, printed):
    assert p_value(p, level) == printed


def test_an_end_of_an_interval_is_told_from_zero():
    minus = "\N{MINUS SIGN}"
    assert (
        difference_with_interval(-0.0034, -0.0070, 0.0002, 3)
        == f"{minus}0.0034 [{minus}0.0070, 0.0002]"
    )
    assert difference_with_interval(0.5, 0.25, 0.75, 3) == "0.500 [0.250, 0.750]"
    assert difference_with_interval(0.0, 0.0, 0.0, 3) == "0.000 [0.000, 0.000]"
    assert difference_with_interval(1.93e7, 1e7, 3e7, 3) == "1.93e+07 [1e+07, 3e+07]"


def test_the_user_s_own_optimizer_is_the_question(tiny_study, tmp_path):
    settings = tiny_study()
    assert question(make_plan(parse_study(settings))) == "Did it reproduce?"
    own = {"name": "custom", "path": "torch.optim.Adagrad", "key": "mine", "label": "MyOpt"}
    table = {"title": "Mine", "comparison": "each_other", "columns": ["loss", "isotropy"]}
    settings["tables"] = {"mine": table}
    block = settings["grid"][0] | {"table": "mine"}
    optimizers = ["adamw", "coupled_adam", own]
    settings["grid"] = [
        block | {"tokens": [{"steps": steps}], "optimizers": optimizers} for steps in (60, 120)
    ]
    plan = make_plan(parse_study(settings))
    assert question(plan) == "Is MyOpt better than Adam, and where?"

    def value(cell: Any, task: str, name: str) -> float:
        if cell.optimizer.key != "mine":
            return 1.0
        better = name == "loss" and cell.steps == 120
        return (0.5 if better else 1.0) + (cell.seed - 2) / 1000

    material = Material(study_of(plan, value), tmp_path)
    page = re.sub(r"\s+", " ", html_of(SECTION, material))
    assert '<p class="word">Better loss at 1 of 2 places</p>' in page
    assert "Evidence: 2 places, 3 seeds each, paired by seed." in page
    losses = [pair.loss.outcome for pair in pairs_of(material.study) if pair.optimizer == "mine"]
    assert (
        losses == [Outcome.OPEN] * 2 + [Outcome.BETTER] * 2
    )  # against Adam, and against Coupled Adam


SGD = {"name": "sgd", "lr_factor": 2}


@pytest.mark.parametrize(
    ("optimizers", "asked"),
    [
        (["adamw", "ember"], "Is Ember better than Adam, and where?"),
        (["adamw", "ember", SGD], "Are Ember and SGD, f = 2 better than Adam, and where?"),
        (["ember", "coupled_adam"], "Did it reproduce?"),
    ],
)
def test_the_question_names_what_is_compared_with_adam(optimizers, asked, tiny_study):
    settings = tiny_study()
    settings["grid"][0] |= {"table": None, "optimizers": optimizers}
    assert question(make_plan(parse_study(settings))) == asked


def test_reaches_of_the_drawn_study(fake):
    """Recounted from tests.csv: where Holm's p is below 0.05."""
    study = fake.study
    found = [each for verdict in verdicts(study) for each in reaches(study, verdict)]
    assert [group.table for group, _ in found] == ["table1"] * 3  # three sizes; Table 2 has no test
    tests = compare(study)[
        (compare(study)["table"] == "table1") & (compare(study)["optimizer"] == "coupled_adam")
    ]
    for group, words in found:
        for word, metrics in words.items():
            for metric in metrics:
                of_size = tests["n_params"] == group.setup.n_params
                rows = tests[of_size & (tests["metric"] == metric.name)].sort_values("n_tokens")
                holds = (rows["p_paired_holm"] < 0.05).tolist()
                expected = {
                    (True,) * 3: "at every D",
                    (False,) * 3: "at no D",
                    (False, True, True): "from 10B on",
                    (False, False, True): "at 20B only",
                }
                assert word == expected.get(tuple(holds), word)
                assert (word == "at every D") == all(holds) and (word == "at no D") == (
                    not any(holds)
                )
        assert sorted(metric.name for of in words.values() for metric in of) == sorted(
            tests["metric"].unique()
        )
