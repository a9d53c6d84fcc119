import os
import signal
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from forks import Fork
from planned import only

from coupled_adam_bench import paths
from coupled_adam_bench.config import parse_study
from coupled_adam_bench.files import write_json
from coupled_adam_bench.plan import Plan, make_plan


class Nursery:
    """Starts commands as forks of one process that has our training imported; their warnings are errors.

    The processes of a group get what torchrun would give them.
    """

    def __init__(self) -> None:
        self.started: dict[int, Fork] = {}

    def start(self, argv: list[str], cwd: Path, processes: int = 1, env: dict[str, str] | None = None) -> list[int]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(processes)}
        command = ["-W", "error", "-m", "coupled_adam_bench", *argv]
        forks = []
        for rank in range(processes):
            own = os.environ | group | {"RANK": str(rank), "LOCAL_RANK": str(rank)} | (env or {})
            forks.append(Fork("training", command, cwd, own, cwd / f"rank-{rank}.log"))
        self.started |= {fork.pid: fork for fork in forks}
        return [fork.pid for fork in forks]

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


@pytest.fixture(scope="session")
def make_workspace_in(tiny_data: Path) -> Callable[..., Workspace]:
    def make(folder: Path, settings: dict[str, Any]) -> Workspace:
        plan = make_plan(parse_study(settings))
        data = folder / paths.data_dir(only(plan).data_id)
        data.parent.mkdir(parents=True)
        data.symlink_to(tiny_data)
        write_json(folder / "plan.json", plan.to_json())
        return Workspace(folder, plan)

    return make


@pytest.fixture
def make_workspace(make_workspace_in: Callable[..., Workspace], tmp_path: Path) -> Callable[..., Workspace]:
    return lambda settings, name="workspace": make_workspace_in(tmp_path / name, settings)
