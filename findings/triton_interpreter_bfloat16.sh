#!/usr/bin/env bash
# Triton's interpreter turns float32 into bfloat16 by cutting off the last bits, where GPUs and
# torch round to the nearest, so a kernel's error is twice as large in tests and has one sign.
#
# Versions: torch 2.13.0, triton 3.7.1, numpy 2.4.6. Seen on 2026-11-27 with Python 3.11 on
# Linux, x86-64, without a GPU.
# Guess: rounded to the nearest, ties to even, as on a GPU. Sure: 65 %.
# Who meets it: who tests kernels without a GPU, and sets the tolerance by what the interpreter
# gives.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 triton==3.7.1 numpy==2.4.6
cd "$folder"
cat > kernel.py <<'END'
import sys

import torch
import triton
import triton.language as tl


@triton.jit
def to_bfloat16(source, target, n: tl.constexpr):
    index = tl.arange(0, n)
    tl.store(target + index, tl.load(source + index).to(tl.bfloat16))


source = torch.tensor([0.1, 1.01171875, -1.01171875, 1.005859375])
target = torch.zeros(4, dtype=torch.bfloat16)
to_bfloat16[(1,)](source, target, 4)
seen = {"interpreter": target.tolist(), "torch": source.bfloat16().tolist()}
expected = {
    "interpreter": [0.099609375, 1.0078125, -1.0078125, 1.0],
    "torch": [0.10009765625, 1.015625, -1.015625, 1.0078125],
}
print(seen)
sys.exit(seen != expected)
END
TRITON_INTERPRET=1 venv/bin/python kernel.py
