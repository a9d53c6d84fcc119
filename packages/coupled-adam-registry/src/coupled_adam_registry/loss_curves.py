"""Losses against tokens, and how many tokens a reference needs for the loss of another optimizer.
S: seeds    T: numbers of tokens of the reference
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq, minimize_scalar

from coupled_adam_bench.page.formats import plural
from coupled_adam_bench.results.sample import summarize, without_rounding
from coupled_adam_bench.statistics.student import NO_INTERVAL, t_quantile
from coupled_adam_bench.study.settings import AdamWSettings, Optimizer
from coupled_adam_bench.study.settings.optimizers import HeadSettings

BEYOND = "the interval reaches beyond the reference's tokens"
_POINTS = 1024
"""Points of the curve between which it is a straight line, for its inverse: an error below 1e-5 of
the tokens."""
_EXPONENTS = (1e-3, 2.0)
"""Range of the exponent c. The least is a straight line in log D, which losses that do not bend
have."""
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Needed:
    """The tokens that a reference needs for a loss, with the ends of their interval over ``n``
    seeds.

    What cannot be said is NaN, and ``reason`` says why.
    """

    n: int
    tokens: float = math.nan
    low: float = math.nan
    high: float = math.nan
    reason: str = ""


def needed_tokens(own: Mapping[int, float], reference: Mapping[int, Mapping[int, float]]) -> Needed:
    """Return how many tokens a reference, given its losses by tokens and seed, needs for the loss
    ``own`` by seed.

    The curve of the means is a power law, a + b D^-c (Hoffmann et al. 2022), and what the points
    differ from it, straight between them in log D. So it goes through all points, and equal
    optimizers have a speedup of 1. Two points do not say how the curve bends: it is straight in log
    D then, and has no interval. Nothing is extrapolated.

    The interval has all tokens at which a paired t-test does not tell the losses apart, in
    Fieller's manner (1954). A seed's own curve is that of the means plus its deviations from them,
    which are straight between points.
    """
    # Means over other seeds than ours would have their noise in the comparison.
    grid = sorted(
        tokens for tokens, of_tokens in reference.items() if own.keys() <= of_tokens.keys()
    )
    n = len(own)
    if len(grid) < 2:
        return Needed(
            n,
            reason=(
                f"the reference has these seeds at {plural(len(grid), 'number')} of tokens, it"
                " needs 2"
            ),
        )
    own_S = np.array(list(own.values()))
    losses_TS = np.empty((len(grid), n))
    for index, tokens in enumerate(grid):
        losses_TS[index] = [reference[tokens][seed] for seed in own]
    if not (np.isfinite(own_S).all() and np.isfinite(losses_TS).all()):
        return Needed(n, reason="a loss is missing")
    means_T, loss = losses_TS.mean(axis=1), float(own_S.mean())
    if (np.diff(means_T) >= 0).any():
        return Needed(
            n, reason="the loss of the reference does not fall with each number of tokens"
        )
    # Beyond the reference's losses, only an extrapolated curve would have an answer.
    if loss < means_T[-1]:
        return Needed(n, reason="the reference does not reach this loss with its most tokens")
    if loss > means_T[0]:
        return Needed(n, reason="the reference is below this loss with its fewest tokens")
    logs_T = np.log(grid)
    places, curve = _curve(logs_T, means_T)

    def tokens_at(level: float) -> float:
        return float(np.exp(np.interp(level, curve[::-1], places[::-1])))

    if n < 2 or len(grid) < 3:
        reason = (
            "1 seed, an interval needs 2"
            if n < 2
            else "an interval needs 3 numbers of tokens of the reference"
        )
        return Needed(n, tokens_at(loss), reason=reason)
    deviations_TS = own_S - losses_TS + means_T[:, None]

    def spread(level: float) -> float:
        """Return the standard deviation over seeds of ours minus the reference's at a loss."""
        at_level_S = [np.interp(level, means_T[::-1], of_seed) for of_seed in deviations_TS[::-1].T]
        return float(np.std(at_level_S, ddof=1))

    def excess(level: float) -> float:
        """Return by how much a loss of the reference's curve lies outside of what the seeds do not
        tell from ours."""
        return float(abs(level - loss) - t_quantile(n - 1) * spread(level) / math.sqrt(n))

    if without_rounding(spread(loss), loss) == 0:
        return Needed(n, tokens_at(loss), reason=NO_INTERVAL)

    def end(edge: float) -> float:
        """Return the tokens at which the curve leaves the interval towards its end, NaN beyond."""
        return tokens_at(brentq(excess, loss, edge)) if excess(edge) > 0 else math.nan

    low, high = end(means_T[0]), end(means_T[-1])
    return Needed(n, tokens_at(loss), low, high, "" if math.isfinite(low + high) else BEYOND)


def _curve(logs_T: Floats, means_T: Floats) -> tuple[Floats, Floats]:
    """Return log D at many places, and the falling curve of the losses there, which
    :func:`needed_tokens` fits."""

    def law(exponent: float) -> tuple[Floats, Floats]:
        powers = np.exp(-exponent * (places - places[0]))
        at_T = np.exp(-exponent * (logs_T - logs_T[0]))
        slope, level = np.polyfit(at_T, means_T, 1)
        return level + slope * powers, means_T - level - slope * at_T

    places = np.union1d(logs_T, np.linspace(logs_T[0], logs_T[-1], _POINTS))
    exponent = _EXPONENTS[0]
    if len(logs_T) > 2:
        exponent = minimize_scalar(
            lambda c: float(np.square(law(c)[1]).sum()), bounds=_EXPONENTS, method="bounded"
        ).x
    fitted, rest_T = law(exponent)
    return places, np.minimum.accumulate(fitted + np.interp(places, logs_T, rest_T))


def is_adam(optimizer: Optimizer) -> bool:
    """Tell whether an optimizer is Adam, whatever its rates, decay rates and weight decay, and with
    or without AMSGrad.

    One that changes the head's mean, loss or logits too is another method.
    """
    fields = HeadSettings.model_fields
    for entry in optimizer.entries.values():
        if not isinstance(entry, AdamWSettings):
            return False
        if any(getattr(entry, name) != field.default for name, field in fields.items()):
            return False
    return True


@dataclass(frozen=True)
class Curve:
    """The losses of an optimizer by tokens and seed, whether a trial chose its settings at each of
    them, and whether it is an Adam, with which a speedup may be compared."""

    key: str
    label: str
    is_tuned: bool
    is_adam: bool
    losses: dict[int, dict[int, float]]

    def mean(self, n_tokens: int) -> float:
        """Return the mean loss with these tokens, NaN if there are no seeds or a seed has no
        loss."""
        return summarize(list(self.losses.get(n_tokens, {}).values())).mean


def reference_of(
    curves: Iterable[Curve], n_tokens: int, is_tuned: bool
) -> tuple[Curve | None, str]:
    """Return the strongest Adam of some tokens, for an optimizer that ``is_tuned`` or not, or why
    there is none.

    An optimizer whose settings a trial chose is compared with Adam whose settings a trial chose,
    and with no other.
    """
    adams = [curve for curve in curves if curve.is_adam and math.isfinite(curve.mean(n_tokens))]
    strongest = min(adams, key=lambda curve: curve.mean(n_tokens), default=None)
    if strongest is None:
        return None, "no Adam was trained with these tokens"
    if strongest.is_tuned != is_tuned:
        one, other = ("tuned", "not tuned") if is_tuned else ("not tuned", "tuned")
        return None, f"this is {one}, and the strongest Adam, {strongest.label}, is {other}"
    return strongest, ""
