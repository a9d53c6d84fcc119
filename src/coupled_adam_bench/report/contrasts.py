"""The differences of optimizers to a reference that the front of the report tells, and which of
them a study is about."""

import math
from dataclasses import dataclass

from coupled_adam_bench.results.groups import Group
from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.statistics.paired import PairedTest, paired_test
from coupled_adam_bench.statistics.student import ALPHA, holm
from coupled_adam_bench.study.catalog.metrics import METRICS, Metric
from coupled_adam_bench.study.catalog.names import ADAM, COUPLED_ADAM
from coupled_adam_bench.study.config import CustomSettings
from coupled_adam_bench.study.plan import Plan

CENTERED = "embeddings_centered"
"""The task under which ``results.csv`` has the metrics of an embedding minus its mean, which costs
nothing."""
Question = tuple[Metric, bool]
"""Is a metric better than the reference's, of which the mean is subtracted after training if the
second is true?"""
QUESTIONS: tuple[Question, ...] = (
    *((METRICS[name], False) for name in ("loss", "loss_rarest", "isotropy", "r_bar")),
    (METRICS["r_bar"], True),
)
METRICS_ASKED = tuple(dict.fromkeys(metric for metric, _ in QUESTIONS))
"""The metrics of these questions."""
Answers = dict[Question, dict[str, tuple[PairedTest, float]]]
"""For each question and optimizer the test against the reference, and its p-value after Holm's
correction."""


def challengers(plan: Plan) -> dict[str, str]:
    """Return by their keys the labels of the optimizers that a study is about; none if it asks
    whether the paper's result reproduces.

    They are the user's own or, in a study without Coupled Adam, all but Adam.
    """
    plain, labels, own = set(), {}, {}
    for cell in plan.cells.values():
        optimizer = cell.optimizer
        name = optimizer.names(leave_out=["lr_factor"])[0]
        plain.add(name)
        if name != ADAM:
            labels[optimizer.key] = optimizer.label
        if any(isinstance(entry, CustomSettings) for entry in optimizer.entries.values()):
            own[optimizer.key] = optimizer.label
    if ADAM not in plain:
        return {}
    return own or ({} if COUPLED_ADAM in plain else labels)


def contrasts(study: StudyResults, group: Group, reference: str, centered: bool) -> Answers:
    """Return all other optimizers of a group against ``reference``, by seed; all their tests are
    corrected together.

    Questions about a reference minus its mean are asked if ``centered``. One without any value is
    left out.
    """
    values = {False: study.values, True: study.values_of({"r_bar": CENTERED})}
    tests: dict[Question, dict[str, PairedTest]] = {}
    for metric, is_centered in QUESTIONS:
        theirs = group.by_seed(values[is_centered], metric)[reference]
        found = {
            key: paired_test(ours, theirs, metric.larger_wins)
            for key, ours in study.by_seed(group, metric).items()
            if key != reference
        }
        if is_centered <= centered and any(test.n >= 2 for test in found.values()):
            tests[metric, is_centered] = found
    # All tests of the group are one family, whose p-values come back in their order.
    p_values: list[float] = []
    for found in tests.values():
        p_values += [test.p_value for test in found.values()]
    corrected = iter(holm(p_values))
    answers: Answers = {}
    for question, found in tests.items():
        answers[question] = {key: (test, next(corrected)) for key, test in found.items()}
    return answers


@dataclass(frozen=True)
class Contrast:
    """All differences of one optimizer to a reference in a group."""

    group: Group
    key: str
    reference: str
    answers: Answers

    @property
    def label(self) -> str:
        """The label of the optimizer."""
        return self.group.optimizer_labels[self.key]

    def test(self, metric: Metric, centered: bool = False) -> tuple[PairedTest, float]:
        """Return the test of a metric against the reference, or against it minus its mean if
        ``centered``, and its p-value after the correction."""
        nothing = PairedTest(0), math.nan
        return self.answers.get((metric, centered), {}).get(self.key, nothing)

    def outcome(self, metric: Metric) -> str:
        """Return whether it is better than the reference, ``good``, or worse, ``bad``, or
        nothing."""
        return outcome(metric, *self.test(metric))


def outcome(metric: Metric, test: PairedTest, p: float) -> str:
    """Return ``good`` for significantly better with an interval that is better as a whole, ``bad``
    for an interval that is worse as a whole, else nothing.

    The tests are one-sided, so a significant difference alone can have an interval with zero in it.
    """
    is_above, is_below = test.low > 0, test.high < 0
    is_better, is_worse = (is_above, is_below) if metric.larger_wins else (is_below, is_above)
    if is_worse:
        return "bad"
    return "good" if is_better and p < ALPHA else ""
