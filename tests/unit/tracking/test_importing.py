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


@pytest.fixture
def cell(plan) -> Cell:
    """The first of the two cells."""
    return next(iter(plan.cells.values()))


@pytest.fixture
def folder(tmp_path, cell) -> Path:
    """The run of that cell, before it has begun."""
    return tmp_path / cell.id


@pytest.fixture
def mirror(plan, database, tmp_path, request) -> "Mirror":
    """An experiment of a test's own, and what is imported into it."""
    return Mirror(plan, database, request.node.name, tmp_path)


class Mirror:
    """An experiment of MLflow, which mirrors a folder of runs."""

    def __init__(self, plan: Plan, uri: str, experiment: str, runs: Path) -> None:
        from mlflow.tracking import MlflowClient

        self.client = MlflowClient(tracking_uri=uri)
        self._arguments = plan, uri, experiment, runs

    def add(self, *study_dir: Path) -> dict:
        """Import what is there now, and return the summary."""
        return import_study(*self._arguments, *study_dir)

    def counted(self) -> dict[str, int]:
        """Import what is there now, and return the numbers of the summary that are not 0."""
        return counts(self.add())

    @property
    def experiment(self):
        return self.client.get_experiment_by_name(self._arguments[2])

    def runs(self) -> dict:
        """The runs by their cells."""
        found = self.client.search_runs([self.experiment.experiment_id])
        return {run.data.tags[CELL]: run for run in found if CELL in run.data.tags}

    def run(self, cell: Cell):
        return self.runs()[cell.id]

    def study_run(self):
        whole = "tags.`coupled_adam_bench.whole_study` != ''"
        (run,) = self.client.search_runs([self.experiment.experiment_id], whole)
        return run

    def models(self) -> list:
        return self.client.search_logged_models([self.experiment.experiment_id])

    def history(self, run, metric: str) -> list:
        return self.client.get_metric_history(run.info.run_id, metric)


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
def trained(folder, cell) -> Path:
    """The run of the first cell, which has ended well."""
    write_history(folder, [25, 50])
    finish(folder, cell)
    return folder


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


def counts(summary) -> dict[str, int]:
    return {key: value for key, value in summary.items() if isinstance(value, int) and value}


def test_a_finished_cell_is_mirrored_whole(tmp_path, evaluate, cell, folder, mirror):
    write_history(folder, range(1, 51))
    write_json(folder / "cell.json", cell.to_json())
    finish(folder, cell)
    evaluate(folder, "test", loss=2.5)
    evaluate(folder, "embeddings", isotropy=math.nan, mean_norm=1.5)
    evaluate(folder, "hellaswag", {"documents.jsonl.gz": b"packed"}, acc=0.25)

    summary = mirror.add()
    assert counts(summary) == {"created": 1, "waiting": 1}

    assert list(mirror.runs()) == [cell.id]
    run = mirror.run(cell)
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
    history = mirror.history(run, "train/loss")
    assert sorted((point.step, point.value, point.timestamp) for point in history) == [
        (step, 4.0 / step, 1_700_000_000_250 + 1000 * step) for step in range(1, 51)
    ]
    assert run.data.metrics["test/loss"] == 2.5
    assert [point.step for point in mirror.history(run, "test/loss")] == [0]
    assert run.data.metrics["hellaswag/acc"] == 0.25
    assert math.isnan(run.data.metrics["embeddings/isotropy"])
    assert run.data.metrics["embeddings/mean_norm"] == 1.5
    names = [artifact.path for artifact in mirror.client.list_artifacts(run.info.run_id)]
    assert names == [
        "cell.json",
        "downstream.documents.jsonl.gz",
        "downstream.json",
        "embeddings.json",
        "run.json",
        "test_loss.json",
    ]
    copy = mirror.client.download_artifacts(run.info.run_id, "cell.json", str(tmp_path))
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


def test_the_study_is_a_run_with_its_report(tmp_path, mirror):
    study_dir = tmp_path / "tracked"
    mirror.add(study_dir)  # before anything is written
    run = mirror.study_run()
    assert (run.info.run_name, run.info.status) == ("study tracked", "RUNNING")
    assert mirror.client.list_artifacts(run.info.run_id) == []
    for text in ("first", "second"):
        write_report(study_dir, text)
        mirror.add(study_dir)
        run = mirror.study_run()
        assert run.info.status == "FINISHED"
        assert run.data.metrics["table1/loss/adamw 20 B 125M"] == 2.5
        assert math.isnan(run.data.metrics["table1/loss/ca 20 B 125M"])
        path = mirror.client.download_artifacts(run.info.run_id, "report/index.html", str(tmp_path))
        assert Path(path).read_text() == text
    mirror.add(study_dir)
    assert str(mirror.study_run().to_dictionary()) == str(run.to_dictionary())


def test_the_address_opens_on_the_curves_of_the_optimizers(database, cell, folder, mirror):
    write_history(folder, range(1, 3))
    summary = mirror.add()
    run = mirror.run(cell)
    found = mirror.experiment
    assert found.tags["mlflow.experimentKind"] == "custom_model_development"
    first, second = json.loads(found.tags[VIEW])["compareRunCharts"]
    size = readable_count(cell.n_params)
    assert (first["type"], first["metricKey"]) == ("LINE", f"{size}/train_loss")
    assert second["metricKey"] == f"{size}/val_loss"
    # The curves are means over the runs that have one name without their seeds.
    group = json.loads(found.tags[VIEW])["groupBy"].split(".")
    assert group[:2] == ["tag", "average"] and group[2] in run.data.tags
    assert run.data.metrics[first["metricKey"]] == run.data.metrics["train/loss"]
    command, address = summary["shown"]
    assert command == f"mlflow ui --backend-store-uri {database}"
    assert f"/#/experiments/{found.experiment_id}/runs?" in address
    key = re.search("viewStateShareKey=(.*)", address)[1]
    assert f"mlflow.sharedViewState.{key}" == VIEW
    # A view of another version of this program is replaced.
    mirror.client.set_experiment_tag(found.experiment_id, VIEW, "{}")
    mirror.add()
    assert mirror.experiment.tags[VIEW] == found.tags[VIEW]


def test_the_address_of_a_server_has_no_password():
    (address,) = shown_at("https://me:secret@host/mlflow/", "7")
    assert address.startswith("https://me:***@host/mlflow/#/experiments/7/runs?")


def test_a_trained_model_is_linked_without_its_weights(plan, tmp_path, evaluate, trained, mirror):
    cell, diverged = plan.cells.values()
    write_history(tmp_path / diverged.id, [25, 50])
    finish(tmp_path / diverged.id, diverged, None, "diverged")
    (trained / "model").mkdir()
    for name in ("README.md", "config.json", "model.safetensors"):
        (trained / "model" / name).write_text(name)
    mirror.add()
    evaluate(trained, "embeddings", kappa=0.5)
    mirror.add()

    run = mirror.run(cell)
    (model,) = mirror.models()  # a diverged cell has none
    assert model.status == "READY"
    assert model.source_run_id == run.info.run_id
    assert model.name == run.info.run_name.replace(".", "_")
    assert model.tags[CELL] == cell.id
    assert (model.tags["path"], model.tags["sha256"]) == (str(trained / "model"), "aa")
    names = ("optimizer", "seed", "tokens", "parameters")
    assert model.params == {name: run.data.tags[name] for name in names}
    assert {metric.key: metric.value for metric in model.metrics} == {"embeddings/kappa": 0.5}
    assert [output.model_id for output in run.outputs.model_outputs] == [model.model_id]
    artifacts = mirror.client.list_logged_model_artifacts(model.model_id)
    assert [artifact.path for artifact in artifacts] == ["README.md", "config.json"]
    assert run.data.tags["model_path"] == str(trained / "model")
    assert "model_path" not in mirror.run(diverged).data.tags
    assert run.data.tags["without_seed"] == f"adamw 3.2K {readable_count(cell.n_params)}"

    finish(trained, cell, "bb")  # trained anew
    mirror.add()
    (model,) = mirror.models()
    assert model.tags["sha256"] == "bb"


def test_a_link_that_was_cut_off_is_made_whole(monkeypatch, cell, trained, mirror):
    for step in ("log_outputs", "finalize_logged_model"):
        with monkeypatch.context() as patch, pytest.raises(ValueError, match="cut off"):
            patch.setattr(f"mlflow.tracking.MlflowClient.{step}", raise_cut_off)
            mirror.add()
    mirror.add()
    (model,) = mirror.models()
    assert model.status == "READY"
    outputs = mirror.run(cell).outputs.model_outputs
    assert model.model_id in [output.model_id for output in outputs]


def raise_cut_off(*arguments, **options):
    raise OSError("cut off")


def test_a_second_import_adds_nothing(plan, tmp_path, evaluate, mirror):
    for cell in plan.cells.values():
        write_history(tmp_path / cell.id, range(10, 60, 10))
        finish(tmp_path / cell.id, cell)
        evaluate(tmp_path / cell.id, "test", loss=1.0)
    assert mirror.counted() == {"created": 2}
    before = mirror.runs()
    assert mirror.counted() == {"unchanged": 2}
    after = mirror.runs()
    assert {name: run.to_dictionary() for name, run in before.items()} == {
        name: run.to_dictionary() for name, run in after.items()
    }
    for run in after.values():
        assert len(mirror.history(run, "train/loss")) == 5
        assert len(mirror.history(run, "test/loss")) == 1


def test_a_running_cell_is_followed_and_a_resumed_one_is_not_doubled(cell, folder, mirror):
    write_history(folder, range(1, 21))
    with (folder / "history.jsonl").open("a") as file:
        file.write('{"step": 21, "lo')  # training is writing this line
    assert mirror.counted() == {"created": 1, "waiting": 1}
    before = mirror.run(cell)
    assert before.info.status == "RUNNING"
    assert len(mirror.history(before, "train/loss")) == 20

    # Resumed from the checkpoint of step 10: the rows after it are written again, later.
    rows = [history_row(step) for step in range(1, 11)] + [
        history_row(step, T0 + 500) for step in range(11, 16)
    ]
    (folder / "history.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    mirror.add()
    rows += [history_row(step, T0 + 500) for step in range(16, 51)]
    (folder / "history.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    finish(folder, cell)
    assert mirror.counted() == {"updated": 1, "waiting": 1}
    run = mirror.run(cell)
    assert run.info.run_id == before.info.run_id
    assert run.info.status == "FINISHED"
    steps = [point.step for point in mirror.history(run, "train/loss")]
    assert sorted(steps) == list(range(1, 51))


def test_a_later_evaluation_is_added_and_a_repeated_one_replaces(evaluate, cell, trained, mirror):
    mirror.add()
    evaluate(trained, "test", loss=2.0)
    assert mirror.counted() == {"updated": 1, "waiting": 1}
    os.utime(evaluate(trained, "test", loss=1.5), (time.time() + 60, time.time() + 60))
    mirror.add()
    assert mirror.run(cell).data.metrics["test/loss"] == 1.5


def test_hundreds_of_numbers_of_a_model_come_once(evaluate, trained, mirror):
    """MLflow 3.17 fails if more than a hundred numbers of a model come, some of which it has."""
    numbers = {f"number_{index}": float(index) for index in range(150)}
    evaluate(trained, "test", loss=2.0, **numbers)
    mirror.add()
    evaluate(trained, "embeddings", isotropy=0.5)
    assert mirror.counted() == {"updated": 1, "waiting": 1}
    (model,) = mirror.models()
    assert len(model.metrics) == 152


def test_a_cell_trained_anew_gets_a_new_run(cell, trained, mirror):
    mirror.add()
    old = mirror.run(cell).info.run_id
    write_history(trained, [25, 50], start=T0 + 1000)
    assert mirror.counted() == {"created": 1, "superseded": 1, "waiting": 1}
    assert mirror.run(cell).info.run_id != old
    assert mirror.client.get_run(old).info.lifecycle_stage == "deleted"
    assert mirror.client.get_run(old).data.tags["coupled_adam_bench.superseded"] == "true"
    assert len(mirror.models()) == 1


def test_a_diverged_cell_is_a_failed_run_with_its_reason(plan, tmp_path, mirror):
    first, second = plan.cells.values()
    write_history(tmp_path / first.id, [1])
    finish(tmp_path / first.id, first, model=None, status="diverged")
    (tmp_path / second.id).mkdir()
    finish(
        tmp_path / second.id, second, model=None, status="diverged"
    )  # before the first row was logged
    mirror.add()
    for cell in (first, second):
        run = mirror.run(cell)
        assert run.info.status == "FAILED"
        assert "loss not finite in step 7" in run.data.tags["mlflow.note.content"]


@pytest.mark.parametrize(("n_rows", "n_requests"), [(2, 1), (METRICS_PER_REQUEST + 7, 4)])
def test_numbers_settings_and_tags_share_requests(
    n_rows, n_requests, monkeypatch, cell, folder, mirror
):
    from mlflow.tracking import MlflowClient

    write_history(folder, range(1, n_rows + 1))  # three metrics each
    requests = []
    log_batch = MlflowClient.log_batch

    def counted(*arguments, **options):
        requests.append(arguments)
        return log_batch(*arguments, **options)

    monkeypatch.setattr(MlflowClient, "log_batch", counted)
    mirror.add()
    run = mirror.run(cell)
    assert len(mirror.history(run, "train/lr")) == n_rows
    assert run.data.params["seed"] == str(cell.seed)
    assert len(requests) == n_requests


@pytest.mark.fault(
    "tracking",
    "run.json is broken while a study is imported",
    "a sentence names the file; nothing of that cell is imported",
)
def test_a_broken_file_is_named(folder, mirror):
    write_history(folder, [25, 50])
    path = folder / "run.json"
    path.write_text("{}")
    with pytest.raises(ValueError, match=rf"{re.escape(str(path))}: its contents do not match"):
        mirror.add()
    assert mirror.runs() == {}


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
        mirror = Mirror(plan, uri, "tracked", tmp_path / "runs")
        runs = mirror.runs()
        assert set(runs) == set(plan.cells)
        for run in runs.values():
            assert run.data.metrics["embeddings/kappa"] == 0.5
            assert math.isnan(run.data.metrics["embeddings/isotropy"])
            assert [a.path for a in mirror.client.list_artifacts(run.info.run_id)] == [
                "embeddings.json",
                "run.json",
            ]
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(timeout=30)


def test_the_view_has_two_charts_a_size_across_the_page_and_the_metrics_that_count(tiny_study):
    """In charts of all sizes the curves of one lay on those of another; with MLflow's own number of
    runs they had ten of the optimizers; and on a page of 1280 pixels, charts of other widths were
    of 100, on an axis from 0."""
    settings = tiny_study()
    wide = {"name": "w", "label": "1.3B (ours)", "n_layer": 2, "n_head": 2, "d_model": 64}
    settings["models"] = [wide | {"learning_rate": 1e-3}, *settings["models"]]
    settings["grid"][0] |= {"models": ["w", "nano"], "table": None, "seeds": [1]}
    plan = make_plan(parse_study(settings))
    view = json.loads(curves(plan))
    sections = view["compareRunSections"]
    small = next(cell for cell in plan.cells.values() if cell.model.name != "w")
    sizes = [readable_count(small.n_params), "1.3B -ours-"]
    assert [section["name"].removesuffix(": means over seeds") for section in sections] == sizes
    charts = [(chart["metricSectionId"], chart["metricKey"]) for chart in view["compareRunCharts"]]
    assert charts == [
        (section["uuid"], f"{size}/{name}")
        for section, size in zip(sections, sizes, strict=True)
        for name in ("train_loss", "val_loss")
    ]
    assert {section["columns"] for section in sections} == {2}
    assert view["runsHiddenMode"] == "SHOW_ALL"
    assert view["runListHidden"] is True
    assert {chart["scaleType"] for chart in view["compareRunCharts"]} == {"log"}
    assert view["selectedColumns"] == view["columnOrder"] == list(view["columnWidths"])
    assert view["selectedColumns"] == [
        "metrics.`test/loss`",
        "metrics.`embeddings/isotropy`",
        "metrics.`word_similarity/r_bar`",
    ]
    # MLflow's pages take 7 pixels for a letter of a name, and 20 around it.
    assert all(
        width >= 7 * len(column.split("`")[1]) + 20
        for column, width in view["columnWidths"].items()
    )


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
