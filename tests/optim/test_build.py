"""The optimizers of a cell against their formulas in NumPy, in float64."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from coupled_adam_bench.models.build import build_model
from coupled_adam_bench.optim.build import build_optimizers, subtract_mean_row
from coupled_adam_bench.study.model import Model
from coupled_adam_bench.study.optimizers import Optimizer
from coupled_adam_bench.study.training import Training

PEAK, STEPS = 1e-2, 20
TRAINING = {"seq_len": 4, "batch_sequences": 2, "weight_decay": 0.2}


def build(optimizer, tied=True, **training):
    settings = Model(name="m", n_layer=2, n_head=2, d_model=8, tied=tied, learning_rate=PEAK)
    model = build_model(settings, 17, 4)
    model.init_weights(0, 0.02)
    model.double()
    optimizers = build_optimizers(
        model,
        model.embedding_parameters(),
        Optimizer(**optimizer),
        Training(**TRAINING | training),
        PEAK,
    )
    return model, optimizers


def adam(beta1=0.9, beta2=0.95, amsgrad=False, scale=None):
    """The step of Adam, or with a scale that of Coupled Adam, for a rate of 1."""
    first = second = largest = 0.0
    for step in range(1, STEPS + 1):
        grad = yield
        first, second = beta1 * first + (1 - beta1) * grad, beta2 * second + (1 - beta2) * grad**2
        # torch takes the largest before it corrects it for the start.
        largest = np.maximum(largest, second)
        moment = largest if amsgrad else second
        if scale is not None:
            moment = scale * second.mean(0)
        yield first / (1 - beta1**step) / (np.sqrt(moment / (1 - beta2**step)) + 1e-8)


def sgd(momentum=0.9):
    """The step of Algorithm 2: no dampening, no Nesterov."""
    total = 0.0
    for _ in range(STEPS):
        total = momentum * total + (yield)
        yield total


@pytest.mark.parametrize(
    ("optimizer", "rule"),
    [
        ({"name": "adamw"}, adam()),
        ({"name": "adamw", "beta2": 0.999, "lr_factor": 0.3}, adam(beta2=0.999)),
        ({"name": "adamw", "beta2": 0.5, "amsgrad": True}, adam(beta2=0.5, amsgrad=True)),
        ({"name": "coupled_adam", "beta1": 0.8, "weight_decay": 0.3}, adam(beta1=0.8, scale=1)),
        ({"name": "coupled_adam", "scale_exponent": 3}, adam(scale=1 / 8)),
        ({"name": "sgd", "lr_factor": 100}, sgd()),
        ({"name": "sgd", "momentum": 0.5, "weight_decay": 0.0}, sgd(0.5)),
    ],
)
def test_the_embedding_moves_by_the_formula(optimizer, rule):
    model, optimizers = build(optimizer, embedding_weight_decay=0.1)
    # The study's is decoupled, and SGD's would not be.
    decay = optimizer.get("weight_decay", 0.0 if optimizer["name"] == "sgd" else 0.1)
    weight = model.embedding.weight.detach().numpy().copy()
    generator = np.random.default_rng(0)
    for step in range(STEPS):
        grad = generator.normal(size=weight.shape) / (1 + step) ** 2  # its largest stays behind
        model.embedding.weight.grad = torch.tensor(grad)
        factor = 1 - step / STEPS
        optimizers.set_lr(factor)
        optimizers.step()
        rate = factor * PEAK * optimizer.get("lr_factor", 1)
        next(rule)
        weight = (1 - rate * decay) * weight - rate * rule.send(grad)
    np.testing.assert_allclose(model.embedding.weight.detach().numpy(), weight, rtol=0, atol=1e-12)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("name", "decay"), [("adamw", 0.05), ("coupled_adam", 0.05), ("sgd", 0.0)])
def test_each_parameter_is_in_one_group_and_decays_as_it_should(name, decay, tied):
    model, optimizers = build({"name": name, "lr_factor": 3}, tied, embedding_weight_decay=0.05)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found = {}
    for part, one in optimizers.by_name.items():
        for group in one.param_groups:
            for parameter in group["params"]:
                assert id(parameter) in names
                found[names.pop(id(parameter))] = (part, group["lr"], group["weight_decay"])
    assert not names
    for name, parameter in model.named_parameters():
        if name in ("embedding.weight", "head.weight"):
            assert found[name] == ("embedding", 3 * PEAK, decay)
        else:
            # [C]: the position embedding decays as the matrices of the layers do.
            assert found[name] == ("core", PEAK, 0.2 if parameter.ndim > 1 else 0.0)


def test_gradients_are_set_to_none():
    model, optimizers = build({"name": "adamw"})
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizers.zero_grad()
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("tied", [True, False])
def test_mu_centering_keeps_the_mean_row_of_the_head_at_zero(tied):
    optimizer = {"name": "adamw"}
    model, optimizers = build(optimizer | {"mu_centering": True}, tied)
    plain, others = build(optimizer, tied)
    tokens = torch.randint(0, 17, (2, 5), generator=torch.Generator().manual_seed(0))
    for each, its in ((model, optimizers), (plain, others)):
        each(tokens[:, :-1], tokens[:, 1:]).backward()
        its.step()
    expected = plain.head_weight - plain.head_weight.mean(0)
    torch.testing.assert_close(model.head_weight, expected, rtol=0, atol=1e-15)
    assert plain.head_weight.mean(0).norm() > 1e-3
    if not tied:
        assert torch.equal(model.embedding.weight, plain.embedding.weight)


def test_a_mean_row_of_half_precision_is_taken_in_float32():
    matrix = torch.ones(10, 2, dtype=torch.bfloat16)
    matrix[::2] += 2**-7  # the next number after 1; their mean lies between both
    subtract_mean_row(matrix)
    assert torch.equal(matrix.abs(), torch.full_like(matrix, 2**-8))


OWN = """
import torch

class Power(torch.optim.Optimizer):
    def __init__(self, params, lr, power=1.0):
        super().__init__(params, {"lr": lr, "power": power})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p -= group["lr"] * p.grad.sign() * p.grad.abs() ** group["power"]
"""


def test_a_file_of_the_user_s_own_is_enough(tmp_path, monkeypatch):
    (tmp_path / "my_optimizer.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    own = {"name": "custom", "path": "my_optimizer.Power", "key": "power"}
    model, optimizers = build(own | {"arguments": {"power": 2.0}, "lr_factor": 0.5})
    before = model.embedding.weight.detach().clone()
    grad = model.embedding.weight.grad = torch.randn_like(before)
    optimizers.set_lr(0.1)
    optimizers.step()
    expected = before - 0.1 * 0.5 * PEAK * grad * grad.abs()
    torch.testing.assert_close(model.embedding.weight.detach(), expected)
    with pytest.raises(ValueError, match=r"^weight_decay: 0\.3"):
        build(own | {"weight_decay": 0.3})


@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_a_library_s_own_default_of_weight_decay_does_not_count(decay):
    _, optimizers = build(
        {"name": "custom", "path": "torch.optim.Adagrad", "key": "a", "arguments": {"eps": 1e-3}},
        embedding_weight_decay=decay,
    )
    (group,) = optimizers.by_name["embedding"].param_groups
    assert (group["lr"], group["eps"], group["weight_decay"]) == (PEAK, 1e-3, decay)


SHARDS = """
import os
import sys
import torch
import torch.distributed as dist
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from coupled_adam_bench.optim.build import subtract_mean_row

rank = int(os.fork() == 0)
dist.init_process_group("gloo", init_method=sys.argv[1], rank=rank, world_size=2)
mesh = dist.init_device_mesh("cpu", (2,))
for placement in (Shard(0), Shard(1), Replicate()):
    for shape in ((10, 7), (5, 3), (1, 4)):
        whole = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        sharded = distribute_tensor(whole.clone(), mesh, [placement])
        subtract_mean_row(sharded)
        torch.testing.assert_close(sharded.full_tensor(), whole - whole.mean(0), rtol=0, atol=1e-13)
dist.barrier()
os._exit(0 if rank else os.waitstatus_to_exitcode(os.wait()[1]))
"""


def test_matrices_in_shards_are_centered_as_whole_ones(tmp_path):
    command = [sys.executable, "-c", SHARDS, (tmp_path / "store").as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
