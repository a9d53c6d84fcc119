"""CoupledAdam on DTensors: in shards of rows or columns, uneven ones too, it does what it does on the whole matrix."""

import os
import subprocess
import sys
from pathlib import Path

WORKER = """
import itertools
import os
import sys
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor, DTensor
from coupled_adam_bench.optim import CoupledAdam

torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=sys.argv[1], rank=int(sys.argv[2]), world_size=3)
mesh = init_device_mesh("cpu", (3,))
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
    optimizers = [CoupledAdam([parameter], **settings) for parameter in (whole, sharded)]
    for step in range(6):
        grad = torch.randn(shape, generator=generator, dtype=torch.float64)
        whole.grad = grad.clone()
        sharded.grad = distribute_tensor(grad.clone(), mesh, [placement])
        other.grad = distribute_tensor(torch.ones(5, dtype=torch.float64), mesh, [Shard(0)])
        if clip:
            shared = optimizers[1].clip_grad_norm_([sharded, other], 1.0)
            torch.testing.assert_close(shared**2, grad.square().sum() + 5, rtol=1e-12, atol=0)
            whole.grad = grad / (shared + 1e-6)
            torch.testing.assert_close(other.grad.full_tensor(), 1 / (shared + 1e-6).expand(5), rtol=1e-12, atol=0)
        for optimizer in optimizers:
            optimizer.step()
    torch.testing.assert_close(sharded.full_tensor(), whole, rtol=1e-12, atol=1e-12)
    assert sharded.placements == (placement,)
    state, expected = (optimizer.state[p] for optimizer, p in zip(optimizers[::-1], (sharded, whole)))
    torch.testing.assert_close(state["exp_avg_sq"], expected["exp_avg_sq"], rtol=1e-12, atol=0)
    assert state["exp_avg_sq"].shape == (shape[1 - dim],)
    assert isinstance(state["exp_avg"], DTensor)
    torch.testing.assert_close(state["exp_avg"].full_tensor(), expected["exp_avg"], rtol=1e-12, atol=1e-15)
dist.barrier()
dist.destroy_process_group()
os._exit(0)  # with torch 2.12 a process of a gloo group that exits by itself aborts now and then
"""


def test_shards_are_updated_like_the_whole(tmp_path: Path):
    command = [sys.executable, "-c", WORKER, f"file://{tmp_path / 'store'}"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen([*command, str(rank)], stderr=subprocess.PIPE, text=True, env=environment) for rank in range(3)
    ]
    errors = [process.communicate(timeout=120)[1] for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0, 0], "\n".join(errors)
