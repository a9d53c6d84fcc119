"""How much of the training text two seeds share, computed from the sampler that training itself draws from.

N: windows of a run, or of its steps that are read.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coupled_adam_bench.data.bins import count_starts
from coupled_adam_bench.data.check import META, read_meta
from coupled_adam_bench.store import paths
from coupled_adam_bench.study.config import Training
from coupled_adam_bench.study.plan import Plan
from coupled_adam_bench.training.order import WindowOrder

ALL_WINDOWS = 2**20
"""Number of windows up to which all steps of a run are read: a second of work for each seed."""
SAMPLED_STEPS = 1024
"""Number of evenly spaced steps that are read of a longer run."""


@dataclass(frozen=True)
class Draws:
    """The windows of the steps that are read of one run: the step and the start of each, both of shape (N,)."""

    steps: NDArray[np.int64]
    starts: NDArray[np.int64]


def steps_to_read(steps: int, batch_sequences: int) -> NDArray[np.int64]:
    """Return all steps of a run, or evenly spaced ones of a long run."""
    if steps * batch_sequences <= ALL_WINDOWS or steps <= SAMPLED_STEPS:
        return np.arange(steps)
    return np.arange(SAMPLED_STEPS) * steps // SAMPLED_STEPS


def draw(n_tokens: int, training: Training, seed: int, steps: NDArray[np.int64]) -> Draws:
    """Return the windows that the given steps, in ascending order, read under a seed."""
    order = WindowOrder(n_tokens, training, seed)
    starts = np.concatenate([order.starts(int(step)) for step in steps])
    return Draws(np.repeat(steps, training.batch_sequences), starts)


def shared_in_step(first: Draws, second: Draws) -> float:
    """Return the share of windows that the same step reads under both seeds; a window counts as often as both have it.

    Both runs have the same steps.
    """
    width = 1 + max(first.starts.max(), second.starts.max())
    counted = [np.unique(draws.steps * width + draws.starts, return_counts=True) for draws in (first, second)]
    _, ours, theirs = np.intersect1d(counted[0][0], counted[1][0], assume_unique=True, return_indices=True)
    return float(np.minimum(counted[0][1][ours], counted[1][1][theirs]).sum() / len(first.starts))


def shared_anywhere(first: Draws, second: Draws) -> float:
    """Return the share of a run's windows that the other run reads in any step, the mean of both directions."""
    return float(np.isin(first.starts, second.starts).mean() + np.isin(second.starts, first.starts).mean()) / 2


def expected_anywhere(in_step: float, n_tokens: int, training: Training, n_windows: int) -> float:
    """Return the share of windows that two runs of ``n_windows`` each are expected to share in any step.

    Beside those of the same step, a window is shared by chance: if one of ``n_windows`` uniform draws from all starts
    hits it or, for ``shuffled``, if the other run has come that far in its epoch.
    """
    if training.data_order == "shuffled":
        chance = min(1.0, n_windows / ((n_tokens - 1) // training.seq_len))
    else:
        chance = -math.expm1(n_windows * math.log1p(-1 / count_starts(n_tokens, training.seq_len)))
    return in_step + (1 - in_step) * chance


def _order_of(training: Training) -> tuple[Any, ...]:
    """Return what the order of the data depends on beside the seed and the text: order, streams, batch and window."""
    streams = training.data_ranks if training.data_order == "per_rank" else 1
    return training.data_order, streams, training.batch_sequences, training.seq_len


def audit(plan: Plan, results: Path = paths.RESULTS) -> Iterator[dict[str, Any]]:
    """Yield a row of ``seeds.csv`` for each two seeds of the data's order, and each text, order and number of steps.

    Data that are not prepared have rows of NaN with the reason. Under the model that each window in each step adds its
    own independent amount to what a run ends with, the correlation that the order of the data gives to two runs is the
    share of windows in the same step.
    """
    runs: dict[tuple[Any, ...], tuple[Training, set[int]]] = {}
    for cell in plan.cells.values():
        key = (cell.data_id, *_order_of(cell.training), cell.n_tokens, cell.steps)
        runs.setdefault(key, (cell.training, set()))[1].add(cell.seed)
    for key, (training, seeds) in runs.items():
        names = ("data", "data_order", "streams", "batch_sequences", "seq_len", "n_tokens", "steps")
        yield from _pairs(dict(zip(names, key, strict=True)), training, sorted(seeds), results)


def _pairs(place: dict[str, Any], training: Training, seeds: list[int], results: Path) -> Iterator[dict[str, Any]]:
    meta = paths.data_dir(place["data"], results) / META
    if not meta.is_file():
        nothing = dict.fromkeys(("shared_in_step", "shared_anywhere", "correlation"), math.nan)
        for seed, other in combinations(seeds, 2):
            yield place | {"seed": seed, "other_seed": other} | nothing | {"steps_read": 0, "reason": "not prepared"}
        return
    n_tokens: int = read_meta(meta)[0]["splits"]["train"]["n_tokens"]
    steps = steps_to_read(place["steps"], training.batch_sequences)
    draws = {seed: draw(n_tokens, training, seed, steps) for seed in seeds} if len(seeds) > 1 else {}
    for seed, other in combinations(seeds, 2):
        in_step = shared_in_step(draws[seed], draws[other])
        if len(steps) == place["steps"]:
            anywhere = shared_anywhere(draws[seed], draws[other])
        else:
            n_windows = place["steps"] * training.batch_sequences
            anywhere = expected_anywhere(in_step, n_tokens, training, n_windows)
        yield place | {
            "seed": seed, "other_seed": other, "shared_in_step": in_step, "shared_anywhere": anywhere,
            "correlation": in_step, "steps_read": len(steps), "reason": "",
        }  # fmt: skip
