import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from coupled_adam_bench.results.collect import results_frame
from coupled_adam_bench.results.groups import layout_of
from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.study.catalogue.metrics import METRICS
from coupled_adam_bench.study.catalogue.tables import TABLES
from coupled_adam_bench.study.plan import Plan, make_plan
from coupled_adam_bench.study.settings import parse_any_study, parse_study

MODELS = [
    {
        "name": "big",
        "label": "BIG",
        "n_layer": 1,
        "n_head": 2,
        "d_model": 16,
        "learning_rate": 0.01,
    },
    {"name": "small", "n_layer": 1, "n_head": 2, "d_model": 8, "learning_rate": 0.01},
]


@pytest.fixture
def plan_of(tiny_study: Callable[..., dict[str, Any]]) -> Callable[..., Plan]:
    return lambda *grid: make_plan(parse_study(tiny_study(models=MODELS, grid=list(grid))))


def block(**changes: Any) -> dict[str, Any]:
    return {
        "table": "table1",
        "models": ["big"],
        "tokens": [{"steps": 20, "label": "twenty"}],
        "optimizers": ["adamw", "coupled_adam"],
        "seeds": [1, 2],
    } | changes


def test_groups_are_ordered_by_tokens_and_parameters_and_labelled(
    plan_of,
):
    plan = plan_of(
        block(table="table7"),
        block(models=["big", "small"], tokens=[{"steps": 20, "label": "twenty"}, {"steps": 10}]),
        block(table=None, optimizers=[{"name": "sgd", "lr_factor": 100}]),
    )
    groups = layout_of(plan).groups
    assert list(groups) == ["table1", "table7"]
    labels = [(group.tokens_label, group.model_label) for group in groups["table1"]]
    # 10 steps of 64 tokens; small: (64 + 16) * 8 embeddings, 12 * 8^2 + 2 * 8 in the layer, 8 in
    # the last norm.
    assert labels == [("640", "1.43K"), ("640", "BIG"), ("twenty", "1.43K"), ("twenty", "BIG")]
    assert [len(cells) for cells in groups["table1"][0].cells.values()] == [2, 2]
    assert [(group.tokens_label, group.model_label) for group in groups["table7"]] == [
        ("twenty", "BIG")
    ]


def test_blocks_of_a_table_count_together_and_shared_cells_once(
    plan_of,
):
    (group,) = layout_of(plan_of(block(), block(seeds=[2, 3]))).groups["table1"]
    assert {key: [cell.seed for cell in cells] for key, cells in group.cells.items()} == {
        "adamw": [1, 2, 3],
        "coupled_adam": [1, 2, 3],
    }


def test_table_1_compares_two_optimizers_over_all_its_blocks(plan_of):
    plan = plan_of(block(), block(optimizers=["adamw", {"name": "sgd", "lr_factor": 100}]))
    message = (
        "table1 compares 2 optimizers, and has 3 at BIG parameters and twenty tokens .*sgd_f100"
    )
    with pytest.raises(ValueError, match=message):
        layout_of(plan)


def test_values_are_those_of_the_table_columns_and_missing_ones_are_nan(
    plan_of,
):
    plan = plan_of(block())
    cell = next(
        cell for cell in plan.cells.values() if (cell.optimizer.key, cell.seed) == ("adamw", 2)
    )
    rows = [
        (cell, task, "acc", value, "1") for task, value in (("hellaswag", 0.1), ("average", 0.2))
    ]
    study = StudyResults(layout_of(plan), results_frame(plan, rows))
    (group,) = study.layout.groups["table1"]
    facts = study.at(group, METRICS["acc"])
    samples = {key: list(fact.by_seed.values()) for key, fact in facts.items()}
    assert samples["adamw"][1] == 0.2
    assert math.isnan(samples["adamw"][0])
    assert all(map(math.isnan, samples["coupled_adam"]))


def test_results_of_another_study_are_refused(plan_of):
    plan = plan_of(block())
    rows = [(next(iter(plan.cells.values())), "test", "loss", 1.0, "nat/token")]
    results = results_frame(plan, rows).assign(study="other")
    with pytest.raises(ValueError, match=r"study \['other'\], the plan is of 'tiny'"):
        StudyResults(layout_of(plan), results)


@pytest.fixture
def together(tiny_study: Callable[..., dict[str, Any]], tmp_path: Path) -> Callable[..., Plan]:
    """Return the plan of several studies, each the tiny one with changes; sizes may be shared."""

    def together(*changes: dict[str, Any]) -> Plan:
        names = [f"s{number}" for number in range(len(changes))]
        for name, each in zip(names, changes, strict=True):
            settings = tiny_study(**({"study": name, "models": MODELS} | each))
            (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(settings))
        return make_plan(parse_any_study({"study": "whole", "studies": names}), [tmp_path])

    return together


MINE = {"title": "Mine", "comparison": "single_runs", "columns": ["loss"]}


@pytest.mark.fault(
    "settings",
    "Studies that are put together have different tables of one name, one key for two "
    "optimizers, or measure a shared cell in different ways.",
    "The start is refused with the study and the field.",
)
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            [{"tables": {"mine": MINE}}, {"tables": {"mine": MINE | {"columns": ["acc"]}}}],
            (
                "s1: tables.mine: another study of the plan has a table of this name, which is not"
                " the same"
            ),
        ),
        (
            [
                {"grid": [block(optimizers=["adamw", {"name": "sgd", "lr_factor": factor}])]}
                for factor in (100, 100.00001)
            ],
            (
                "grid: table1 has two different optimizers with the key sgd_f100 at BIG parameters"
                " and twenty tokens"
            ),
        ),
        (
            [
                {"grid": [block()]},
                {
                    "grid": [block()],
                    "evaluation": {"downstream": {"tasks": "synthetic", "limit": 3}},
                },
            ],
            (
                "s0 and s1 share cells, such as big_1.28K_adamw_s1_.*, and evaluate them in"
                " different ways"
            ),
        ),
    ],
)
def test_studies_whose_tables_do_not_go_together(together, changes, message):
    grids = [
        {"grid": [block(table=name) for name in each.get("tables", {})] or each.get("grid")}
        for each in changes
    ]
    plan = together(*(each | grid for each, grid in zip(changes, grids, strict=True)))
    with pytest.raises(ValueError, match=message):
        layout_of(plan)


def test_blocks_of_studies_with_one_recipe_count_together(together):
    plan = together(
        {"grid": [block(optimizers=["adamw"], table=None), block()]},
        {"grid": [block(seeds=[3, 4])]},
    )
    (group,) = layout_of(plan).groups["table1"]
    assert [cell.seed for cell in group.cells["adamw"]] == [1, 2, 3, 4]
    assert (group.setup.recipe, group.model_label) == ("whole", "BIG")


def test_a_name_for_two_models(together):
    other = [MODELS[0] | {"learning_rate": 0.02}, MODELS[1]]
    layout = layout_of(
        together({"grid": [block()]}, {"models": other, "grid": [block(), block(models=["small"])]})
    )
    labels = [(group.setup.model, group.model_label) for group in layout.groups["table1"]]
    assert labels == [
        ("small", "1.43K"),
        ("big of s0", "BIG (big of s0)"),
        ("big of s1", "BIG (big of s1)"),
    ]


def test_labels_that_would_still_be_the_same_are_refused(
    tiny_study,
):
    twins = [
        MODELS[0],
        MODELS[0] | {"name": "twin", "n_head": 4},
        MODELS[1] | {"label": "BIG (twin)"},
    ]
    grid = [block(models=["big", "twin", "small"])]
    study = parse_study(tiny_study(models=twins, grid=grid))
    with pytest.raises(
        ValueError, match=r"models: twin and small are both printed as 'BIG \(twin\)'"
    ):
        layout_of(make_plan(study))


def test_the_tables_of_the_paper_come_first(plan_of):
    plan = plan_of(block(table="table7"), block())
    assert list(layout_of(plan).tables.values()) == [TABLES["table1"], TABLES["table7"]]
