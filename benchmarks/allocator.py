"""Compares training steps on a CPU with glibc's default allocator and with the settings of
rules/common.smk.

Prints JSON: tokens/s of both and their ratio, for the demo's larger model and for a small model
with GPT-2's vocabulary. Each runs in a new process, since the settings are read when a process
starts, and the two alternate.

    python benchmarks/allocator.py [--repeats 3] [--models demo] [--steps 2]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys

SETTINGS = {
    "MALLOC_MMAP_THRESHOLD_": "33554432",
    "MALLOC_TRIM_THRESHOLD_": "1073741824",
    "MALLOC_TOP_PAD_": "67108864",
}
# vocab_size, d_model, n_layer, seq_len, batch_sequences, precision, timed steps
MODELS = {
    "demo": (1024, 64, 2, 64, 16, "fp32", 100),
    "gpt2-vocabulary": (50304, 128, 4, 128, 8, "bf16", 8),
}

STEPS = """
import sys, time, torch
from coupled_adam_bench.models.gpt2 import GPT2
vocab_size, d_model, n_layer, seq_len, batch, precision, steps = eval(sys.argv[1])
torch.set_num_threads(1)
model = GPT2(vocab_size, seq_len, n_layer, 2, d_model, 4 * d_model, tied=True)
model.init_weights(0, 0.02)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
tokens = torch.randint(0, vocab_size, (batch, seq_len))
def step():
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
        loss = model(tokens, tokens)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
step(); step()
start = time.perf_counter()
for _ in range(steps):
    step()
print(steps * batch * seq_len / (time.perf_counter() - start))
"""


def tokens_per_second(model: tuple, settings: dict[str, str]) -> float:
    environment = {
        key: value for key, value in os.environ.items() if key not in SETTINGS
    } | settings
    command = [sys.executable, "-c", STEPS, repr(model)]
    return float(
        subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--steps", type=int, help="timed steps (default: about a second of them)")
    arguments = parser.parse_args()
    report = {}
    for name in arguments.models:
        *sizes, steps = MODELS[name]
        model = (*sizes, arguments.steps or steps)
        pairs = [
            (tokens_per_second(model, {}), tokens_per_second(model, SETTINGS))
            for _ in range(arguments.repeats)
        ]
        report[name] = {
            "default_tokens_per_second": statistics.median(default for default, _ in pairs),
            "settings_tokens_per_second": statistics.median(ours for _, ours in pairs),
            "ratio": statistics.median(ours / default for default, ours in pairs),
        }
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
