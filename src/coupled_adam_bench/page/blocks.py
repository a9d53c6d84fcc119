"""What a section of the report is made of: text, lists, folds, figures, and tables of declared
columns.

Plain text is escaped where it is printed; :class:`markupsafe.Markup` is HTML already, and escapes
what is formatted in.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import itemgetter
from typing import Any, Generic, Literal, TypeVar

from markupsafe import Markup

from coupled_adam_bench.page.formats import aligned, p_value, shorthand
from coupled_adam_bench.results.facts import ALPHA
from coupled_adam_bench.results.groups import GROUP, Group, longest_groups
from coupled_adam_bench.results.sample import Sample
from coupled_adam_bench.study.catalogue.metrics import Metric

R = TypeVar("R")
Kind = Literal["text", "wrap", "number", "row", "rows"]
"""Text, long text, numbers, the name of a row, and the name of neighbouring rows that have it in
common."""


MOST_GROUPS = 24
"""The most places of a table that a section shows one by one."""


def groups_shown(groups: tuple[Group, ...]) -> tuple[Group, ...]:
    """Return the groups that a section shows one by one: of many, those at the most tokens of each
    size."""
    if len(groups) <= MOST_GROUPS:
        return groups
    return longest_groups(groups)[:MOST_GROUPS]


def groups_left_out(groups: tuple[Group, ...]) -> str:
    """Return what a section says of the groups that it does not show, or nothing."""
    n_left_out = len(groups) - len(groups_shown(groups))
    if not n_left_out:
        return ""
    return (
        f"Only the most tokens of each size are shown; results.csv has {n_left_out:,} places more."
    )


class Block:
    """What the template section.html.j2 shows, by its class."""

    @property
    def block(self) -> str:
        """The name by which the template knows it."""
        return type(self).__name__.lower()


@dataclass(frozen=True)
class Cell:
    """A text in a table; ``padding`` characters behind it align its column, ``tone`` is a class of
    style.css."""

    text: str
    tone: str = ""
    title: str = ""
    padding: int = 0
    span: int = 1


@dataclass(frozen=True)
class Column(Generic[R]):
    """A column of a table: its heading, and the function that gives a row's text."""

    heading: str
    text: Callable[[R], str | Cell]
    kind: Kind = "text"
    title: str = ""


MOST_ROWS = 200
"""The most lines of a table on a page; what is longer is for programs, which read its file."""


@dataclass(frozen=True)
class Grid(Block, Generic[R]):
    """A table with a line for each row; ``label`` is read aloud, a ``tall`` one scrolls, a
    ``dense`` one is tight."""

    label: str
    columns: Sequence[Column[R]]
    rows: Sequence[R]
    caption: str = ""
    tall: bool = False
    dense: bool = False

    @property
    def cut(self) -> str:
        """What the page says of a table that is longer than it shows, else nothing."""
        if len(self.rows) <= MOST_ROWS:
            return ""
        return f"The first {MOST_ROWS} of {len(self.rows):,} lines; the study's files have all."

    def bodies(self) -> list[list[list[tuple[Kind, Cell]]]]:
        """Return the lines of cells in parts, between which the table has a rule: by the names of
        several rows."""
        cells = []
        for row in self.rows[:MOST_ROWS]:
            cells.append([(column.kind, _cell(column.text(row))) for column in self.columns])
        names = [index for index, column in enumerate(self.columns) if column.kind == "rows"]

        def shared(line: list[tuple[Kind, Cell]]) -> list[str]:
            return [line[index][1].text for index in names]

        # The first line of a part has the names that all of its lines share.
        bodies = []
        for _, lines in groupby(cells, key=shared):
            first, *others = lines
            body = [list(first)]
            for index in names:
                kind, cell = first[index]
                body[0][index] = (kind, replace(cell, span=1 + len(others)))
            for line in others:
                body.append([cell for cell in line if cell[0] != "rows"])
            bodies.append(body)
        return bodies


def _cell(text: str | Cell) -> Cell:
    return text if isinstance(text, Cell) else Cell(text)


@dataclass(frozen=True)
class Text(Block):
    """A paragraph; a ``small`` one is a note."""

    text: str
    small: bool = False


@dataclass(frozen=True)
class Heading(Block):
    """A heading within a section."""

    text: str
    level: int = 3


@dataclass(frozen=True)
class Items(Block):
    """A list; a ``small`` one is of notes."""

    items: Sequence[str]
    small: bool = False


@dataclass(frozen=True)
class Terms(Block):
    """A list of names with what they stand for; a line without a name belongs to the one before."""

    terms: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Code(Block):
    """Text that is shown as it is."""

    text: str


@dataclass(frozen=True)
class Figures(Block):
    """Figures of the study by name; one that the study does not have is left out."""

    names: Iterable[str]


@dataclass(frozen=True)
class Part(Block):
    """What a separate template shows, given ``variables``."""

    template: str
    variables: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Fold(Block):
    """Blocks behind a line that opens them."""

    summary: str
    blocks: Sequence[Block]
    is_open: bool = False


@dataclass(frozen=True)
class Beside(Block):
    """Blocks side by side, as far as the page is wide."""

    blocks: Sequence[Block]


PLACE: tuple[tuple[str, Kind], ...] = ((Markup("<i>D</i>"), "text"), (Markup("<i>N</i>"), "text"))
P: tuple[str, Kind] = (Markup("<i>p</i>"), "number")
"""Heads of :func:`listed` columns: of a place, and of a p-value."""
PLACE_COLUMNS: tuple[Column[Any], ...] = (
    Column(PLACE[0][0], lambda row: row[GROUP].tokens_label),
    Column(PLACE[1][0], lambda row: row[GROUP].model_label),
)
"""The columns of a place, for rows of a statistic about groups."""


def p_cell(value: float) -> Cell:
    """Return a p-value as a cell, in a heavier type below the level."""
    return Cell(p_value(value), "win" if value < ALPHA else "")


MEANS_NOTE = (
    "Mean and sample standard deviation over seeds: 0.123 (4) means 0.123 ± 0.004. Where a value is"
    " missing (-), at least one seed has none: its run diverged, lacks an evaluation, or has an"
    " undefined metric."
)


def aligned_cells(rows: Sequence[Sequence[tuple[Sample, int]]]) -> list[list[Cell]]:
    """Return the cells of samples over seeds, each with its digits: means with standard deviations,
    aligned."""
    columns = []
    for column in zip(*rows, strict=True):
        columns.append(aligned([shorthand(sample, digits) for sample, digits in column]))
    cells = []
    for line in zip(*columns, strict=True):
        cells.append([Cell(str(number), padding=number.padding) for number in line])
    return cells


def label_in(column: str) -> Callable[[Mapping[str, Any]], str]:
    """Return what gives the label of the optimizer whose key a row has in a column."""
    return lambda row: str(row[GROUP].optimizer_labels[row[column]])


def symbol(metric: Metric) -> Markup:
    """Return the symbol of a metric."""
    return Markup(metric.html)


def symbols(metrics: Iterable[Metric], last: str = ", ") -> Markup:
    """Return the symbols of metrics, with ``last`` before the last one."""
    *others, end = map(symbol, metrics)
    return Markup(last).join([Markup(", ").join(others), end]) if others else end


def with_arrow(metric: Metric) -> Markup:
    """Return the symbol of a metric with an arrow to its better side."""
    return Markup('{}<span class="arrow" aria-hidden="true">{}</span>').format(
        symbol(metric), metric.arrow
    )


def metric_column(metric: Metric, text: Callable[[R], str | Cell], heading: str = "") -> Column[R]:
    """Return the column of a metric, which says what it is where the pointer rests."""
    return Column(heading or symbol(metric), text, "number", title=metric.description)


def listed(*heads: tuple[str, Kind] | Metric) -> list[Column[Any]]:
    """Return the columns of rows that are lists of texts: each head is a text with its kind, or a
    metric."""
    columns: list[Column[Any]] = []
    for index, head in enumerate(heads):
        if isinstance(head, Metric):
            columns.append(metric_column(head, itemgetter(index)))
        else:
            columns.append(Column(head[0], itemgetter(index), head[1]))
    return columns


def place_of(group: Group) -> Markup:
    """Return the number of tokens and the size of a group, as a title."""
    return Markup("<i>D</i> = {}, <i>N</i> = {}").format(group.tokens_label, group.model_label)
