"""What a statistic declares: the columns of its file, what computes its rows, and the section that shows them."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pandas import DataFrame

from coupled_adam_bench.report.blocks import Block
from coupled_adam_bench.results.groups import GROUP_COLUMNS, Group
from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.results.tidy import read_csv, typed_frame, write_csv
from coupled_adam_bench.store import paths
from coupled_adam_bench.store.files import read_json
from coupled_adam_bench.study.catalog.metrics import Metric

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Field:
    """A column of a CSV file: the type of its values, what they say, and their unit if they have one."""

    kind: type
    text: str
    unit: str = ""


def records(frame: DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a frame."""
    return [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]


PLACE: dict[str, Field] = {
    "table": Field(str, "name of the table"),
    "n_params": Field(int, "parameters of the model"),
    "n_tokens": Field(int, "tokens of training"),
    "model": Field(str, "name of the model"),
    "data": Field(str, "id of the data"),
    "recipe": Field(str, "study whose way to train and evaluate it is"),
}
"""The columns that tell groups apart, ``GROUP_COLUMNS``."""


@dataclass(frozen=True)
class Section:
    """A part of the report: the id and the title of the section, and the function that gives its blocks.

    A study of which there are no blocks does not have the section. ``short`` is its name in the list of sections.
    """

    id: str
    title: str
    blocks: Callable[["Material"], Iterable[Block]]
    short: str = ""


@dataclass(frozen=True)
class Statistic:
    """A CSV file of a study: what it is called, its columns and key, what computes its rows.

    ``section`` shows it in the report. The catalogue says what it is about, and which studies have it.
    """

    file: str
    columns: Mapping[str, Field]
    key: tuple[str, ...]
    rows: Callable[["Material"], Iterable[Row]]
    section: Section | None = None

    @property
    def kinds(self) -> dict[str, type]:
        """The type of each column."""
        return {name: column.kind for name, column in self.columns.items()}

    def frame(self, rows: Iterable[Row]) -> DataFrame:
        """Return rows with the types of the columns; ``ValueError`` if two have the same key."""
        frame = typed_frame([dict(row) for row in rows], self.kinds)
        twice = frame.duplicated(list(self.key))
        if twice.any():
            raise ValueError(f"{self.file}: two rows of {frame.loc[twice, list(self.key)].to_dict('records')[0]}")
        return frame

    def read(self, path: Path) -> DataFrame:
        """Read the file; ``ValueError`` for a wrong column, a value of the wrong type or a duplicate row."""
        return read_csv(path, self.kinds, self.key)

    def read_rows(self, path: Path) -> list[dict[str, Any]]:
        """Read the file as :meth:`read` does, row by row."""
        return records(self.read(path))


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
    """What statistics and sections are made of: a study's results, its runs, and the statistics made so far."""

    def __init__(self, study: StudyResults, runs: Path = paths.RUNS, study_dir: Path | None = None) -> None:
        self.study = study
        self.plan = study.plan
        self.runs = runs
        self.study_dir = study_dir or paths.study_dir(study.plan.name)
        self._frames: dict[str, DataFrame] = {}

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """The record behind the numbers, ``manifest.json``."""
        manifest: dict[str, Any] = read_json(self.study_dir / "manifest.json")
        return manifest

    def frame(self, statistic: Statistic) -> DataFrame:
        """Return a statistic, which is computed once."""
        if statistic.file not in self._frames:
            self._frames[statistic.file] = statistic.frame(statistic.rows(self))
        return self._frames[statistic.file]

    def rows(self, statistic: Statistic) -> list[dict[str, Any]]:
        """Return the rows of a statistic, computed once."""
        return records(self.frame(statistic))

    def placed(self, statistic: Statistic, table: str) -> list[Placed]:
        """Return the rows of a statistic on a table, in its order, each with its group."""
        groups = {group.place: group for group in self.study.groups[table]}
        metrics = self.study.layout.metrics
        of_table = [row for row in self.rows(statistic) if row["table"] == table]
        return [Placed(groups[tuple(row[name] for name in GROUP_COLUMNS)], row, metrics) for row in of_table]

    def write(self, statistic: Statistic) -> None:
        """Write the file of a statistic, atomically and in full precision."""
        write_csv(self.frame(statistic), self.study_dir / statistic.file)
