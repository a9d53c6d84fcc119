"""The kernel of the loss without a GPU: run by Triton's interpreter on the CPU, and compiled for
GPUs that are not at hand."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="Triton is for Linux on x86-64")

# In processes of their own: Triton reads at its import whether it interprets.
EQUAL = """
import torch
from torch.nn import functional as F
from coupled_adam_bench.models import cross_entropy, loss_kernel
from coupled_adam_bench.models.cross_entropy import sum_cross_entropy
from coupled_adam_bench.models.loss_kernel import by_kernel

loss_kernel.BLOCK = 64  # several blocks a row
cross_entropy.CHUNK["cpu"] = 20  # several chunks, the last of another size
generator = torch.Generator().manual_seed(0)
hidden = torch.randn(45, 12, generator=generator, dtype=torch.float64)
targets = torch.randint(0, 41, (45,), generator=generator)

def found(loss_of, dtype, weight):
    ours = [matrix.to(dtype, copy=True).requires_grad_() for matrix in (hidden, weight)]
    loss = loss_of(*ours)
    loss.backward()
    return [each.detach().double() for each in (loss, *(matrix.grad for matrix in ours))]

for size in (41, 64, 150):
    weight = torch.randn(size, 12, generator=generator, dtype=torch.float64)
    torchs = lambda hidden, weight: F.cross_entropy(hidden @ weight.T, targets, reduction="sum")
    exact = found(torchs, torch.float64, weight)
    for dtype, bound in ((torch.float64, 1e-6), (torch.float32, 1e-5), (torch.bfloat16, 2**-6)):
        ours = found(lambda *both: sum_cross_entropy(*both, targets, by_kernel), dtype, weight)
        for one, expected in zip(ours, exact):
            assert (one - expected).norm() < bound * expected.norm(), (size, dtype)

# Nothing beside the logits is written.
buffer = torch.randn(7, 100, generator=generator)
rows, edges = buffer[1:6].clone(), buffer[[0, 6]].clone()
chosen = torch.tensor([5, 42, 99, 0, 7])
grads, losses = by_kernel(buffer[1:6], chosen)
assert torch.equal(buffer[[0, 6]], edges) and grads.data_ptr() == buffer[1].data_ptr()
torch.testing.assert_close(losses, F.cross_entropy(rows, chosen, reduction="none"))

# A certain and right target keeps its gradient, also in bf16; a wrong one overflows nothing.
near = torch.tensor([[8.0, 0.0], [1e4, -1e4], [1e4, -1e4]]).bfloat16()
grads, losses = by_kernel(near, torch.tensor([0, 1, 0]))
assert abs(grads[0, 0].item() / -3.3535e-4 - 1) < 0.01
assert losses[1] > 1.9e4 and losses[2] == 0 and grads[1].tolist() == [1, -1] and not grads[2].any()
for value in ("nan", "inf"):
    bad = torch.zeros(1, 9)
    bad[0, 3] = float(value)
    assert not by_kernel(bad, torch.tensor([0]))[1].isfinite()
"""

COMPILES = """
import triton.language as tl
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from coupled_adam_bench.models import loss_kernel as module

kernel = module.loss_kernel
constants = {"block": module.BLOCK, "dtype": tl.float32}
pointers = {"logits_ptr": "*bf16", "targets_ptr": "*i64", "loss_ptr": "*fp32", "n_columns": "i32"}
types = {name: pointers.get(name, "constexpr") for name in kernel.arg_names}
aligned = {(index,): [["tt.divisibility", 16]] for index in (0, 3)}  # as of 50,304 columns
for card in (80, 90, 100):
    source = ASTSource(kernel, types, constants, aligned)
    target = GPUTarget("cuda", card, 32)
    built = compile(source, target=target, options={"num_warps": module.N_WARPS})
    lines = built.asm["ptx"].splitlines()
    for access in ("ld.global.L1::evict_last", "ld.global.L1::evict_first", "st.global"):
        assert any(access in line and "v4.b32" in line for line in lines), access
    assert not any(".local" in line for line in lines), "registers are spilled"
    assert built.asm["cubin"] and built.metadata.shared < 100_000
"""


@pytest.mark.parametrize(
    ("program", "interpreted"), [(EQUAL, "1"), (COMPILES, "0")], ids=["equal", "compiles"]
)
def test_the_kernel(program, interpreted, tmp_path):
    own = {"TRITON_INTERPRET": interpreted, "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", program]
    done = subprocess.run(
        command, env=os.environ | own, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
