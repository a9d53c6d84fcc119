#!/usr/bin/env bash
# The same call of safetensors writes other bytes in another process as soon as the metadata has
# several entries, since their order is drawn anew in each process.
#
# Versions: safetensors 0.8.0, numpy 2.4.6. Seen on 2026-11-27 with Python 3.11 on Linux,
# x86-64, without a GPU.
# Guess: the bytes depend on tensors and metadata only, in the order of the keys or sorted.
# Sure: 70 %.
# Who meets it: who compares files of weights by a checksum, or stores them by their content.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet safetensors==0.8.0 numpy==2.4.6
cd "$folder"
venv/bin/python - <<'END'
import subprocess
import sys

WRITE = """
import hashlib
import numpy
from safetensors.numpy import save
metadata = {name: name for name in ("cell", "data", "model", "optimizer", "seed", "step", "tokens", "vocabulary")}
print(hashlib.sha256(save({"embedding": numpy.zeros(3)}, metadata=metadata)).hexdigest()[:12])
"""
digests = {subprocess.check_output([sys.executable, "-c", WRITE], text=True).strip() for _ in range(6)}
print("digests of six processes:", sorted(digests))
seen = "several files" if len(digests) > 1 else "one file"
expected = "several files"
sys.exit(seen != expected)
END
