"""Statistics that a study brings: its own classes, each a CSV file with a section of the
report."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import ClassVar

from coupled_adam_bench.page.blocks import Block
from coupled_adam_bench.statistics.declared import Material, Row, Section, Statistic
from coupled_adam_bench.study.plan import Plan
from coupled_adam_bench.study.plan.plug_ins import PlanContract


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
        plug_in = StatisticPlugIn.made_for(plan, f"statistics.files.{index}", entry)
        found.append(declared_as(entry.name, plug_in))
    return found


def declared_as(name: str, plug_in: StatisticPlugIn) -> Statistic:
    """Return the statistic of a plug-in under the name that a study gives it."""

    def blocks(material: Material) -> Iterable[Block]:
        return plug_in.blocks(material, statistic)

    section = Section(f"plug-in-{name}", plug_in.title, blocks)
    statistic = Statistic(f"{name}.csv", plug_in.columns, plug_in.key, plug_in.rows, section)
    return statistic
