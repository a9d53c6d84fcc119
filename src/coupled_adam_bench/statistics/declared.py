"""What a statistic declares: the columns of its file, what computes its rows, and the section that
shows them."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import Any, Self

from pandas import DataFrame

from coupled_adam_bench.page.blocks import Block
from coupled_adam_bench.results.groups import GROUP_COLUMNS, Group
from coupled_adam_bench.results.study_results import StudyResults, records
from coupled_adam_bench.results.tidy import typed_frame, write_csv
from coupled_adam_bench.store import paths
from coupled_adam_bench.store.files import read_json
from coupled_adam_bench.study.catalog.metrics import Metric
from coupled_adam_bench.study.catalog.tables import Table
from coupled_adam_bench.study.plan import Plan

Row = Mapping[str, Any]
ALL_SEEDS = "all"
"""A value of ``seed``: all of them together."""


@dataclass(frozen=True)
class Section:
    """A part of the report: the id and the title of the section, and the function that gives its
    blocks.

    A study of which there are no blocks does not have the section. ``short`` is its name in the
    list of sections. ``question`` gives the title where it depends on the study. Sections that are
    not ``is_front`` are folded: a reader opens them.
    """

    id: str
    title: str
    blocks: Callable[["Material"], Iterable[Block]]
    short: str = ""
    question: Callable[[Plan], str] | None = None
    is_front: bool = False

    def titled(self, plan: Plan) -> Self:
        """Return the section with the title that it has in a study."""
        return self if self.question is None else replace(self, title=self.question(plan))


@dataclass(frozen=True)
class Statistic:
    """A CSV file of a study: what it is called, its columns with the types of their values, key,
    and rows.

    ``section`` shows it in the report. The catalogue says what it is about, and which studies have
    it.
    """

    file: str
    columns: Mapping[str, type]
    key: tuple[str, ...]
    rows: Callable[["Material"], Iterable[Row]]
    section: Section | None = None


@dataclass(frozen=True)
class Placed:
    """A row of a statistic with the group that it is of."""

    group: Group
    row: Row
    metrics: Mapping[str, Metric]

    @property
    def metric(self) -> Metric:
        """The metric that the row is about."""
        return self.metrics[self.row["metric"]]

    def label(self, column: str) -> str:
        """Return the label of the optimizer whose key a column has."""
        return self.group.optimizer_labels[self.row[column]]


class Material:
    """What statistics and sections are made of: a study's results, its runs, and the statistics
    made so far.

    Files are written into the folder ``out``, by default that of the study.
    """

    def __init__(
        self,
        study: StudyResults,
        runs: Path = paths.RUNS,
        study_dir: Path | None = None,
        out: Path | None = None,
    ) -> None:
        self.study = study
        self.plan = study.plan
        self.runs = runs
        self.study_dir = study_dir or paths.study_dir(study.plan.name)
        self.out = out or self.study_dir
        self._frames: dict[str, DataFrame] = {}

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """The record behind the numbers, ``manifest.json``."""
        manifest: dict[str, Any] = read_json(self.out / paths.MANIFEST)
        return manifest

    def frame(self, statistic: Statistic) -> DataFrame:
        """Return a statistic, which is computed once; ``ValueError`` if two of its rows have the
        same key."""
        if statistic.file not in self._frames:
            frame = typed_frame(statistic.rows(self), statistic.columns)
            twice = frame.duplicated(list(statistic.key))
            if twice.any():
                raise ValueError(f"{statistic.file}: two rows of {records(frame[twice])[0]}")
            self._frames[statistic.file] = frame
        return self._frames[statistic.file]

    def rows(self, statistic: Statistic) -> list[dict[str, Any]]:
        """Return the rows of a statistic, computed once."""
        return records(self.frame(statistic))

    def placed(self, statistic: Statistic, table: str) -> list[Placed]:
        """Return the rows of a statistic on a table, in its order, each with its group."""
        groups = {group.place: group for group in self.study.groups[table]}
        metrics = self.study.layout.metrics
        place_of = itemgetter(*GROUP_COLUMNS)
        of_table = [row for row in self.rows(statistic) if row["table"] == table]
        return [Placed(groups[place_of(row)], row, metrics) for row in of_table]

    def by_table(self, statistic: Statistic) -> Iterator[tuple[Table, list[Placed]]]:
        """Yield each table of the study with the rows of a statistic on it, if it has any."""
        for name, table in self.study.tables.items():
            if rows := self.placed(statistic, name):
                yield table, rows

    def write(self, statistic: Statistic) -> None:
        """Write the file of a statistic, atomically and in full precision."""
        write_csv(self.frame(statistic), self.out / statistic.file)
