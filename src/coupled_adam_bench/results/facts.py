"""What a study found, as flat records: a fact for each place, metric and optimizer, with its
outcome against the other optimizers.

The records hold numbers and words and compute no test: ``statistics/decisions.py`` fills in what
was decided, and tables, figures and pages read it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Any, Self

from coupled_adam_bench.results.groups import Group
from coupled_adam_bench.results.sample import Sample, difference, summarize
from coupled_adam_bench.study.catalogue.metrics import Metric

CENTERED = "embeddings_centered"
"""The task under which ``results.csv`` has the metrics of an embedding minus its mean, which needs
no other training."""
ALPHA = 0.05
"""Level of significance [P], App. F, of the paper's rule and of ours."""


class Outcome(StrEnum):
    """What one comparison says; the value is the word for it in a sentence.

    "Better" and "worse" hold after the correction. Where only the uncorrected test finds a
    difference, the outcome says so.
    """

    BETTER = "better"
    WORSE = "worse"
    BETTER_UNCORRECTED = "better, but not after the correction"
    WORSE_UNCORRECTED = "worse, but not after the correction"
    OPEN = "not clearly different"
    UNTESTED = "not tested"

    @property
    def reversed(self) -> "Outcome":
        """The same outcome, seen from the other optimizer."""
        return _REVERSED.get(self, self)


_REVERSED = {
    Outcome.BETTER: Outcome.WORSE,
    Outcome.WORSE: Outcome.BETTER,
    Outcome.BETTER_UNCORRECTED: Outcome.WORSE_UNCORRECTED,
    Outcome.WORSE_UNCORRECTED: Outcome.BETTER_UNCORRECTED,
}


@dataclass(frozen=True)
class Comparison:
    """One optimizer against a ``rival`` at one place in one metric, by the study's decision.

    ``difference`` is the mean over seeds of its score minus the rival's, and ``low`` to ``high``
    its two-sided interval at 95 %. ``p`` is two-sided too, and ``p_corrected`` is after Holm's
    correction over the ``n_tests`` tests of the table ``decided_in``. ``p_equivalent`` is that of
    two one-sided tests that the difference is smaller than the study's margin. ``reason`` says why
    there is no test, or is empty. ``row`` has all tests of the pair, as columns of tests.csv.
    """

    optimizer: str
    rival: str
    outcome: Outcome
    n: int = 0
    difference: float = math.nan
    low: float = math.nan
    high: float = math.nan
    p: float = math.nan
    p_corrected: float = math.nan
    n_tests: int = 0
    decided_in: str = ""
    p_equivalent: float = math.nan
    reason: str = ""
    row: Mapping[str, Any] = field(default_factory=dict)

    @property
    def reversed(self) -> Self:
        """The same comparison, seen from the rival."""
        return replace(
            self,
            optimizer=self.rival,
            rival=self.optimizer,
            outcome=self.outcome.reversed,
            difference=-self.difference,
            low=-self.high,
            high=-self.low,
        )


@dataclass(frozen=True)
class Fact:
    """What is known of one metric of one optimizer at one place.

    ``by_seed`` has its values, NaN where one is missing, and ``without_mean`` those of the
    embedding minus its mean. ``scores`` is what is compared: the values or, if the metric is best
    at a value, their distances from it. ``best`` has the values at which the metric is best here,
    ascending, empty where there are none or they are not known. ``edges`` are the settings that a
    trial chose at the edge of what it tried. ``held_out_tokens`` and ``held_out_documents`` are the
    sizes of the held-out text, where they are known. ``bold`` follows the rule of the table, and
    ``against`` has the study's own decision by rival.
    """

    group: Group
    metric: Metric
    optimizer: str
    by_seed: Mapping[int, float]
    without_mean: Mapping[int, float]
    scores: Mapping[int, float]
    best: tuple[float, ...] = ()
    edges: tuple[str, ...] = ()
    held_out_tokens: tuple[float, ...] = ()
    held_out_documents: tuple[float, ...] = ()
    guessing: float = math.nan
    """The loss of equal probabilities, log of the vocabulary's size; NaN if it is no loss."""
    bold: bool = False
    against: Mapping[str, Comparison] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The label of the optimizer."""
        return self.group.optimizer_labels[self.optimizer]

    @cached_property
    def sample(self) -> Sample:
        """Number, mean and standard deviation of the values over seeds."""
        return summarize(list(self.by_seed.values()))

    @property
    def lacks_best(self) -> str:
        """Why the values cannot be compared where it is not known what is best, else nothing."""
        if self.metric.best_at is None or self.best:
            return ""
        return (
            f"results.csv has no {self.metric.best_at}, so what is best is not known; evaluate with"
            " this version"
        )

    @property
    def reason(self) -> str:
        """Why the values cannot be compared, else nothing."""
        missing = sum(map(math.isnan, self.by_seed.values()))
        return f"{missing} of {len(self.by_seed)} values missing" if missing else self.lacks_best

    @property
    def is_measured(self) -> bool:
        """Whether at least one seed has a value."""
        return self.sample.n > 0

    @property
    def is_worse_than_guessing(self) -> bool:
        """Whether it is a loss whose mean is above that of equal probabilities."""
        return self.sample.mean > self.guessing

    def minus(self, rival: "Fact") -> dict[int, float]:
        """Return the differences of the scores by every seed that either has, NaN where one is
        missing."""
        seeds = dict.fromkeys((*self.scores, *rival.scores))
        found = {}
        for seed in seeds:
            ours, theirs = self.scores.get(seed, math.nan), rival.scores.get(seed, math.nan)
            found[seed] = difference(ours, theirs)
        return found


Facts = Mapping[tuple[tuple[Any, ...], str], Mapping[str, Fact]]
"""The facts by the place and the name of the metric, then by the key of the optimizer."""
