"""What processes say and leave when one of them fails, is killed or cannot read."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import Future
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from forks import python
from planned import only

from coupled_adam_bench.machine import device
from coupled_adam_bench.machine.surroundings import LAUNCHER
from coupled_adam_bench.store.files import read_json
from coupled_adam_bench.store.paths import RunFiles
from coupled_adam_bench.study.plan import make_plan
from coupled_adam_bench.study.settings import parse_study
from coupled_adam_bench.training import distributed, room
from coupled_adam_bench.training.checkpoint import CheckpointError, Checkpoints, checkpoints
from coupled_adam_bench.training.distributed import WorkerGroup, open_group
from coupled_adam_bench.training.jobs import run_jobs, train
from coupled_adam_bench.training.trainer import Trainer

ALONE = WorkerGroup(torch.device("cpu"))


def settings_of(tiny_study, steps=10, **execution):
    settings = tiny_study()
    settings["grid"][0] |= {
        "table": None,
        "optimizers": ["adamw"],
        "tokens": [{"steps": steps}],
        "seeds": [1],
    }
    settings["execution"] |= execution
    return settings


def one_cell(settings):
    plan = make_plan(parse_study(settings))
    (cell,) = plan.cells.values()
    return cell, only(plan).study.execution


def test_an_error_of_the_second_process_rises_in_both(
    make_workspace, nursery, tiny_study, tiny_data
):
    here, there = (
        make_workspace(settings_of(tiny_study, train_processes=2), name)
        for name in ("here", "there")
    )
    data = there.folder / "results/data" / tiny_data.name
    data.unlink()
    shutil.copytree(tiny_data, data, ignore=shutil.ignore_patterns("train.bin"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        group = {"WORLD_SIZE": "2", "MASTER_PORT": str(free.getsockname()[1])}
    command = here.command(*here.plan.cells)
    started = [
        nursery.start(command, workspace.folder, env=group | {"RANK": rank, "LOCAL_RANK": rank})
        for rank, workspace in (("0", here), ("1", there))
    ]
    assert [nursery.wait(pid) for (pid,) in started] == [2, 2]
    for workspace in (here, there):
        log = (workspace.folder / "rank-0.log").read_text()
        assert "train.bin: missing" in log
        assert "Traceback" not in log


def wait_for_checkpoint(workspace, cell, is_running):
    while not checkpoints(workspace.run_dir(cell) / "checkpoints"):
        assert is_running()
        time.sleep(0.02)


def children_of(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def rank_of(pid):
    entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return next((int(entry[5:]) for entry in entries if entry.startswith(b"RANK=")), None)


@pytest.mark.fault(
    "training",
    "one of several processes that train a cell is killed, as the kernel does when memory is short",
    "the launcher names the process, the signal and the setting of memory; the next start goes on",
)
def test_the_launcher_names_a_killed_process(make_workspace, tiny_study):
    workspace = make_workspace(
        settings_of(tiny_study, steps=100_000, train_processes=2, checkpoint_every=1)
    )
    (cell,) = workspace.plan.cells
    command = ["-m", "coupled_adam_bench", *workspace.command(cell)]
    process = python("training", command, workspace.folder, dict(os.environ), jobs="training")
    wait_for_checkpoint(workspace, cell, lambda: process.poll() is None)
    (victim,) = (pid for pid in children_of(process.pid) if rank_of(pid) == 1)
    os.kill(victim, signal.SIGKILL)
    _, errors = process.communicate(timeout=60)
    assert process.returncode in (1, 2), errors  # 2 where the other was the faster to end
    assert "rank 1 of 2 was ended by signal 9, Killed, as happens when memory is short" in errors


@pytest.mark.parametrize(
    ("size", "message", "blames_the_disk"),
    [
        (2, "write failed: No space left on device", True),
        (2, "Connection closed by peer [::1]:9", False),
        (1, "Connection reset by peer", True),  # by a file server, say
    ],
)
def test_a_checkpoint_that_another_process_left_is_not_blamed_on_the_disk(
    size, message, blames_the_disk, tmp_path
):
    pending = Future()
    pending.set_exception(RuntimeError(message))
    unfinished = Checkpoints(tmp_path, WorkerGroup(torch.device("cpu"), size=size), {})
    unfinished._pending = pending
    with pytest.raises(CheckpointError if blames_the_disk else RuntimeError) as raised:
        unfinished.wait()
    assert message in str(raised.value)
    assert ("free disk space" in str(raised.value)) == blames_the_disk


def test_a_diverged_cell_waits_for_its_checkpoint(tiny_study, tiny_data, tmp_path, monkeypatch):
    """Or the next cell of the job would meet its collectives."""
    settings = settings_of(tiny_study, checkpoint_every=1)
    settings["models"][0]["learning_rate"] = 1e30
    settings["training"]["warmup_steps"] = 0
    finish = Checkpoints._finish

    def slowly(*arguments):
        time.sleep(0.5)
        finish(*arguments)

    monkeypatch.setattr(Checkpoints, "_finish", slowly)
    assert train(*one_cell(settings), tiny_data, tmp_path, ALONE) == 0
    assert read_json(tmp_path / "run.json")["status"] == "diverged"
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000001"]


def test_more_processes_than_gpus_are_refused(monkeypatch):
    def only_two(count):
        if count > 2:
            raise ValueError(f"execution.gpus: {count}, but torch can use 2 here")

    monkeypatch.setattr(device, "check_gpus", only_two)
    monkeypatch.setattr(distributed, "check_gpus", only_two)
    monkeypatch.setenv(LAUNCHER, "100")
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_RANK", "2")
    with (
        pytest.raises(ValueError, match=r"execution\.gpus: 3, but torch can use 2"),
        open_group("cuda"),
    ):
        pass


@pytest.mark.fault(
    "training",
    "the shell has RANK, WORLD_SIZE, MASTER_ADDR and the like of another launcher, or WORLD_SIZE"
    " alone",
    "they are not taken for those of our launcher: the cell trains as without them",
)
@pytest.mark.parametrize(
    "names", [("WORLD_SIZE",), ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")]
)
def test_a_process_that_was_not_launched_is_alone(names, monkeypatch):
    for name in names:
        monkeypatch.setenv(name, "2")
    with open_group("cpu") as group:
        assert (group.rank, group.size) == (0, 1)


def weights(folder: Path) -> bytes:
    return (folder / "model" / "model.safetensors").read_bytes()


@pytest.mark.fault(
    "training",
    "a micro-batch does not fit into the memory of a GPU",
    "the run goes on from its last checkpoint with micro-batches half as large",
)
@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        torch.AcceleratorError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        dist.DistBackendError("NCCL error: unhandled cuda error, Cuda failure 2 'out of memory'"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"),
    ],
    ids=lambda error: str(error)[:28],
)
def test_a_micro_batch_that_does_not_fit_is_halved(
    error, tiny_study, tiny_data, tmp_path, monkeypatch, capsys
):
    tried: list[int] = []

    def losses(self, inputs_BT, *arguments):
        tried.append(len(inputs_BT))
        if len(inputs_BT) > fitting:
            raise error
        return real(self, inputs_BT, *arguments)

    real, fitting = Trainer._losses, 4
    cell, execution = one_cell(settings_of(tiny_study, micro_batch_sequences=2))

    def status(name: str, **changes) -> int:
        changed = execution.model_copy(update=changes)
        jobs = {
            name: lambda group: train(cell, changed, tiny_data, tmp_path / name / cell.id, group)
        }
        return run_jobs(jobs, "cpu")

    assert status("small") == 0
    monkeypatch.setattr(Trainer, "_losses", losses)
    fitting = 2
    assert status("large", micro_batch_sequences=None) == 0
    assert (
        read_json(tmp_path / "large" / cell.id / "run.json")["train"]["micro_batch_sequences"] == 2
    )
    assert weights(tmp_path / "large" / cell.id) == weights(tmp_path / "small" / cell.id)
    assert (
        "no memory for micro-batches of 4 sequences (execution.micro_batch_sequences)"
        in capsys.readouterr().err
    )
    # A job that is queued again begins with what fits, and on another device afresh.
    assert tried.count(4) == 1
    (tmp_path / "large" / cell.id / "run.json").unlink()
    shutil.rmtree(tmp_path / "large" / cell.id / "checkpoints")
    assert status("large", micro_batch_sequences=None) == 0
    assert tried.count(4) == 1
    fitting = 0  # not even one
    assert status("none") == 2


def test_what_did_not_fit_counts_for_its_size_of_memory_alone(tmp_path, monkeypatch, capsys):
    device, gpu = torch.device("cpu"), torch.device("cuda", 0)
    assert room.fitting(tmp_path, 96, device) == 96
    room.remember_too_large(tmp_path, 48, device)
    assert [room.fitting(tmp_path, size, device) for size in (96, 48, 47, 1)] == [24, 24, 47, 1]
    monkeypatch.setattr(room, "_memory", {device: None, gpu: 80e9}.get)
    assert room.fitting(tmp_path, 96, gpu) == 96
    RunFiles(tmp_path).micro_batch.write_text("[]")
    assert room.fitting(tmp_path, 96, device) == 96
    assert "micro_batch.json cannot be read" in capsys.readouterr().err


def test_an_error_that_is_not_of_memory_is_no_halving():
    assert not room.is_out_of_memory(RuntimeError("CUDA error: device-side assert triggered"))
    assert not room.is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))


OUT_OF_MEMORY_ONCE = """
import os, pathlib, torch
class Fails(torch.optim.SGD):
    steps = 0
    def step(self, closure=None):
        Fails.steps += 1
        seen = pathlib.Path("seen")
        if os.environ["RANK"] == "1" and Fails.steps == 8 and not seen.exists():
            seen.touch()
            raise torch.OutOfMemoryError("CUDA out of memory")
        return super().step(closure)
"""


@pytest.mark.fault(
    "training",
    "a micro-batch does not fit into the memory of one of several processes",
    "all of them start again from the last checkpoint with micro-batches half as large",
)
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_memory_that_one_of_two_processes_lacks_halves_the_micro_batch_of_both(
    parallel, make_workspace, tiny_study, tmp_path, monkeypatch
):
    (tmp_path / "fails.py").write_text(OUT_OF_MEMORY_ONCE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "fails", raising=False)
    settings = settings_of(tiny_study, train_processes=2, parallel=parallel, checkpoint_every=5)
    optimizer = {"name": "custom", "path": "fails.Fails", "key": "fails", "label": "Fails"}
    settings["grid"][0] |= {"optimizers": [optimizer]}
    workspace = make_workspace(settings)
    (cell_id,) = workspace.plan.cells
    command = ["-m", "coupled_adam_bench", *workspace.command(cell_id)]
    process = python(
        "training",
        command,
        workspace.folder,
        os.environ | {"PYTHONPATH": str(tmp_path)},
        jobs="training",
    )
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert "with micro-batches half as large" in errors
    assert read_json(workspace.run_dir(cell_id) / "run.json")["train"]["micro_batch_sequences"] == 1
    assert len((workspace.run_dir(cell_id) / "history.jsonl").read_text().splitlines()) == 2


def test_a_process_whose_other_was_killed_says_so(make_workspace, nursery, tiny_study):
    workspace = make_workspace(
        settings_of(tiny_study, steps=100_000, train_processes=2, checkpoint_every=1)
    )
    (cell,) = workspace.plan.cells
    pids = nursery.start(workspace.command(cell), workspace.folder, 2)
    wait_for_checkpoint(workspace, cell, lambda: nursery.is_running(pids[0]))
    os.kill(pids[1], signal.SIGKILL)
    assert nursery.wait(pids[0]) == 2
    log = (workspace.folder / "rank-0.log").read_text()
    assert (
        f"error: {cell}: another of the 2 processes has ended; its own lines or the launcher's"
        " say why" in log
    )
    assert "free disk space" not in log
    assert "Traceback" not in log


def test_processes_start_where_the_machines_own_name_does_not_resolve():
    code = (
        "import sys; from coupled_adam_bench.training.distributed import launch; sys.exit(launch(2,"
        " ['--help']))"
    )
    script = f'hostname no-such-machine.invalid && exec {sys.executable} -c "{code}"'
    separate = [
        "unshare",
        "--uts",
        *([] if os.getuid() == 0 else ["--map-root-user"]),
    ]  # a machine's name of its own
    done = subprocess.run(
        [*separate, "sh", "-c", script], capture_output=True, text=True, timeout=90
    )
    assert done.returncode == 0, done.stderr
