"""The kernel of the loss without a GPU: run by Triton's interpreter on the CPU, and compiled for
GPUs not at hand."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="Triton is for Linux on x86-64")

# In processes of their own: Triton reads at its import whether it interprets.
EQUAL = """
import itertools
import torch
from torch.nn import functional as F
from coupled_adam_bench.models import cross_entropy, loss_kernel
from coupled_adam_bench.models.cross_entropy import IGNORED, by_log_softmax, sum_with_z_loss
from coupled_adam_bench.models.loss_kernel import by_kernel

loss_kernel.BLOCK = 64  # several blocks a row
cross_entropy.LOGITS_CHUNK["cpu"] = 20  # several chunks, the last of another size
generator = torch.Generator().manual_seed(0)
hidden = torch.randn(45, 12, generator=generator, dtype=torch.float64)
targets = torch.randint(0, 41, (45,), generator=generator)
targets[[3, 30]] = IGNORED

def exact(weight, z_loss, soft_cap):
    # The sums by torch's own functions, in float64.
    ours = [tensor.clone().requires_grad_() for tensor in (hidden, weight)]
    logits = cross_entropy.cap(ours[0] @ ours[1].T, soft_cap)
    loss = F.cross_entropy(logits, targets, reduction="sum")
    objective = loss + z_loss * logits.logsumexp(1)[targets != IGNORED].square().sum()
    objective.backward()
    return [objective.detach(), loss.detach(), *(tensor.grad for tensor in ours)]

def found(dtype, weight, *settings, **way):
    ours = [tensor.detach().to(dtype, copy=True).requires_grad_() for tensor in (hidden, weight)]
    sums = sum_with_z_loss(*ours, targets, *settings, **way)
    sums[0].backward()
    return [each.detach().double() for each in (*sums, *(tensor.grad for tensor in ours))]

def errors(wanted, have):
    return [((one - other).norm() / other.norm()).item() for one, other in zip(have, wanted)]

for size, z_loss, soft_cap in itertools.product((41, 64, 150), (0.0, 1e-2), (None, 5.0)):
    weight = torch.randn(size, 12, generator=generator, dtype=torch.float64)
    wanted = exact(weight, z_loss, soft_cap)
    for dtype, allowed in ((torch.float64, 1e-6), (torch.float32, 1e-5), (torch.bfloat16, 2**-6)):
        ours = errors(wanted, found(dtype, weight, z_loss, soft_cap, chunk_loss=by_kernel))
        assert max(ours) < allowed, (size, z_loss, soft_cap, dtype, ours)
        if dtype == torch.bfloat16:  # as near as the way that trains today
            todays = errors(wanted, found(dtype, weight, z_loss, soft_cap, softmax=by_log_softmax))
            assert max(ours) < 1.5 * max(todays), (size, z_loss, soft_cap, ours, todays)

# Nothing beside the logits is written, and ignored rows are zero.
buffer = torch.randn(7, 100, generator=generator)
rows = buffer[1:6].clone()
edges = buffer[[0, 6]].clone()
chosen = torch.tensor([5, IGNORED, 99, 0, 7])
grads, losses, penalties = by_kernel(buffer[1:6], chosen, 1e-2, None)
assert torch.equal(buffer[[0, 6]], edges) and grads.data_ptr() == buffer[1].data_ptr()
assert not grads[1].any() and losses[1] == 0 and penalties[1] == 0
torch.testing.assert_close(losses, F.cross_entropy(rows, chosen, reduction="none"))

# A certain and right target keeps its gradient, also in bfloat16, and a wrong one overflows nothing.
near = torch.tensor([[8.0, 0.0], [1e4, -1e4], [1e4, -1e4]]).bfloat16()
grads, losses, _ = by_kernel(near, torch.tensor([0, 1, 0]), 0.0, None)
assert abs(grads[0, 0].item() / -3.3535e-4 - 1) < 0.01
assert losses[1] > 1.9e4 and losses[2] == 0 and grads[1].tolist() == [1, -1] and not grads[2].any()

# What is not finite is seen.
for value in ("nan", "inf"):
    bad = torch.zeros(1, 9)
    bad[0, 3] = float(value)
    assert not by_kernel(bad, torch.tensor([0]), 0.0, None)[1].isfinite()
"""

COMPILES = """
import itertools
import triton.language as tl
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from coupled_adam_bench.models import loss_kernel as module

kernel = module.loss_kernel
constants = {"ignored": -100, "block": module.BLOCK, "dtype": tl.float32}
signature = {"logits_ptr": "*bf16", "targets_ptr": "*i64", "loss_ptr": "*fp32", "penalty_ptr": "*fp32", "n_columns": "i32"}
for architecture, (z_loss, soft_cap) in itertools.product((80, 90, 100), ((0.0, None), (1e-4, 30.0))):
    given = constants | {"z_loss": z_loss, "soft_cap": soft_cap}
    types = {name: signature.get(name, "constexpr") for name in kernel.arg_names}
    aligned = {(index,): [["tt.divisibility", 16]] for index in (0, 4)}  # as of 50,304 columns
    source = ASTSource(kernel, types, given, aligned)
    built = compile(source, target=GPUTarget("cuda", architecture, 32), options={"num_warps": module.N_WARPS})
    assert built.asm["cubin"]
    for access in ("ld.global.L1::evict_last", "ld.global.L1::evict_first", "st.global"):
        lines = [line for line in built.asm["ptx"].splitlines() if access in line and "v4.b32" in line]
        assert lines, f"{access} is not vectorised"
    assert "cvt.rn.bf16" in built.asm["ptx"], "stores are not rounded to the nearest"
    assert built.metadata.shared < 100_000
    assert ".local" not in built.asm["ptx"], "registers are spilled"
"""


def run(program: str, **environment: str) -> None:
    variables = os.environ | {"OMP_NUM_THREADS": "1"} | environment
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=variables,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_the_kernel_gives_losses_and_gradients_of_torch():
    pytest.importorskip(
        "triton", "3.7", reason="older interpreters cannot read arrays of NumPy 2.4"
    )
    run(EQUAL, TRITON_INTERPRET="1")


def test_the_kernel_compiles_for_gpus_with_vector_loads(tmp_path):
    run(COMPILES, TRITON_CACHE_DIR=str(tmp_path))
