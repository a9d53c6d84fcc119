import os
import signal
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from forks import Fork
from planned import only

from coupled_adam_bench.machine.surroundings import LAUNCHER
from coupled_adam_bench.store import paths
from coupled_adam_bench.store.files import write_sealed
from coupled_adam_bench.study.plan import Plan, make_plan
from coupled_adam_bench.study.plan.cells import Cell
from coupled_adam_bench.study.settings import parse_study
from coupled_adam_bench.training.distributed import WorkerGroup
from coupled_adam_bench.training.jobs import train
from coupled_adam_bench.training.trainer import Trainer


class Nursery:
    """Starts commands as forks of one process that has our training imported; their warnings are
    errors.

    The processes of a group get what our launcher gives them.
    """

    def __init__(self) -> None:
        self.started: dict[int, Fork] = {}

    def start(
        self, argv: list[str], cwd: Path, processes: int = 1, env: dict[str, str] | None = None
    ) -> list[int]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        group = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "WORLD_SIZE": str(processes),
            LAUNCHER: "100",
        }
        command = ["-W", "error", "-m", "coupled_adam_bench", *argv]
        forks = []
        for rank in range(processes):
            own = os.environ | group | {"RANK": str(rank), "LOCAL_RANK": str(rank)} | (env or {})
            forks.append(Fork("training", command, cwd, own, cwd / f"rank-{rank}.log"))
        self.started |= {fork.pid: fork for fork in forks}
        return [fork.pid for fork in forks]

    def train(self, workspace: "Workspace", *command: str) -> "Workspace":
        """Run a command, or the training of all cells, in as many processes as the study asks for;
        it must end well."""
        processes = only(workspace.plan).study.execution.processes
        command = command or tuple(workspace.command(*workspace.plan.cells))
        statuses = [self.wait(pid) for pid in self.start([*command], workspace.folder, processes)]
        logs = [(workspace.folder / f"rank-{rank}.log").read_text() for rank in range(processes)]
        assert statuses == [0] * processes, "\n".join(logs)
        return workspace

    def wait(self, pid: int) -> int:
        return self.started.pop(pid).wait()

    def is_running(self, pid: int) -> bool:
        return self.started[pid].poll() is None

    def kill(self, pids: list[int]) -> None:
        for pid in pids:
            self.started[pid].send_signal(signal.SIGKILL)
        for pid in pids:
            self.wait(pid)


@pytest.fixture(scope="session")
def shared_nursery() -> Nursery:
    return Nursery()


@pytest.fixture
def nursery(shared_nursery: Nursery) -> Iterator[Nursery]:
    yield shared_nursery
    shared_nursery.kill(list(shared_nursery.started))


@dataclass
class Workspace:
    """A working directory with a study's plan and data."""

    folder: Path
    plan: Plan

    def run_dir(self, cell_id: str) -> Path:
        return self.folder / paths.run_dir(cell_id)

    def command(self, *cell_ids: str) -> list[str]:
        return ["train", "--plan", "plan.json", "--device", "cpu", "--cells", *cell_ids]


@pytest.fixture
def goes_on(tiny_data: Path, tmp_path: Path) -> Callable[..., Path]:
    """Train a cell twice, once stopped after some steps: the weights are the same bits. Return the
    undisturbed run."""

    def goes_on(cell: Cell, steps: int) -> Path:
        alone, execution = WorkerGroup(torch.device("cpu")), cell.study.execution
        whole, stopped = (tmp_path / name / cell.id for name in ("whole", "stopped"))
        assert train(cell, execution, tiny_data, whole, alone) == 0
        trainer = Trainer(cell, execution, tiny_data, stopped, alone)
        trainer.resume()
        for step in range(steps):
            trainer.train_step(step)
            trainer.state.step += 1
        trainer.save()
        trainer.checkpoints.wait()
        assert train(cell, execution, tiny_data, stopped, alone) == 0
        weights = [folder / "model" / "model.safetensors" for folder in (whole, stopped)]
        assert weights[0].read_bytes() == weights[1].read_bytes()
        return whole

    return goes_on


@pytest.fixture(scope="session")
def make_workspace_in(tiny_data: Path) -> Callable[..., Workspace]:
    def make(folder: Path, settings: dict[str, Any]) -> Workspace:
        plan = make_plan(parse_study(settings))
        data = folder / paths.data_dir(only(plan).data_id)
        data.parent.mkdir(parents=True)
        data.symlink_to(tiny_data)
        write_sealed(folder / "plan.json", plan.to_json())
        return Workspace(folder, plan)

    return make


@pytest.fixture
def make_workspace(
    make_workspace_in: Callable[..., Workspace], tmp_path: Path
) -> Callable[..., Workspace]:
    return lambda settings, name="workspace": make_workspace_in(tmp_path / name, settings)
