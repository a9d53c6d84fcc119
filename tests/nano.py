"""A study whose cells train in a second: a model of a thousand weights, on a generated language."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny import tiny_study

from coupled_adam_bench.data.prepare import prepare
from coupled_adam_bench.store.runs import data_dir, run_of
from coupled_adam_bench.study.plan import Cell, Plan, make_plan
from coupled_adam_bench.study.study import parse_study
from coupled_adam_bench.training.jobs import train_cells

SOURCE = {
    "kind": "synthetic",
    "n_words": 60,
    "n_tokens": 40_000,
    "document_tokens": 40,
    "n_word_pairs": 40,
    "n_task_items": 12,
}
DATA = {
    "name": "nano",
    "source": SOURCE,
    "tokenizer": "word",
    "vocab_size": 64,
    "split": {"val_fraction": 0.02, "test_fraction": 0.02},
}
MODEL = {"name": "nano", "n_layer": 1, "n_head": 2, "d_model": 8, "learning_rate": 0.01}
TRAINING = {"seq_len": 16, "batch_sequences": 4, "warmup_steps": 5, "precision": "fp32"}
EXECUTION = {"checkpoint_every": 10, "log_every": 5, "eval_every": 20, "data_threads": 1}


def plan_of(
    optimizers: list[Any],
    steps: int = 60,
    model: dict[str, Any] | None = None,
    training: dict[str, Any] | None = None,
    **execution: Any,
) -> Plan:
    """Return the plan of a study with a cell for each optimizer."""
    block = {"models": ["nano"], "tokens": [{"steps": steps}], "optimizers": optimizers}
    study = tiny_study(
        data=DATA,
        models=[MODEL | (model or {})],
        training=training or TRAINING,
        grid=[block | {"seeds": [1]}],
        execution=EXECUTION | execution,
    )
    return make_plan(parse_study(study))


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the data of these studies, for tests to copy."""
    folder = tmp_path_factory.mktemp("prepared")
    plan = plan_of(["adamw"])
    prepare(plan.study, plan.data_id, folder / data_dir(plan.data_id))
    return folder


@pytest.fixture
def nano(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with data and no runs, in which the test runs."""
    shutil.copytree(prepared, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def losses(cell: Cell) -> dict[int, float]:
    """Return the losses of the history by step."""
    return {row["step"]: row["loss"] for row in run_of(cell.id).rows()}


def weights(cell: Cell) -> dict[str, torch.Tensor]:
    return load_file(run_of(cell.id).model / "model.safetensors")


def train(optimizers: list[Any], devices: list[str] | None = None, **settings: Any) -> list[Cell]:
    """Train a study in this folder, and return its cells."""
    plan = plan_of(optimizers, **settings)
    cells = list(plan.cells.values())
    assert train_cells(cells, plan.study.execution, devices) == 0
    return cells


def same_bits(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def golden_losses() -> dict[str, list[float]]:
    text = (Path(__file__).parent / "golden/loss_curves.json").read_text()
    return dict(json.loads(text))
