"""A study's copy in MLflow, in a real database: it is complete, and a second copy adds nothing."""

import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

from coupled_adam_bench.store.files import read_json
from coupled_adam_bench.store.runs import run_of
from coupled_adam_bench.study.plan import Plan, read_plan
from coupled_adam_bench.tracking import copy as tracking

RECORD = Path("results/tiny/mlflow.json")


def runs_of(plan: Plan) -> list[Run]:
    """All runs as MLflow's page lists them, the newest first."""
    client = MlflowClient(tracking.address())
    experiment = client.get_experiment_by_name(plan.study.folder_name)
    return list(
        client.search_runs([experiment.experiment_id], order_by=["attributes.start_time DESC"])
    )


def run_of_cell(plan: Plan, cell: str) -> Run:
    (found,) = [run for run in runs_of(plan) if run.data.tags.get("cell") == cell]
    return found


def curves(run: Run, name: str) -> list[tuple[int, float]]:
    history = MlflowClient(tracking.address()).get_metric_history(run.info.run_id, name)
    return sorted((point.step, point.value) for point in history)


def n_rows() -> dict[str, int]:
    """The number of rows of each table of the database."""
    with sqlite3.connect(tracking.DATABASE) as database:
        names = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        return {
            name: database.execute(f"SELECT count(*) FROM {name}").fetchone()[0]
            for (name,) in names
        }


@pytest.fixture
def plan(copy: Path) -> Plan:
    return read_plan(Path("results/tiny/plan.json"))


def test_every_cell_has_a_run_with_its_curves_settings_and_metrics_of_tables(plan: Plan) -> None:
    values = pd.read_csv("results/tiny/results.csv")
    columns = {column for table in plan.tables.values() for column in table.columns}
    values = values[values["metric"].isin(columns) & ~values["task"].str.startswith("synthetic")]
    n_diverged = 0
    for cell in plan.cells.values():
        run, record = run_of_cell(plan, cell.id), run_of(cell.id).read()
        is_diverged = record["status"] == "diverged"
        n_diverged += is_diverged
        assert run.info.status == ("FAILED" if is_diverged else "FINISHED")
        assert ("diverged" in run.data.tags) == is_diverged
        assert run.info.run_name.startswith(cell.optimizer.names()[1])
        measured = values[values["cell"] == cell.id].dropna(subset="value")
        found = {name: value for name, value in run.data.metrics.items() if "/" not in name}
        assert found == dict(zip(measured["metric"], measured["value"], strict=True))
        rows = run_of(cell.id).rows()
        for name in {name for row in rows for name in row} - {"step", "time"}:
            wanted = [(row["step"], row[name]) for row in rows if name in row]
            assert curves(run, f"train/{name}") == wanted
        assert run.data.params["training.seq_len"] == "32"
        assert run.data.params["optimizer.name"] == cell.optimizer.name
    assert n_diverged > 0


def test_the_first_row_is_the_study_with_its_tables_and_report(plan: Plan) -> None:
    runs = runs_of(plan)
    assert len(runs) == len(plan.cells) + 1
    assert "study" in runs[0].data.tags
    table = Path("results/tiny/tables/table1.md").read_text()
    assert runs[0].data.tags["mlflow.note.content"] == table
    client = MlflowClient(tracking.address())
    assert [each.path for each in client.list_artifacts(runs[0].info.run_id, "report")]
    assert [each.path for each in client.list_artifacts(runs[0].info.run_id, "tables")]
    assert tracking.is_copied(RECORD)
    assert f"#/experiments/{runs[0].info.experiment_id}/runs" in tracking.told(RECORD)


def test_a_second_copy_adds_nothing_and_one_of_a_growing_run_only_what_is_new(plan: Plan) -> None:
    before = n_rows()
    tracking.copy_study(plan, RECORD)
    assert n_rows() == before
    # A run that begins again, and is copied twice while it grows.
    run = run_of(next(iter(plan.cells)))
    rows, record = run.rows(), run.record.read_bytes()
    rows[0]["time"] += 1
    lines = [json.dumps(row) + "\n" for row in rows]
    run.record.unlink()
    for n_lines in (1, 2, len(lines)):
        run.history.write_text("".join(lines[:n_lines]) + '{"step": 99')
        tracking.copy_study(plan, RECORD)
        found = run_of_cell(plan, run.folder.name)
        assert found.info.status == "RUNNING"
        assert [step for step, _ in curves(found, "train/loss")] == [
            row["step"] for row in rows[:n_lines]
        ]
    run.record.write_bytes(record)
    tracking.copy_study(plan, RECORD)
    assert run_of_cell(plan, run.folder.name).info.status == "FINISHED"
    # Numbers that are measured again take the place of the old ones.
    (file,) = (run.folder / "evaluations").glob("test_loss-*.json")
    values = read_json(file)
    loss = next(row for row in values["results"] if row["metric"] == "loss")
    loss["value"] += 1.0
    file.write_text(json.dumps(values))
    tracking.copy_study(plan, RECORD)
    assert run_of_cell(plan, run.folder.name).data.metrics["loss"] == loss["value"]


def test_an_error_of_mlflow_is_a_line_and_the_database_stays_as_it_is(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sqlite3.connect(tracking.DATABASE) as database:
        database.execute("UPDATE alembic_version SET version_num = '451aebb31d03'")
    before = tracking.DATABASE.read_bytes()
    # In a process of its own, since MLflow looks at a database once.
    command = [
        sys.executable,
        "-m",
        "coupled_adam_bench",
        "track",
        "--plan",
        "results/tiny/plan.json",
    ]
    assert subprocess.run([*command, "--out", str(RECORD)], check=False).returncode == 0
    assert tracking.DATABASE.read_bytes() == before
    assert not tracking.is_copied(RECORD)
    assert "\n" not in tracking.told(RECORD)
    tracking.DATABASE.unlink()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://anna:secret@127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    tracking.copy_study(plan, RECORD)
    assert not tracking.is_copied(RECORD)
    assert "\n" not in tracking.told(RECORD)
    assert "127.0.0.1" in RECORD.read_text()
    assert "secret" not in RECORD.read_text()


def test_a_copy_whose_database_is_gone_or_another_is_none(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tracking.is_copied(RECORD)
    with monkeypatch.context() as other:
        other.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
        assert not tracking.is_copied(RECORD)
    tracking.DATABASE.unlink()
    assert not tracking.is_copied(RECORD)
    assert not tracking.is_copied(Path("results/none.json"))


def test_what_follows_a_study_ends_with_the_process_that_started_it(plan: Plan) -> None:
    log = Path("results/tiny/logs/live.log")
    with tracking.start_following(Path("results/tiny/plan.json"), log) as process:
        assert process.stdin is not None
        assert process.poll() is None
        process.stdin.close()
        assert process.wait(timeout=120) == 0
    assert log.read_text() == ""
