"""How often the intervals of ``trend.csv`` hold, and the power of a slope, by simulation.

    python benchmarks/trends.py [--studies 10000]

A study has the grid of the paper's Table 1, three numbers of tokens and three sizes, and S seeds.
Differences have normal noise with standard deviation 1 and lines that cross 0 at the middle number
of tokens.
"""

import argparse
import math
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import stats

sys.path.insert(0, str(Path(__file__).parents[1]))

from research.plugins.trend_lines import predicted

from coupled_adam_bench.statistics.lines import PARAMETERS, TOKENS, Trend, fit_line, upper_tail
from coupled_adam_bench.statistics.student import ALPHA, t_quantile
from coupled_adam_bench.study.catalogue.metrics import METRICS

Floats = NDArray[np.float64]
LOG_TOKENS, LOG_SIZES = np.array([-1.0, 0.0, 1.0]), np.array([-1.0, 0.0, 1.0])
SLOPE = 0.8
NOISES = (
    "independent",
    "an effect of each seed",
    "a slope of each seed",
    "a trunk of each seed and size",
    "one pair missing",
)


def draw(noise: str, n_seeds: int, slope: float, rng: np.random.Generator) -> Floats:
    """Return differences of shape (seeds, sizes, tokens), NaN where one is missing."""
    values = rng.normal(size=(n_seeds, len(LOG_SIZES), len(LOG_TOKENS)))
    effects = rng.normal(size=(n_seeds, 1, 1))
    match noise:
        case "an effect of each seed":
            values += effects
        case "a slope of each seed":
            values += effects * LOG_TOKENS
        case "a trunk of each seed and size":  # each number of tokens goes on from the one before
            values = np.cumsum(values, axis=2) / 2 + rng.normal(size=values.shape) / 2
        case "one pair missing":
            values[0, 0, 0] = math.nan
    return np.asarray(values + slope * LOG_TOKENS)


def found(values: Floats, slope: float) -> tuple[bool, bool, bool, bool]:
    """Tell whether the intervals of centre, slope and fitted difference hold these, and whether a
    slope is found."""
    there = [place for place in np.ndindex(*values.shape) if not math.isnan(values[place])]
    fit = fit_line(
        [float(values[place]) for place in there],
        [
            (float(LOG_TOKENS[of_tokens]), float(LOG_SIZES[of_size]))
            for _, of_size, of_tokens in there
        ],
        [seed for seed, _, _ in there],
    )
    half = [t_quantile(fit.df) * fit.standard_error(index) for index in (0, 1)]
    at_centre = slope * fit.centre[0]
    trend = Trend(
        (), METRICS["acc"], "", "", (TOKENS, PARAMETERS), fit, len(there), values.size - len(there)
    )
    at_middle, around = predicted(trend, 2 ** LOG_SIZES[-1], 1.0)
    return (
        abs(fit.estimates[0] - at_centre) <= half[0],
        abs(fit.estimates[1] - slope) <= half[1],
        abs(at_middle) <= around,
        upper_tail(fit.estimates[1], fit.standard_error(1), fit.df) < ALPHA,
    )


def rates(
    noise: str, n_seeds: int, slope: float, n_studies: int, rng: np.random.Generator
) -> list[float]:
    """Return the shares of :func:`found` over drawn studies."""
    shares = np.mean(
        [found(draw(noise, n_seeds, slope, rng), slope) for _ in range(n_studies)], axis=0
    )
    return list(map(float, shares))


def detectable(df: int) -> float:
    """Return the slope, in standard errors, that a one-sided t-test finds with a probability of 80
    %."""
    from scipy.optimize import brentq

    return float(
        brentq(lambda shift: stats.nct.sf(stats.t.isf(ALPHA, df), df, shift) - 0.8, 0.1, 30.0)
    )


def main() -> None:
    """Print the table."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--studies", type=int, default=10_000)
    n_studies = options.parse_args().studies
    rng = np.random.default_rng(0)
    print(
        "| seeds | noise | centre | slope | difference | p < 5 % without a slope | power |\n|"
        + "---|" * 7
    )
    for n_seeds in (3, 5):
        for noise in NOISES:
            *covered, power = rates(noise, n_seeds, SLOPE, n_studies, rng)
            *_, wrong = rates(noise, n_seeds, 0.0, n_studies, rng)
            shares = (f"{100 * share:.1f}" for share in (*covered, wrong, power))
            print(f"| {n_seeds} | {noise} | {' | '.join(shares)} |", flush=True)
    for n_seeds in (3, 5, 8):
        ratio = detectable(n_seeds - 1) / detectable(8 * n_seeds - 2)
        print(
            f"{n_seeds} seeds: a slope that is found is {ratio:.2f} times that of pooled,"
            " independent noise"
        )


if __name__ == "__main__":
    main()
