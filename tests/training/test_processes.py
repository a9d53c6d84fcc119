"""The same cells on one process and on two, by DDP and FSDP2 over gloo."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nano import losses, plan_of, train, weights
from two_processes import TrainAll

from coupled_adam_bench.store.files import read_json
from coupled_adam_bench.store.runs import run_of
from coupled_adam_bench.training.processes import launch

OPTIMIZERS = ["adamw", "coupled_adam", {"name": "sgd", "lr_factor": 20}]
MU_CENTERED = {"name": "adamw", "mu_centering": True}


def forget_the_end(folder: Path) -> None:
    """Take the record and the last checkpoint away, as if the job had been killed before it."""
    for run in (folder / "results/runs").iterdir():
        (run / "run.json").unlink()
        sorted((run / "checkpoints").glob("*.pt"))[-1].unlink()


def test_two_processes_train_as_one(nano: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = [*OPTIMIZERS, MU_CENTERED]
    plan = plan_of(rules, steps=50)
    alone = [(losses(cell), weights(cell)) for cell in train(rules, steps=50)]
    kinds: dict[str, dict[str, Any]] = {
        "ddp": {"parallel": "ddp", "micro_batch_sequences": 1},
        "fsdp": {"parallel": "fsdp"},
        "from one to shards": {"parallel": "fsdp", "micro_batch_sequences": 1},
    }
    for kind in kinds:
        shutil.copytree(nano / "results", nano / kind / "results")
        if kind == "from one to shards":
            forget_the_end(nano / kind)
        else:
            shutil.rmtree(nano / kind / "results/runs")
    changes = {nano / kind: settings for kind, settings in kinds.items()}
    assert launch(TrainAll(plan, changes), ["cpu", "cpu"], []) == 0
    shutil.copytree(nano / "fsdp", nano / "from shards to one")
    forget_the_end(nano / "from shards to one")
    monkeypatch.chdir(nano / "from shards to one")
    train(rules, steps=50)

    for kind in (*kinds, "from shards to one"):
        monkeypatch.chdir(nano / kind)
        for cell, (its_losses, its_weights) in zip(plan.cells.values(), alone, strict=True):
            found = losses(cell)
            assert found.keys() == its_losses.keys()
            np.testing.assert_allclose([*found.values()], [*its_losses.values()], rtol=2e-5)
            for name, weight in weights(cell).items():
                np.testing.assert_allclose(weight, its_weights[name], atol=2e-3)
            cost = run_of(cell.id).read()["train"]
            assert cost["processes"] == (2 if kind in kinds else 1)


JOB = """
import sys
from pathlib import Path
from typing import Any
from coupled_adam_bench.study.plan import read_plan
from coupled_adam_bench.training.jobs import train_cells

if __name__ == "__main__":
    plan = read_plan(Path("plan.json"))
    sys.exit(train_cells(plan.cells.values(), plan.study.execution, ["cpu", "cpu"]))
"""


RULE = """
from pathlib import Path
import torch
import torch.distributed as dist

class FirstTooLarge(torch.optim.SGD):
    def step(self, closure=None):
        if dist.get_rank() == 1 and not Path("happened").exists():
            Path("happened").touch()
            torch.empty(2**60)  # more than any machine has
        super().step(closure)
"""


def test_two_processes_take_half_together_and_stop_together(nano: Path) -> None:
    rule = {"name": "custom", "path": "rule.FirstTooLarge", "key": "own", "label": "Own"}
    (nano / "rule.py").write_text(RULE)
    plan = plan_of([rule], steps=100_000, parallel="fsdp", checkpoint_every=10**6)
    (cell,) = plan.cells.values()
    plan.write(nano / "plan.json")
    (nano / "job.py").write_text(JOB)
    # The names of another launcher, as clusters and notebooks export them, are not read.
    others = {"RANK": "3", "LOCAL_RANK": "3", "WORLD_SIZE": "9", "MASTER_PORT": "1"}
    with subprocess.Popen([sys.executable, "job.py"], env=os.environ | others) as job:
        run = run_of(cell.id)
        while job.poll() is None and len(run.rows()) < 2:
            time.sleep(0.05)
        job.send_signal(signal.SIGTERM)
        assert job.wait(60) == 75
    assert read_json(run.folder / "micro_batch.json")["too_large"] == 2
    (saved,) = run.checkpoints.glob("*.pt")
    assert int(saved.stem.split("-")[1]) == run.rows()[-1]["step"]
    assert not run.record.exists()
