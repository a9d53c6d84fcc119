# src/coupled_adam_bench/statistics/ranges.py
"""How far the losses of an optimizer's runs lie apart: ``ranges.csv``."""

from collections.abc import Iterator
from typing import Any

from coupled_adam_bench.page.blocks import Block, Column, Grid, Heading, Text, label_in
from coupled_adam_bench.page.formats import fixed
from coupled_adam_bench.results.groups import GROUP_COLUMNS, PLACE
from coupled_adam_bench.statistics.declared import Material, Row, Section, Statistic


def _rows(material: Material) -> Iterator[dict[str, Any]]:
    for groups in material.study.layout.groups.values():
        for group in groups:
            for key, fact in material.study.at(group, "loss").items():
                losses = fact.by_seed.values()
                yield group.columns | {"optimizer": key, "range": max(losses) - min(losses)}


_COLUMNS: tuple[Column[Row], ...] = (
    Column("Optimizer", label_in("optimizer"), "row"),
    Column("range of L", lambda row: fixed(row["range"], 3), "number"),
)


def _blocks(material: Material) -> Iterator[Block]:
    yield Text("The range is the largest loss of an optimizer's runs minus the smallest.")
    for table, rows in material.by_table(STATISTIC):
        yield Heading(table.title)
        yield Grid(f"Ranges, {table.title}", _COLUMNS, rows)


STATISTIC = Statistic(
    file="ranges.csv",
    columns=PLACE | {"optimizer": str, "range": float},
    key=(*GROUP_COLUMNS, "optimizer"),
    rows=_rows,
    section=Section("ranges", "Ranges", _blocks),
)
