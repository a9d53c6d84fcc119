"""An import asks whether what it has written before is still there, and its own: moved, copied and
deleted things."""

import shutil
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import pytest

from coupled_adam_bench.store.files import write_json
from coupled_adam_bench.store.paths import IMPORT_SUMMARY, imported_elsewhere
from coupled_adam_bench.tracking.described import CELL
from coupled_adam_bench.tracking.importing import import_study
from coupled_adam_bench.tracking.place import TrackingError, tracking_uri

pytest.importorskip("mlflow")
STUDY = Path("results/tiny")
ARTIFACTS = Path("results/mlflow-artifacts")


@pytest.fixture
def imported(tracked, tiny_plan, whole) -> Path:
    """A working folder whose study is imported, with a table and a model."""
    shutil.copy(whole, "results/mlflow.db")
    (STUDY / "report").mkdir(parents=True)
    (STUDY / "report/index.html").write_text("a report")
    for cell in tiny_plan.cells:
        model = Path("results/runs", cell, "model")
        model.mkdir()
        (model / "config.json").write_text("{}")
    assert import_again(tiny_plan)["created"] == 2
    return tracked


def import_again(plan) -> dict:
    summary = import_study(plan, study_dir=STUDY)
    write_json(STUDY / IMPORT_SUMMARY, summary)
    return summary


def client():
    from mlflow.tracking import MlflowClient

    return MlflowClient(tracking_uri())


def experiment():
    return client().get_experiment_by_name("tiny")


def runs():
    return client().search_runs([experiment().experiment_id])


def files(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        path.relative_to(folder).as_posix(): (path.stat().st_mtime_ns, path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file()
    }


def assert_all_is_here(folder: Path) -> None:
    """Compare with the folder what MLflow's pages would show: each run with its files and its
    model, none folded under another."""
    from urllib.parse import unquote

    found = runs()
    assert len(found) == 3
    (whole,) = [run for run in found if CELL not in run.data.tags]
    for run in found:
        names = {artifact.path for artifact in client().list_artifacts(run.info.run_id)}
        assert names == ({"report"} if run is whole else {"run.json", "test_loss.json"})
        assert unquote(run.info.artifact_uri).startswith(f"file://{folder}/{ARTIFACTS}/tiny/")
        assert "mlflow.parentRunId" not in run.data.tags
    models = client().search_logged_models([experiment().experiment_id])
    assert len(models) == 2
    assert {model.source_run_id for model in models} == {
        run.info.run_id for run in found if run is not whole
    }
    for model in models:
        assert [one.path for one in client().list_logged_model_artifacts(model.model_id)] == [
            "config.json"
        ]


MOVES: dict[str, Callable] = {
    "moved": lambda old, new: old.rename(new),
    "copied": lambda old, new: shutil.copytree(old, new),
    "moved without MLflow's files": lambda old, new: (
        shutil.rmtree(old / ARTIFACTS),
        old.rename(new),
    ),
}


@pytest.mark.fault(
    "tracking",
    "a project is moved or copied with its MLflow database, which names its files by absolute"
    " paths",
    "the next start imports again: all is found where the project is now, and nothing is written to"
    " the old place",
)
@pytest.mark.parametrize("how", MOVES)
def test_a_project_that_is_moved_or_copied(how, imported, tiny_plan, monkeypatch, capfd):
    new = imported.with_name("änother place")
    assert not imported_elsewhere(STUDY)
    MOVES[how](imported, new)
    monkeypatch.chdir(new)
    # MLflow keeps in a process where each run's files lie; a start is another process.
    monkeypatch.setattr(
        "mlflow.tracking._tracking_service.utils._artifact_repos_cache", OrderedDict()
    )
    assert imported_elsewhere(STUDY)
    before = files(imported) if how == "copied" else {}
    (STUDY / "report/index.html").write_text("another report")
    import_again(tiny_plan)
    assert_all_is_here(new)
    (line,) = [line for line in capfd.readouterr().err.splitlines() if "came from" in line]
    assert line.startswith(
        f"results/mlflow.db came from {imported / ARTIFACTS}: its files are looked for in {new}/"
    )
    assert (files(imported) if how == "copied" else {}) == before
    assert not imported_elsewhere(STUDY)
    assert import_again(tiny_plan)["unchanged"] == 2
    assert "came from" not in capfd.readouterr().err


def test_a_folder_under_another_name_is_no_other_folder(imported, tiny_plan, monkeypatch, capfd):
    imported.with_name("link").symlink_to(imported)
    monkeypatch.chdir(imported.with_name("link"))
    assert not imported_elsewhere(STUDY)
    assert import_again(tiny_plan)["unchanged"] == 2
    assert "came from" not in capfd.readouterr().err


@pytest.mark.fault(
    "tracking",
    "a database that the user named has the study of another project, whose files lie there",
    "a sentence says so, and what to do; nothing is written to the other project",
)
def test_a_database_of_two_projects(tracked, tiny_plan, whole, tmp_path, monkeypatch):
    shutil.copy(whole, tmp_path / "both.db")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/both.db")
    import_study(tiny_plan)
    other = shutil.copytree(tracked, tracked.with_name("other"))
    before = files(tracked)
    monkeypatch.chdir(other)
    with pytest.raises(
        TrackingError,
        match=r"'tiny' has its files in .*a project/.*; rename the experiment in MLflow",
    ):
        import_study(tiny_plan)
    assert files(tracked) == before
    client().rename_experiment(experiment().experiment_id, "tiny of the first")
    assert import_study(tiny_plan)["created"] == 2


DELETED: dict[str, Callable] = {
    "experiment": lambda found: client().delete_experiment(experiment().experiment_id),
    "study's run": lambda found: client().delete_run(found[False].info.run_id),
    "cell's run": lambda found: client().delete_run(found[True].info.run_id),
    "all runs": lambda found: [client().delete_run(run.info.run_id) for run in runs()],
    "files": lambda found: shutil.rmtree(ARTIFACTS),
    "a file": lambda found: next(ARTIFACTS.rglob("test_loss.json")).unlink(),
    "database": lambda found: Path("results/mlflow.db").unlink(),
}


@pytest.mark.fault(
    "tracking",
    "an experiment, a run or files of MLflow's are deleted, in its pages or by hand",
    "the next import makes them anew: each run has its files and its model",
)
@pytest.mark.parametrize("what", DELETED)
def test_what_was_deleted_comes_anew(what, imported, tiny_plan):
    DELETED[what]({CELL in run.data.tags: run for run in runs()})
    for _ in range(2):
        import_again(tiny_plan)
        assert_all_is_here(imported)
    assert import_again(tiny_plan)["unchanged"] == 2


def test_an_experiment_is_deleted_twice(imported, tiny_plan, capfd):
    for _ in range(2):
        client().delete_experiment(experiment().experiment_id)
        assert import_again(tiny_plan)["created"] == 2
        assert (
            "MLflow's experiment 'tiny' was deleted: it is kept as 'tiny (deleted, "
            in capfd.readouterr().err
        )
    assert_all_is_here(imported)


def test_a_superseded_run_that_is_restored_is_not_taken_for_the_cell(imported, tiny_plan):
    first = next(iter(tiny_plan.cells))
    history = Path("results/runs", first, "history.jsonl")
    history.write_text(history.read_text().replace('"time": ', '"time": 10'))
    assert import_again(tiny_plan)["superseded"] == 1
    deleted = client().search_runs([experiment().experiment_id], run_view_type=2)
    client().restore_run(deleted[0].info.run_id)
    assert import_again(tiny_plan)["unchanged"] == 2


@pytest.mark.fault(
    "tracking",
    "results/mlflow.db is of use to nobody: each of MLflow's requests fails",
    "the advice fits the place: its deletion, since the results are elsewhere; never a variable"
    " that is not set",
)
def test_the_advice_fits_the_place(imported, tiny_plan, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("no such thing")

    monkeypatch.setattr("mlflow.tracking.MlflowClient.search_runs", fail)
    with pytest.raises(
        TrackingError, match=r"no such thing\..*; delete results/mlflow\.db and start again"
    ):
        import_study(tiny_plan)
    given = f"sqlite:///{imported}/results/mlflow.db?timeout=9"
    with pytest.raises(
        TrackingError, match=r"no such thing.*; mend it, or give no --uri to use results/mlflow\.db"
    ):
        import_study(tiny_plan, given)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", given)
    with pytest.raises(
        TrackingError,
        match=r"no such thing.*; mend it, or unset MLFLOW_TRACKING_URI to use results/ml",
    ):
        import_study(tiny_plan)
