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

calls = {"update": 0, "step": 0}

def counted(name):
    real = getattr(triton_kernels, name)

    def call(*arguments):
        calls[name] += 1
        return real(*arguments)

    setattr(triton_kernels, name, call)

counted("update")
counted("step")
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
    ((2052, 130), torch.float32, 1, 30.0, {"scale": 4.0}, 1e-6),
    ((40, 3, 7), torch.float32, 5, None, {"maximize": True}, 1e-6),
    ((40, 3, 7), torch.float32, 5, 1e9, {"eps": 1e-3, "betas": (0.5, 0.6)}, 1e-6),  # nothing is clipped
    ((1, 1), torch.float32, 3, 1.0, {}, 1e-6),
]
for shape, dtype, steps, clip, settings, tolerance in cases:
    kernels, state = train(None, shape, dtype, steps, clip, **settings)
    plain, expected = train(False, shape, dtype, steps, clip, **settings)
    rtol = 2**-7 if dtype == torch.bfloat16 else 0  # the interpreter cuts off where a GPU rounds (see below)
    torch.testing.assert_close(kernels, plain, rtol=rtol, atol=tolerance)
    for name, value in expected.items():
        torch.testing.assert_close(state[name], value, rtol=max(rtol, 1e-5), atol=1e-7)
one_kernel = sum(case[2] for case in cases if case[1] != torch.float64)
assert calls == {"update": sum(case[2] for case in cases) - one_kernel, "step": one_kernel}

def joint(fused, nan=False):
    # A norm that two coupled matrices have together with two other parameters.
    generator = torch.Generator().manual_seed(1)
    shapes = [(50, 7), (33, 150), (6, 4), (9,)]
    weights = [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]
    groups = [{"params": weights[:2], "coupled": True}, {"params": weights[2:3], "coupled": False}]
    optimizer = CoupledAdam(groups, lr=1e-2, fused=fused)
    for weight in weights:
        weight.grad = torch.randn(weight.shape, generator=generator)
    if nan:
        weights[1].grad[3, 4] = float("nan")
    norm = optimizer.clip_grad_norm_(weights, 2.0)
    optimizer.step()
    return [norm, *(weight.detach() for weight in weights), *(weight.grad for weight in weights[2:])]

for nan in (False, True):
    torch.testing.assert_close(joint(None, nan), joint(False, nan), rtol=1e-6, atol=1e-6, equal_nan=True)
"""

LAUNCHES = """
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from coupled_adam import CoupledAdam, triton_kernels, update

update._for_triton = lambda fused, dim, *tensors: fused is not False and dim == 0
launched, inside = [], []
NOT_LAUNCHED = ("empty", "empty_like", "new_empty", "detach")  # and views
# The count of steps, a number on the CPU; and calls that touch no tensor.
ON_THE_HOST = ("add_", "_local_scalar_dense", "promote_types", "_record_function_enter_new", "_record_function_exit")

class Counter(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, arguments=(), settings=None):
        # What the interpreter does in a kernel is part of that one launch.
        name = function.overloadpacket.__name__
        is_view = any(each.alias_info and not each.alias_info.is_write for each in function._schema.arguments)
        if not inside and not is_view and name not in NOT_LAUNCHED + ON_THE_HOST:
            launched.append(name)
        return function(*arguments, **(settings or {}))

def counted(name):
    kernel = getattr(triton_kernels, name)

    class Launcher:
        def __getitem__(self, grid):
            def launch(*arguments, **settings):
                launched.append(name)
                inside.append(name)
                kernel[grid](*arguments, **settings)
                inside.pop()
            return launch

    setattr(triton_kernels, name, Launcher())

for name in ("_sums_kernel", "_norm_kernel", "_step_kernel", "_update_kernel"):
    if hasattr(triton_kernels, name):
        counted(name)
weight = torch.nn.Parameter(torch.randn(40, 130))
optimizer = CoupledAdam([weight], lr=1e-2, weight_decay=0.1)
found = {}
for clip in (True, False):
    for _ in range(2):
        weight.grad = torch.randn(40, 130)
        launched.clear()
        with Counter():
            if clip:
                optimizer.clip_grad_norm_([weight], 1.0)
            optimizer.step()
    found[clip] = list(launched)
print(found)
assert found[True] == ["_sums_kernel", "_norm_kernel", "_step_kernel"], found
assert found[False] == ["_sums_kernel", "sum", "_step_kernel"], found
"""

COMPILES = """
import sys
import triton.language as tl
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from coupled_adam import triton_kernels as kernels

NUMBERS = ("max_norm", "beta1", "gain", "keep", "share", "correction", "rate", "eps")

def build(kernel, dtype, architecture, without=()):
    types = {"grad_ptr": dtype, "exp_avg_ptr": dtype, "parameter_ptr": dtype}
    signature, constants, aligned = {}, {}, {}
    for index, name in enumerate(kernel.arg_names):
        if name.startswith("block_"):
            constants[name] = {
                "block_rows": kernels._BLOCK_ROWS,
                "block_columns": kernels._BLOCK_COLUMNS,
                "block_partials": kernels._ROW_PROGRAMS,
            }[name]
        elif name == "dtype":
            constants[name] = tl.float32
        elif name in without:
            constants[name] = None
        if name in constants:
            signature[name] = "constexpr"
            continue
        number = "fp32" if name in NUMBERS else "i32"
        signature[name] = f"*{types.get(name, 'fp32')}" if name.endswith("_ptr") else number
        if name.endswith("_ptr") or name == "n_columns":  # as of a matrix of 768 columns
            aligned[(index,)] = [["tt.divisibility", 16]]
    return compile(ASTSource(kernel, signature, constants, aligned), target=GPUTarget("cuda", architecture, 32))

for architecture in (80, 90, 100):  # A100, H100, B200
    for dtype, vector in (("fp32", "ld.global.v4.b32"), ("bf16", "ld.global.v4.b32")):
        for kernel, without in (
            (kernels._sums_kernel, ()),
            (kernels._update_kernel, ()),
            (kernels._step_kernel, ()),
            (kernels._step_kernel, ("factor_ptr",)),
        ):
            built = build(kernel, dtype, architecture, without)
            assert built.asm["cubin"], kernel
            assert vector in built.asm["ptx"], (kernel, dtype, "loads are not vectorised")
            if kernel is not kernels._sums_kernel and dtype == "bf16":
                assert "cvt.rn.bf16" in built.asm["ptx"], "stores are not rounded to the nearest"
    for without in ((), ("others_ptr", "before_ptr")):
        assert build(kernels._norm_kernel, "fp32", architecture, without).asm["cubin"]
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


def test_a_step_with_clipping_is_three_launches():
    pytest.importorskip(
        "triton", "3.7", reason="older interpreters cannot read arrays of NumPy 2.4"
    )
    run(LAUNCHES, TRITON_INTERPRET="1")


def test_kernels_compile_for_gpus_with_vector_loads(tmp_path):
    run(COMPILES, TRITON_CACHE_DIR=str(tmp_path))
