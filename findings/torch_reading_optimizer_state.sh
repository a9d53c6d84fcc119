#!/usr/bin/env bash
# Reading the state of an AdamW that has made no step, with torch.distributed.checkpoint, makes a
# step of it: its first real step is then a quarter smaller.
#
# Versions: torch 2.13.0. Seen on 2026-11-27 with Python 3.11 on Linux, x86-64, without a GPU.
# Guess: get_optimizer_state_dict only reads, so the state is empty or its step is 0. Sure: 60 %.
# Who meets it: who writes a checkpoint at step 0, or looks at the keys of a state before
# training.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0
cd "$folder"
venv/bin/python - <<'END'
import sys

import torch
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict


def first_step(read: bool) -> tuple[float, float]:
    """Return the weight after one step with a gradient of 1, and the optimizer's counter of steps."""
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0, weight_decay=0.0)
    if read:
        get_optimizer_state_dict(model, optimizer)
    model.weight.grad = torch.ones(1, 1)
    optimizer.step()
    return round(model.weight.item(), 3), optimizer.state[model.weight]["step"].item()


seen = {"not read": first_step(False), "read before": first_step(True)}
expected = {"not read": (-1.0, 1.0), "read before": (-0.744, 2.0)}
print(seen)
sys.exit(seen != expected)
END
