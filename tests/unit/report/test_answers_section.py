"""The section "In short": differences to Adam and to Coupled Adam, and what is read from tests,
power and histories."""

import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from sections import grids, html_of, tables_of, texts_of
from statsmodels.stats.multitest import multipletests

from coupled_adam_bench.page.blocks import Items
from coupled_adam_bench.report.answers import SECTION, calibrations, reaches
from coupled_adam_bench.report.contrasts import CENTERED, contrasts
from coupled_adam_bench.report.verdict import SECTION as VERDICT
from coupled_adam_bench.report.verdict import question
from coupled_adam_bench.results.collect import results_frame
from coupled_adam_bench.results.groups import layout_of
from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.statistics.compare import compare
from coupled_adam_bench.statistics.declared import Material
from coupled_adam_bench.statistics.scores import verdicts
from coupled_adam_bench.study.catalog.metrics import METRICS
from coupled_adam_bench.study.config import parse_study
from coupled_adam_bench.study.plan import Plan, make_plan

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
    return replace(study, tests=compare(study))


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


def test_contrasts_are_those_of_scipy_and_statsmodels(rivals: Plan) -> None:
    study = study_of(rivals, drawn)
    ((group,),) = study.layout.groups.values()
    found = contrasts(study, group, "adamw", centered=True)
    p_values, p_holm = [], []
    for (metric, centered), answers in found.items():
        assert list(answers) == ["ember", "adamw_f3", "coupled_adam"]
        for key, (test, corrected) in answers.items():
            ours = [drawn(cell, metric.task, metric.name) for cell in group.cells[key]]
            theirs = [
                drawn(cell, CENTERED if centered else metric.task, metric.name)
                for cell in group.cells["adamw"]
            ]
            direction = "greater" if metric.higher_is_better else "less"
            p_values.append(stats.ttest_rel(ours, theirs, alternative=direction).pvalue)
            p_holm.append(corrected)
            ends = stats.ttest_rel(ours, theirs).confidence_interval(0.95)
            assert [test.difference, test.low, test.high] == pytest.approx(
                [np.subtract(ours, theirs).mean(), *ends]
            )
    assert len(p_values) == 5 * 3
    assert p_holm == pytest.approx(multipletests(p_values, method="holm")[1])


def shown(study: StudyResults, runs: Path) -> tuple[list[list[list[str]]], list[str]]:
    """Return the tables and the sentences of the section."""
    material = Material(study, runs)
    return tables_of(SECTION, material), [
        re.sub("<.*?>", "", text) for text in texts_of(SECTION, material)
    ]


def test_the_references_are_the_first_adam_and_coupled_adam(rivals: Plan, tmp_path: Path) -> None:
    study = study_of(rivals, drawn)
    found = list(grids(SECTION.blocks(Material(study, tmp_path))))
    assert [str(grid.caption).rpartition(": ")[2] for grid in found] == [
        "minus Adam, f = 3",
        "minus Coupled Adam",
    ]
    assert [["†" in column.heading for column in grid.columns[1:]] for grid in found] == [
        [False] * 4 + [True],
        [False] * 4,
    ]


def test_the_error_of_a_calibration_over_documents_stands_beside_its_interval_over_seeds(
    tiny_plan: Plan,
) -> None:
    study = study_of(tiny_plan, lambda cell, task, name: 0.01 * cell.seed)
    rows = [
        (cell, "test", "pooled_calibration_rarest_stderr", 0.1 * cell.seed, "nat")
        for cell in tiny_plan.cells.values()
        if cell.optimizer.name == "adamw"
    ]
    study = replace(study, results=pd.concat([study.results, results_frame(tiny_plan, rows)]))
    ((group,),) = study.layout.groups.values()
    # 0.02 +- 4.303 x 0.01 / sqrt(3)
    assert calibrations(study, group) == [
        "Adam: 0.02 [0.00, 0.04], by documents ± 0.20",
        "Coupled Adam: 0.02 [0.00, 0.04]",
    ]


def test_better_needs_the_correction(tiny_plan: Plan, tmp_path: Path) -> None:
    """The smallest p of five tests, 0.019 from t = 5 with 3 seeds, would be significant alone, and
    is not here."""

    def value(cell: Any, task: str, name: str) -> float:
        if task == CENTERED or cell.optimizer.name == "adamw":
            return 0.0
        spread = (cell.seed - 2) * math.sqrt(3)  # the standard error of three such values is 1
        return 5.0 + spread if name == "isotropy" else spread

    material = Material(study_of(tiny_plan, value), tmp_path)
    (grid,) = grids(SECTION.blocks(material))
    isotropy = grid.rows[0][3]
    # The interval has the half width 4.303, which is the quantile of Student's t with 2 degrees of
    # freedom.
    assert isotropy.text == "5.000 [0.697, 9.303]"
    assert isotropy.title.endswith(f" {5 * stats.t.sf(5, 2):.4f}")
    assert isotropy.tone == ""


def test_gaps(tiny_plan: Plan, tiny_study: Any, tmp_path: Path) -> None:
    """What is missing in one seed is a gap; what was never measured is no column; one seed has no
    answers."""
    lost = next(
        cell.id for cell in tiny_plan.cells.values() if cell.optimizer.name == "coupled_adam"
    )

    def value(cell: Any, task: str, name: str) -> float:
        gone = cell.id == lost and name == "loss"
        never = task == CENTERED or name == "loss_rarest" or "calibration" in name
        return math.nan if gone or never else drawn(cell, task, name)

    (((_, loss, isotropy, _),),), said = shown(study_of(tiny_plan, value), tmp_path)
    assert loss == "-" and isotropy != "-" and not any("calibrated" in text for text in said)
    block = tiny_study()["grid"][0] | {"table": "table2", "seeds": [2]}
    single = make_plan(parse_study(tiny_study(grid=[block])))
    assert shown(study_of(single, drawn), tmp_path) == ([], [])


def test_three_sentences_say_it_in_words(tiny_plan: Plan, tmp_path: Path) -> None:
    """Where an interval contains no difference, no sentence says that one is lower."""

    def value(cell: Any, task: str, name: str) -> float:
        if cell.optimizer.name == "adamw" or task == CENTERED:
            return 1.0
        return {"loss": 0.5, "isotropy": 1.4}.get(name, 1.0) + (cell.seed - 2) / 1000

    items = next(
        block
        for block in SECTION.blocks(Material(study_of(tiny_plan, value), tmp_path))
        if isinstance(block, Items)
    )
    first, second, third = (re.sub("<.*?>", "", item) for item in items.items)
    assert first.startswith("Coupled Adam against Adam at D = ")
    assert re.search("its test loss .* is 0.500 nat/token lower .95 % interval of the diff", first)
    assert "its loss of the rarest 1 % of the text" in first
    assert first.count("not clearly different") == 1
    assert second.startswith("Its isotropy") and "0.400 higher" in second
    assert third.startswith("To subtract the mean of Adam's embedding after training costs nothing")


def test_the_user_s_own_optimizer_is_the_question(
    tiny_study: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
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
    html = re.sub(r"\s+", " ", html_of(VERDICT, material))
    assert '<p class="word">Better loss at 1 of 2 places</p>' in html
    assert "Evidence: 2 places, 3 seeds each, paired by seed." in html
    (where,) = grids(VERDICT.blocks(material))
    losses = {row.group.n_tokens: row.outcome(METRICS["loss"]) for row in where.rows}
    assert list(losses.values()) == ["", "good"]


SGD = {"name": "sgd", "lr_factor": 2}


@pytest.mark.parametrize(
    ("optimizers", "asked"),
    [
        (["adamw", "ember"], "Is Ember better than Adam, and where?"),
        (["adamw", "ember", SGD], "Are Ember and SGD, f = 2 better than Adam, and where?"),
        (["ember", "coupled_adam"], "Did it reproduce?"),
    ],
)
def test_the_question_names_what_is_compared_with_adam(
    optimizers: list[Any], asked: str, tiny_study: Callable[..., dict[str, Any]]
) -> None:
    settings = tiny_study()
    settings["grid"][0] |= {"table": None, "optimizers": optimizers}
    assert question(make_plan(parse_study(settings))) == asked


def test_reaches_of_the_drawn_study(fake: Any) -> None:
    """Recounted from tests.csv: where Holm's p is below 0.05."""
    study = fake.study
    found = [each for verdict in verdicts(study) for each in reaches(study, verdict)]
    assert [group.table for group, _ in found] == ["table1"] * 3  # three sizes; Table 2 has no test
    tests = study.tests[
        (study.tests["table"] == "table1") & (study.tests["optimizer"] == "coupled_adam")
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
