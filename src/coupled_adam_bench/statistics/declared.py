"""What a statistic declares: the columns of its file, what computes its rows, and the section that
shows them."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pandas import DataFrame

from coupled_adam_bench.page.blocks import Block
from coupled_adam_bench.results.groups import GROUP, Group
from coupled_adam_bench.results.study_results import StudyResults, records
from coupled_adam_bench.results.tidy import typed_frame, write_csv
from coupled_adam_bench.store import paths
from coupled_adam_bench.store.files import read_json
from coupled_adam_bench.study.catalogue.tables import Table

Row = Mapping[str, Any]
"""A row of a statistic: its columns and, if it is about a place, the group of it under ``GROUP``,
which no file has."""
ALL_SEEDS = "all"
"""A value of ``seed``: all of them together."""


@dataclass(frozen=True)
class Section:
    """A part of the report: the id and the title of the section, and the function that gives its
    blocks.

    A study of which there are no blocks does not have the section. Sections that are not
    ``is_front`` are folded: a reader opens them.
    """

    id: str
    title: str
    blocks: Callable[["Material"], Iterable[Block]]
    is_front: bool = False


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
        self._groups: dict[str, list[Group | None]] = {}

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """The record behind the numbers, ``manifest.json``."""
        manifest: dict[str, Any] = read_json(self.out / paths.MANIFEST)
        return manifest

    def frame(self, statistic: Statistic) -> DataFrame:
        """Return a statistic, which is computed once; ``ValueError`` if two of its rows have the
        same key."""
        if statistic.file not in self._frames:
            rows = list(statistic.rows(self))
            frame = typed_frame(rows, statistic.columns)
            twice = frame.duplicated(list(statistic.key))
            if twice.any():
                raise ValueError(f"{statistic.file}: two rows of {records(frame[twice])[0]}")
            self._frames[statistic.file] = frame
            self._groups[statistic.file] = [row.get(GROUP) for row in rows]
        return self._frames[statistic.file]

    def rows(self, statistic: Statistic) -> list[dict[str, Any]]:
        """Return the rows of a statistic, computed once, with the group that each was made of."""
        rows = records(self.frame(statistic))
        for row, group in zip(rows, self._groups[statistic.file], strict=True):
            row[GROUP] = group
        return rows

    def by_table(self, statistic: Statistic) -> Iterator[tuple[Table, list[dict[str, Any]]]]:
        """Yield each table of the study with the rows of a statistic on it, if it has any."""
        rows = self.rows(statistic)
        for name, table in self.study.layout.tables.items():
            of_table = [row for row in rows if row["table"] == name]
            if of_table:
                yield table, of_table

    def write(self, statistic: Statistic) -> None:
        """Write the file of a statistic, atomically and in full precision."""
        write_csv(self.frame(statistic), self.out / statistic.file)
