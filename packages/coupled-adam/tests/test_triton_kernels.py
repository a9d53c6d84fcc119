"""The kernels for GPUs, without one: run by Triton's interpreter on the CPU, and compiled for GPUs
not at hand."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="Triton is for Linux on x86-64")

# In processes of their own: Triton reads at its import whether it interprets.
EQUAL = """
import torch
from coupled_adam import CoupledAdam, triton_kernels, update

calls = []
real = triton_kernels.update
triton_kernels.update = lambda *arguments: (calls.append(1), real(*arguments))
on_gpu = lambda fused, dim, *tensors: fused is not False and dim == 0 and all(t.numel() > 0 for t in tensors)
update._for_triton = on_gpu  # as if the tensors lay on a GPU

def train(fused, shape, dtype, steps, clip, **settings):
    generator = torch.Generator().manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype))
    optimizer = CoupledAdam([weight], weight_decay=0.1, fused=fused, **{"lr": 1e-2, **settings})
    for _ in range(steps):
        weight.grad = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
        if clip:
            optimizer.clip_grad_norm_([weight], clip)
        optimizer.step()
    return weight.detach(), optimizer.state[weight]

cases = [
    ((13, 5), torch.float64, 60, None, {}, 1e-12),
    ((13, 5), torch.float64, 20, 1.0, {"maximize": True, "capturable": True, "lr": torch.tensor(1e-2)}, 1e-5),
    ((1, 1), torch.float64, 5, None, {}, 1e-13),
    ((2052, 130), torch.float64, 1, 30.0, {"scale": 4.0}, 1e-13),  # more blocks than programs
    ((40, 3, 7), torch.float64, 5, None, {}, 1e-13),
    ((300, 130), torch.float32, 2, 30.0, {}, 1e-6),
    ((300, 130), torch.bfloat16, 1, 30.0, {}, 1e-6),
]
for shape, dtype, steps, clip, settings, tolerance in cases:
    kernels, state = train(None, shape, dtype, steps, clip, **settings)
    plain, expected = train(False, shape, dtype, steps, clip, **settings)
    rtol = 2**-7 if dtype == torch.bfloat16 else 0  # the interpreter cuts off where a GPU rounds (see below)
    torch.testing.assert_close(kernels, plain, rtol=rtol, atol=tolerance)
    for name, value in expected.items():
        torch.testing.assert_close(state[name], value, rtol=max(rtol, 1e-5), atol=1e-7)
assert len(calls) == sum(case[2] for case in cases)
"""

COMPILES = """
import sys
import triton.language as tl
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from coupled_adam import triton_kernels as kernels

def build(kernel, dtype, architecture):
    types = {"grad_ptr": dtype, "exp_avg_ptr": dtype, "parameter_ptr": dtype}
    signature, constants, aligned = {}, {}, {}
    for index, name in enumerate(kernel.arg_names):
        if name.startswith("block_"):
            constants[name] = {"block_rows": kernels._BLOCK_ROWS, "block_columns": kernels._BLOCK_COLUMNS}[name]
        elif name == "dtype":
            constants[name] = tl.float32
        if name in constants:
            signature[name] = "constexpr"
            continue
        signature[name] = f"*{types.get(name, 'fp32')}" if name.endswith("_ptr") else "i32"
        if name.endswith("_ptr") or name == "n_columns":  # as of a matrix of 768 columns
            aligned[(index,)] = [["tt.divisibility", 16]]
    return compile(ASTSource(kernel, signature, constants, aligned), target=GPUTarget("cuda", architecture, 32))

for architecture in (80, 90, 100):  # A100, H100, B200
    for dtype, vector in (("fp32", "ld.global.v4.b32"), ("bf16", "ld.global.v4.b32")):
        for kernel in (kernels._sums_kernel, kernels._update_kernel):
            built = build(kernel, dtype, architecture)
            assert built.asm["cubin"], kernel
            assert vector in built.asm["ptx"], (kernel, dtype, "loads are not vectorised")
            if kernel is kernels._update_kernel and dtype == "bf16":
                assert "cvt.rn.bf16" in built.asm["ptx"], "stores are not rounded to the nearest"
"""


def run(program: str, **environment: str) -> None:
    variables = os.environ | {"OMP_NUM_THREADS": "1"} | environment
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=variables,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_kernels_do_what_torchs_operations_do():
    pytest.importorskip(
        "triton", "3.7", reason="older interpreters cannot read arrays of NumPy 2.4"
    )
    run(EQUAL, TRITON_INTERPRET="1")


def test_kernels_compile_for_gpus_with_vector_loads(tmp_path):
    run(COMPILES, TRITON_CACHE_DIR=str(tmp_path))
