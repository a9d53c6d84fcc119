"""What the report has, declared once in its order: sections, and files of statistics. Light, as
rules read it."""

from collections.abc import Callable
from dataclasses import dataclass

from coupled_adam_bench.study.plan import Plan


@dataclass(frozen=True)
class StatisticFile:
    """A CSV file of a study: its name, what it says, and where it is made.

    ``declaration`` names, as ``module:name`` of this package, the statistic with its columns, rows
    and section; only reporting imports it. A study has the file unless ``is_of`` refuses the plan.
    """

    file: str
    declaration: str
    caption: str
    is_of: Callable[[Plan], bool] = lambda plan: True  # noqa: ARG005


@dataclass(frozen=True)
class NamedSection:
    """A section of the report that stands above the report: its id, its title, and what yields its
    blocks, as ``module:name`` of this package."""

    id: str
    title: str
    blocks: str


CONTENTS: tuple[StatisticFile | NamedSection | str, ...] = (
    "verdict",
    "tables",
    "overview",
    StatisticFile(
        "stated.csv",
        "statistics.hypotheses:STATISTIC",
        "Every test of the hypotheses that were stated in advance.",
        lambda plan: plan.stated is not None,
    ),
    "figures",
    StatisticFile(
        "tuning.csv",
        "statistics.candidates:STATISTIC",
        "Every candidate of the tunings, with its validation losses.",
        lambda plan: bool(plan.tunings),
    ),
    StatisticFile(
        "shares.csv",
        "statistics.shares:STATISTIC",
        "How much of each difference in loss lies in which band of frequency.",
    ),
    "frequency",
    "variants",
    "word-similarity",
    StatisticFile(
        "occupancy.csv",
        "statistics.occupancy:STATISTIC",
        "How often the rows of the embedding come, and what the learning rates sum to.",
    ),
    StatisticFile(
        "tests.csv",
        "statistics.compare:STATISTIC",
        "Every comparison of the best of a block with another one, with its tests.",
    ),
    StatisticFile(
        "paired.csv",
        "statistics.paired_text:STATISTIC",
        "Two models of one seed on the same documents of tasks and of held-out text.",
    ),
    "statistics",
    StatisticFile(
        "power.csv",
        "statistics.power:STATISTIC",
        "What differences the seeds of the study could have found, and how many seeds find those"
        " that were seen.",
    ),
    "plug-ins",
    "setup",
    NamedSection("cost", "What it takes", "tools.estimate.text:cost"),
    "runs",
    "protocol",
    "cite",
    "reproduce",
)
"""The contents in the order of the page: the id of a section of the report, one that stands above
it, or a statistic with the section that shows it; ``plug-ins`` stands for the sections that a study
brings."""
STATISTICS = tuple(each for each in CONTENTS if isinstance(each, StatisticFile))
