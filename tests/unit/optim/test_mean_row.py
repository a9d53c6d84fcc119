"""Mu-centering and mu-loss: the mean row by hand, what the softmax sees of a shift, gradients, and
shards."""

import pytest
import torch
from forks import run_group

from coupled_adam_bench.models.gpt2 import GPT2
from coupled_adam_bench.optim.build import build_optimizers
from coupled_adam_bench.optim.mean_row import add_mu_loss_gradient, mean_row, subtract_mean_row
from coupled_adam_bench.study.settings import AdamWSettings, SgdSettings, Training

SHARDED = """
import os
import sys
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from coupled_adam_bench.optim.mean_row import add_mu_loss_gradient, mean_row, subtract_mean_row

torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=sys.argv[1], rank=int(sys.argv[2]), world_size=2)
mesh = init_device_mesh("cpu", (2,))
for placement in (Shard(0), Shard(1), Replicate()):
    for shape in ((10, 7), (5, 3), (1, 4)):
        generator = torch.Generator().manual_seed(0)
        start, grad = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
        whole, sharded = (torch.nn.Parameter(x) for x in (start.clone(), distribute_tensor(start, mesh, [placement])))
        whole.grad, sharded.grad = grad.clone(), distribute_tensor(grad, mesh, [placement])
        for parameter in (whole, sharded):
            add_mu_loss_gradient(parameter, 0.5)
            subtract_mean_row(parameter)
        torch.testing.assert_close(sharded.grad.full_tensor(), whole.grad, rtol=1e-13, atol=1e-13)
        torch.testing.assert_close(sharded.full_tensor(), whole, rtol=1e-13, atol=1e-13)
        assert sharded.placements == sharded.grad.placements == (placement,)
dist.barrier()
dist.destroy_process_group()
os._exit(0)
"""

TRAINING = Training(seq_len=4, batch_sequences=2, warmup_steps=10)


def build(tied, **head):
    model = GPT2(17, 4, 2, 2, 8, d_ffn=32, tied=tied)
    model.init_weights(0, 0.02)
    optimizer = AdamWSettings(name="adamw", **head)
    return model, build_optimizers(model, model.embedding_parameters(), optimizer, TRAINING, 1e-2)


def step_of(model, optimizers, seed=0):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, 17, (2, 5), generator=generator)
    model(tokens[:, :-1], tokens[:, 1:]).backward()
    optimizers.add_mu_loss_gradient()
    gradient = model.head_weight.grad.clone()
    optimizers.step()
    optimizers.zero_grad()
    return gradient


def test_the_mean_row_is_subtracted_from_each_row():
    matrix = torch.tensor([[1.0, 2.0], [3.0, 5.0], [5.0, 2.0]])
    assert mean_row(matrix).tolist() == [3.0, 3.0]
    subtract_mean_row(matrix)
    assert matrix.tolist() == [[-2.0, -1.0], [0.0, 2.0], [2.0, -1.0]]


def test_the_mean_of_half_precision_is_taken_in_float32():
    matrix = torch.full((4096, 2), 1.0, dtype=torch.bfloat16)  # a sum in bfloat16 stops at 256
    assert mean_row(matrix).tolist() == [1.0, 1.0]
    subtract_mean_row(matrix)
    assert not matrix.any()


@pytest.mark.parametrize("tied", [True, False])
def test_mu_centering_keeps_the_mean_of_the_heads_rows_at_zero(tied):
    model, optimizers = build(tied, mu_centering=True)
    for seed in range(20):
        step_of(model, optimizers, seed)
        weight = model.head_weight.detach()
        assert mean_row(weight).norm() < 1e-7 * weight.norm(dim=1).mean() * 17
    assert (
        tied or mean_row(model.embedding.weight.detach()).norm() > 1e-4
    )  # the other matrix has its mean


def test_centering_an_untied_head_changes_no_probability():
    model, _ = build(False)
    model.double()
    tokens = torch.randint(0, 17, (2, 4), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        model.head.weight += 0.3
        before = model.logits(tokens).log_softmax(-1)
        subtract_mean_row(model.head.weight)
        after = model.logits(tokens).log_softmax(-1)
    torch.testing.assert_close(after, before, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("tied", [True, False])
def test_the_mu_loss_has_the_gradient_of_autograd(tied):
    (plain, without), (model, optimizers) = build(tied), build(tied, mu_loss=0.7)
    for one in (plain, model):
        with torch.no_grad():
            one.head_weight.add_(0.1)
    expected = step_of(plain, without)
    matrix = model.head_weight.detach().clone().requires_grad_()
    penalty = 0.7 * matrix.mean(0).square().sum()
    penalty.backward()
    torch.testing.assert_close(step_of(model, optimizers), expected + matrix.grad)
    assert matrix.grad.abs().max() > 1e-4


def test_a_step_of_sgd_with_mu_loss_shrinks_the_mean_by_its_factor():
    """The mean moves by lr 2 weight mean / V in a step, apart from what the cross-entropy does to
    an untied head: 0."""
    model = GPT2(17, 4, 2, 2, 8, d_ffn=32, tied=False)
    model.init_weights(0, 0.02)
    optimizer = SgdSettings(name="sgd", lr_factor=100, momentum=0, mu_loss=2.0)
    optimizers = build_optimizers(model, model.embedding_parameters(), optimizer, TRAINING, 1e-2)
    with torch.no_grad():
        model.head.weight.add_(1.0)
    before = mean_row(model.head.weight.detach())
    step_of(model, optimizers)
    torch.testing.assert_close(
        mean_row(model.head.weight.detach()), before * (1 - 2 * 2.0 / 17), rtol=1e-5, atol=1e-6
    )


def test_without_a_gradient_the_mu_loss_adds_none():
    matrix = torch.nn.Parameter(torch.ones(2, 2))
    add_mu_loss_gradient(matrix, 1.0)
    assert matrix.grad is None


def test_matrices_in_shards_are_centered_as_if_they_were_whole(tmp_path):
    run_group(SHARDED, 2, tmp_path)
