"""Pairs of optimizers: each of a group against its first one, seed by seed."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite, nan

from coupled_adam_bench.results.groups import Group
from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.study.catalog.metrics import Metric


@dataclass(frozen=True)
class PairedValues:
    """The values of an optimizer (``firsts``) and its reference (``seconds``) by seed; one that is not there is NaN."""

    optimizer: str
    reference: str
    seeds: tuple[int, ...]
    firsts: tuple[float, ...]
    seconds: tuple[float, ...]

    @property
    def differences(self) -> dict[int, float]:
        """The differences, optimizer minus reference, of the seeds that have both."""
        each = zip(self.seeds, self.firsts, self.seconds, strict=True)
        return {seed: a - b for seed, a, b in each if isfinite(a) and isfinite(b)}

    @property
    def n_missing(self) -> int:
        """How many seeds lack a value of one or both."""
        return len(self.seeds) - len(self.differences)


def rivals(group: Group) -> Iterator[tuple[str, str]]:
    """Yield (optimizer, reference): each optimizer of a group and its first one, Adam in the paper's tables."""
    reference, *others = group.cells
    yield from ((key, reference) for key in others)


def paired_values(study: StudyResults, group: Group, metric: Metric, optimizer: str, reference: str) -> PairedValues:
    """Return a metric's values of two optimizers by every seed that either has."""
    by_seed = [
        {cell.seed: study.values.get((cell.id, metric.name), nan) for cell in group.cells[key]}
        for key in (optimizer, reference)
    ]
    seeds = tuple(dict.fromkeys(seed for values in by_seed for seed in values))
    first, second = (tuple(values.get(seed, nan) for seed in seeds) for values in by_seed)
    return PairedValues(optimizer, reference, seeds, first, second)
