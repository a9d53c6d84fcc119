"""What declared sections show, for tests: their tables as lists of texts."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from markupsafe import Markup

from coupled_adam_bench.page.blocks import Beside, Block, Cell, Fold, Grid, Items, Text
from coupled_adam_bench.report.render import html_environment
from coupled_adam_bench.statistics.declared import Material, Section, Statistic

TEMPLATES = Path(__file__).parents[1] / "templates"


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


def texts_of(shown: Section | Statistic, material: Material) -> list[str]:
    """Return the paragraphs and items of a section, also the folded ones."""
    section = shown.section if isinstance(shown, Statistic) else shown
    assert section is not None
    return list(_texts(section.blocks(material)))


def _texts(blocks: Iterable[Block]) -> Iterator[str]:
    for block in blocks:
        if isinstance(block, Text):
            yield block.text
        elif isinstance(block, Items):
            yield from block.items
        elif isinstance(block, Fold | Beside):
            yield from _texts(block.blocks)


def html_of(shown: Section | Statistic, material: Material) -> str:
    """Return a section as the page has it, without figures."""
    section = shown.section if isinstance(shown, Statistic) else shown
    assert section is not None
    environment = html_environment(TEMPLATES)
    environment.globals["render"] = lambda template, values: Markup(
        environment.get_template(template).render(**values)
    )
    template = environment.from_string(
        '{% from "section.html.j2" import show with context %}{{ show(blocks) }}'
    )
    return template.render(blocks=list(section.blocks(material)), figures={})
