"""Does a device compute what it should? The same tests run on a GPU and, smaller, on a CPU.

A wrong kernel shows in the first steps. Later steps amplify rounding, Coupled Adam by several
hundred times as much as AdamW: on a CPU, weights that are moved by 1e-7 move its losses of 40 steps
by 1e-4 to 4e-4. So what is allowed grows with what moved weights do.
"""

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from nano import losses, plan_of, same_bits, train, weights
from transformers import AutoModelForCausalLM

from coupled_adam_bench.data.bins import TOKENIZER
from coupled_adam_bench.evaluation.scoring import Request, Scorer
from coupled_adam_bench.models.base import LanguageModel
from coupled_adam_bench.models.build import build_model
from coupled_adam_bench.models.export import save_model
from coupled_adam_bench.store.runs import data_dir, run_of
from coupled_adam_bench.study.model import Model
from coupled_adam_bench.training.processes import Group
from coupled_adam_bench.training.trainer import Trainer

ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda:0" if ON_GPU else "cpu")
CPU = torch.device("cpu")
VOCAB_SIZE = 50304 if ON_GPU else 300
SIZE: dict[str, Any] = {"n_layer": 2, "d_model": 128 if ON_GPU else 16, "learning_rate": 1e-3}
RECIPE: dict[str, Any] = {"seq_len": 128, "batch_sequences": 8, "warmup_steps": 10}
STEPS = 40 if ON_GPU else 12
LIMITS = {"fp32": 1e-4, "bf16": 1e-2}
MOVED = {"fp32": 1e-7, "bf16": 2**-9}
"""How far initial weights are moved, relative to each: about what their precision rounds."""
SENSITIVITIES = 10
RULES = ["adamw", "coupled_adam", {"name": "sgd", "lr_factor": 100}]
of_gpu = pytest.mark.skipif(not ON_GPU, reason="asks for a GPU")


def small_model(where: torch.device, **settings: Any) -> LanguageModel:
    model = Model(name="small", n_head=2, **SIZE | settings)
    with where:
        built = build_model(model, VOCAB_SIZE, 512)
    built.init_weights(1, 0.05)
    return built


@pytest.mark.parametrize("precision", LIMITS)
@pytest.mark.parametrize("way", ["default", "kernel"] if ON_GPU else ["default"])
@pytest.mark.parametrize(
    "settings",
    [{}, {"tied": False}, {"architecture": "stablelm"}],
    ids=str,
)
def test_loss_and_gradients(settings: dict[str, Any], way: str, precision: str) -> None:
    tokens = torch.randint(VOCAB_SIZE, (10, 513), generator=torch.Generator().manual_seed(0))
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    model, exact = small_model(DEVICE, **settings), small_model(CPU, **settings).double()
    if way == "kernel":
        from coupled_adam_bench.models.loss_kernel import by_kernel

        model.chunk_loss = by_kernel
    with torch.autocast(DEVICE.type, torch.bfloat16, enabled=precision == "bf16"):
        found = model(inputs.to(DEVICE), targets.to(DEVICE))
    wanted = exact(inputs, targets)
    found.backward()
    wanted.backward()
    assert found.item() == pytest.approx(wanted.item(), rel=LIMITS[precision])
    ours, theirs = (
        torch.cat([weight.grad.double().flatten().cpu() for weight in each.parameters()])
        for each in (model, exact)
    )
    assert (ours - theirs).norm() <= LIMITS[precision] * theirs.norm()


def curve(
    where: torch.device,
    rule: Any,
    precision: str,
    moved: float = 0,
    draw: int = 0,
    **execution: Any,
) -> np.ndarray:
    """Return the losses of all steps."""
    recipe = RECIPE | {"precision": precision}
    plan = plan_of([rule], STEPS, SIZE, recipe, **execution)
    trainer = Trainer(next(iter(plan.cells.values())), plan.study.execution, Group(where))
    torch.set_float32_matmul_precision("highest")  # a CPU has no TF32
    generator = torch.Generator().manual_seed(draw)
    for weight in trainer.model.parameters():
        noise = torch.randn(weight.shape, generator=generator)
        weight.data.mul_(1 + moved * noise.to(where))
    for _ in range(STEPS):
        trainer.train_step()
    trainer.read(False)
    return np.array(trainer.losses)


@pytest.mark.parametrize("compiled", [False, True] if ON_GPU else [False])
@pytest.mark.parametrize("precision", LIMITS if ON_GPU else ["fp32"])
@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.usefixtures("nano")
def test_optimizers_train_as_on_a_cpu(rule: Any, precision: str, compiled: bool) -> None:
    exact = curve(CPU, rule, "fp32")
    moved = [curve(CPU, rule, "fp32", MOVED[precision], draw) for draw in range(3)]
    far = np.maximum.accumulate(np.abs(np.array(moved) / exact - 1).max(0))
    found = curve(DEVICE, rule, precision, compile=compiled, micro_batch_sequences=4)
    assert (np.abs(found / exact - 1) <= LIMITS[precision] + SENSITIVITIES * far).all()


@pytest.mark.parametrize("compiled", [False, True] if ON_GPU else [False])
@pytest.mark.usefixtures("nano")
def test_deterministic_training_repeats_its_bits(compiled: bool) -> None:
    settings = {"steps": STEPS, "compile": compiled, "deterministic": True}
    recipe = RECIPE | {"precision": "bf16" if ON_GPU else "fp32"}
    found = []
    for name in ("first", "second"):
        cells = train(RULES, [str(DEVICE)], model=SIZE, training=recipe, **settings)
        found.append([weights(cell) for cell in cells])
        Path("results/runs").rename(name)
    assert all(same_bits(*both) for both in zip(*found, strict=True))


def job(rule: Any, **execution: Any) -> subprocess.Popen[bytes]:
    """Start the training of a cell on a GPU that it leases, or on the CPU."""
    plan, file = plan_of([rule], gpus=int(ON_GPU), **execution), Path(f"{rule}.json")
    plan.write(file)
    command = ["-m", "coupled_adam_bench", "train", "--plan", str(file), "--cells", *plan.cells]
    return subprocess.Popen([sys.executable, *command])


@pytest.mark.usefixtures("nano")
def test_a_run_that_is_stopped_and_killed_ends_with_the_same_bits() -> None:
    steps = 1500 if ON_GPU else 600
    settings = {"steps": steps, "deterministic": True, "checkpoint_every": 30, "log_every": 10}
    (cell,) = train(["coupled_adam"], [str(DEVICE)], **settings)
    whole = losses(cell), weights(cell)
    run = run_of(cell.id)
    run.folder.rename("whole")
    for number, status in ((signal.SIGTERM, 75), (signal.SIGKILL, -signal.SIGKILL)):
        lines = len(run.rows())
        with job("coupled_adam", **settings) as process:
            while process.poll() is None and len(run.rows()) < lines + 8:
                time.sleep(0.01)
            process.send_signal(number)
            assert process.wait() == status
    train(["coupled_adam"], [str(DEVICE)], **settings)
    assert losses(cell) == whole[0]
    assert same_bits(weights(cell), whole[1])


@pytest.mark.usefixtures("nano")
def test_scores_are_those_of_transformers() -> None:
    model = small_model(DEVICE).eval()
    plan = plan_of(["sgd"])
    save_model(model, model.state_dict(), Path("model"), data_dir(plan.data_id) / TOKENIZER, 0)
    theirs = AutoModelForCausalLM.from_pretrained("model").to(DEVICE).eval()
    texts = torch.randint(VOCAB_SIZE, (20, 40), generator=torch.Generator().manual_seed(0))
    items = [
        [Request(text[:length].tolist(), length - 12) for length in (13, 16, 40)] for text in texts
    ]
    with torch.no_grad():
        logits = theirs(texts[:, :-1].to(DEVICE)).logits.double()
    log_p = logits.log_softmax(-1).gather(2, texts[:, 1:, None].to(DEVICE))[:, 11:, 0].cumsum(1)
    wanted = log_p[:, [0, 3, 27]].flatten().tolist()
    for bf16, limit in ((False, LIMITS["fp32"]), (True, LIMITS["bf16"])):
        scores = Scorer(model, 2000, bf16).score(items)
        found = [score for item in scores for score, _ in item]
        assert found == pytest.approx(wanted, rel=limit)


@of_gpu
@pytest.mark.usefixtures("nano")
def test_no_step_waits_for_the_gpu() -> None:
    plan = plan_of(["coupled_adam"], STEPS, SIZE, RECIPE | {"precision": "bf16"})
    trainer = Trainer(next(iter(plan.cells.values())), plan.study.execution, Group(DEVICE))
    trainer.train_step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            trainer.train_step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@of_gpu
@pytest.mark.usefixtures("nano")
def test_what_does_not_fit_into_a_gpu_is_halved() -> None:
    size = SIZE | {"d_model": 256}
    recipe = RECIPE | {"seq_len": 1024, "batch_sequences": 256}
    settings = {"steps": 12, "model": size, "training": recipe}
    share = 2**31 / torch.cuda.get_device_properties(DEVICE).total_memory
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(share, DEVICE)
    try:
        (cell,) = train(["coupled_adam"], [str(DEVICE)], **settings)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, DEVICE)
    assert run_of(cell.id).read()["train"]["micro_batch_sequences"] < 256


@of_gpu
@pytest.mark.usefixtures("nano")
def test_two_jobs_share_one_gpu_by_leases() -> None:
    jobs = [job(rule) for rule in ("adamw", "sgd")]
    assert [process.wait() for process in jobs] == [0, 0]
