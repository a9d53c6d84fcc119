"""How far a number may lie from the recorded one if only rounding differs.

Where the weights are the same, nothing but the evaluation was rounded, and that is known:
``EVALUATION``. Otherwise training amplifies the rounding of two machines, in some cells by a factor
of a thousand more than in others. A number here and the recorded one are two draws around the value
of the cell, whose spread has two bounds:

- That over the recorded seeds. A run of another seed rounds otherwise too, so its variance contains
  that of rounding. It is pooled within all groups, since one group has few degrees of freedom; a
  group's own is taken where it is larger.
- That over repeats of the cell here, which differ in nothing but the order of their sums.

The recorded number is compared with the mean of those here by Student's t, with Bonferroni's
correction for all numbers of a check and for the two bounds, of which the nearer one counts.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from statistics import fmean

from scipy import stats

MetricKey = tuple[str, str]
"""Task and metric of a number in ``results.csv``."""
Numbers = Mapping[MetricKey, float]
Group = Mapping[str, Numbers]
"""The recorded numbers of cells that differ in the seed only, by the id of the cell."""
LEVEL = 0.05
"""The largest probability that any number of a check is called too far although only rounding
differs."""
EVALUATION = 1e-6
"""What the evaluation of the same weights was measured to differ by; above 1, as a share of the
number."""


class Outcome(StrEnum):
    """What comes out of a check, the worst first."""

    OTHER = "NOT reproduced"
    UNCHECKED = "not checked"
    CLOSE = "reproduced, but for rounding"
    EXACT = "reproduced bit for bit"


@dataclass(frozen=True)
class Rerun:
    """A cell that was trained again: its recorded numbers, and those of each training ``here``.

    ``deciding`` are the numbers that the study prints; all decide if the first training gave the
    ``same_weights``.
    """

    cell: str
    recorded: Numbers
    here: list[Numbers]
    deciding: Collection[MetricKey]
    same_weights: bool = False

    @property
    def others(self) -> list[MetricKey]:
        """The numbers of which the first training here has other bits."""
        first = self.here[0]
        pairs = {
            number: (self.recorded.get(number), first.get(number))
            for number in {**first, **self.recorded}
        }
        return [
            number
            for number, pair in pairs.items()
            if pair[0] != pair[1] and repr(pair[0]) != repr(pair[1])
        ]


@dataclass(frozen=True)
class Finding:
    """A number that decides and has other bits; ``limit`` is how far it may lie off, NaN where no
    spread is known."""

    number: MetricKey
    recorded: float
    here: float
    limit: float
    basis: str

    @property
    def share(self) -> float:
        """The distance as a share of what is allowed: too far above 1, and where only one of both
        is a number."""
        distance = abs(self.here - self.recorded)
        return math.inf if math.isnan(distance) or self.limit == 0 else distance / self.limit

    @property
    def word(self) -> Outcome:
        """The word for this number."""
        if self.share > 1:
            return Outcome.OTHER
        return Outcome.UNCHECKED if math.isnan(self.limit) else Outcome.CLOSE

    @property
    def said(self) -> str:
        """The word for this number in a separate line."""
        return {Outcome.OTHER: "too far", Outcome.UNCHECKED: "undecided", Outcome.CLOSE: "allowed"}[
            self.word
        ]

    def __str__(self) -> str:
        """Say both values in full, the limit and what it rests on."""
        values = f"{self.recorded!r} in the manifest's results, {self.here!r} here"
        return f"{' '.join(self.number)}: {values}; {self.limit:.3g} is allowed ({self.basis})"


def pooled(groups: Sequence[Sequence[float]]) -> tuple[float, int]:
    """Return the standard deviation within groups, and its degrees of freedom; values that are not
    finite are none."""
    df, squares = 0, []
    for group in groups:
        finite = [value for value in group if math.isfinite(value)]
        if len(finite) > 1:
            mean = fmean(finite)
            df += len(finite) - 1
            squares += [(value - mean) ** 2 for value in finite]
    return (math.sqrt(math.fsum(squares) / df), df) if df else (0.0, 0)


@cache
def _quantile(tail: float, df: int) -> float:
    return float(stats.t.isf(tail, df))


def _column(several: Iterable[Numbers], number: MetricKey) -> list[float]:
    return [values.get(number, math.nan) for values in several]


def _limit(
    rerun: Rerun, number: MetricKey, seeds: Sequence[Group], n_numbers: int
) -> tuple[float, str]:
    """Return how far a number may lie off, NaN if that is not known, and what it rests on."""
    columns, own = [], []
    for group in seeds:
        # Without the cell itself, whose number may be wrong.
        others = [values for cell, values in group.items() if cell != rerun.cell]
        columns.append(_column(others, number))
        if rerun.cell in group:
            own.append(columns[-1])
    sd, df = pooled(columns)
    bounds = (
        ("seeds", max(sd, pooled(own)[0]), df),
        ("repeats", *pooled([_column(rerun.here, number)])),
    )
    limits = []
    for source, spread, freedom in bounds:
        if spread:  # repeats with the same value, as counts have, measure nothing
            factor = _quantile(LEVEL / 2 / len(bounds) / n_numbers, freedom) * math.sqrt(
                1 + 1 / len(rerun.here)
            )
            said = f"{factor:.3g} standard deviations over {source}, {freedom} degrees of freedom"
            limits.append((factor * spread, said))
    return min(limits, default=(math.nan, "its spread is not known: no second seed, no repeats"))


def judge(
    rerun: Rerun, seeds: Sequence[Group], own: Mapping[str, float], n_numbers: int
) -> list[Finding]:
    """Return the numbers that decide and have other bits, the farthest first and those without a
    limit last.

    ``seeds`` are the recorded groups, ``own`` a user's tolerances by metric, in place of ours, and
    ``n_numbers`` counts the numbers that decide in all cells of the check.
    """
    findings = []
    for number in rerun.others:
        recorded, here = rerun.recorded.get(number, math.nan), fmean(_column(rerun.here, number))
        if number[1] in own:
            allowed = own[number[1]], "as you say"
        elif rerun.same_weights:
            allowed = (
                EVALUATION * max(1.0, abs(recorded)),
                "the weights are the same, so no training was rounded",
            )
        elif number in rerun.deciding:
            allowed = _limit(rerun, number, seeds, n_numbers)
        else:
            continue
        findings.append(Finding(number, recorded, here, *allowed))
    return sorted(findings, key=lambda found: (math.isnan(found.limit), -found.share))
