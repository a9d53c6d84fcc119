"""How often tests over seeds are wrong of accuracies, which are counts of items, by what is done
with a sample whose values are all equal.

    python benchmarks/counts.py [--families 20000]

An accuracy is a share of N items, each right with the same probability under both optimizers. So
equal differences over seeds come by chance, and their spread is 0. ``certain`` then has p = 0, as
the formula of t says; ``no test`` has no p-value, which is the rule of ``tests.csv``; ``floor``
takes half an item for the spread. A family is 20 metrics, of which nothing differs.
"""

import argparse
import math
from collections.abc import Mapping
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr

from coupled_adam_bench.statistics.student import ALPHA

Floats = NDArray[np.float64]
RULES = ("certain", "no test", "floor")
"""What a sample without spread is taken for."""
FAMILY = 20
"""Tests of a table that are corrected together."""
FLOOR = 0.5
"""The least spread of the rule ``floor``, in items."""
DESIGNS = ("paired", "t-test")
SIZES = (12, 24, 60, 100, 300, 1000)
EFFECT = 3.0
"""A true difference, in standard deviations of the accuracy of one run."""


def draw(shape: tuple[int, ...], items: int, share: float, rng: np.random.Generator) -> Floats:
    """Return how many of ``items`` are right in each run, each with the probability ``share``."""
    return rng.binomial(items, share, size=shape).astype(np.float64)


def two_sided(first_S: Floats, second_S: Floats, design: str) -> dict[str, Floats]:
    """Return by rule the two-sided p-values of samples of shape (..., seeds), in items; NaN is no
    test, and 1 where nothing differs."""
    n = first_S.shape[-1]
    difference = first_S.mean(axis=-1) - second_S.mean(axis=-1)
    if design == "paired":
        df, factor = n - 1, 1 / n
        sd = np.std(first_S - second_S, axis=-1, ddof=1)
    else:
        df, factor = 2 * n - 2, 2 / n
        sd = np.sqrt((np.var(first_S, axis=-1, ddof=1) + np.var(second_S, axis=-1, ddof=1)) / 2)
    # Counts are whole numbers, so a spread is either 0 or far from the rounding of the mean.
    sd[sd < 1e-9] = 0.0
    difference[np.abs(difference) < 1e-9] = 0.0
    instead: Mapping[str, float] = {"certain": 0.0, "no test": math.nan}
    found = {}
    for rule in RULES:
        spread = np.maximum(sd, FLOOR) if rule == "floor" else sd
        with np.errstate(divide="ignore", invalid="ignore"):
            t = np.abs(difference) / (spread * math.sqrt(factor))
        p = np.minimum(2 * stdtr(df, -t), 1.0)
        p[(spread == 0) & (difference != 0)] = instead.get(rule, math.nan)
        p[difference == 0] = 1.0
        found[rule] = p
    return found


def false_families(p_values: Floats) -> float:
    """Return the share of families of shape (families, tests) with a p < 5 % after Holm's
    correction, for which NaN counts for no test."""
    tests = np.isfinite(p_values).sum(axis=1)
    # The smallest is the first that Holm looks at: if it does not pass, none does.
    smallest = np.where(np.isnan(p_values), 1.0, p_values).min(axis=1)
    return float(np.mean(smallest * tests < ALPHA))


def rates(
    n_families: int, items: int, n_seeds: int, share: float, design: str, rng: np.random.Generator
) -> tuple[float, dict[str, tuple[float, float, float]]]:
    """Return the share of samples without spread and, by rule, how often one test and a family are
    false and how often a true difference is found."""
    shape = (n_families, FAMILY, n_seeds)
    null = two_sided(draw(shape, items, share, rng), draw(shape, items, share, rng), design)
    better = min(share + EFFECT * math.sqrt(share * (1 - share) / items), 1.0)
    there = two_sided(draw(shape, items, better, rng), draw(shape, items, share, rng), design)
    without = float(np.mean(null["certain"] == 0))
    found = {}
    for rule in RULES:
        found[rule] = (
            float(np.mean(null[rule] < ALPHA)),
            false_families(null[rule]),
            float(np.mean(there[rule] < ALPHA)),
        )
    return without, found


def main() -> None:
    """Print the table of docs/decisions/0009-no-test-without-spread.md, and more."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--families", type=int, default=20_000)
    n_families = options.parse_args().families
    rng = np.random.default_rng(0)
    error = 1.96 * math.sqrt(ALPHA * (1 - ALPHA) / n_families)
    print(
        f"{n_families:,} families of {FAMILY} two-sided tests a line; at 5 % the Monte Carlo error"
        f" is +-{100 * error:.2f} %. Shares in %, by rule: {', '.join(RULES)}\n"
    )
    columns = ["share right", "test", "seeds", "items", "no spread", "one test", "family", "found"]
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for share, design, n_seeds, items in product((0.3, 0.05), DESIGNS, (2, 3, 5), SIZES):
        without, found = rates(n_families, items, n_seeds, share, design, rng)
        shares = []
        for kind in range(3):
            shares.append(", ".join(f"{100 * found[rule][kind]:.1f}" for rule in RULES))
        row = (f"{share:g}", design, n_seeds, items, f"{100 * without:.1f}", *shares)
        print(f"| {' | '.join(map(str, row))} |", flush=True)


if __name__ == "__main__":
    main()
