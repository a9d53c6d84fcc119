"""The same cell on one process and on several: DDP and FSDP2 over gloo."""

import json
import os
import random
import signal
import time

import numpy as np
import pytest
from forks import python
from safetensors.numpy import load_file

from coupled_adam_bench.store.files import read_json
from coupled_adam_bench.training.checkpoint import checkpoints
from coupled_adam_bench.training.stop_requests import RESUME_ME

OPTIMIZERS = ["adamw", "coupled_adam", {"name": "sgd", "lr_factor": 20}]
KEYS = ["adamw", "coupled_adam", "sgd_f20"]


def settings_of(tiny_study, steps=10, optimizers=OPTIMIZERS, **execution):
    settings = tiny_study()
    settings["grid"][0] |= {
        "table": None,
        "optimizers": optimizers,
        "tokens": [{"steps": steps}],
        "seeds": [1],
    }
    settings["execution"] |= execution
    return settings


def losses_of(workspace, cell_id):
    lines = (workspace.run_dir(cell_id) / "history.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines]


def weights_of(workspace, cell_id):
    return load_file(workspace.run_dir(cell_id) / "model" / "model.safetensors")


def first_cell(workspace):
    return next(iter(workspace.plan.cells))


@pytest.fixture(scope="module")
def alone(make_workspace_in, shared_nursery, tiny_study, tmp_path_factory):
    """The cells trained by one process, to compare with; do not write into it."""
    workspace = make_workspace_in(tmp_path_factory.mktemp("alone"), settings_of(tiny_study))
    return shared_nursery.train(workspace)


@pytest.mark.parametrize(
    ("parallel", "processes", "micro"), [("ddp", 2, 1), ("fsdp", 2, None), ("fsdp", 4, 1)]
)
def test_any_number_of_processes_gives_the_same_curve(
    parallel, processes, micro, alone, make_workspace, nursery, tiny_study
):
    execution = {"parallel": parallel, "train_processes": processes, "micro_batch_sequences": micro}
    workspace = make_workspace(settings_of(tiny_study, **execution))
    assert list(workspace.plan.cells) == list(alone.plan.cells)
    nursery.train(workspace)
    assert [cell.optimizer.key for cell in workspace.plan.cells.values()] == KEYS
    for cell_id in workspace.plan.cells:
        np.testing.assert_allclose(
            losses_of(workspace, cell_id), losses_of(alone, cell_id), rtol=2e-5
        )
        ours, theirs = weights_of(workspace, cell_id), weights_of(alone, cell_id)
        for name, weight in ours.items():
            np.testing.assert_allclose(weight, theirs[name], atol=2e-3, err_msg=f"{cell_id} {name}")
        run = read_json(workspace.run_dir(cell_id) / "run.json")["train"]
        assert (run["processes"], run["parallel"]) == (processes, parallel)


@pytest.mark.parametrize(
    ("first", "then"),
    [(("fsdp", 2), ("ddp", 1)), (("ddp", 2), ("fsdp", 4)), (("ddp", 1), ("fsdp", 2))],
)
def test_a_stopped_cell_goes_on_with_another_number_of_processes(
    first, then, alone, make_workspace, nursery, tiny_study
):
    """The first run's last checkpoint is taken away, as if a job had been killed."""
    execution = {"checkpoint_every": 5, "parallel": first[0], "train_processes": first[1]}
    workspace = make_workspace(settings_of(tiny_study, **execution))
    nursery.train(workspace)
    second = make_workspace(
        settings_of(tiny_study, parallel=then[0], train_processes=then[1]), "second"
    )
    for cell_id in workspace.plan.cells:
        run_dir = second.run_dir(cell_id)
        (run_dir / "checkpoints").mkdir(parents=True)
        half = workspace.run_dir(cell_id) / "checkpoints/step-00000005"
        half.rename(run_dir / "checkpoints" / half.name)
        lines = (workspace.run_dir(cell_id) / "history.jsonl").read_text().splitlines(keepends=True)
        (run_dir / "history.jsonl").write_text(lines[0])
    nursery.train(second)
    for cell_id in second.plan.cells:
        np.testing.assert_allclose(losses_of(second, cell_id), losses_of(alone, cell_id), rtol=2e-5)


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("n_kills", [3, pytest.param(20, marks=pytest.mark.nightly)])
def test_killed_at_random_moments_it_ends_with_the_same_bits(
    n_kills, processes, make_workspace, nursery, tiny_study
):
    settings = settings_of(
        tiny_study,
        steps=50 * n_kills,
        optimizers=["coupled_adam"],
        checkpoint_every=10,
        train_processes=processes,
    )
    calm, disturbed = make_workspace(settings, "calm"), make_workspace(settings, "disturbed")
    nursery.train(calm)
    cell_id = first_cell(calm)
    moments = random.Random(processes)
    folder = disturbed.run_dir(cell_id) / "checkpoints"

    def newest():
        return [path.name for path in checkpoints(folder)][:1]

    for attempt in range(n_kills):
        pids = nursery.start(disturbed.command(cell_id), disturbed.folder, processes)
        before, begun, delay = newest(), time.monotonic(), moments.uniform(0, 0.8)
        # Every other kill may fall into the start; no attempt gets far, so that there is work for
        # all.
        while newest() == before and (attempt % 2 or time.monotonic() - begun < delay):
            time.sleep(0.002)
        time.sleep(moments.uniform(0, 0.03))
        assert nursery.is_running(pids[0]), "done before the last kill: train longer"
        nursery.kill(pids)
    nursery.train(disturbed)
    name = "model/model.safetensors"
    assert (disturbed.run_dir(cell_id) / name).read_bytes() == (
        calm.run_dir(cell_id) / name
    ).read_bytes()
    assert losses_of(disturbed, cell_id) == losses_of(calm, cell_id)


def wait_for_history(workspace, cell_id, is_running):
    history = workspace.run_dir(cell_id) / "history.jsonl"
    deadline = time.monotonic() + 120
    while not (history.exists() and history.stat().st_size):
        assert is_running(), "ended before its first line"
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_command_starts_the_processes_itself_and_forwards_a_request_to_stop(
    make_workspace, tiny_study
):
    settings = settings_of(
        tiny_study, steps=80, optimizers=["coupled_adam"], parallel="fsdp", train_processes=2
    )
    workspace = make_workspace(settings)
    cell_id = first_cell(workspace)
    command = ["-m", "coupled_adam_bench", *workspace.command(cell_id)]
    # The names of another launcher, as clusters and notebooks export them, are not taken for those
    # of ours.
    others = {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1",
    }
    process = python("training", command, workspace.folder, os.environ | others, jobs="training")
    wait_for_history(workspace, cell_id, lambda: process.poll() is None)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == RESUME_ME, errors
    assert checkpoints(workspace.run_dir(cell_id) / "checkpoints")
    process = python("training", command, workspace.folder, os.environ | others, jobs="training")
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert errors.count("RANK, WORLD_SIZE (which process of another launcher this would be)") == 1
    run = read_json(workspace.run_dir(cell_id) / "run.json")["train"]
    assert (run["processes"], run["device"]) == (2, "cpu")


def test_a_request_to_stop_at_one_process_stops_all_after_the_same_step(
    make_workspace, nursery, tiny_study
):
    settings = settings_of(
        tiny_study,
        steps=100_000,
        optimizers=["coupled_adam"],
        checkpoint_every=100_000,
        train_processes=2,
    )
    workspace = make_workspace(settings)
    cell_id = first_cell(workspace)
    pids = nursery.start(workspace.command(cell_id), workspace.folder, 2)
    wait_for_history(workspace, cell_id, lambda: nursery.is_running(pids[0]))
    os.kill(pids[1], signal.SIGTERM)
    assert [nursery.wait(pid) for pid in pids] == [RESUME_ME, RESUME_ME]
    (checkpoint,) = checkpoints(workspace.run_dir(cell_id) / "checkpoints")
    assert {path.name for path in checkpoint.iterdir()} >= {
        "__0_0.distcp",
        "state.json",
        "checksums.json",
    }
    assert not (workspace.run_dir(cell_id) / "run.json").exists()
