"""The sections ``grid`` and ``tables`` of a study: products of models, tokens, optimizers and
seeds, and their tables.

A study's own tables need no code.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from coupled_adam_bench.study.catalogue.tables import (
    MIN_OPTIMIZERS,
    SETUP_TABLES,
    TABLES,
    ComparisonName,
    Table,
    comparing_any_number,
)
from coupled_adam_bench.study.settings.base import (
    FILE_PATTERN,
    NAME_LENGTH,
    Label,
    LaterSettings,
    Name,
    Seed,
    Settings,
    StepsOrCount,
    Term,
    duplicates,
)
from coupled_adam_bench.study.settings.errors import in_words
from coupled_adam_bench.study.settings.per_matrix import Optimizer, PerMatrixSettings
from coupled_adam_bench.study.settings.tune import Tune

TableName = Annotated[
    str,
    Field(
        pattern=FILE_PATTERN,
        max_length=NAME_LENGTH,
        description="Letters, digits, '_', '.' and '-'; becomes the name of a file.",
    ),
]


_LENGTH = r"[0-9]*[1-9][0-9]*(?:\.[0-9]+)?|0?\.0*[1-9][0-9]*"
TableWidth = Annotated[
    str,
    Field(
        pattern=in_words(
            rf"^(?:column|text|(?:{_LENGTH})(?:pt|mm|cm|in))$",
            "must be column, text, or a length above 0 with its unit behind it, pt, mm, cm or in,"
            " such as 5.5in",
        ),
        max_length=20,
        description="column, text, or a length of LaTeX in pt, mm, cm or in, such as 5.5in.",
    ),
]


class TableSettings(Settings):
    """A table of a study's own. One with the name of a table of the paper changes all but its
    comparison."""

    title: Label | None = None
    """The heading of the table in the report. A study's own table needs one."""
    comparison: ComparisonName | None = None
    """``pair``: exactly two optimizers, t-test; ``each_other``: each against all others, t-test;
    ``single_runs``: the better value is bold, without a test. A study's own table needs one."""
    columns: Annotated[tuple[Term, ...], Field(min_length=1)] | None = None
    """Metrics that the study measures, in this order. A study's own table needs them."""
    width: TableWidth | None = None
    """What the table fits into in LaTeX: ``column``, ``text`` (both columns; if not given), or a
    length such as ``5.5in``. Its type gets smaller until it fits."""
    caption: Literal["above", "below"] | None = None
    """Where the table has its caption in LaTeX: ``above`` for IEEE and ACM, ``below`` for ACL (if
    not given)."""


_NEEDED = ("title", "comparison", "columns")


def table_errors(
    own: Mapping[str, TableSettings], metrics: Collection[str], used: Collection[str]
) -> Iterator[str]:
    """Yield what is wrong with the tables that a study declares as ``field: message``.

    ``metrics`` are the names of what the study measures, ``used`` those of the tables that its
    blocks name.
    """
    for name, settings in own.items():
        place, paper = f"tables.{name}", TABLES.get(name)
        if name in SETUP_TABLES:
            yield (
                f"{place}: the table of the study's settings has this name; allowed is any other;"
                " rename it"
            )
        missing = [field for field in _NEEDED if getattr(settings, field) is None]
        if paper is None and missing:
            yield f"{place}.{missing[0]}: missing; a study's own table needs {', '.join(_NEEDED)}"
            # No table can be made without these fields, so the rest cannot be checked.
            continue
        if paper is not None and settings.comparison not in (None, paper.comparison):
            yield (
                f"{place}.comparison: {settings.comparison}, but {name} of the paper is"
                f" {paper.comparison}; give the table a name of its own"
            )
        # The paper's values fill what the study leaves out; the rest is about the table so made.
        table = _table(name, settings, metrics)
        if unknown := [column for column in table.columns if column not in metrics]:
            yield (
                f"{place}.columns: {', '.join(unknown)} is nothing that this study measures; "
                f"there are {', '.join(metrics)}"
            )
        if twice := duplicates(table.columns):
            yield f"{place}.columns: {', '.join(twice)} given more than once"
        if name not in used:
            yield (
                f"{place}: no block of the grid has `table: {name}`; give it to one, or leave this"
                " table out"
            )


def _table(name: str, settings: TableSettings, metrics: Collection[str]) -> Table:
    given = {field: value for field, value in settings if value is not None}
    if (paper := TABLES.get(name)) is not None:
        measured = tuple(column for column in paper.columns if column in metrics)
        return Table(**{**vars(paper), "columns": measured, **given})
    return Table(name, **given)


def all_tables(own: Mapping[str, TableSettings], metrics: Collection[str]) -> dict[str, Table]:
    """Return the tables of the paper and a study's own, in this order; ``own`` must have no
    problems.

    A table of the paper has those of its columns that are ``metrics`` of the study.
    """
    paper = {name: TableSettings() for name in TABLES}
    return {name: _table(name, settings, metrics) for name, settings in (paper | dict(own)).items()}


class GridBlock(LaterSettings):
    """A Cartesian product of cells, and the table that shows them."""

    later: ClassVar[tuple[str, ...]] = ("tune",)

    table: TableName | None = None
    """``table1``, ``table2``, ``table7``, or a table that the study declares under ``tables``."""
    models: tuple[Name, ...] = Field(min_length=1)
    tokens: tuple[StepsOrCount, ...] = Field(min_length=1)
    """Training tokens of the cells: counts such as ``20B``, which are rounded down to whole steps,
    or steps."""
    optimizers: tuple[Optimizer, ...] = Field(min_length=1)
    seeds: tuple[Seed, ...] = Field((1, 2, 3), min_length=1)
    """Random seeds, each a cell of its own [P]. A seed draws the initial weights and the order of
    the data."""
    tune: Tune | None = None
    """Grids from which the settings of the optimizers are chosen before the cells are trained; by
    default none."""

    @property
    def rows(self) -> list[Optimizer]:
        """The optimizers with the names that results and tables have for them."""
        if not self.tune:
            return list(self.optimizers)
        return [self.tune.row_of(optimizer) for optimizer in self.optimizers]

    def steps(self, batch_tokens: int) -> list[int]:
        """Return the number of steps for each entry of ``tokens``."""
        steps = []
        for value in self.tokens:
            steps.append(value // batch_tokens if isinstance(value, int) else value.steps)
        return steps

    @property
    def keys_of_own_heads(self) -> list[str]:
        """The keys of the rows that need a head with a matrix of its own."""
        return [row.key for row in self.rows if isinstance(row, PerMatrixSettings)]

    def errors(
        self, batch_tokens: int, models: Iterable[str], tables: Mapping[str, Table]
    ) -> Iterator[str]:
        """Yield what is wrong with this block as ``field: message``; ``batch_tokens`` is the size
        of one batch."""
        if unknown := sorted(set(self.models) - set(models)):
            yield (
                f"models: {', '.join(unknown)} is not among the study's models {', '.join(models)}"
            )
        for value in self.tokens:
            if isinstance(value, int) and value < batch_tokens:
                yield (
                    f"tokens: {value} is smaller than one batch of {batch_tokens} tokens "
                    "(training.batch_sequences x training.seq_len)"
                )
        # Lengths are compared in steps and optimizers by key, since entries that look different can
        # be the same.
        lengths = [f"{count} steps" for count in self.steps(batch_tokens)]
        keys = [row.key for row in self.rows]
        for field, values in (
            ("models", self.models),
            ("tokens", lengths),
            ("optimizers", keys),
            ("seeds", self.seeds),
        ):
            if twice := duplicates(values):
                yield f"{field}: {', '.join(twice)} given more than once"
        if self.table is not None:
            yield from self._table_errors(self.table, tables)

    def _table_errors(self, name: str, tables: Mapping[str, Table]) -> Iterator[str]:
        if name not in tables:
            yield (
                f"table: {name} is no table; there are {', '.join(tables)}, and others are declared"
                " under `tables`"
            )
            return
        table, n_optimizers = tables[name], len(self.optimizers)
        if table.rules.optimizers is not None and n_optimizers != table.rules.optimizers:
            yield (
                f"optimizers: {name} compares exactly {table.rules.optimizers}, not {n_optimizers};"
                f" more go into {comparing_any_number(tables.values())}"
            )
        elif n_optimizers < MIN_OPTIMIZERS:
            yield f"optimizers: {name} compares at least {MIN_OPTIMIZERS}, not {n_optimizers}"
        if len(self.seeds) < table.rules.min_seeds:
            yield (
                f"seeds: {name} rests on a t-test and needs at least {table.rules.min_seeds} seeds"
            )
