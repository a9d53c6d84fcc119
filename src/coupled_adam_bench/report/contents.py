"""What the page has: the sections that have no file, and all sections in the order of the
catalogue."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from markupsafe import Markup

from coupled_adam_bench.page.blocks import (
    MOST_ROWS,
    Block,
    Figures,
    Fold,
    Grid,
    Kind,
    Part,
    Terms,
    Text,
    listed,
    symbol,
)
from coupled_adam_bench.records.stored import named
from coupled_adam_bench.report import (
    corrections,
    frequency,
    outcomes,
    record,
    treatments,
)
from coupled_adam_bench.report.figures import FIGURES, figures_of
from coupled_adam_bench.report.setup_tables import SetupTable, setup_tables
from coupled_adam_bench.report.table import PrintedTable, build_tables
from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.statistics.decisions import ASKED
from coupled_adam_bench.statistics.declared import Material, Section, Statistic
from coupled_adam_bench.statistics.plug_ins import own_statistics
from coupled_adam_bench.study.catalogue.contents import (
    CONTENTS,
    STATISTICS,
    NamedSection,
    StatisticFile,
)
from coupled_adam_bench.study.plan import Plan

TABLE_FILES = {
    "tex": "LaTeX", "tabular.tex": "LaTeX, rows only", "html": "HTML", "md": "Markdown",
    "csv": "CSV",
}  # fmt: skip
"""What the page calls each format of ``TABLE_ENDINGS``."""


def setup_grid(table: SetupTable, has_file: bool) -> Grid[Any]:
    """Return a table of settings, with a link to its file in LaTeX if the study has that."""
    kind: Kind = "wrap" if table.is_text else "number"
    first, *others = table.header
    columns = listed((first, "row"), *((name, kind) for name in others))
    caption = table.title
    if has_file:
        caption += Markup(' (<a href="../tables/{}.tex">LaTeX</a>)').format(table.name)
    return Grid(table.title, columns, table.rows, caption=caption)


def _setup(material: Material) -> Iterator[Block]:
    yield Text(
        "What the study sets, printed from its settings: the counterparts of the paper's Tables 5"
        " and 6."
    )
    yield from (
        setup_grid(table, bool(material.study.layout.tables))
        for table in setup_tables(material.plan)
    )


_PLACE_TERMS = [
    (
        Markup("<i>D</i>"),
        "the number of training tokens that the study asks for; a run reads them in whole batches",
    ),
    (Markup("<i>N</i>"), "the number of the model's parameters"),
    (
        Markup("<i>p</i>"),
        "the probability of such a difference, or a larger one, without any effect",
    ),
    ("0.123 (4)", "the mean over seeds, and the standard deviation in units of its last digit"),
]


def _symbols(study: StudyResults) -> Fold:
    """Return what the symbols of all tables and of the section "In short" mean."""
    metrics = {metric.name: metric for metric in ASKED}
    for name in study.layout.tables:
        metrics |= {metric.name: metric for metric in study.layout.columns[name]}
    terms = list(_PLACE_TERMS)
    for metric in metrics.values():
        unit = "" if metric.unit == "1" else f", in {metric.unit}"
        terms.append((symbol(metric), f"{metric.description}{unit}; {metric.better} is better"))
    return Fold("What the symbols mean", [Terms(terms)])


def _cut(table: PrintedTable) -> PrintedTable:
    """Return a table as the page shows it: of a long one the first lines."""
    if len(table.rows) <= MOST_ROWS:
        return table
    note = f"The first {MOST_ROWS} of {len(table.rows):,} lines; the files below have all."
    return replace(table, rows=table.rows[:MOST_ROWS], notes=(*table.notes, note))


def _tables(material: Material) -> Iterator[Block]:
    tables = [_cut(table) for table in build_tables(material.study)]
    yield Part("tables.html.j2", {"tables": tables, "table_files": TABLE_FILES})
    yield _symbols(material.study)


def _overview(material: Material) -> Iterator[Block]:  # noqa: ARG001
    """Yield the one figure that every reader looks at."""
    yield Figures(["training"])


def _figures(material: Material) -> Iterator[Block]:
    elsewhere = {name for name, figure in FIGURES.items() if figure.section}
    yield Figures([name for name in figures_of(material.plan) if name not in elsewhere])


def _cite(material: Material) -> Iterator[Block]:
    tables = list(material.study.layout.tables)
    yield Part("cite.html.j2", {"tables": tables, "study": material.plan.name})


_SECTIONS = {
    section.id: section
    for section in (
        outcomes.SECTION,
        Section("tables", "Tables", _tables, is_front=True),
        Section("overview", "Loss and geometry", _overview, is_front=True),
        Section("figures", "More figures", _figures),
        frequency.SECTION,
        treatments.VARIANTS,
        treatments.WORD_SIMILARITY,
        corrections.SECTION,
        Section("setup", "Models and training", _setup),
        record.RUNS,
        record.PROTOCOL,
        Section("cite", "Paste and cite", _cite),
        record.REPRODUCE,
    )
}


def declared(listed: StatisticFile) -> Statistic:
    """Return the statistic that the catalogue lists; ``ValueError`` if it declares another file."""
    statistic: Statistic = named(listed.declaration)
    if statistic.file != listed.file:
        raise ValueError(
            f"{listed.declaration} declares {statistic.file}, the catalogue lists it for"
            f" {listed.file}"
        )
    return statistic


def statistics_of(plan: Plan) -> tuple[Statistic, ...]:
    """Return the statistics of the program that a study has, without those that it brings."""
    return tuple(declared(listed) for listed in STATISTICS if listed.is_of(plan))


def sections(plan: Plan) -> tuple[Section, ...]:
    """Return the sections of the page in its order."""
    found: list[Section | None] = []
    for each in CONTENTS:
        match each:
            case "plug-ins":
                found += [statistic.section for statistic in own_statistics(plan)]
            case str():
                found.append(_SECTIONS[each])
            case NamedSection():
                found.append(Section(each.id, each.title, named(each.blocks)))
            case StatisticFile():
                found.append(declared(each).section)
    return tuple(section for section in found if section is not None)
