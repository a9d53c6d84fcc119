import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from planned import only

from coupled_adam_bench import paths
from coupled_adam_bench.config import parse_study
from coupled_adam_bench.files import write_json
from coupled_adam_bench.plan import Plan, make_plan


@dataclass
class Nursery:
    """See nursery.py; ``processes`` of a group get what torchrun would give them."""

    process: subprocess.Popen[str]
    started: list[int] = field(default_factory=list)

    def _ask(self, command: dict[str, Any]) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def start(self, argv: list[str], cwd: Path, processes: int = 1, env: dict[str, str] | None = None) -> list[int]:
        pids = []
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(processes)}
        for rank in range(processes):
            own = {**group, "RANK": str(rank), "LOCAL_RANK": str(rank), **(env or {})}
            command = {"argv": argv, "cwd": str(cwd), "env": own, "log": str(cwd / f"rank-{rank}.log")}
            pids.append(self._ask({"start": command}))
        self.started += pids
        return pids

    def wait(self, pid: int) -> int:
        status: int = self._ask({"wait": pid, "block": True})
        self.started.remove(pid)
        return status

    def is_running(self, pid: int) -> bool:
        """Tell without reaping."""
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state != "Z"

    def kill(self, pids: list[int]) -> None:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for pid in pids:
            self.wait(pid)


@pytest.fixture(scope="session")
def shared_nursery() -> Iterator[Nursery]:
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("nursery.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    yield Nursery(process)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    process.wait()
    process.stdout.close()


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
