"""The limits of ``verify`` keep what they promise, in simulated studies, and find a number that was forged."""

import math
import random
from typing import Any

from coupled_adam_bench.tools.verify.judge import LEVEL, Group, Number, Rerun, judge

METRICS: list[Number] = [("test", f"metric {number}") for number in range(8)]
DRAWS = 400


def simulated(
    generator: random.Random,
    *,
    rounding: float = 1.0,
    n_seeds: int = 3,
    n_cells: int = 5,
    repeats: int = 3,
    uneven: float = 0.0,
    forged: float = 0.0,
    one: bool = True,
) -> tuple[list[Rerun], list[Group]]:
    """Eight groups of seeds and a cell without a second one; this and ``n_cells`` - 1 others are trained again.

    The values of a group have a standard deviation of 1 over seeds, or of a factor that is ``uneven`` on a logarithmic
    scale; ``rounding`` is the part of it that another machine changes. One recorded number is ``forged`` by so many
    standard deviations, in the cell without a second seed, or if not ``one`` in another.
    """
    groups: list[Group] = []
    kinds = {}
    for group in range(9):
        sd = {metric: math.exp(generator.gauss(0, uneven)) for metric in METRICS}
        mean = {metric: generator.gauss(5, 10) for metric in METRICS}
        names = [f"{group} {seed}" for seed in range(n_seeds if group else 1)]
        for name in names:
            kinds[name] = drawn(generator, mean, sd, math.sqrt(1 - rounding**2)), sd
        groups.append({name: drawn(generator, *kinds[name], rounding) for name in names})
    recorded = {name: values for group in groups for name, values in group.items()}
    chosen = ["0 0", *generator.sample(sorted(recorded.keys() - {"0 0"}), n_cells - 1)]
    victim = chosen[0 if one else 1]
    recorded[victim][METRICS[0]] -= forged * kinds[victim][1][METRICS[0]]
    here = {name: [drawn(generator, *kinds[name], rounding) for _ in range(repeats)] for name in chosen}
    digits = dict.fromkeys(METRICS, 1e-9)
    return [Rerun(name, recorded[name], here[name], digits) for name in chosen], groups


def drawn(generator: random.Random, mean: Any, sd: Any, share: float) -> dict[Number, float]:
    return {metric: mean[metric] + share * sd[metric] * generator.gauss(0, 1) for metric in METRICS}


def rate(**options: Any) -> float:
    """The share of checks in which a number is called too far."""
    found = 0
    for seed in range(DRAWS):
        reruns, groups = simulated(random.Random(seed), **options)
        n_numbers = len(METRICS) * len(reruns)
        found += any(judge(rerun, groups, {}, n_numbers)[0].share > 1 for rerun in reruns)
    return found / DRAWS


def most(level: float) -> float:
    """What a rate of this ``level`` exceeds in one of a thousand simulations."""
    return level + 3.1 * math.sqrt(level * (1 - level) / DRAWS)


def test_a_study_that_reproduces_is_seldom_called_other() -> None:
    """In the worst case seeds change nothing, and all of their spread is rounding."""
    assert 0.005 < rate() <= most(LEVEL)
    assert rate(repeats=1) <= most(LEVEL)
    assert rate(n_seeds=1) <= most(LEVEL)  # no cell has a second seed
    assert rate(n_seeds=1, n_cells=1) <= most(LEVEL)
    assert rate(rounding=0.3, repeats=1) < 0.01


def test_spreads_that_differ_from_group_to_group_keep_the_promise_where_rounding_is_half_of_them() -> None:
    assert rate(uneven=0.5, rounding=0.5) <= most(LEVEL)


def test_a_forged_number_is_found() -> None:
    """docs/check.md says these sizes."""
    assert rate(rounding=0.3, repeats=1, forged=8.0) > 0.9  # by the spread over seeds alone
    assert rate(rounding=0.01, forged=1.0) > 0.9
    assert rate(rounding=0.01, forged=1.0, one=False) > 0.9
    assert rate(rounding=0.01, forged=1.0, n_seeds=1) > 0.9
