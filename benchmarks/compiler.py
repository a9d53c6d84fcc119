"""Tries settings of torch's compiler on the training step of 125M at the paper's batch: seconds to
the first step with nothing compiled before, tokens a second, memory, and how far the losses are
from those of the default after 100 steps.

A first step within 12 s is what the default has. No setting here has been tried on a GPU yet; one
becomes the default only with its numbers. Prints Markdown.

    python benchmarks/compiler.py
    python benchmarks/compiler.py --settings default coordinate_descent
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from gpu_checks.common import At, set_up
from gpu_checks.fast import paper_cell, tokens_per_second
from torch import _inductor as inductor

SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "max_autotune": {"max_autotune": True},
    "coordinate_descent": {"coordinate_descent_tuning": True},
    # torch.compile's mode max-autotune-no-cudagraphs has both.
    "both": {"max_autotune": True, "coordinate_descent_tuning": True},
}
COMPARED = 100
"""Steps after which the losses are compared."""


def measure(at: At, settings: dict[str, Any]) -> tuple[list[float], float, float, float]:
    """Return the losses of some steps, the seconds to the first, the tokens a second, and the GB of
    a step."""
    cell = paper_cell(at)
    fresh = {"force_disable_caches": True, **settings}
    with inductor.config.patch(fresh), at.trainer(cell) as trainer:
        begun = time.perf_counter()
        losses = [trainer.train_step(0)[0].item()]
        first = time.perf_counter() - begun
        steps = range(1, at.size(COMPARED, 3))
        losses += [trainer.train_step(step)[0].item() for step in steps]
        speed = tokens_per_second(at, cell, trainer.train_step)
        size = at.peak_bytes(lambda: trainer.train_step(1000)) / 1e9
    at.forget()
    return losses, first, speed, size


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--rehearse", action="store_true", help="a tiny model on the CPU")
    arguments = parser.parse_args()
    if not arguments.rehearse and not torch.cuda.is_available():
        parser.error("there is no GPU; --rehearse runs a tiny model on the CPU")
    print("| settings | s to the first step | tokens/s | of the default | GB | losses differ by |")
    print("|---|---|---|---|---|---|")
    of_default: tuple[list[float], float] | None = None
    for name in dict.fromkeys(["default", *arguments.settings]):
        with (
            tempfile.TemporaryDirectory() as folder,
            set_up(arguments.rehearse, Path(folder), {}) as at,
        ):
            losses, first, speed, size = measure(at, SETTINGS[name])
        if of_default is None:
            of_default = losses, speed
        pairs = zip(losses, of_default[0], strict=True)
        far = max(abs(loss / other - 1) for loss, other in pairs)
        share = speed / of_default[1]
        print(f"| {name} | {first:.1f} | {speed:,.0f} | {share:.3f} | {size:.1f} | {far:.1e} |")


if __name__ == "__main__":
    main()
