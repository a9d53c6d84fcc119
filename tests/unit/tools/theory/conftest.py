"""Tiny cells, trained, on data that all tests share."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from planned import only

from coupled_adam_bench.cli import main
from coupled_adam_bench.store import paths
from coupled_adam_bench.store.files import write_sealed
from coupled_adam_bench.study.config import parse_study
from coupled_adam_bench.study.plan import Plan, make_plan

MODELS = [
    {
        "name": name,
        "n_layer": 1,
        "n_head": 2,
        "d_model": 8,
        "learning_rate": 0.01,
        "tied": name == "tied",
    }
    for name in ("tied", "untied")
]
OPTIMIZERS = ["adamw", "coupled_adam", {"name": "sgd", "lr_factor": 20}]


@pytest.fixture
def theory_study(tiny_study: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """The function that returns a study of the theory with other ``training`` settings, ``steps``
    and models."""

    def make(
        steps: int = 24, optimizers: Any = OPTIMIZERS, models: Any = MODELS, **training: Any
    ) -> dict[str, Any]:
        study = tiny_study(models=models)
        names = [model["name"] for model in models]
        study["grid"] = [
            {"models": names, "tokens": [{"steps": steps}], "optimizers": optimizers, "seeds": [1]}
        ]
        study["training"] |= training
        study["evaluation"] |= {"theory": {"n_batches": 4, "record_every": 5}}
        return study

    return make


@pytest.fixture
def workspace(
    tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[dict[str, Any]], Plan]:
    """The function that goes to a folder of its own with a study's plan and data, and returns the
    plan."""

    def go(settings: dict[str, Any]) -> Plan:
        plan = make_plan(parse_study(settings))
        data = tmp_path / paths.data_dir(only(plan).data_id)
        data.parent.mkdir(parents=True)
        data.symlink_to(tiny_data)
        monkeypatch.chdir(tmp_path)
        write_sealed(Path("plan.json"), plan.to_json())
        return plan

    return go


@pytest.fixture
def stage_of() -> Callable[..., int]:
    """The function that runs a stage on cells as the workflow does."""

    def run(stage: str, cells: Any, *arguments: str) -> int:
        return main(
            [stage, "--plan", "plan.json", "--device", "cpu", "--cells", *cells, *arguments]
        )

    return run
