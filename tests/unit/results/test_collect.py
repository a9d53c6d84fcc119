import json
import math
from pathlib import Path
from typing import Any

import pytest

from coupled_adam_bench.config import Evaluation, parse_study
from coupled_adam_bench.plan import Plan, make_plan
from coupled_adam_bench.results.collect import collect, read_results, write_results
from coupled_adam_bench.results.schema import METRICS, RESULT_COLUMNS, THEORY_METRICS

FILES = {
    "test_loss": [("test", "loss", 3.25, "nat/token"), ("test", "perplexity", 25.8, "1")],
    "embeddings": [
        ("embeddings", "isotropy", 0.1, "1"),
        ("embeddings", "mean_norm", 1.5, "1"),
        ("embeddings", "mean_norm_ratio", 0.8, "1"),
        ("word_similarity", "r_bar", 5.0, "percent"),
        ("embeddings", "rho", -0.5, "1"),
        ("embeddings", "kappa", 1.0, "percent"),
    ],
    "lm_eval": [("hellaswag", "acc", 0.25, "1"), ("average", "acc", 0.3, "1")],
}
ROWS_PER_CELL = sum(map(len, FILES.values()))


def write_evaluation(folder: Path, owner: str, name: str, **changes: Any) -> None:
    rows = [dict(zip(("task", "metric", "value", "unit"), row, strict=True)) for row in FILES[name]]
    settings = Evaluation().protocol_settings()[name]
    record = {"cell": owner, "status": "ok", "settings": settings, "model_sha256": "ab", "results": rows} | changes
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(record))


@pytest.fixture
def runs(tmp_path: Path, tiny_plan: Plan) -> Path:
    for cell in tiny_plan.cells:
        for name in FILES:
            write_evaluation(tmp_path / cell, cell, name)
    return tmp_path


def test_every_value_of_every_cell_in_the_order_of_the_plan(runs: Path, tiny_plan: Plan) -> None:
    results = collect(tiny_plan, runs)
    assert tuple(results.columns) == RESULT_COLUMNS
    assert len(results) == ROWS_PER_CELL * 6
    cells = list(tiny_plan.cells.values())
    expected = [(c.n_params, c.n_tokens, c.optimizer.key, c.seed) for c in cells for _ in range(ROWS_PER_CELL)]
    columns = ["n_params", "n_tokens", "optimizer", "seed"]
    assert list(results[columns].itertuples(index=False, name=None)) == expected
    assert [cell.optimizer.key for cell in cells] == ["adamw"] * 3 + ["coupled_adam"] * 3
    first = results.head(ROWS_PER_CELL)[["task", "metric", "value", "unit"]]
    assert list(first.itertuples(index=False, name=None)) == [row for rows in FILES.values() for row in rows]
    assert set(results["study"]) == {"tiny"}
    assert set(results["protocol"]) == {"corrected"}


def test_a_departure_from_the_protocol_is_in_every_row(runs: Path, tiny_study: Any, tmp_path: Path) -> None:
    values = tiny_study()
    plan = make_plan(parse_study(values | {"training": values["training"] | {"embedding_weight_decay": 0.1}}))
    for cell in plan.cells:
        for name in FILES:
            write_evaluation(runs / cell, cell, name)
    write_results(collect(plan, runs), tmp_path / "results.csv")
    found = read_results(tmp_path / "results.csv")
    assert set(found["protocol"]) == {"corrected; training.embedding_weight_decay = 0.1"}


@pytest.mark.parametrize(
    ("name", "setting", "message"),
    [
        ("embeddings", {"isotropy": "eig_float32"}, "embeddings.json: measured with isotropy 'eig_float32' by another"),
        ("embeddings", {"leading_space": None}, "embeddings.json: measured with leading_space None by another"),
        ("test_loss", {"split": "val"}, "test_loss.json: measured with split 'val' by another study"),
    ],
)
def test_an_evaluation_under_other_settings_is_refused(
    runs: Path, tiny_plan: Plan, name: str, setting: dict[str, Any], message: str
) -> None:
    cell = list(tiny_plan.cells)[-1]
    write_evaluation(runs / cell, cell, name, settings=Evaluation().protocol_settings()[name] | setting)
    with pytest.raises(ValueError, match=message) as error:
        collect(tiny_plan, runs)
    assert "delete results/tiny/evaluation and run again" in str(error.value)


def test_a_missing_evaluation_is_named_and_partial_makes_it_nan(runs: Path, tiny_plan: Plan) -> None:
    cell = tiny_plan.cells[list(tiny_plan.cells)[2]]
    missing = runs / cell.id / "embeddings.json"
    missing.unlink()
    with pytest.raises(ValueError, match=r"embeddings\.json: missing") as error:
        collect(tiny_plan, runs)
    assert str(missing) in str(error.value)
    results = collect(tiny_plan, runs, partial=True)
    assert len(results) == ROWS_PER_CELL * 6
    empty = results[results["value"].isna()]
    assert set(empty["metric"]) == {"isotropy", "mean_norm", "mean_norm_ratio", "r_bar", "rho", "kappa"}
    assert set(empty["seed"]) == {cell.seed}
    assert {row.metric: row.unit for row in empty.itertuples()}["r_bar"] == "percent"


def test_a_cell_without_any_file_is_still_there_if_partial(tmp_path: Path, tiny_plan: Plan) -> None:
    results = collect(tiny_plan, tmp_path, partial=True)
    assert len(results) == len(METRICS) * 6
    assert results["value"].isna().all()


def test_a_diverged_cell_is_nan_whether_its_files_say_so_in_rows_or_not(runs: Path, tiny_plan: Plan) -> None:
    cell = next(iter(tiny_plan.cells))
    nan_rows = [dict(zip(("task", "metric", "value", "unit"), (*row[:2], math.nan, row[3]), strict=True))
                for row in FILES["embeddings"]]  # fmt: skip
    write_evaluation(runs / cell, cell, "test_loss", status="diverged", model_sha256=None, results=[])
    write_evaluation(runs / cell, cell, "lm_eval", status="diverged", model_sha256=None, results=[])
    write_evaluation(runs / cell, cell, "embeddings", status="diverged", model_sha256=None, results=nan_rows)
    results = collect(tiny_plan, runs)
    own = results[results["value"].isna()]
    assert sorted(own["metric"]) == sorted(METRICS)
    assert set(own["seed"]) == {1}
    assert set(own["optimizer"]) == {"adamw"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cell": "other"}, "belongs to cell 'other'"),
        ({"status": "fine"}, "status is 'fine'"),
        ({"model_sha256": "cd"}, "different models"),
        ({"results": [{"task": "test", "metric": "loss", "value": None, "unit": "1"}]}, "loss is None, not a number"),
        ({"results": [{"task": "test", "metric": "loss", "value": True, "unit": "1"}]}, "loss is True, not a number"),
        ({"results": [{"task": "test", "metric": "loss", "unit": "1"}]}, "not an evaluation file .*value"),
        ({"results": [{"task": "embeddings", "metric": "rho", "value": 1, "unit": "1"}]}, "measured twice: .*rho"),
        ({"results": []}, "no test loss"),
        ({"settings": None}, "not an evaluation file"),
    ],
)
def test_wrong_evaluations_are_refused(runs: Path, tiny_plan: Plan, changes: dict[str, Any], message: str) -> None:
    cell = next(iter(tiny_plan.cells))
    write_evaluation(runs / cell, cell, "test_loss", **changes)
    with pytest.raises(ValueError, match=message) as error:
        collect(tiny_plan, runs)
    assert cell in str(error.value)


def test_broken_json_is_named(runs: Path, tiny_plan: Plan) -> None:
    path = runs / next(iter(tiny_plan.cells)) / "lm_eval.json"
    path.write_text("[1")
    with pytest.raises(ValueError, match="not valid JSON"):
        collect(tiny_plan, runs)
    path.write_text("[1]")
    with pytest.raises(ValueError, match="not an evaluation file"):
        collect(tiny_plan, runs)


def test_floats_come_back_bit_for_bit(runs: Path, tiny_plan: Plan, tmp_path: Path) -> None:
    values = [0.1 + 0.2, 1 / 3, 5e-324, -1.7976931348623157e308, 2**53 + 1.0, math.nan]
    results = collect(tiny_plan, runs)
    results.loc[range(len(values)), "value"] = values
    path = tmp_path / "study" / "results.csv"
    write_results(results, path)
    again = read_results(path)
    assert [float(value).hex() for value in again["value"]] == [float(value).hex() for value in results["value"]]
    assert again.equals(results)
    assert list(again.dtypes) == list(results.dtypes)
    assert [entry.name for entry in path.parent.iterdir()] == ["results.csv"]
    text = path.read_text()
    write_results(again, path)
    assert path.read_text() == text


HEADER = ",".join(RESULT_COLUMNS)
GOOD = "s,10,20,adamw,1,test,loss,3.5,nat/token,corrected"


def test_an_empty_field_is_a_missing_value(tmp_path: Path) -> None:
    path = tmp_path / "results.csv"
    path.write_text(f"{HEADER}\n{GOOD.replace('3.5', '')}\n")
    assert read_results(path)["value"].isna().all()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not a CSV file"),
        (f"{HEADER.replace('seed,', '')}\n", "no column seed; needed are study, "),
        (f"{HEADER},extra\n", "unknown column extra"),
        (
            f"{HEADER}\n{GOOD}\n{GOOD.replace('3.5', 'high').replace(',1,', ',2,')}\n",
            ":3: value is 'high', not a number",
        ),
        (f"{HEADER}\n{GOOD.replace('10', '10.5')}\n", ":2: n_params is '10.5', not an integer"),
        (f"{HEADER}\n{GOOD}\n{GOOD}\n", ":3: the same row as line 2 .*metric=loss"),
        (f"{HEADER}\n{GOOD},7\n", ":2: 11 fields, the header has 10"),
    ],
)
def test_wrong_files_are_refused_with_the_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "results.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as error:
        read_results(path)
    assert str(path) in str(error.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such file"):
        read_results(tmp_path / "results.csv")


@pytest.fixture
def theory_plan(tiny_study: Any) -> Plan:
    study = tiny_study()
    return make_plan(parse_study(study | {"evaluation": study["evaluation"] | {"theory": {}}}))


def write_theory(folder: Path, owner: str, **changes: Any) -> None:
    rows = [{"task": "theory", "metric": name, "value": 0.5, "unit": "1"} for name in THEORY_METRICS]
    settings = {"n_batches": 64, "record_every": 10}
    record = {"cell": owner, "status": "ok", "settings": settings, "model_sha256": "ab", "results": rows} | changes
    (folder / "theory.json").write_text(json.dumps(record))


def test_the_theory_of_a_study_that_has_it(runs: Path, tiny_plan: Plan, theory_plan: Plan) -> None:
    cells = list(theory_plan.cells)
    for cell in cells:
        write_theory(runs / cell, cell)
    results = collect(theory_plan, runs)
    assert len(results) == (ROWS_PER_CELL + len(THEORY_METRICS)) * 6
    assert tuple(results[results["task"] == "theory"].head(len(THEORY_METRICS))["metric"]) == THEORY_METRICS
    assert "theory" not in set(collect(tiny_plan, runs)["task"])
    write_theory(runs / cells[0], cells[0], settings={"n_batches": 3, "record_every": 10})
    with pytest.raises(ValueError, match=r"theory\.json: measured with n_batches 3 by another study"):
        collect(theory_plan, runs)
    write_theory(runs / cells[0], cells[0], results=[])
    with pytest.raises(ValueError, match="no theory head_gradient_sum; delete its evaluations"):
        collect(theory_plan, runs)
    (runs / cells[0] / "theory.json").unlink()
    with pytest.raises(ValueError, match=r"theory\.json: missing"):
        collect(theory_plan, runs)
    partial = collect(theory_plan, runs, partial=True)
    missing = partial[partial["value"].isna()]
    assert list(missing[["task", "metric", "unit"]].itertuples(index=False, name=None)) == [
        ("theory", name, "1") for name in THEORY_METRICS
    ]
