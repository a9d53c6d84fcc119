from pathlib import Path

import pytest

from coupled_adam_bench.store.files import write_sealed
from coupled_adam_bench.study.plan import Plan, make_plan
from coupled_adam_bench.study.settings import parse_study
from coupled_adam_bench.tracking import place


@pytest.fixture
def tiny_plan(tiny_study) -> Plan:
    """A study of two cells: MLflow takes a fifth of a second for each."""
    settings = tiny_study()
    settings["grid"][0] |= {"table": None, "seeds": [1]}
    return make_plan(parse_study(settings))


@pytest.fixture
def tracked(tmp_path, monkeypatch, tiny_plan, stored) -> Path:
    """A working folder, the one we are in, with two cells of five rows each, and no database."""
    folder = tmp_path / "a project"
    folder.mkdir()
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(folder)
    write_sealed(Path("results/plan.json"), tiny_plan.to_json())
    files = stored(tiny_plan, Path("results/runs"))
    for cell in tiny_plan.cells:
        history = Path("results/runs", cell, "history.jsonl")
        history.parent.mkdir(parents=True)
        history.write_text(
            "".join(
                f'{{"step": {step}, "loss": {4 / step}, "time": {step}}}\n' for step in range(1, 6)
            )
        )
        files.run(cell, environment={"git_revision": "0123abc"})
        files.evaluation(cell, "test_loss", [("test", "loss", 2.5, "nat/token")])
    return folder


@pytest.fixture(scope="session")
def whole(tmp_path_factory) -> Path:
    """An MLflow database without runs, made once: that takes seconds, and MLflow remembers what it
    has opened."""
    database = tmp_path_factory.mktemp("whole") / "mlflow.db"
    place.open_client(f"sqlite:///{database}")
    return database
