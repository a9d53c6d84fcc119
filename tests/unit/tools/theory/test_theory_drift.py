"""The drift of the mean in a replay: against training in float64 with the two uses of a tied matrix
kept apart."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from coupled_adam_bench.models.build import build_model
from coupled_adam_bench.models.export import load_model
from coupled_adam_bench.optim.build import build_optimizers, rule_of
from coupled_adam_bench.store import paths
from coupled_adam_bench.study.cells import Cell
from coupled_adam_bench.study.config import AdamWSettings, CustomSettings, Execution, Training
from coupled_adam_bench.study.config.optimizers import NormalizedSgdSettings, ObliqueSgdSettings
from coupled_adam_bench.study.plan import Plan
from coupled_adam_bench.study.schedule import learning_rate_factor
from coupled_adam_bench.tools.theory.replay import Replay, relative_loss_difference
from coupled_adam_bench.training.distributed import WorkerGroup
from coupled_adam_bench.training.trainer import Trainer

CPU = WorkerGroup(torch.device("cpu"))
# The mean gradient norm of the tiny cells is about 1; decay and clipping, so that each has its say.
RECIPE = {"embedding_weight_decay": 2.0, "grad_clip": 0.7}


def replay_of(cell: Cell, record_every: int = 5, **execution: Any) -> Replay:
    trainer = Trainer(
        cell, Execution(**execution), paths.data_dir(cell.data_id), paths.run_dir(cell.id), CPU
    )
    replay = Replay(trainer, record_every)
    replay.run()
    return replay


@dataclass
class Reference:
    """A tied cell trained in float64, its matrix by hand, with sums of what each part did to the
    mean."""

    weight: Tensor
    input: Tensor
    output: Tensor
    decay: Tensor
    clipped_steps: int = 0


def reference(cell: Cell, batches: Any) -> Reference:
    """Train an untied copy whose two matrices are kept equal by updating both with the sum of their
    gradients."""
    training, optimizer = cell.training, cell.optimizer
    start = build_model(cell.model, cell.vocab_size, training.seq_len)
    start.init_weights(cell.seed, training.init_std)
    untied = cell.model.model_copy(update={"tied": False})
    model = build_model(untied, cell.vocab_size, training.seq_len).double()
    assert model.head is not None
    model.load_state_dict({**start.state_dict(), "head.weight": start.embedding.weight})
    core = build_optimizers(
        model, model.embedding_parameters(), optimizer, training, cell.model.learning_rate
    )
    weight = model.embedding.weight.detach().clone()
    found = Reference(
        weight, *(torch.zeros(weight.shape[1], dtype=torch.float64) for _ in range(3))
    )
    m_in, m_out, m_decay, v, largest = (torch.zeros_like(weight) for _ in range(5))
    for step in range(cell.steps):
        inputs, targets = batches.get(step)
        loss = torch.nn.functional.cross_entropy(
            model.logits(inputs).flatten(0, 1), targets.flatten()
        )
        model.zero_grad()
        loss.backward()
        g_in, g_out = model.embedding.weight.grad, model.head.weight.grad
        others = [
            p.grad
            for p in model.parameters()
            if p is not model.embedding.weight and p is not model.head.weight
        ]
        norm = math.sqrt(sum(float(g.square().sum()) for g in [*others, g_in + g_out]))
        clip = min(1.0, training.grad_clip / norm)
        found.clipped_steps += clip < 1
        for g in (g_in, g_out, *others):
            g *= clip
        factor = learning_rate_factor(step, cell.steps, training, 1.0)
        core.set_lr(factor)
        core.core.step()
        lr, wd, t = factor * cell.model.learning_rate, training.embedding_weight_decay, step + 1
        if optimizer.name == "sgd":
            lr *= optimizer.lr_factor
            m_in, m_out, m_decay = (
                optimizer.momentum * m + g
                for m, g in ((m_in, g_in), (m_out, g_out), (m_decay, wd * weight))
            )
            changes = [-lr * m for m in (m_in, m_out, m_decay)]
        else:
            b1, b2 = (
                (0.0, optimizer.beta2) if optimizer.name == "ember" else training.betas(optimizer)
            )
            m_in, m_out = b1 * m_in + (1 - b1) * g_in, b1 * m_out + (1 - b1) * g_out
            v = b2 * v + (1 - b2) * (g_in + g_out) ** 2
            moment = v.mean(0, keepdim=True) if optimizer.name == "coupled_adam" else v
            if optimizer.name == "adam_mini":
                moment = v.mean(1, keepdim=True)
            if optimizer.name == "coupled_adam":
                moment = moment * 2.0**-optimizer.scale_exponent
            if (
                optimizer.name == "ember"
            ):  # the means of a moving average are the moving averages of the means
                moment = v.mean(1, keepdim=True) * v.mean(0) / v.mean()
            if optimizer.name == "adamw" and optimizer.amsgrad:
                moment = largest = torch.maximum(largest, v)
            denominator = (moment / (1 - b2**t)).sqrt() + training.eps
            changes = [-lr / (1 - b1**t) * m / denominator for m in (m_in, m_out)] + [
                -lr * wd * weight
            ]
        for part, change in zip((found.input, found.output, found.decay), changes, strict=True):
            part += change.mean(0)
        weight += sum(changes)
        with torch.no_grad():
            model.embedding.weight.copy_(weight)
            model.head.weight.copy_(weight)
    return found


TIED = [{"name": "tied", "n_layer": 1, "n_head": 2, "d_model": 8, "learning_rate": 0.01}]
ALL = [
    "adamw",
    "coupled_adam",
    {"name": "coupled_adam", "scale_exponent": 2},
    {"name": "sgd", "lr_factor": 20},
    {"name": "sgd", "lr_factor": 20, "momentum": 0.0},
    {"name": "adamw", "amsgrad": True, "beta1": 0.5, "beta2": 0.8},
    {"name": "coupled_adam", "beta1": 0.5, "beta2": 0.8},
    {"name": "ember", "beta2": 0.9},
    "adam_mini",
]


@pytest.mark.parametrize("optimizer", ALL, ids=str)
def test_the_parts_are_those_of_training_by_hand(
    optimizer: Any, theory_study: Callable[..., Any], workspace: Callable[..., Plan]
) -> None:
    plan = workspace(theory_study(30, [optimizer], TIED, **RECIPE))
    (cell,) = plan.cells.values()
    replay = replay_of(cell)
    drift = replay.output
    expected = reference(cell, replay.trainer.batches)
    assert 0 < expected.clipped_steps < cell.steps
    torch.testing.assert_close(
        drift.weight.detach().double(), expected.weight, rtol=1e-3, atol=1e-4
    )
    size = (expected.input + expected.output + expected.decay).norm()
    for name in ("input", "output", "decay"):
        torch.testing.assert_close(
            drift.parts[name], getattr(expected, name), rtol=0, atol=float(1e-3 * size)
        )
        assert name == "output" or drift.parts[name].norm() > 0.01 * size
    records, shares = drift.records, drift.shares()
    assert records["step"] == [5, 10, 15, 20, 25, 30]
    assert sum(share for share in shares.values() if share is not None) == pytest.approx(
        1, abs=1e-12
    )
    whole = expected.input + expected.output + expected.decay
    for name in ("input", "output", "decay"):
        share = float(getattr(expected, name) @ whole / (whole @ whole))
        assert shares[f"{name}_share"] == pytest.approx(share, abs=0.01)
        assert records[name][-1] == pytest.approx(float(drift.parts[name].norm()), rel=1e-12)
    assert records["residual"][-1] < 1e-5 * records["displacement"][-1]
    assert (records["output"][-1] > 0.1 * float(size)) == (
        cell.optimizer.name in ("adamw", "adam_mini", "ember")
    )


def test_parts_of_a_head_with_an_optimizer_of_its_own(
    theory_study: Callable[..., Any], workspace: Callable[..., Plan]
) -> None:
    """Each matrix is split by its own rule, learning rate and decay: nothing of its displacement is
    left over."""
    adam = {"name": "adamw", "lr_factor": 0.5, "beta1": 0.5, "beta2": 0.8, "weight_decay": 0.3}
    optimizer = {"embedding": "coupled_adam", "head": adam}
    plan = workspace(
        theory_study(30, [optimizer], [TIED[0] | {"name": "untied", "tied": False}], **RECIPE)
    )
    (cell,) = plan.cells.values()
    for drift in replay_of(cell).drifts.values():
        assert drift.records["residual"][-1] < 1e-5 * drift.records["displacement"][-1]


def test_norms_and_sums_are_those_of_the_weights(
    theory_study: Callable[..., Any], workspace: Callable[..., Plan]
) -> None:
    plan = workspace(theory_study(3, ["adamw"], TIED, warmup_steps=2))
    (cell,) = plan.cells.values()
    replay = replay_of(cell, record_every=2)
    again = Trainer(cell, Execution(), paths.data_dir(cell.data_id), paths.run_dir(cell.id), CPU)
    weight = again.model.embedding.weight
    states = [weight.detach().double().clone()]
    for step in range(3):
        again.train_step(step)
        states.append(weight.detach().double().clone())
    records = replay.output.records
    assert records["step"] == [2, 3]
    for index, step in enumerate((2, 3)):
        now, update = states[step], states[step] - states[step - 1]
        mean = now.mean(0)
        values = {
            "mean_norm": mean.norm(),
            "mean_norm_ratio": mean.norm() / now.norm(dim=1).mean(),
            "displacement": (mean - states[0].mean(0)).norm(),
            "update_sum": update.sum(0).norm() / update.norm(dim=1).sum(),
        }
        for name, value in values.items():
            assert records[name][index] == pytest.approx(float(value), rel=1e-12), name


def test_micro_batches_change_nothing_but_rounding(
    theory_study: Callable[..., Any], workspace: Callable[..., Plan]
) -> None:
    plan = workspace(theory_study(10, ["coupled_adam"], TIED))
    (cell,) = plan.cells.values()
    whole, parts = (replay_of(cell, micro_batch_sequences=size).output for size in (None, 3))
    torch.testing.assert_close(parts.parts["input"], whole.parts["input"], rtol=1e-3, atol=1e-7)
    assert parts.records["residual"][-1] < 1e-4 * parts.records["displacement"][-1]


def test_a_replay_is_the_run(
    theory_study: Callable[..., Any], workspace: Callable[..., Plan], stage_of: Callable[..., int]
) -> None:
    study = theory_study(22, ["adamw"], TIED)
    plan = workspace(study)
    (cell,) = plan.cells.values()
    assert stage_of("train", plan.cells) == 0
    replay = replay_of(cell)
    run_dir = paths.run_dir(cell.id)
    assert relative_loss_difference(replay.losses, run_dir) == 0
    trained = load_model(paths.run_dir(cell.id) / "model")
    assert torch.equal(trained.embedding.weight, replay.output.weight)
    replay.losses[12] += 5 * 1e-3 * replay.losses[12]  # of the line of steps 11 to 15
    assert relative_loss_difference(replay.losses, run_dir) == pytest.approx(1e-3, rel=0.05)
    replay.losses[-1] = math.nan
    assert math.isnan(relative_loss_difference(replay.losses, run_dir))
    with pytest.raises(ValueError, match=r"its history ends with step 22 of 23"):
        relative_loss_difference([*replay.losses, 1.0], run_dir)
    with pytest.raises(ValueError, match=r"nowhere: its history ends with step 0 of 23"):
        relative_loss_difference([*replay.losses, 1.0], Path("nowhere"))


def test_what_moves_rows_otherwise_than_by_a_rule_has_none() -> None:
    own = CustomSettings(name="custom", path="torch.optim.RAdam", key="radam", label="RAdam")
    assert rule_of(own, Training()) is None
    assert rule_of(NormalizedSgdSettings(name="normalized_sgd", by="row"), Training()) is None
    assert rule_of(ObliqueSgdSettings(name="oblique_sgd", lr_factor=1), Training()) is None
    for moved in ({"mu_centering": True}, {"mu_loss": 0.1}):
        assert rule_of(AdamWSettings(name="adamw", **moved), Training()) is None
