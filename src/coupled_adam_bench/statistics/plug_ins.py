"""Statistics that a study brings: its own classes, each a CSV file with a section of the
report."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import ClassVar

from coupled_adam_bench.page.blocks import Block
from coupled_adam_bench.results.groups import GROUP
from coupled_adam_bench.statistics.declared import Material, Row, Section, Statistic
from coupled_adam_bench.study.plan import Plan
from coupled_adam_bench.study.plan.plug_ins import PlanContract, failing


class StatisticPlugIn(PlanContract, ABC):
    """A statistic of a study's own; it is called with the arguments that the study gives."""

    title: ClassVar[str]
    """The title of its section."""
    columns: ClassVar[Mapping[str, type]]
    """The columns of its file, with the types of their values."""
    key: ClassVar[tuple[str, ...]]
    """The columns that tell a row from all others."""

    @abstractmethod
    def rows(self, material: Material) -> Iterable[Row]:
        """Yield the rows of the file."""

    @abstractmethod
    def blocks(self, material: Material, statistic: Statistic) -> Iterable[Block]:
        """Yield what the section shows, nothing for no section.

        ``material.rows(statistic)`` and ``material.by_table(statistic)`` have the rows.
        """


def own_statistics(plan: Plan) -> list[Statistic]:
    """Return the statistics that the study brings, in its order; ``ValueError`` names the field of
    one that breaks the contract."""
    found = []
    for index, entry in enumerate(plan.statistics.files):
        place = f"statistics.files.{index}"
        plug_in = StatisticPlugIn.made_for(plan, place, entry)
        if unknown := [name for name in plug_in.key if name not in plug_in.columns]:
            raise ValueError(
                f"{place}.path: `key` of {entry.path} names {unknown[0]!r}, which is not among its"
                f" `columns`: {', '.join(plug_in.columns)}"
            )
        found.append(declared_as(entry.name, plug_in, f"{place}.path: {{}} of {entry.path}"))
    return found


def declared_as(name: str, plug_in: StatisticPlugIn, said: str = "{}") -> Statistic:
    """Return the statistic of a plug-in under the name that a study gives it.

    What is ``said`` of a method that fails names the field.
    """

    def rows(material: Material) -> Iterable[Row]:
        with failing(f"{said.format('rows()')} fails"):
            given = [dict(row) for row in plug_in.rows(material)]
        for row in given:
            _check_row(row, plug_in, said.format("rows()"))
        return given

    def blocks(material: Material) -> Iterable[Block]:
        with failing(f"{said.format('blocks()')} fails"):
            given = list(plug_in.blocks(material, statistic))
        for block in given:
            if not isinstance(block, Block):
                raise ValueError(
                    f"{said.format('blocks()')} yields {type(block).__name__}, which is no block of"
                    " coupled_adam_bench.page.blocks; give text as `Text(...)`"
                )
        return given

    section = Section(f"plug-in-{name}", plug_in.title, blocks)
    statistic = Statistic(f"{name}.csv", plug_in.columns, plug_in.key, rows, section)
    return statistic


def _check_row(row: Row, plug_in: StatisticPlugIn, said: str) -> None:
    """Refuse a row with a column that is not declared, without one that it needs, or with a value
    of another type. Other numbers and texts that a row does not have are empty in the file."""
    unknown = row.keys() - {GROUP, *plug_in.columns}
    missing = [
        name
        for name, kind in plug_in.columns.items()
        if name not in row and (name in plug_in.key or kind not in (float, str))
    ]
    if unknown or missing:
        problem = f"lacks {missing[0]!r}" if missing else f"has {min(unknown)!r}, too"
        raise ValueError(
            f"{said} yields a row that {problem}; `columns` are {', '.join(plug_in.columns)}"
        )
    for name, kind in plug_in.columns.items():
        if row.get(name) is not None:
            with failing(f"{said} yields a row whose {name!r} is no {kind.__name__}"):
                kind(row[name])
