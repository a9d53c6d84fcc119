"""results.csv of the finished study: what was measured, to the last bit, and what is missing."""

import json
import math
from itertools import product
from pathlib import Path

import pandas as pd

from coupled_adam_bench.evaluation.stage import measurements
from coupled_adam_bench.results.collect import COLUMNS, collect, endings
from coupled_adam_bench.results.values import read_results, values_of
from coupled_adam_bench.store.runs import run_of
from coupled_adam_bench.study.catalogue.metrics import METRICS
from coupled_adam_bench.study.plan import Plan, read_plan


def plan_of(folder: Path) -> Plan:
    return read_plan(folder / "results/tiny/plan.json")


def test_every_number_is_the_one_that_was_measured(finished: Path) -> None:
    plan = plan_of(finished)
    found = read_results("results/tiny/results.csv")
    assert tuple(found.columns) == COLUMNS
    assert len(found) <= 50 * len(plan.cells)
    by_cell = found.set_index(["cell", "task", "metric"])["value"]
    assert by_cell.index.is_unique
    assert len(by_cell) == len(plan.cells) * len(by_cell.groupby(["task", "metric"]))
    n_measured = 0
    for cell, measurement in product(plan.cells.values(), measurements(plan.study).values()):
        diverged = run_of(cell.id).read()["status"] == "diverged"
        of_cell = found[found["cell"] == cell.id]
        assert of_cell["value"].isna().all() == diverged
        assert set(of_cell["seed"]) == {cell.seed}
        assert set(of_cell["n_tokens"]) == {cell.n_tokens}
        assert set(of_cell["optimizer"]) == {cell.optimizer.names()[0]}
        if not diverged:
            written = json.loads(measurement.path(cell.id).read_text())["results"]
            n_measured += len(written)
            for row in written:
                assert by_cell[cell.id, row["task"], row["metric"]] == row["value"]
    assert n_measured == by_cell.notna().sum()
    runs = endings(plan).set_index("cell")
    assert set(runs["status"]) == {"completed", "diverged"}
    assert (runs["reason"] != "").equals(runs["status"] == "diverged")


def test_values_have_every_cell_of_every_table_once(finished: Path) -> None:
    plan = plan_of(finished)
    results = collect(plan)
    values = values_of(plan, results)
    wanted = [
        (block.table, cell.id, metric, cell.seed)
        for block in plan.study.grid
        for cell in plan.cells_of(block)
        for metric in plan.tables[str(block.table)].columns
    ]
    assert sorted(wanted) == sorted(
        zip(*(values[name] for name in ("table", "cell", "metric", "seed")), strict=True)
    )
    for row in values.itertuples():
        same = results[(results["cell"] == row.cell) & (results["metric"] == row.metric)]
        value = same[same["task"] == METRICS[row.metric].task]["value"].item()
        assert value == row.value or (math.isnan(value) and math.isnan(row.value))


def test_a_partial_report_is_of_what_is_measured_so_far(copy: Path) -> None:
    plan = plan_of(copy)
    first, second = list(plan.cells)[:2]
    measurements(plan.study)["test_loss"].path(first).unlink()
    run_of(second).record.unlink()
    found = collect(plan, partial=True)
    missing = found[found["cell"].isin([first, second]) & found["value"].isna()]
    assert set(missing[missing["cell"] == first]["task"]) == {"test"}
    assert len(missing[missing["cell"] == second]) == len(found[found["cell"] == second])
    whole = pd.concat([found, collect(plan, partial=True)]).drop_duplicates()
    assert len(whole) == len(found)
    assert endings(plan).set_index("cell").loc[second, "status"] == "not trained"
