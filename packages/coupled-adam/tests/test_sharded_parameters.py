"""CoupledAdam on DTensors: in shards of rows or columns, uneven ones too, it does what it does on
the whole matrix.

So does its AdamW for parameters that are not coupled.
"""

import subprocess
import sys

BEGIN = """
import copy
import itertools
import os
import sys
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor, DTensor
from torch import nn
from torch.distributed.fsdp import fully_shard
from coupled_adam import CoupledAdam, coupled_param_groups

torch.set_num_threads(1)
# Forks of one process, so that only it takes the seconds of the imports.
children = []
for rank in range(3):
    child = os.fork()
    if child == 0:
        break
    children.append(child)
else:
    sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0 for child in children))
dist.init_process_group("gloo", init_method=sys.argv[1], rank=rank, world_size=3)
mesh = init_device_mesh("cpu", (3,))
"""

CASES = """
cases = itertools.product(
    (Shard(0), Shard(1), Replicate()),
    ((10, 7), (9, 6), (2, 5), (5, 2)),  # uneven, even, and fewer rows or columns than processes
    (0, 1),
    (False, True),
)
for placement, shape, dim, clip in cases:
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(shape, generator=generator, dtype=torch.float64)
    whole = torch.nn.Parameter(start.clone())
    sharded = torch.nn.Parameter(distribute_tensor(start.clone(), mesh, [placement]))
    other = torch.nn.Parameter(distribute_tensor(torch.zeros(5, dtype=torch.float64), mesh, [Shard(0)]))
    settings = {"lr": 0.1, "betas": (0.9, 0.95), "weight_decay": 0.1, "scale": 0.5, "coupled_dim": dim}
    other_whole = torch.nn.Parameter(torch.zeros(5, dtype=torch.float64))
    optimizers = [
        CoupledAdam([{"params": [parameter], "coupled": True}, {"params": [rest]}], **settings)
        for parameter, rest in ((whole, other_whole), (sharded, other))
    ]
    for step in range(2):
        grad = torch.randn(shape, generator=generator, dtype=torch.float64)
        whole.grad = grad.clone()
        sharded.grad = distribute_tensor(grad.clone(), mesh, [placement])
        other.grad = distribute_tensor(torch.ones(5, dtype=torch.float64), mesh, [Shard(0)])
        other_whole.grad = torch.ones(5, dtype=torch.float64)
        if clip:
            shared = optimizers[1].clip_grad_norm_([sharded, other], 1.0)
            torch.testing.assert_close(shared**2, grad.square().sum() + 5, rtol=1e-12, atol=0)
            whole.grad = grad / (shared + 1e-6)
            other_whole.grad /= shared + 1e-6
            torch.testing.assert_close(other.grad.full_tensor(), 1 / (shared + 1e-6).expand(5), rtol=1e-12, atol=0)
        for optimizer in optimizers:
            optimizer.step()
    torch.testing.assert_close(sharded.full_tensor(), whole, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(other.full_tensor(), other_whole, rtol=1e-12, atol=1e-12)
    assert sharded.placements == (placement,)
    state, expected = (optimizer.state[p] for optimizer, p in zip(optimizers[::-1], (sharded, whole)))
    torch.testing.assert_close(state["exp_avg_sq"], expected["exp_avg_sq"], rtol=1e-12, atol=0)
    assert state["exp_avg_sq"].shape == (shape[1 - dim],)
    assert isinstance(state["exp_avg"], DTensor)
    torch.testing.assert_close(state["exp_avg"].full_tensor(), expected["exp_avg"], rtol=1e-12, atol=1e-15)
"""

# A model as its user shards it: what the helper finds, a step after the clip, and a state that goes
# on.
MODEL = """
def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(11, 6), nn.Linear(6, 6), nn.LayerNorm(6), nn.Linear(6, 11, bias=False)).double()

def optimizer_of(model):
    return CoupledAdam(coupled_param_groups(model, weight_decay=0.1), lr=0.1)

def train(model, optimizer, steps):
    for step in steps:
        tokens = (torch.arange(5) * step) % 11  # the same on all processes, so that the mean gradient is that of one
        nn.functional.cross_entropy(model(tokens), tokens).backward()
        optimizer.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()

def assert_equal(model, **tolerance):
    for parameter, expected in zip(model.parameters(), whole.parameters(), strict=True):
        full = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
        torch.testing.assert_close(full, expected, **tolerance)

def back_to_adamw(optimizer, model):
    adamw = torch.optim.AdamW([{"params": group["params"]} for group in optimizer.param_groups])
    adamw.load_state_dict(optimizer.adamw_state_dict())
    model(torch.arange(5)).sum().backward()
    adamw.step()

whole = build()
of_whole = optimizer_of(whole)
train(whole, of_whole, range(8))
sharded = fully_shard(build(), mesh=mesh)
optimizer = optimizer_of(sharded)
assert [len(group["params"]) for group in optimizer.param_groups] == [2, 1, 3]
train(sharded, optimizer, range(4))
state = copy.deepcopy(optimizer.state_dict())
optimizer = optimizer_of(sharded)
optimizer.load_state_dict(state)
train(sharded, optimizer, range(4, 8))
assert_equal(sharded, rtol=1e-10, atol=1e-10)
of_sharded = optimizer

replicated = nn.parallel.DistributedDataParallel(build())
optimizer = optimizer_of(replicated)
train(replicated, optimizer, range(8))
assert_equal(replicated, rtol=1e-10, atol=1e-10)

for each, model in ((of_whole, whole), (of_sharded, sharded)):
    back_to_adamw(each, model)
assert_equal(sharded, rtol=1e-10, atol=1e-10)
"""

END = """
dist.barrier()
dist.destroy_process_group()
os._exit(0)  # with torch 2.12 a process of a gloo group that exits by itself aborts now and then
"""


def test_shards_are_updated_like_the_whole(tmp_path):
    command = [sys.executable, "-c", BEGIN + CASES + MODEL + END, (tmp_path / "store").as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
