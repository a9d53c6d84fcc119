#!/usr/bin/env bash
# safetensors.numpy.save_file writes a transposed array in the order of its memory under its new
# shape, so that other numbers are read, where the function for torch refuses such a tensor.
#
# Versions: safetensors 0.8.0, numpy 2.4.6. Seen on 2026-11-27 with Python 3.11 on Linux,
# x86-64, without a GPU.
# Guess: the array is made contiguous first, or refused as in safetensors.torch. Sure: 75 %.
# Who meets it: who exports weights from layers that store (in, out) as (out, in) with `.T`.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet safetensors==0.8.0 numpy==2.4.6
cd "$folder"
venv/bin/python - <<'END'
import sys

import numpy
from safetensors.numpy import load_file, save_file

weight = numpy.arange(6, dtype=numpy.float32).reshape(2, 3)
save_file({"transposed": weight.T, "copied": numpy.ascontiguousarray(weight.T)}, "weights.safetensors")
seen = {name: array.tolist() for name, array in sorted(load_file("weights.safetensors").items())}
expected = {"copied": [[0, 3], [1, 4], [2, 5]], "transposed": [[0, 1], [2, 3], [4, 5]]}
print(seen)
sys.exit(seen != expected)
END
