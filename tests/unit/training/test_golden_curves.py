"""Loss curves on file, which no refactoring may move; CAB_UPDATE_GOLDEN=1 writes them after a
change of protocol."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from planned import only

from coupled_adam_bench.study.plan import make_plan
from coupled_adam_bench.study.settings import parse_study
from coupled_adam_bench.training.distributed import WorkerGroup
from coupled_adam_bench.training.jobs import train

FILE = Path(__file__).parents[2] / "golden" / "loss_curves.json"
OPTIMIZERS = [
    "adamw",
    "coupled_adam",
    {"name": "coupled_adam", "scale_exponent": -2},
    {"name": "sgd", "lr_factor": 20},
]
KEYS = ["adamw", "coupled_adam", "coupled_adam_n-2", "sgd_f20"]
MODELS = {"gpt2": {}, "stablelm-untied": {"architecture": "stablelm", "tied": False}}


def curve(tiny_study, tiny_data, folder, model, optimizer):
    settings = tiny_study()
    settings["models"] = [settings["models"][0] | {"n_layer": 2} | MODELS[model]]
    settings["grid"][0] |= {"table": None, "optimizers": [optimizer], "seeds": [1]}
    plan = make_plan(parse_study(settings))
    (cell,) = plan.cells.values()
    assert (
        train(cell, only(plan).study.execution, tiny_data, folder, WorkerGroup(torch.device("cpu")))
        == 0
    )
    rows = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    return [row["loss"] for row in rows]


@pytest.mark.parametrize("model", list(MODELS))
@pytest.mark.parametrize(("optimizer", "key"), list(zip(OPTIMIZERS, KEYS, strict=True)), ids=KEYS)
def test_the_loss_curve_is_the_one_on_file(model, optimizer, key, tiny_study, tiny_data, tmp_path):
    losses = curve(tiny_study, tiny_data, tmp_path / "run", model, optimizer)
    golden = json.loads(FILE.read_text()) if FILE.exists() else {}
    if os.environ.get("CAB_UPDATE_GOLDEN"):
        golden[f"{model} {key}"] = losses
        FILE.write_text(json.dumps(golden, indent=1, sort_keys=True) + "\n")
    # Other processors round otherwise; the seed moves the curve by a hundred times as much.
    np.testing.assert_allclose(losses, golden[f"{model} {key}"], rtol=1e-4)


def test_the_curves_differ_from_each_other():
    golden = json.loads(FILE.read_text())
    assert set(golden) == {f"{model} {key}" for model in MODELS for key in KEYS}
    curves = np.array(list(golden.values()))
    distances = np.abs(curves[:, None] - curves[None]).max(-1) + np.eye(len(curves))
    assert distances.min() > 1e-3
