#!/usr/bin/env bash
# The error of a torch.distributed.checkpoint that cannot be loaded is no Exception, so `except
# Exception` around the load does not catch it.
#
# Versions: torch 2.13.0. Seen on 2026-11-27 with Python 3.11 on Linux, x86-64, without a GPU.
# Guess: CheckpointException derives from Exception, or from RuntimeError. Sure: 90 %.
# Who meets it: who falls back to the checkpoint before, when the newest one does not fit.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0
cd "$folder"
venv/bin/python - <<'END'
import sys

import torch
import torch.distributed.checkpoint as checkpoints

checkpoints.save({"embedding": torch.zeros(4)}, checkpoint_id="checkpoint")
try:
    try:
        checkpoints.load({"embedding": torch.zeros(2)}, checkpoint_id="checkpoint")
        seen = "loaded"
    except Exception:
        seen = "caught as Exception"
except BaseException as error:
    seen = f"passed through as {type(error).__name__}"
expected = "passed through as CheckpointException"
print(seen)
sys.exit(seen != expected)
END
