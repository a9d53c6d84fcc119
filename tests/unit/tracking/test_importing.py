"""The import into MLflow, on a real database and a real server."""

import contextlib
import hashlib
import json
import math
import os
import re
import shutil
import signal
import socket
import time
import urllib.request
from pathlib import Path

import pytest
from forks import python

from coupled_adam_bench.records.stored import beside
from coupled_adam_bench.store.files import write_json, write_sealed
from coupled_adam_bench.study.plan import Plan, make_plan
from coupled_adam_bench.study.plan.cells import Cell, readable_count
from coupled_adam_bench.study.settings import parse_study
from coupled_adam_bench.tracking.described import CELL, run_name
from coupled_adam_bench.tracking.importing import METRICS_PER_REQUEST, import_study
from coupled_adam_bench.tracking.view import VIEW, curves, shown_at

pytest.importorskip("mlflow")
T0 = 1_700_000_000.25


@pytest.fixture(autouse=True)
def _environment_stays(monkeypatch):
    """Start without a server of the user's, and find the environment after an import as it was
    before."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    before = {name: value for name, value in os.environ.items() if name.startswith("MLFLOW")}
    yield
    names = before.keys() | {"MLFLOW_TRACKING_PASSWORD", "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"}
    assert {name: os.environ[name] for name in names if name in os.environ} == before


@pytest.fixture(scope="module")
def database(tmp_path_factory) -> str:
    """One database for all tests, each with its own experiment: creating it takes seconds."""
    return f"sqlite:///{tmp_path_factory.mktemp('store')}/sub/mlflow.db"


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(
        parse_study(
            {
                "study": "tracked",
                "data": {
                    "name": "s",
                    "source": {"kind": "synthetic", "n_words": 50},
                    "tokenizer": "word",
                    "vocab_size": 64,
                },
                "models": ["gpt2-2x32"],
                "training": {"seq_len": 16, "batch_sequences": 4, "warmup_steps": 5},
                "grid": [
                    {
                        "models": ["gpt2-2x32"],
                        "tokens": [{"steps": 50}],
                        "optimizers": ["adamw", {"name": "sgd", "lr_factor": 100}],
                        "seeds": [1],
                    }
                ],
                "evaluation": {
                    "word_similarity": "synthetic",
                    "downstream": {"tasks": "synthetic"},
                },
            }
        )
    )


def history_row(step: int, start: float = T0) -> dict[str, float]:
    return {"step": step, "loss": 4.0 / step, "lr": 1e-3, "time": start + step}


def write_history(folder: Path, steps, start: float = T0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(history_row(step, start)) + "\n" for step in steps)
    (folder / "history.jsonl").write_text(text, encoding="utf-8")


def finish(folder: Path, cell: Cell, model: str | None = "aa", status: str = "completed") -> None:
    run = {
        "cell": cell.id,
        "status": status,
        "reason": None if model else "loss not finite in step 7",
        "step": 50,
    }
    write_sealed(
        folder / "run.json",
        run | {"model_sha256": model, "environment": {"git_revision": "0123abc"}},
    )


@pytest.fixture
def evaluate(plan, stored):
    """The function that writes an evaluation of a finished cell and the files beside it; NaN has a
    reason."""

    def write(
        folder: Path, task: str, files: dict[str, bytes] | None = None, **values: float
    ) -> Path:
        rows = [(task, name, value, "1") for name, value in values.items()]
        stage = {"test": "test_loss", "embeddings": "embeddings", "hellaswag": "downstream"}[task]
        reason = "drawn" if any(map(math.isnan, values.values())) else None
        sums = {
            name: hashlib.sha256(contents).hexdigest() for name, contents in (files or {}).items()
        }
        path = stored(plan, folder.parent).evaluation(
            folder.name, stage, rows, reason=reason, files=sums
        )
        for name, contents in (files or {}).items():
            beside(path, name).write_bytes(contents)
        return path

    return write


def runs_of(uri: str, experiment: str):
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    experiment_id = client.get_experiment_by_name(experiment).experiment_id
    runs = client.search_runs([experiment_id])
    return client, {run.data.tags[CELL]: run for run in runs if CELL in run.data.tags}


def study_run_of(uri: str, experiment: str):
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    experiment_id = client.get_experiment_by_name(experiment).experiment_id
    (run,) = client.search_runs([experiment_id], "tags.`coupled_adam_bench.whole_study` != ''")
    return client, run


def counts(summary) -> dict[str, int]:
    return {key: value for key, value in summary.items() if isinstance(value, int) and value}


def test_a_finished_cell_is_mirrored_whole(plan, database, tmp_path, evaluate):
    cell = next(iter(plan.cells.values()))
    folder = tmp_path / cell.id
    write_history(folder, range(1, 51))
    write_json(folder / "cell.json", cell.to_json())
    finish(folder, cell)
    evaluate(folder, "test", loss=2.5)
    evaluate(folder, "embeddings", isotropy=math.nan, mean_norm=1.5)
    evaluate(folder, "hellaswag", {"documents.jsonl.gz": b"packed"}, acc=0.25)

    summary = import_study(plan, database, "whole", tmp_path)
    assert counts(summary) == {"created": 1, "waiting": 1}

    client, runs = runs_of(database, "whole")
    assert list(runs) == [cell.id]
    run = runs[cell.id]
    assert run.info.status == "FINISHED"
    assert (run.info.start_time, run.info.end_time) == (1_700_000_001_250, 1_700_000_050_250)
    assert run.data.params["optimizer.name"] == "adamw"
    assert run.data.params["training.seq_len"] == "16"
    assert run.data.params["n_params"] == str(cell.n_params)
    assert run.data.tags["mlflow.source.git.commit"] == "0123abc"
    assert run.data.tags["protocol"] == "corrected"
    assert {
        name: run.data.tags[name] for name in ("optimizer", "seed", "tokens", "model", "study")
    } == {
        "optimizer": "adamw",
        "seed": "1",
        "tokens": "3.2K",
        "model": "gpt2-2x32",
        "study": "tracked",
    }
    assert run.info.run_name == run_name(cell) == f"adamw s1 3.2K {readable_count(cell.n_params)}"
    (data,) = run.inputs.dataset_inputs
    assert (data.dataset.name, data.dataset.digest) == ("s", cell.data_digest)
    assert "mlflow.parentRunId" not in run.data.tags
    history = client.get_metric_history(run.info.run_id, "train/loss")
    assert sorted((point.step, point.value, point.timestamp) for point in history) == [
        (step, 4.0 / step, 1_700_000_000_250 + 1000 * step) for step in range(1, 51)
    ]
    assert run.data.metrics["test/loss"] == 2.5
    assert [point.step for point in client.get_metric_history(run.info.run_id, "test/loss")] == [0]
    assert run.data.metrics["hellaswag/acc"] == 0.25
    assert math.isnan(run.data.metrics["embeddings/isotropy"])
    assert run.data.metrics["embeddings/mean_norm"] == 1.5
    names = [artifact.path for artifact in client.list_artifacts(run.info.run_id)]
    assert names == [
        "cell.json",
        "downstream.documents.jsonl.gz",
        "downstream.json",
        "embeddings.json",
        "run.json",
        "test_loss.json",
    ]
    copy = client.download_artifacts(run.info.run_id, "cell.json", str(tmp_path))
    assert json.loads(Path(copy).read_text()) == json.loads((folder / "cell.json").read_text())


def write_report(study_dir: Path, text: str) -> None:
    (study_dir / "report").mkdir(parents=True, exist_ok=True)
    (study_dir / "report" / "index.html").write_text(text)
    (study_dir / "tables").mkdir(exist_ok=True)
    table = (
        'D,N,optimizer,optimizer_key,loss.mean,loss.sd\n20 B,125M,"Adam, b",adamw,2.5,0.1\n20'
        " B,125M,C,ca,NaN,0\n"
    )
    (study_dir / "tables" / "table1.csv").write_text(table)


def test_the_study_is_a_run_with_its_report(plan, database, tmp_path):
    runs, study_dir = tmp_path / "runs", tmp_path / "tracked"
    import_study(plan, database, "study", runs, study_dir)  # before anything is written
    client, run = study_run_of(database, "study")
    assert (run.info.run_name, run.info.status) == ("study tracked", "RUNNING")
    assert client.list_artifacts(run.info.run_id) == []
    for text in ("first", "second"):
        write_report(study_dir, text)
        import_study(plan, database, "study", runs, study_dir)
        _, run = study_run_of(database, "study")
        assert run.info.status == "FINISHED"
        assert run.data.metrics["table1/loss/adamw 20 B 125M"] == 2.5
        assert math.isnan(run.data.metrics["table1/loss/ca 20 B 125M"])
        path = client.download_artifacts(run.info.run_id, "report/index.html", str(tmp_path))
        assert Path(path).read_text() == text
    import_study(plan, database, "study", runs, study_dir)
    assert str(study_run_of(database, "study")[1].to_dictionary()) == str(run.to_dictionary())


def test_the_address_opens_on_the_curves_of_the_optimizers(plan, database, tmp_path):
    cell = next(iter(plan.cells.values()))
    write_history(tmp_path / cell.id, range(1, 3))
    summary = import_study(plan, database, "curves", tmp_path)
    client, runs = runs_of(database, "curves")
    found = client.get_experiment_by_name("curves")
    assert found.tags["mlflow.experimentKind"] == "custom_model_development"
    first, second = json.loads(found.tags[VIEW])["compareRunCharts"]
    assert (first["type"], first["metricKey"]) == ("LINE", "train/loss")
    assert second["metricKey"] == "val/loss"
    # The curves are means over the runs that have one name without their seeds.
    group = json.loads(found.tags[VIEW])["groupBy"].split(".")
    assert group[:2] == ["tag", "average"] and group[2] in runs[cell.id].data.tags
    assert "train/loss" in runs[cell.id].data.metrics
    command, address = summary["shown"]
    assert command == f"mlflow ui --backend-store-uri {database}"
    assert f"/#/experiments/{found.experiment_id}/runs?" in address
    key = re.search("viewStateShareKey=(.*)", address)[1]
    assert f"mlflow.sharedViewState.{key}" == VIEW
    # A view of another version of this program is replaced.
    client.set_experiment_tag(found.experiment_id, VIEW, "{}")
    import_study(plan, database, "curves", tmp_path)
    assert client.get_experiment_by_name("curves").tags[VIEW] == found.tags[VIEW]


def test_the_address_of_a_server_has_no_password():
    (address,) = shown_at("https://me:secret@host/mlflow/", "7")
    assert address.startswith("https://me:***@host/mlflow/#/experiments/7/runs?")


def models_of(client, experiment: str):
    return client.search_logged_models([client.get_experiment_by_name(experiment).experiment_id])


def test_a_trained_model_is_linked_without_its_weights(plan, database, tmp_path, evaluate):
    cells = list(plan.cells.values())
    for cell, model in zip(cells, ("aa", None), strict=True):
        write_history(tmp_path / cell.id, [25, 50])
        finish(tmp_path / cell.id, cell, model, "completed" if model else "diverged")
    cell, folder = cells[0], tmp_path / cells[0].id
    (folder / "model").mkdir()
    for name in ("README.md", "config.json", "model.safetensors"):
        (folder / "model" / name).write_text(name)
    import_study(plan, database, "models", tmp_path)
    evaluate(folder, "embeddings", kappa=0.5)
    import_study(plan, database, "models", tmp_path)

    client, runs = runs_of(database, "models")
    (model,) = models_of(client, "models")  # a diverged cell has none
    assert model.status == "READY"
    assert model.source_run_id == runs[cell.id].info.run_id
    assert model.name == runs[cell.id].info.run_name.replace(".", "_")
    assert model.tags[CELL] == cell.id
    assert (model.tags["path"], model.tags["sha256"]) == (str(folder / "model"), "aa")
    assert model.params == {
        name: runs[cell.id].data.tags[name]
        for name in ("optimizer", "seed", "tokens", "parameters")
    }
    assert {metric.key: metric.value for metric in model.metrics} == {"embeddings/kappa": 0.5}
    assert [output.model_id for output in runs[cell.id].outputs.model_outputs] == [model.model_id]
    assert [artifact.path for artifact in client.list_logged_model_artifacts(model.model_id)] == [
        "README.md",
        "config.json",
    ]
    assert runs[cell.id].data.tags["model_path"] == str(folder / "model")
    assert "model_path" not in runs[cells[1].id].data.tags
    assert runs[cell.id].data.tags["without_seed"] == f"adamw 3.2K {readable_count(cell.n_params)}"

    finish(folder, cell, "bb")  # trained anew
    import_study(plan, database, "models", tmp_path)
    (model,) = models_of(client, "models")
    assert model.tags["sha256"] == "bb"


def test_a_link_that_was_cut_off_is_made_whole(plan, database, tmp_path, monkeypatch):
    cell = next(iter(plan.cells.values()))
    write_history(tmp_path / cell.id, [25, 50])
    finish(tmp_path / cell.id, cell)
    for step in ("log_outputs", "finalize_logged_model"):
        with monkeypatch.context() as patch, pytest.raises(ValueError, match="cut off"):
            patch.setattr(f"mlflow.tracking.MlflowClient.{step}", raise_cut_off)
            import_study(plan, database, "cut", tmp_path)
    import_study(plan, database, "cut", tmp_path)
    client, runs = runs_of(database, "cut")
    (model,) = models_of(client, "cut")
    assert model.status == "READY"
    assert model.model_id in [output.model_id for output in runs[cell.id].outputs.model_outputs]


def raise_cut_off(*arguments, **options):
    raise OSError("cut off")


def test_a_second_import_adds_nothing(plan, database, tmp_path, evaluate):
    for cell in plan.cells.values():
        write_history(tmp_path / cell.id, range(10, 60, 10))
        finish(tmp_path / cell.id, cell)
        evaluate(tmp_path / cell.id, "test", loss=1.0)
    assert counts(import_study(plan, database, "again", tmp_path)) == {"created": 2}
    client, before = runs_of(database, "again")
    assert counts(import_study(plan, database, "again", tmp_path)) == {"unchanged": 2}
    _, after = runs_of(database, "again")
    assert {name: run.to_dictionary() for name, run in before.items()} == {
        name: run.to_dictionary() for name, run in after.items()
    }
    for run in after.values():
        assert len(client.get_metric_history(run.info.run_id, "train/loss")) == 5
        assert len(client.get_metric_history(run.info.run_id, "test/loss")) == 1


def test_a_running_cell_is_followed_and_a_resumed_one_is_not_doubled(plan, database, tmp_path):
    cell = next(iter(plan.cells.values()))
    folder = tmp_path / cell.id
    write_history(folder, range(1, 21))
    with (folder / "history.jsonl").open("a") as file:
        file.write('{"step": 21, "lo')  # training is writing this line
    assert counts(import_study(plan, database, "live", tmp_path)) == {"created": 1, "waiting": 1}
    client, runs = runs_of(database, "live")
    run_id = runs[cell.id].info.run_id
    assert runs[cell.id].info.status == "RUNNING"
    assert len(client.get_metric_history(run_id, "train/loss")) == 20

    # Resumed from the checkpoint of step 10: the rows after it are written again, later.
    rows = [history_row(step) for step in range(1, 11)] + [
        history_row(step, T0 + 500) for step in range(11, 16)
    ]
    (folder / "history.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    import_study(plan, database, "live", tmp_path)
    rows += [history_row(step, T0 + 500) for step in range(16, 51)]
    (folder / "history.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    finish(folder, cell)
    assert counts(import_study(plan, database, "live", tmp_path)) == {"updated": 1, "waiting": 1}
    _, runs = runs_of(database, "live")
    assert runs[cell.id].info.run_id == run_id
    assert runs[cell.id].info.status == "FINISHED"
    assert sorted(point.step for point in client.get_metric_history(run_id, "train/loss")) == list(
        range(1, 51)
    )


def test_a_later_evaluation_is_added_and_a_repeated_one_replaces(
    plan, database, tmp_path, evaluate
):
    cell = next(iter(plan.cells.values()))
    folder = tmp_path / cell.id
    write_history(folder, [25, 50])
    finish(folder, cell)
    import_study(plan, database, "later", tmp_path)
    evaluate(folder, "test", loss=2.0)
    assert counts(import_study(plan, database, "later", tmp_path)) == {"updated": 1, "waiting": 1}
    os.utime(evaluate(folder, "test", loss=1.5), (time.time() + 60, time.time() + 60))
    import_study(plan, database, "later", tmp_path)
    _, runs = runs_of(database, "later")
    assert runs[cell.id].data.metrics["test/loss"] == 1.5


def test_hundreds_of_numbers_of_a_model_come_once(plan, database, tmp_path, evaluate):
    """MLflow 3.17 fails if more than a hundred numbers of a model come, some of which it has."""
    cell = next(iter(plan.cells.values()))
    folder = tmp_path / cell.id
    write_history(folder, [25, 50])
    finish(folder, cell)
    numbers = {f"number_{index}": float(index) for index in range(150)}
    evaluate(folder, "test", loss=2.0, **numbers)
    import_study(plan, database, "many", tmp_path)
    evaluate(folder, "embeddings", isotropy=0.5)
    assert counts(import_study(plan, database, "many", tmp_path)) == {"updated": 1, "waiting": 1}
    client, runs = runs_of(database, "many")
    (model,) = client.search_logged_models([runs[cell.id].info.experiment_id])
    assert len(model.metrics) == 152


def test_a_cell_trained_anew_gets_a_new_run(plan, database, tmp_path):
    cell = next(iter(plan.cells.values()))
    folder, experiment = tmp_path / cell.id, "anew"
    write_history(folder, [25, 50])
    finish(folder, cell)
    import_study(plan, database, experiment, tmp_path)
    client, runs = runs_of(database, experiment)
    old = runs[cell.id].info.run_id
    write_history(folder, [25, 50], start=T0 + 1000)
    assert counts(import_study(plan, database, experiment, tmp_path)) == {
        "created": 1,
        "superseded": 1,
        "waiting": 1,
    }
    _, runs = runs_of(database, experiment)
    assert runs[cell.id].info.run_id != old
    assert client.get_run(old).info.lifecycle_stage == "deleted"
    assert client.get_run(old).data.tags["coupled_adam_bench.superseded"] == "true"
    assert len(models_of(client, experiment)) == 1


def test_a_diverged_cell_is_a_failed_run_with_its_reason(plan, database, tmp_path):
    first, second = plan.cells.values()
    write_history(tmp_path / first.id, [1])
    finish(tmp_path / first.id, first, model=None, status="diverged")
    (tmp_path / second.id).mkdir()
    finish(
        tmp_path / second.id, second, model=None, status="diverged"
    )  # before the first row was logged
    import_study(plan, database, "diverged", tmp_path)
    _, runs = runs_of(database, "diverged")
    for cell in (first, second):
        assert runs[cell.id].info.status == "FAILED"
        assert "loss not finite in step 7" in runs[cell.id].data.tags["mlflow.note.content"]


@pytest.mark.parametrize(("n_rows", "n_requests"), [(2, 1), (METRICS_PER_REQUEST + 7, 3)])
def test_numbers_settings_and_tags_share_requests(
    n_rows, n_requests, plan, database, tmp_path, monkeypatch
):
    from mlflow.tracking import MlflowClient

    cell = next(iter(plan.cells.values()))
    write_history(tmp_path / cell.id, range(1, n_rows + 1))  # two metrics each
    requests = []
    log_batch = MlflowClient.log_batch

    def counted(*arguments, **options):
        requests.append(arguments)
        return log_batch(*arguments, **options)

    monkeypatch.setattr(MlflowClient, "log_batch", counted)
    import_study(plan, database, f"long {n_rows}", tmp_path)
    client, runs = runs_of(database, f"long {n_rows}")
    run = runs[cell.id]
    assert len(client.get_metric_history(run.info.run_id, "train/lr")) == n_rows
    assert run.data.params["seed"] == str(cell.seed)
    assert len(requests) == n_requests


@pytest.mark.fault(
    "tracking",
    "run.json is broken while a study is imported",
    "a sentence names the file; nothing of that cell is imported",
)
def test_a_broken_file_is_named(plan, database, tmp_path):
    cell = next(iter(plan.cells.values()))
    write_history(tmp_path / cell.id, [25, 50])
    path = tmp_path / cell.id / "run.json"
    path.write_text("{}")
    with pytest.raises(ValueError, match=rf"{re.escape(str(path))}: its contents do not match"):
        import_study(plan, database, "broken", tmp_path)
    assert runs_of(database, "broken")[1] == {}


def test_a_real_server(plan, tmp_path, monkeypatch, capfd, evaluate, whole):
    shutil.copy(whole, tmp_path / "server.db")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    uri = f"http://127.0.0.1:{port}"
    for cell in plan.cells.values():
        write_history(tmp_path / "runs" / cell.id, [25, 50])
        finish(tmp_path / "runs" / cell.id, cell)
        evaluate(tmp_path / "runs" / cell.id, "embeddings", isotropy=math.nan, kappa=0.5)
    command = ["-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--workers", "1", "--backend-store-uri", f"sqlite:///{tmp_path}/server.db"]
    command += ["--artifacts-destination", str(tmp_path / "a")]
    environment = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    server = python("pipeline", command, tmp_path, environment, tmp_path / "log")
    try:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            assert server.poll() is None, (tmp_path / "log").read_text()
            try:
                urllib.request.urlopen(f"{uri}/health", timeout=1).close()
                break
            except OSError:
                time.sleep(0.1)
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri.replace("//", "//user:p%40ssword@"))
        assert counts(import_study(plan, runs=tmp_path / "runs")) == {"created": 2}
        assert counts(import_study(plan, runs=tmp_path / "runs")) == {"unchanged": 2}
        assert capfd.readouterr() == ("", "")  # no "View run at" with the server's address
        written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
        assert re.search(rb"p@ss|p%40ss", written) is None
        client, runs = runs_of(uri, "tracked")
        assert set(runs) == set(plan.cells)
        for run in runs.values():
            assert run.data.metrics["embeddings/kappa"] == 0.5
            assert math.isnan(run.data.metrics["embeddings/isotropy"])
            assert [a.path for a in client.list_artifacts(run.info.run_id)] == [
                "embeddings.json",
                "run.json",
            ]
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(timeout=30)


def test_the_view_has_two_charts_across_the_page_and_the_metrics_that_count():
    """Beside the assistant, on a page of 1280 pixels, charts of other widths were of 100, and had
    an axis from 0."""
    view = json.loads(curves())
    (section,) = view["compareRunSections"]
    assert section["columns"] == len(view["compareRunCharts"]) == 2
    assert view["runListHidden"] is True
    assert [chart["scaleType"] for chart in view["compareRunCharts"]] == ["log", "log"]
    assert view["selectedColumns"] == [
        "metrics.`test/loss`",
        "metrics.`embeddings/isotropy`",
        "metrics.`word_similarity/r_bar`",
    ]


def test_the_address_has_a_port_that_is_free(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):  # somebody has it already
            other.bind(("127.0.0.1", 5000))
            other.listen()
        command, address = shown_at("sqlite:///results/mlflow.db", "1")
    port = re.search(r"--port (\d+)$", command)[1]
    assert port != "5000" and address.startswith(f"http://127.0.0.1:{port}/#/")
