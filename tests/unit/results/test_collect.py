import math
from pathlib import Path
from typing import Any

import pytest

from coupled_adam_bench.results.collect import collect, read_results
from coupled_adam_bench.results.tidy import write_csv
from coupled_adam_bench.study.catalogue.metrics import METRICS, RESULT_COLUMNS
from coupled_adam_bench.study.catalogue.stages import STAGES
from coupled_adam_bench.study.plan import Plan, make_plan
from coupled_adam_bench.study.settings import parse_study

# A value of its own for each number that a stage measures, and those that depend on the study.
FILES = {
    stage.name: [
        (task, name, 0.25 + number, unit)
        for number, (task, name, unit) in enumerate(stage.measures)
    ]
    for stage in STAGES.values()
    if not stage.optional
}
FILES["test_loss"].append(("test", "perplexity", 25.8, "1"))
FILES["downstream"] = [("hellaswag", "acc", 0.25, "1"), ("average", "acc", 0.3, "1")]
ROWS_PER_CELL = sum(map(len, FILES.values()))


def store(stored: Any, plan: Plan, runs: Path) -> Any:
    """Write the run and all evaluations of every cell."""
    files = stored(plan, runs)
    for cell in plan.cells:
        files.run(cell)
        for stage, rows in FILES.items():
            files.evaluation(cell, stage, rows)
    return files


@pytest.fixture
def files(tmp_path: Path, tiny_plan: Plan, stored: Any) -> Any:
    return store(stored, tiny_plan, tmp_path / "runs")


@pytest.fixture
def runs(files: Any) -> Path:
    return files.runs


def test_every_value_of_every_cell_in_the_order_of_the_plan(runs, tiny_plan):
    results = collect(tiny_plan, runs)
    assert list(results.columns) == list(RESULT_COLUMNS)
    assert len(results) == ROWS_PER_CELL * 6
    cells = list(tiny_plan.cells.values())
    expected = [
        (c.n_params, c.n_tokens, c.optimizer.key, c.seed)
        for c in cells
        for _ in range(ROWS_PER_CELL)
    ]
    columns = ["n_params", "n_tokens", "optimizer", "seed"]
    assert list(results[columns].itertuples(index=False, name=None)) == expected
    assert [cell.optimizer.key for cell in cells] == ["adamw"] * 3 + ["coupled_adam"] * 3
    first = results.head(ROWS_PER_CELL)[["task", "metric", "value", "unit"]]
    assert list(first.itertuples(index=False, name=None)) == [
        row for rows in FILES.values() for row in rows
    ]
    assert set(results["study"]) == {"tiny"}
    assert set(results["protocol"]) == {"corrected"}
    assert list(results["cell"]) == [cell.id for cell in cells for _ in range(ROWS_PER_CELL)]
    assert set(results["model"]) == {"nano"}
    assert set(results["data"]) == set(tiny_plan.data_ids)


def test_a_departure_from_the_protocol_is_in_every_row(tiny_study, tmp_path, stored):
    values = tiny_study()
    plan = make_plan(
        parse_study(values | {"training": values["training"] | {"embedding_weight_decay": 0.1}})
    )
    files = store(stored, plan, tmp_path)
    assert set(collect(plan, files.runs)["protocol"]) == {
        "corrected; training.embedding_weight_decay = 0.1"
    }


@pytest.mark.fault(
    "results",
    "Studies share cells and measure them under different settings; they are run, collected in"
    " whole or in part, damaged and run again in any order.",
    "The results of each are byte for byte those of the study alone.",
)
@pytest.mark.parametrize(
    "evaluation",
    [
        {"downstream": {"tasks": "synthetic", "limit": 5}},
        {"downstream": {"tasks": "synthetic", "num_fewshot": 2}},
        {"word_similarity": []},
        {"isotropy": "eig_float32"},
        {"leading_space": False},
        {"test_loss": {"split": "val"}},
    ],
)
def test_studies_that_share_cells_never_see_each_other_s_numbers(
    evaluation, tiny_plan, tiny_study, runs, stored
):
    values = tiny_study()
    other = make_plan(
        parse_study(values | {"study": "other", "evaluation": values["evaluation"] | evaluation})
    )
    assert list(other.cells) == list(tiny_plan.cells)
    before = collect(tiny_plan, runs)
    with pytest.raises(ValueError, match="no such file"):
        collect(other, runs)
    changed = stored(other, runs)
    for cell in other.cells:
        for stage, rows in FILES.items():
            changed.evaluation(
                cell, stage, [(task, name, value / 2, unit) for task, name, value, unit in rows]
            )
    after = collect(tiny_plan, runs)
    (own_stage,) = (
        stage
        for stage in FILES
        if changed.measurement(cell, stage).settings
        != stored(tiny_plan, runs).measurement(cell, stage).settings
    )
    tasks = {row[0] for row in FILES[own_stage]}
    assert after[after["task"].isin(tasks)].equals(before[before["task"].isin(tasks)])
    theirs = collect(other, runs)
    assert theirs.loc[theirs["task"].isin(tasks), "value"].equals(
        after.loc[after["task"].isin(tasks), "value"] / 2
    )


def test_a_missing_evaluation_is_named_and_partial_makes_it_nan(files, runs, tiny_plan):
    cell = tiny_plan.cells[list(tiny_plan.cells)[2]]
    missing = files.measurement(cell.id, "embeddings").find(cell.id)
    missing.unlink()
    with pytest.raises(ValueError, match=r"embeddings-.*\.json: no such file") as error:
        collect(tiny_plan, runs)
    assert str(missing) in str(error.value)
    results = collect(tiny_plan, runs, partial=True)
    assert len(results) == ROWS_PER_CELL * 6
    empty = results[results["value"].isna()]
    assert set(empty["metric"]) == {
        name for name, metric in METRICS.items() if metric.stage == "embeddings"
    }
    assert set(empty["seed"]) == {cell.seed}
    assert {row.metric: row.unit for row in empty.itertuples()}["r_bar"] == "percent"


def test_a_cell_without_any_file_is_still_there_if_partial(tmp_path, tiny_plan):
    results = collect(tiny_plan, tmp_path, partial=True)
    stages = next(iter(tiny_plan.studies.values())).stages
    assert len(results) == sum(len(stage.measures) for stage in stages) * 6
    assert results["value"].isna().all()


def test_a_diverged_cell_is_nan_whether_its_files_say_so_in_rows_or_not(files, runs, tiny_plan):
    cell = next(iter(tiny_plan.cells))
    files.run(cell, status="diverged")
    for stage in FILES.keys() - {"embeddings"}:
        files.evaluation(cell, stage, [])
    nan_rows = [(task, metric, math.nan, unit) for task, metric, _, unit in FILES["embeddings"]]
    files.evaluation(cell, "embeddings", nan_rows)
    results = collect(tiny_plan, runs)
    own = results[results["value"].isna()]
    # Also what the others have beside the metrics of tables: all cells have the same rows.
    assert sorted(own["metric"]) == sorted(
        name for rows in FILES.values() for _, name, _, _ in rows
    )
    assert {row.metric: row.unit for row in own.itertuples()}["perplexity"] == "1"
    assert set(results.groupby("cell").size()) == {ROWS_PER_CELL}
    assert set(own["seed"]) == {1}
    assert set(own["optimizer"]) == {"adamw"}


LOSS = ("test", "loss", 3.25, "nat/token")


@pytest.mark.fault(
    "evaluation",
    "an evaluation file is that of another cell, model, version or setting",
    "the collection stops with a sentence that names the file",
)
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cell": "other"}, "cell is 'other'"),
        ({"stage": "downstream"}, "stage is 'downstream'"),
        ({"version": 0}, f"version is 0, not {STAGES['test_loss'].version}"),
        ({"settings": {"split": "val"}}, "settings is {'split': 'val'}"),
        ({"settings": None}, "settings is None"),
        ({"model_sha256": "cd"}, "model_sha256 is 'cd'"),
        (
            {"rows": []},
            (
                r"test_loss declares test loss, test bits_per_byte, .* and \d+ more, and did not"
                r" measure it"
            ),
        ),
    ],
)
def test_wrong_evaluations_are_refused(files, runs, tiny_plan, changes, message):
    cell = next(iter(tiny_plan.cells))
    path = files.evaluation(cell, "test_loss", changes.pop("rows", [LOSS]), **changes)
    with pytest.raises(ValueError, match=message) as error:
        collect(tiny_plan, runs)
    assert str(path) in str(error.value)


@pytest.mark.fault(
    "evaluation",
    "An evaluation file is damaged: a digit is changed, it is cut off by a full disk, of another"
    " form or without its checksum.",
    "The collection stops with a sentence that names the file; the next start measures the cell"
    " again.",
)
def test_damaged_evaluations_are_refused(files, runs, tiny_plan):
    cell = next(iter(tiny_plan.cells))
    path = files.measurement(cell, "downstream").find(cell)
    whole = path.read_text()
    for damaged, message in (
        ("[1", "not valid JSON"),
        ("[1]", "do not match"),
        ("{}", "do not match"),
        (whole.replace("0.3", "0.4"), "do not match"),
        (whole.replace('"sha256"', '"sha257"'), "do not match"),
    ):
        path.write_text(damaged)
        with pytest.raises(ValueError, match=message) as error:
            collect(tiny_plan, runs)
        assert str(path) in str(error.value)
    path.write_text(whole)
    assert len(collect(tiny_plan, runs)) == ROWS_PER_CELL * 6


def test_a_model_trained_anew_has_no_evaluations_yet(files, runs, tiny_plan):
    cell = next(iter(tiny_plan.cells))
    files.run(cell, model_sha256="cd" * 32)
    with pytest.raises(ValueError, match=r"test_loss-.*no such file"):
        collect(tiny_plan, runs)


def test_floats_come_back_bit_for_bit(runs, tiny_plan, tmp_path):
    values = [0.1 + 0.2, 1 / 3, 5e-324, -9.876543210987654e69, 2**53 + 1.0, math.nan]
    results = collect(tiny_plan, runs)
    results.loc[range(len(values)), "value"] = values
    path = tmp_path / "study" / "results.csv"
    write_csv(results, path)
    again = read_results(path)
    assert [float(value).hex() for value in again["value"]] == [
        float(value).hex() for value in results["value"]
    ]
    assert again.equals(results)
    assert list(again.dtypes) == list(results.dtypes)
    assert [entry.name for entry in path.parent.iterdir()] == ["results.csv"]
    text = path.read_text()
    write_csv(again, path)
    assert path.read_text() == text


HEADER = ",".join(RESULT_COLUMNS)
GOOD = "s,10,20,adamw,1,test,loss,3.5,nat/token,corrected,m_20_adamw_s1_ab,m,d-cd"


def test_an_empty_field_is_a_missing_value(tmp_path):
    path = tmp_path / "results.csv"
    path.write_text(f"{HEADER}\n{GOOD.replace('3.5', '')}\n")
    assert read_results(path)["value"].isna().all()
