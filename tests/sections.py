"""What declared sections show, for tests: their tables as lists of texts."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from coupled_adam_bench.report.blocks import Beside, Block, Cell, Fold, Grid
from coupled_adam_bench.report.contents import STATISTICS
from coupled_adam_bench.report.page import write_report
from coupled_adam_bench.results.study_results import load_results
from coupled_adam_bench.statistics.declared import Material, Section, Statistic
from coupled_adam_bench.study.plan import Plan


def grids(blocks: Iterable[Block]) -> Iterator[Grid[Any]]:
    """Yield the tables among blocks, also the folded ones."""
    for block in blocks:
        if isinstance(block, Grid):
            yield block
        elif isinstance(block, Fold | Beside):
            yield from grids(block.blocks)


def lines(grid: Grid[Any]) -> list[list[str]]:
    """Return the texts of a table, line by line, without its headings."""
    texts = ([column.text(row) for column in grid.columns] for row in grid.rows)
    return [[text.text if isinstance(text, Cell) else text for text in line] for line in texts]


def tables_of(shown: Section | Statistic, material: Material) -> list[list[list[str]]]:
    """Return the tables of a section."""
    section = shown.section if isinstance(shown, Statistic) else shown
    assert section is not None
    return [lines(grid) for grid in grids(section.blocks(material))]


def write_page(plan: Plan, folder: Path, templates: Path, runs: Path) -> None:
    """Write the declared statistics of a study whose results and tests are in ``folder``, and the report."""
    material = Material(load_results(plan, folder / "results.csv", folder / "tests.csv"), runs, folder)
    for statistic in STATISTICS:
        material.write(statistic)
    write_report(material, templates)
