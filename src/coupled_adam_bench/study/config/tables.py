"""The tables of a study: those of the paper, and a study's own, which need no code."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Annotated

from pydantic import Field

from coupled_adam_bench.study.catalog.tables import COMPARISONS, SETUP_TABLES, TABLES, ComparisonName, Table
from coupled_adam_bench.study.config.base import NAME_LENGTH, Label, Settings, Term, duplicates

TableName = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._\-]*$",
        max_length=NAME_LENGTH,
        description="Letters, digits, '_', '.' and '-'; becomes the name of a file.",
    ),
]


_LENGTH = r"[0-9]*[1-9][0-9]*(?:\.[0-9]+)?|0?\.0*[1-9][0-9]*"
TableWidth = Annotated[
    str,
    Field(
        pattern=rf"^(?:column|text|(?:{_LENGTH})(?:pt|mm|cm|in))$",
        max_length=20,
        description="column, text, or a length of LaTeX in pt, mm, cm or in, such as 5.5in.",
    ),
]


class TableSettings(Settings):
    """A table of a study's own. One with the name of a table of the paper changes all but its comparison."""

    title: Label | None = None
    """The heading of the table in the report. A study's own table needs one."""
    comparison: ComparisonName | None = None
    """``pair``: exactly two optimizers, t-test; ``each_other``: each against all others, t-test; ``single_runs``: the
    better value is bold, without a test. A study's own table needs one."""
    columns: Annotated[tuple[Term, ...], Field(min_length=1)] | None = None
    """Metrics that the study measures, in this order. A study's own table needs them."""
    min_seeds: int | None = Field(None, ge=1, le=10**4)
    """The fewest seeds that a block of the table may have; 2 with a t-test and 1 without, if not given."""
    width: TableWidth | None = None
    """What the table fits into in LaTeX: ``column``, ``text`` (both columns; if not given), or a length such as
    ``5.5in``. Its type gets smaller until it fits."""
    landscape: bool | None = None
    """Whether the table has a page of its own in LaTeX, turned on its side (package rotating)."""


_NEEDED = ("title", "comparison", "columns")


def problems(own: Mapping[str, TableSettings], metrics: Collection[str], used: Collection[str]) -> Iterator[str]:
    """Yield what is wrong with the tables that a study declares as ``field: message``.

    ``metrics`` are the names of what the study measures, ``used`` those of the tables that its blocks name.
    """
    folded = Counter(name.casefold() for name in {*TABLES, *own})
    for name, settings in own.items():
        place, paper = f"tables.{name}", TABLES.get(name)
        if folded[name.casefold()] > 1:
            other = next(each for each in (*TABLES, *own) if each != name and each.casefold() == name.casefold())
            yield f"{place}: {other} is a table too, and on some machines their files would be the same; rename it"
        if name.casefold() in SETUP_TABLES:
            yield f"{place}: the table of the study's settings has this name; allowed is any other; rename it"
        missing = [field for field in _NEEDED if getattr(settings, field) is None]
        if paper is None and missing:
            yield f"{place}.{missing[0]}: missing; a study's own table needs {', '.join(_NEEDED)}"
            continue
        if paper is not None and settings.comparison not in (None, paper.comparison):
            yield (
                f"{place}.comparison: {settings.comparison}, but {name} of the paper is {paper.comparison}; "
                "give the table a name of its own"
            )
        table = _table(name, settings)
        if unknown := [column for column in table.columns if column not in metrics]:
            yield (
                f"{place}.columns: {', '.join(unknown)} is nothing that this study measures; "
                f"there are {', '.join(metrics)}"
            )
        if twice := duplicates(table.columns):
            yield f"{place}.columns: {', '.join(twice)} given more than once"
        if table.min_seeds < table.rules.min_seeds:
            yield f"{place}.min_seeds: {table.min_seeds}, but a t-test needs {table.rules.min_seeds}"
        if name not in used:
            yield f"{place}: no block of the grid has `table: {name}`; give it to one, or leave this table out"
    yield from _equal_titles([table for table in all_tables(own).values() if table.name in used], own)


def _equal_titles(tables: list[Table], own: Mapping[str, TableSettings]) -> Iterator[str]:
    first: dict[str, str] = {}
    for table in tables:
        other = first.setdefault(" ".join(table.title.casefold().split()), table.name)
        if other != table.name:
            name = table.name if table.name in own else other
            yield f"tables.{name}.title: {table.title!r} is the title of both {other} and {table.name}; change it"


def _table(name: str, settings: TableSettings) -> Table:
    given = {field: value for field, value in settings if value is not None}
    if name in TABLES:
        return Table(**{**vars(TABLES[name]), **given})
    return Table(**{"name": name, "min_seeds": COMPARISONS[given["comparison"]].min_seeds, **given})


def all_tables(own: Mapping[str, TableSettings]) -> dict[str, Table]:
    """Return the tables of the paper and a study's own, in this order; ``own`` must have no problems."""
    complete = {name: _table(name, settings) for name, settings in own.items()}
    return TABLES | complete
