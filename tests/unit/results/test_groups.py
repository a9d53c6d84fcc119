import math
from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest

from coupled_adam_bench.config import parse_study
from coupled_adam_bench.plan import Plan, make_plan
from coupled_adam_bench.results.groups import table_groups, table_values
from coupled_adam_bench.results.schema import METRICS, RESULT_COLUMNS

MODELS = [
    {"name": "big", "label": "BIG", "n_layer": 1, "n_head": 2, "d_model": 16, "learning_rate": 0.01},
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


def test_groups_are_ordered_by_tokens_and_parameters_and_labelled(plan_of: Callable[..., Plan]) -> None:
    plan = plan_of(
        block(table="table7"),
        block(models=["big", "small"], tokens=[{"steps": 20, "label": "twenty"}, {"steps": 10}]),
        block(table=None, optimizers=[{"name": "sgd", "lr_factor": 100}]),
    )
    groups = table_groups(plan)
    assert list(groups) == ["table1", "table7"]
    labels = [(group.tokens_label, group.model_label) for group in groups["table1"]]
    # 10 steps of 64 tokens; small: (64 + 16) * 8 embeddings, 12 * 8^2 + 2 * 8 in the layer, 8 in the last norm.
    assert labels == [("640", "1.43K"), ("640", "BIG"), ("twenty", "1.43K"), ("twenty", "BIG")]
    assert [len(cells) for cells in groups["table1"][0].cells.values()] == [2, 2]
    assert [(group.tokens_label, group.model_label) for group in groups["table7"]] == [("twenty", "BIG")]


def test_blocks_of_a_table_count_together_and_shared_cells_once(plan_of: Callable[..., Plan]) -> None:
    (group,) = table_groups(plan_of(block(), block(seeds=[2, 3])))["table1"]
    assert {key: [cell.seed for cell in cells] for key, cells in group.cells.items()} == {
        "adamw": [1, 2, 3],
        "coupled_adam": [1, 2, 3],
    }


def test_table_1_compares_two_optimizers_over_all_its_blocks(plan_of: Callable[..., Plan]) -> None:
    plan = plan_of(block(), block(optimizers=["adamw", {"name": "sgd", "lr_factor": 100}]))
    message = "table1 compares two optimizers, and has 3 at BIG parameters and twenty tokens .*sgd_f100"
    with pytest.raises(ValueError, match=message):
        table_groups(plan)


def test_values_are_those_of_the_table_columns_and_missing_ones_are_nan(plan_of: Callable[..., Plan]) -> None:
    plan = plan_of(block())
    (group,) = table_groups(plan)["table1"]
    rows = [
        ("tiny", group.n_params, group.n_tokens, "adamw", 2, task, "acc", value, "1", "corrected")
        for task, value in (("hellaswag", 0.1), ("average", 0.2))
    ]
    values = table_values(plan, pd.DataFrame(rows, columns=list(RESULT_COLUMNS)))
    samples = group.samples(values, METRICS["acc"])
    assert samples["adamw"][1] == 0.2
    assert math.isnan(samples["adamw"][0])
    assert all(map(math.isnan, samples["coupled_adam"]))


def test_results_of_another_study_are_refused(plan_of: Callable[..., Plan]) -> None:
    row = ("other", 1, 1, "adamw", 1, "test", "loss", 1.0, "nat/token", "corrected")
    with pytest.raises(ValueError, match=r"study \['other'\], the plan is of 'tiny'"):
        table_values(plan_of(block()), pd.DataFrame([row], columns=list(RESULT_COLUMNS)))
