"""Each optimizer of a group against one of them, seed by seed: what the report answers at once.

The reference may have its mean subtracted after training, which costs nothing: an optimizer is worth its trouble if it
is better than that. All tests of one reference in one group are a family of Holm's correction.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from coupled_adam_bench.results.groups import Group
from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.statistics.corrections import holm
from coupled_adam_bench.statistics.paired import PairedTest, paired_test
from coupled_adam_bench.study.catalog.metrics import METRICS, Metric

CENTERED = "embeddings_centered"
"""The task under which ``results.csv`` has the metrics of an embedding minus its mean."""


@dataclass(frozen=True)
class Question:
    """Is the metric of an optimizer better than the reference's, of which the mean is subtracted if ``centered``?"""

    metric: Metric
    centered: bool = False


QUESTIONS = (
    Question(METRICS["loss"]),
    Question(METRICS["loss_rarest"]),
    Question(METRICS["isotropy"]),
    Question(METRICS["r_bar"]),
    Question(METRICS["r_bar"], centered=True),
)


@dataclass(frozen=True)
class Contrast:
    """The answer to a question for one optimizer; ``p_holm`` is the test's p-value after the correction."""

    test: PairedTest
    p_holm: float


@dataclass(frozen=True)
class Contrasts:
    """All other optimizers of a group against ``reference``; ``answers`` are by key, in the order of ``questions``."""

    group: Group
    reference: str
    questions: tuple[Question, ...]
    answers: Mapping[str, tuple[Contrast, ...]]


def contrasts(study: StudyResults, group: Group, reference: str, centered: bool) -> Contrasts | None:
    """Return the answers of a group, None if not one question can be tested in it.

    Questions about a reference minus its mean are asked if ``centered``. One without any value is left out.
    """
    values = {False: study.values, True: study.values_of({"r_bar": CENTERED})}
    tests: dict[Question, dict[str, PairedTest]] = {}
    for question in QUESTIONS if centered else (each for each in QUESTIONS if not each.centered):
        metric = question.metric
        ours, theirs = study.by_seed(group, metric), group.by_seed(values[question.centered], metric)[reference]
        found = {
            key: paired_test(of_key, theirs, metric.higher_is_better)
            for key, of_key in ours.items()
            if key != reference
        }
        if any(test.n >= 2 for test in found.values()):
            tests[question] = found
    if not tests:
        return None
    corrected = iter(holm([test.p_value for found in tests.values() for test in found.values()]))
    answers: dict[str, tuple[Contrast, ...]] = {}
    for found in tests.values():
        for key, test in found.items():
            answers[key] = (*answers.get(key, ()), Contrast(test, next(corrected)))
    return Contrasts(group, reference, tuple(tests), answers)
