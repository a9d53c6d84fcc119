"""Ember against its formula in a plain loop, where it is Adam, its edge cases, its state, and
matrices in shards."""

import copy
import math

import pytest
import torch
from forks import run_group

from coupled_adam_bench.optim.ember import Ember

SHARDED = """
import os
import sys
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from coupled_adam_bench.optim.ember import Ember

torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=sys.argv[1], rank=int(sys.argv[2]), world_size=2)
mesh = init_device_mesh("cpu", (2,))
for placement, shape in ((Shard(0), (10, 7)), (Shard(0), (5, 3)), (Shard(0), (1, 4)), (Replicate(), (5, 3))):
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(shape, generator=generator, dtype=torch.float64)
    whole = torch.nn.Parameter(start.clone())
    sharded = torch.nn.Parameter(distribute_tensor(start.clone(), mesh, [placement]))
    optimizers = [Ember([parameter], lr=0.1, beta2=0.9, weight_decay=0.1) for parameter in (whole, sharded)]
    for _ in range(6):
        grad = torch.randn(shape, generator=generator, dtype=torch.float64)
        whole.grad, sharded.grad = grad.clone(), distribute_tensor(grad.clone(), mesh, [placement])
        for optimizer in optimizers:
            optimizer.step()
    torch.testing.assert_close(sharded.full_tensor(), whole, rtol=1e-12, atol=1e-12)
    expected, state = (optimizer.state[parameter] for optimizer, parameter in zip(optimizers, (whole, sharded)))
    assert state["row_avg_sq"].placements == (placement,)
    torch.testing.assert_close(state["row_avg_sq"].full_tensor(), expected["row_avg_sq"], rtol=1e-12, atol=0)
    torch.testing.assert_close(state["column_avg_sq"], expected["column_avg_sq"], rtol=1e-12, atol=0)
columns = torch.nn.Parameter(distribute_tensor(torch.ones(4, 4), mesh, [Shard(1)]))
columns.grad = distribute_tensor(torch.ones(4, 4), mesh, [Shard(1)])
try:
    Ember([columns]).step()
except ValueError as error:
    assert str(error) == "params: a parameter of shape (4, 4) is in shards of columns; shard its rows"
else:
    raise AssertionError("shards of columns are taken")
dist.barrier()
dist.destroy_process_group()
os._exit(0)
"""


def matrix(shape, seed=0, dtype=torch.float64):
    return torch.nn.Parameter(
        torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)
    )


def by_the_formula(weight, grads, lr, beta2, eps, decay):
    """The rule of the paper number by number, with the moment of the whole matrix that we leave
    out."""
    n_rows, n_columns = weight.shape
    weight = weight.tolist()
    row, column, whole = [0.0] * n_rows, [0.0] * n_columns, 0.0
    for step, grad in enumerate((grad.tolist() for grad in grads), start=1):
        squares = [[g * g for g in line] for line in grad]
        for i in range(n_rows):
            row[i] = beta2 * row[i] + (1 - beta2) * sum(squares[i]) / n_columns
        for j in range(n_columns):
            column[j] = beta2 * column[j] + (1 - beta2) * sum(line[j] for line in squares) / n_rows
        whole = beta2 * whole + (1 - beta2) * sum(map(sum, squares)) / (n_rows * n_columns)
        for i in range(n_rows):
            for j in range(n_columns):
                moment = row[i] * column[j] / (whole * (1 - beta2**step))
                weight[i][j] = (1 - lr * decay) * weight[i][j] - lr * grad[i][j] / (
                    math.sqrt(moment) + eps
                )
    return torch.tensor(weight, dtype=torch.float64)


@pytest.mark.parametrize("block", [1, 2**18])  # rows one by one, and all at once
def test_a_thousand_steps_are_the_papers_formula(block, monkeypatch):
    monkeypatch.setattr("coupled_adam_bench.optim.ember._CPU_BLOCK", block)
    parameter = matrix((5, 3))
    start = parameter.detach().clone()
    sizes = torch.tensor([1.0, 1e-3, 1.0, 30.0, 1.0])[:, None]  # frequent and rare tokens
    generator = torch.Generator().manual_seed(1)
    grads = [
        torch.randn((5, 3), generator=generator, dtype=torch.float64) * sizes for _ in range(1000)
    ]
    optimizer = Ember([parameter], lr=0.01, beta2=0.99, eps=1e-6, weight_decay=0.1)
    for grad in grads:
        parameter.grad = grad
        optimizer.step()
    expected = by_the_formula(start, grads, 0.01, 0.99, 1e-6, 0.1)
    torch.testing.assert_close(parameter.detach(), expected, rtol=1e-11, atol=1e-11)


def test_where_squares_are_an_outer_product_it_is_adam_without_a_first_moment():
    """The product of a row's and a column's mean is then the square itself, up to the mean of
    all."""
    ours, adams = matrix((6, 4)), matrix((6, 4))
    generator = torch.Generator().manual_seed(2)
    outer = (
        torch.rand(6, 1, generator=generator, dtype=torch.float64)
        * torch.rand(4, generator=generator)
        + 0.1
    )
    outer = outer[:, :1] * outer[:1]
    optimizers = [
        Ember([ours], lr=0.02, beta2=0.9, weight_decay=0.3),
        torch.optim.AdamW([adams], lr=0.02, betas=(0.0, 0.9), eps=1e-8, weight_decay=0.3),
    ]
    for step in range(200):
        signs = torch.randint(0, 2, (6, 4), generator=generator) * 2 - 1
        for parameter, optimizer in zip((ours, adams), optimizers, strict=True):
            parameter.grad = signs * outer * (1 + step % 3)  # the same outer product in other sizes
            optimizer.step()
    torch.testing.assert_close(ours, adams, rtol=1e-11, atol=1e-11)


def test_one_row_and_one_column_are_adam_without_a_first_moment():
    for shape in ((1, 7), (7, 1)):
        ours, adams = matrix(shape), matrix(shape)
        optimizers = [
            Ember([ours], lr=0.1),
            torch.optim.AdamW([adams], lr=0.1, betas=(0.0, 0.999), weight_decay=0),
        ]
        for step in range(50):
            for parameter, optimizer in zip((ours, adams), optimizers, strict=True):
                parameter.grad = matrix(shape, seed=step).detach()
                optimizer.step()
        torch.testing.assert_close(ours, adams, rtol=1e-11, atol=1e-11)


def test_without_a_gradient_nothing_moves_and_a_row_without_one_only_decays():
    parameter = matrix((4, 3))
    before = parameter.detach().clone()
    optimizer = Ember([parameter], lr=0.1, weight_decay=0.5)
    optimizer.step()
    assert torch.equal(parameter, before)
    parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    torch.testing.assert_close(parameter.detach(), before * 0.95)
    parameter.grad = torch.ones_like(parameter)
    parameter.grad[2] = 0
    optimizer.step()
    assert parameter.isfinite().all()
    torch.testing.assert_close(parameter[2].detach(), before[2] * 0.95**2)


def test_the_state_is_a_number_for_each_row_and_column_in_float32():
    parameter = matrix((9, 5), dtype=torch.bfloat16)
    parameter.grad = torch.ones_like(parameter)
    optimizer = Ember([parameter], lr=0.1)
    optimizer.step()
    state = optimizer.state[parameter]
    assert {name: (tuple(value.shape), value.dtype) for name, value in state.items()} == {
        "step": ((), torch.float32),
        "row_avg_sq": ((9, 1), torch.float32),
        "column_avg_sq": ((5,), torch.float32),
    }
    again = Ember([parameter], lr=0.1)
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert all(torch.equal(again.state[parameter][name], value) for name, value in state.items())
    assert {value.dtype for value in again.state[parameter].values()} == {torch.float32}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_state_that_was_saved_goes_on_with_the_same_bits(dtype):
    whole, parts = matrix((8, 6), dtype=dtype), matrix((8, 6), dtype=dtype)
    optimizers = [Ember([parameter], lr=0.01, weight_decay=0.1) for parameter in (whole, parts)]
    for step in range(20):
        if step == 10:
            state = copy.deepcopy(optimizers[1].state_dict())
            optimizers[1] = Ember([parts], lr=1.0)
            optimizers[1].load_state_dict(state)
        for parameter, optimizer in zip((whole, parts), optimizers, strict=True):
            parameter.grad = matrix((8, 6), seed=step, dtype=dtype).detach()
            optimizer.step()
    assert torch.equal(whole, parts)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr": -1.0}, "lr: -1.0 is out of range"),
        ({"beta2": 1.0}, "beta2: 1.0 is out of range"),
        ({"eps": -1e-8}, "eps: -1e-08 is out of range"),
        ({"weight_decay": -0.1}, "weight_decay: -0.1 is out of range"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Ember([matrix((2, 2))], **settings)


@pytest.mark.parametrize("shape", [(3,), (2, 2, 2), ()])
def test_what_is_no_matrix_is_refused(shape):
    with pytest.raises(ValueError, match="params: Ember takes matrices of real numbers"):
        Ember([torch.nn.Parameter(torch.zeros(shape))])


def test_rows_in_shards_are_updated_as_if_they_were_whole(tmp_path):
    run_group(SHARDED, 2, tmp_path)
