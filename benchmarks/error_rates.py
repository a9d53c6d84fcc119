"""How often each test over seeds is wrong, how often intervals hold, and the power of the paper's
test, by simulation.

    python benchmarks/error_rates.py [--studies 10000]

A study is two optimizers with S seeds each, a table several optimizers and metrics. Values are
normal with standard deviation 1, in tables also with another ``spread`` of one optimizer.
``correlation`` is that of two runs of one seed, which share data and initial weights. Tests,
intervals and corrections are those of ``tests.csv``.
"""

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from types import SimpleNamespace

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from coupled_adam_bench.results.choices import Tried, choose
from coupled_adam_bench.statistics.paired import paired_test
from coupled_adam_bench.statistics.pairs import compare_all, correct
from coupled_adam_bench.statistics.student import ALPHA, equivalence_p, t_test
from coupled_adam_bench.study.catalogue.metrics import METRICS
from coupled_adam_registry.loss_curves import needed_tokens

Floats = NDArray[np.float64]
TESTS = ("t-test", "Welch", "paired", "sign flips")
INTERVALS = ("pooled", "paired", "bootstrap")
CURVES: dict[str, Callable[[float], float]] = {
    "a power law": lambda tokens: 3 + tokens**-0.3,
    "a sum of two": lambda tokens: 3 + 0.5 * tokens**-0.2 + 0.5 * tokens**-0.8,
}
"""True losses of the reference by tokens."""
CORRECTED = ("p_holm", "p_bh", "p_paired_holm")


@dataclass(frozen=True)
class Rates:
    """Shares of studies: with p < 5 % by test, in a direction fixed before; whose interval has the
    true difference.

    ``equivalent`` is the share that is found within a margin as large as the true difference.
    """

    significant: dict[str, float]
    covered: dict[str, float]
    equivalent: float


def draw(
    n_studies: int,
    n_seeds: int,
    correlation: float,
    difference: float,
    rng: np.random.Generator,
    n_optimizers: int = 2,
) -> Floats:
    """Return values of shape (studies, optimizers, seeds); the first optimizer is better by
    ``difference``."""
    common = rng.normal(size=(n_studies, 1, n_seeds)) * math.sqrt(correlation)
    values = common + rng.normal(size=(n_studies, n_optimizers, n_seeds)) * math.sqrt(
        1 - correlation
    )
    values[:, 0] += difference
    return np.asarray(values)


def rates(values: Floats, difference: float, margin: float) -> Rates:
    """Return the rates of drawn studies, of shape (studies, 2, seeds), with the true
    ``difference``."""
    significant = dict.fromkeys(TESTS, 0)
    covered = dict.fromkeys(INTERVALS, 0)
    equivalent = 0
    for first, second in values.tolist():
        test = t_test(first, second, higher_is_better=True)
        pairs = paired_test(dict(enumerate(first)), dict(enumerate(second)), higher_is_better=True)
        found = (test.p_value, test.p_welch, pairs.p_value, pairs.p_permutation)
        for name, p_value in zip(TESTS, found, strict=True):
            significant[name] += p_value < ALPHA
        ends = (
            (test.low, test.high),
            (pairs.low, pairs.high),
            (pairs.bootstrap_low, pairs.bootstrap_high),
        )
        for name, (low, high) in zip(INTERVALS, ends, strict=True):
            covered[name] += low <= difference <= high
        equivalent += equivalence_p(test.difference, test.standard_error, test.df, margin) < ALPHA
    n = len(values)
    return Rates(
        {name: count / n for name, count in significant.items()},
        {name: count / n for name, count in covered.items()},
        equivalent / n,
    )


def corrected(values: Floats) -> dict[str, tuple[float, float]]:
    """Return by column the share of drawn tables of shape (tables, metrics, optimizers, seeds) with
    a p < 5 %.

    The first share is over all pairs of optimizers, the second over those that ``tests.csv`` shows.
    """
    counts = {name: [0, 0] for name in CORRECTED}
    for of_table in values.tolist():
        table = [
            compare_all(
                {str(key): dict(enumerate(seeds)) for key, seeds in enumerate(each)},
                METRICS["acc"],
                True,
                math.nan,
            )
            for each in of_table
        ]
        rows = [row for of_metric in table for row in of_metric]
        shown = [
            row for pairs in table for row in pairs if row["optimizer"] == pairs[0]["optimizer"]
        ]
        correct(rows)
        for name, count in counts.items():
            count[0] += any(row[name] < ALPHA for row in rows)
            count[1] += any(row[name] < ALPHA for row in shown)
    return {
        name: (every / len(values), best / len(values)) for name, (every, best) in counts.items()
    }


def speedups(
    curve: str,
    tokens: tuple[int, ...],
    n_seeds: int,
    correlation: float,
    n_studies: int,
    rng: np.random.Generator,
) -> tuple[float, float, float]:
    """Return how often the interval of a speedup of 1.5 holds it, how often it has both ends, how
    often it is refused.

    The reference has losses of a true ``curve`` at ``tokens``, with normal noise of 0.01. The first
    two shares are of those that are not refused.
    """
    true = 1.5 * tokens[0]
    losses = np.array([CURVES[curve](count) for count in (true, *tokens)])[:, None]
    drawn = losses + 0.01 * draw(n_studies, n_seeds, correlation, 0.0, rng, 1 + len(tokens))
    found = []
    for own, *reference in drawn.tolist():
        by_seed = [dict(enumerate(values)) for values in reference]
        found.append(needed_tokens(dict(enumerate(own)), dict(zip(tokens, by_seed, strict=True))))
    given = [each for each in found if math.isfinite(each.tokens)]
    held = [not (each.low > true or each.high < true) for each in given]  # without an end it is NaN
    whole = [math.isfinite(each.low + each.high) for each in given]
    return sum(held) / len(given), sum(whole) / len(given), 1 - len(given) / n_studies


def tuned_apart(curvature: float, n_seeds: int, n_studies: int, rng: np.random.Generator) -> float:
    """Return how often two copies of one optimizer, each tuned by a trial of its own, differ with p
    < 5 %, two-sided.

    The true loss is a parabola of ``curvature`` over the logarithm of six rates, each twice the one
    before, whose least lies somewhere in their middle. A trial has one seed. All noise is normal
    with standard deviation 1.
    """
    powers = np.arange(6)
    n_apart = 0
    for _ in range(n_studies):
        true = curvature * np.square(powers - rng.uniform(1.5, 3.5))
        samples = []
        for _ in range(2):
            tried = [
                Tried(
                    SimpleNamespace(embedding_lr=2.0**power, model_lr=1.0),
                    (loss + rng.normal(),),
                    (None,),
                )  # type: ignore[arg-type]
                for power, loss in zip(powers, true, strict=True)
            ]
            chosen = choose(None, tried)  # type: ignore[arg-type]
            samples.append(dict(enumerate(true[chosen] + rng.normal(size=n_seeds))))
        p = paired_test(*samples, higher_is_better=False).p_value
        n_apart += 2 * min(p, 1 - p) < ALPHA
    return n_apart / n_studies


def power(difference: float, n_seeds: int) -> float:
    """Return the power of the one-sided t-test for independent runs in closed form: a noncentral
    t."""
    df = 2 * n_seeds - 2
    critical = stats.t.isf(ALPHA, df)
    return float(stats.nct.sf(critical, df, difference * math.sqrt(n_seeds / 2)))


def main() -> None:
    """Print the table of docs/statistics.md, and that of the power."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--studies", type=int, default=10_000)
    n_studies = options.parse_args().studies
    rng = np.random.default_rng(0)
    error = 1.96 * math.sqrt(ALPHA * (1 - ALPHA) / n_studies)
    print(f"{n_studies:,} studies a line; at 5 % the Monte Carlo error is +-{100 * error:.2f} %\n")
    columns = [*TESTS, "equivalence", *(f"{name} interval" for name in INTERVALS)]
    print(f"| seeds | correlation | {' | '.join(columns)} |\n|{'---|' * (len(columns) + 2)}")
    for n_seeds in (3, 5, 10):
        for correlation in (0.0, 0.5, 0.9):
            null = rates(draw(n_studies, n_seeds, correlation, 0.0, rng), 0.0, margin=1.0)
            edge = rates(draw(n_studies // 2, n_seeds, correlation, 2.0, rng), 2.0, margin=2.0)
            shares = [*null.significant.values(), edge.equivalent, *null.covered.values()]
            print(
                f"| {n_seeds} | {correlation:g} |"
                f" {' | '.join(f'{100 * share:.1f}' for share in shares)} |",
                flush=True,
            )
    print(
        "\n| seeds | true difference | t-test | closed form | paired, correlation 0.9"
        " |\n|---|---|---|---|---|"
    )
    for n_seeds in (3, 5):
        for difference in (1.0, 2.0, 3.0):
            alone = rates(draw(n_studies, n_seeds, 0.0, difference, rng), difference, margin=1.0)
            paired = rates(draw(n_studies, n_seeds, 0.9, difference, rng), difference, margin=1.0)
            shares = [
                alone.significant["t-test"],
                power(difference, n_seeds),
                paired.significant["paired"],
            ]
            print(
                f"| {n_seeds} | {difference:g} |"
                f" {' | '.join(f'{100 * share:.1f}' for share in shares)} |",
                flush=True,
            )
    print(
        f"\nSome p < 5 % among all pairs (among those shown), {n_studies:,} tables of equal"
        " optimizers"
    )
    columns = [
        "optimizers",
        "metrics",
        "seeds",
        "correlation",
        "spread",
        "Holm",
        "Benjamini-Hochberg",
        "Holm, paired",
    ]
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    alike, unlike = (
        product((2, 4, 8), (1, 8), (3, 5), (0.0, 0.5), (1,)),
        product((2, 4), (8,), (3,), (0.0,), (3, 10)),
    )
    for n_optimizers, n_metrics, n_seeds, correlation, spread in (*alike, *unlike):
        values = draw(n_studies * n_metrics, n_seeds, correlation, 0.0, rng, n_optimizers)
        values[:, 0] *= spread
        found = corrected(values.reshape(n_studies, n_metrics, n_optimizers, n_seeds))
        shares = (f"{100 * every:.1f} ({100 * shown:.1f})" for every, shown in found.values())
        row = (n_optimizers, n_metrics, n_seeds, f"{correlation:g}", spread, *shares)
        print(f"| {' | '.join(map(str, row))} |", flush=True)
    print("\n| curvature | seeds | two copies, each tuned, differ |\n|---|---|---|")
    for curvature, n_seeds in product((0.0, 0.25, 0.5, 1.0, 2.0), (3, 5)):
        print(
            f"| {curvature:g} | {n_seeds} |"
            f" {100 * tuned_apart(curvature, n_seeds, n_studies, rng):.1f} |",
            flush=True,
        )
    print(
        "\n| curve | tokens | seeds | correlation | speedup held | with both ends | refused |\n|"
        + "---|" * 7
    )
    for curve, tokens, n_seeds, correlation in product(
        CURVES, ((1, 2, 4), (1, 2, 4, 8), (1, 4, 16)), (3, 5), (0, 0.9)
    ):
        shares = (
            f"{100 * share:.1f}"
            for share in speedups(curve, tokens, n_seeds, correlation, n_studies, rng)
        )
        print(
            f"| {curve} | {tokens} | {n_seeds} | {correlation:g} | {' | '.join(shares)} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
