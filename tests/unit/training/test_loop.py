import gc
import json
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from forks import python
from planned import only

from coupled_adam_bench.models.export import load_model
from coupled_adam_bench.store import paths
from coupled_adam_bench.store.files import read_json, read_sealed, write_sealed
from coupled_adam_bench.study.plan import make_plan
from coupled_adam_bench.study.settings import parse_study
from coupled_adam_bench.training.checkpoint import checkpoints
from coupled_adam_bench.training.distributed import WorkerGroup
from coupled_adam_bench.training.jobs import train
from coupled_adam_bench.training.stop_requests import RESUME_ME, stop_requests
from coupled_adam_bench.training.trainer import Trainer

ALONE = WorkerGroup(torch.device("cpu"))


def cell_of(plan, optimizer="coupled_adam", seed=1):
    return next(
        cell
        for cell in plan.cells.values()
        if cell.optimizer.key == optimizer and cell.seed == seed
    )


def history_of(run_dir: Path) -> list[dict]:
    return [json.loads(line) for line in (run_dir / "history.jsonl").read_text().splitlines()]


@pytest.fixture
def undisturbed(tiny_plan, tiny_data, tmp_path):
    cell = cell_of(tiny_plan)
    assert train(cell, only(tiny_plan).study.execution, tiny_data, tmp_path / cell.id, ALONE) == 0
    return tmp_path / cell.id


@pytest.fixture
def workspace(tiny_plan, tiny_data, tmp_path):
    """A working directory with data and plan for the command line; returns (folder, run folder,
    command)."""
    cell = cell_of(tiny_plan)
    folder = tmp_path / "workspace"
    (folder / paths.data_dir(cell.data_id)).parent.mkdir(parents=True)
    (folder / paths.data_dir(cell.data_id)).symlink_to(tiny_data)
    plan_file = paths.study_dir("tiny") / "plan.json"
    write_sealed(folder / plan_file, tiny_plan.to_json())
    command = ["-m", "coupled_adam_bench", "train", "--plan", str(plan_file), "--cells", cell.id]
    return folder, folder / paths.run_dir(cell.id), [*command, "--device", "cpu"]


def outcome(command, folder):
    """Run a command of the command line; return its status and what it said about errors."""
    process = python("training", command, folder, dict(os.environ))
    _, errors = process.communicate(timeout=120)
    return process.returncode, errors


def test_a_completed_run_leaves_what_the_contract_names(
    undisturbed, tiny_plan, tiny_data, tmp_path
):
    cell = cell_of(tiny_plan)
    run = read_json(undisturbed / "run.json")
    assert (run["cell"], run["status"], run["reason"], run["step"]) == (
        cell.id,
        "completed",
        None,
        60,
    )
    assert read_sealed(undisturbed / "cell.json") == json.loads(json.dumps(cell.to_json()))
    assert [row["step"] for row in history_of(undisturbed)] == list(range(5, 61, 5))
    assert (undisturbed / "model" / "tokenizer.json").is_file()
    assert [path.name for path in checkpoints(undisturbed / "checkpoints")] == [
        "step-00000060",
        "step-00000050",
    ]
    rows = history_of(undisturbed)
    assert rows[-1]["loss"] < rows[0]["loss"] - 0.2
    assert rows[-1]["tokens"] == cell.n_tokens == 60 * 4 * 16
    embedding = load_model(undisturbed / "model").embedding.weight.detach().double().numpy()
    assert rows[-1]["mean_norm"] == pytest.approx(np.linalg.norm(embedding.mean(0)), rel=1e-5)
    ratio = np.linalg.norm(embedding.mean(0)) / np.linalg.norm(embedding, axis=1).mean()
    assert rows[-1]["mean_norm_ratio"] == pytest.approx(ratio, rel=1e-5)
    trainer = Trainer(cell, only(tiny_plan).study.execution, tiny_data, tmp_path / "other", ALONE)
    losses = [trainer.train_step(step)[0].item() for step in range(5)]
    assert rows[0]["loss"] == pytest.approx(np.mean(losses), rel=1e-6)  # the mean over its interval


def test_checkpoints_of_other_data_are_not_resumed(undisturbed, tiny_plan, tiny_data, capsys):
    trainer = Trainer(
        cell_of(tiny_plan), only(tiny_plan).study.execution, tiny_data, undisturbed, ALONE
    )
    trainer.checkpoints.identity = trainer.checkpoints.identity | {"train_sha256": "another"}
    trainer.resume()
    assert trainer.state.step == 0
    assert "passed over" in capsys.readouterr().err
    assert history_of(undisturbed) == []


@pytest.mark.parametrize("optimizer", ["adamw", "coupled_adam", "sgd_f100"])
def test_the_micro_batch_changes_nothing_beyond_float_error(
    optimizer, tiny_study, tiny_data, tmp_path
):
    settings = tiny_study()
    settings["grid"][0] |= {
        "table": None,
        "optimizers": ["adamw", "coupled_adam", {"name": "sgd", "lr_factor": 100}],
    }
    plan = make_plan(parse_study(settings))
    cell, execution = cell_of(plan, optimizer), only(plan).study.execution
    for name, micro in (("whole", None), ("single", 1), ("uneven", 3)):
        train(
            cell,
            execution.model_copy(update={"micro_batch_sequences": micro}),
            tiny_data,
            tmp_path / name,
            ALONE,
        )
    whole = [row["loss"] for row in history_of(tmp_path / "whole")]
    for name in ("single", "uneven"):
        np.testing.assert_allclose(
            [row["loss"] for row in history_of(tmp_path / name)], whole, rtol=1e-4
        )


def test_two_seeds_differ_in_weights_and_batches(tiny_plan, tiny_data, tmp_path):
    first, second = (
        Trainer(
            cell_of(tiny_plan, seed=seed),
            only(tiny_plan).study.execution,
            tiny_data,
            tmp_path / str(seed),
            ALONE,
        )
        for seed in (1, 2)
    )
    assert not torch.equal(first.model.embedding.weight, second.model.embedding.weight)
    assert not torch.equal(first.batches.get(0)[0], second.batches.get(0)[0])
    assert not torch.equal(first.batches.get(0)[0], first.batches.get(1)[0])
    assert torch.equal(first.batches.get(7)[0], first.batches.get(7)[0])
    inputs, targets = first.batches.get(0)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])


def test_divergence_is_a_result_with_its_step(tiny_study, tiny_data, tmp_path):
    settings = tiny_study()
    settings["models"][0]["learning_rate"] = 1e30
    settings["training"]["warmup_steps"] = 0
    plan = make_plan(parse_study(settings))
    cell = cell_of(plan, "adamw")
    assert train(cell, only(plan).study.execution, tiny_data, tmp_path / "run", ALONE) == 0
    run = read_json(tmp_path / "run/run.json")
    assert run["status"] == "diverged"
    assert run["model_sha256"] is None
    assert 1 <= run["step"] <= 5
    assert run["reason"] == f"loss or gradient not finite in step {run['step']} of 60"
    assert not (tmp_path / "run/model").exists()
    assert not checkpoints(tmp_path / "run/checkpoints")  # nothing poisoned is kept


def test_a_full_disk_keeps_the_earlier_checkpoints(workspace, tmp_path):
    # A limit on file sizes fails writes as a full disk does; the kernel applies it to checkpoints,
    # not to small files.
    folder, run_dir, command = workspace
    limit = "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))"
    program = f"{limit}; from coupled_adam_bench.cli import main; sys.exit(main(sys.argv[1:]))"
    status, errors = outcome(["-c", program, *command[2:]], folder)
    assert status == 2
    assert "cannot write the checkpoint" in errors
    assert "free disk space and start again" in errors
    assert "Traceback" not in errors
    assert not list((run_dir / "checkpoints").iterdir())
    assert outcome(command, folder)[0] == 0


def test_cuda_is_refused_where_there_is_none(workspace):
    if not torch.cuda.is_available():
        folder, _, command = workspace
        status, errors = outcome([*command[:-1], "cuda"], folder)
        assert status == 2
        assert "execution.gpus: 1, but torch can use none here" in errors


def test_the_same_bits_again_and_with_the_switch_for_determinism(
    undisturbed, tiny_plan, tiny_data, tmp_path
):
    cell, execution = cell_of(tiny_plan), only(tiny_plan).study.execution
    expected = (undisturbed / "model/model.safetensors").read_bytes()
    try:
        for deterministic in (False, True):
            run_dir = tmp_path / f"deterministic-{deterministic}"
            update = {"deterministic": deterministic}
            assert train(cell, execution.model_copy(update=update), tiny_data, run_dir, ALONE) == 0
            assert torch.are_deterministic_algorithms_enabled() == deterministic
            assert (run_dir / "model/model.safetensors").read_bytes() == expected
            assert read_json(run_dir / "run.json")["train"]["deterministic"] == deterministic
    finally:
        torch.use_deterministic_algorithms(False)


def test_compiled_layers_give_the_same_curve(undisturbed, workspace):
    folder, run_dir, command = workspace
    plan = read_json(folder / "results/tiny/plan.json")
    # In the pieces of a process of two, whose kernels test_combinations.py compiles too.
    plan["studies"][0]["study"]["execution"] |= {"compile": True, "micro_batch_sequences": 2}
    write_sealed(folder / "results/tiny/plan.json", plan)
    status, errors = outcome(command, folder)
    assert status == 0, errors
    losses, expected = ([row["loss"] for row in history_of(run)] for run in (run_dir, undisturbed))
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    assert read_json(run_dir / "run.json")["train"]["compile"] is True


def test_a_loss_spike_is_said_and_listed(tiny_plan, tiny_data, tmp_path, capsys, monkeypatch):
    cell, execution = cell_of(tiny_plan), only(tiny_plan).study.execution
    original = Trainer.train_step

    def spoiled(self, step):
        loss, norm = original(self, step)
        return loss + 100.0 * (step == 56), norm

    monkeypatch.setattr(Trainer, "train_step", spoiled)
    assert train(cell, execution, tiny_data, tmp_path / "run", ALONE) == 0
    (spike,) = read_json(tmp_path / "run/run.json")["train"]["loss_spikes"]
    assert spike["step"] == 57
    assert "loss spike in step 57" in capsys.readouterr().err


def test_an_update_of_the_last_step_that_ruins_the_weights_is_a_divergence(
    tiny_study, tiny_data, tmp_path
):
    settings = tiny_study()
    settings["models"][0]["learning_rate"] = 1e39  # more than float32 has
    settings["training"] |= {"warmup_steps": 0, "schedule": "constant"}
    settings["grid"][0]["tokens"] = [{"steps": 1}]
    plan = make_plan(parse_study(settings))
    cell = cell_of(plan, "adamw")
    run_dir = tmp_path / cell.id
    for _ in range(2):  # trained, and resumed from the checkpoint of the last step
        assert train(cell, only(plan).study.execution, tiny_data, run_dir, ALONE) == 0
        run = read_json(run_dir / "run.json")
        assert (run["status"], run["step"], run["model_sha256"]) == ("diverged", 1, None)
        assert run["reason"] == "weights not finite after step 1, the last"
        assert not (run_dir / "model").exists()
        (run_dir / "run.json").unlink()


def test_no_thread_outlives_a_run(tiny_plan, tiny_data, tmp_path):
    execution = only(tiny_plan).study.execution
    assert train(cell_of(tiny_plan), execution, tiny_data, tmp_path / "first", ALONE) == 0
    gc.collect()
    before = threading.active_count()  # PyTorch keeps some of its own
    gc.disable()  # it would end the threads some time
    try:
        assert (
            train(cell_of(tiny_plan, seed=2), execution, tiny_data, tmp_path / "second", ALONE) == 0
        )
        deadline = time.monotonic() + 10
        while threading.active_count() > before:
            assert time.monotonic() < deadline, threading.enumerate()
            time.sleep(0.01)
    finally:
        gc.enable()


@pytest.fixture
def in_front():
    """Ctrl-C reaches this process, as it does none that a shell has put into the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("in_front")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_request_to_stop_that_comes_before_the_cell_stops_it(
    number, tiny_plan, tiny_data, tmp_path
):
    with stop_requests() as stop:
        os.kill(os.getpid(), number)
        assert (
            train(cell_of(tiny_plan), only(tiny_plan).study.execution, tiny_data, tmp_path, ALONE)
            == RESUME_ME
        )
    assert stop == [number]
    assert [path.name for path in checkpoints(tmp_path / "checkpoints")] == ["step-00000001"]
    with stop_requests() as stop:
        assert not stop
