"""What the page has: the sections without a file of their own, and all sections in the order of the
catalogue."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import yaml
from markupsafe import Markup

from coupled_adam_bench.page.blocks import (
    MOST_ROWS,
    Block,
    Cell,
    Code,
    Column,
    Figures,
    Fold,
    Grid,
    Items,
    Kind,
    Part,
    Terms,
    Text,
    listed,
    symbol,
)
from coupled_adam_bench.page.formats import MISSING, fixed, plural
from coupled_adam_bench.records.stored import named
from coupled_adam_bench.report import (
    corrections,
    frequency,
    outcomes,
    treatments,
)
from coupled_adam_bench.report.figures import FIGURES, figures_of
from coupled_adam_bench.report.setup_tables import SetupTable, setup_tables
from coupled_adam_bench.report.table import PrintedTable, build_tables
from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.statistics.decisions import ASKED
from coupled_adam_bench.statistics.declared import Material, Section, Statistic
from coupled_adam_bench.statistics.plug_ins import own_statistics
from coupled_adam_bench.statistics.preregistered import in_advance, plan_checks
from coupled_adam_bench.study.catalogue.contents import (
    CONTENTS,
    STATISTICS,
    NamedSection,
    StatisticFile,
)
from coupled_adam_bench.study.plan import Plan

COMPLETED = "completed"
"""The status of a run that ended as planned."""
TABLE_FILES = {
    "tex": "LaTeX", "tabular.tex": "LaTeX, rows alone", "html": "HTML", "md": "Markdown",
    "csv": "CSV",
}  # fmt: skip
"""What the page calls each format of ``TABLE_ENDINGS``."""


def environments(cells: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Return every value of every item of the runs' environments."""
    values: dict[str, dict[str, None]] = {}
    for cell in cells:
        for name, value in cell["environment"].items():
            values.setdefault(name, {})[str(value)] = None
    return {name: list(texts) for name, texts in values.items()}


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


def study_files(plan: Plan) -> dict[str, str]:
    """Return study files that give this plan again, by name; their ``paths`` are left out."""
    files = {
        study.name: study.model_dump(mode="json", exclude={"paths"}, exclude_unset=True)
        for study in plan.studies.values()
    }
    if plan.name not in files:
        files = {
            plan.name: {"study": plan.name, "title": plan.title, "studies": list(files)},
            **files,
        }
    return {
        f"{name}.yaml": yaml.safe_dump(values, sort_keys=False, width=100)
        for name, values in files.items()
    }


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
        metrics |= {metric.name: metric for metric in study.layout.columns(name)}
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


def _status(status: str) -> Cell:
    tone = "good" if status == COMPLETED else "bad"
    return Cell(status, f"status {tone}")


def _steps(done: int | None, planned: int) -> str:
    return f"{MISSING if done is None else done} / {planned}"


_RUNS: tuple[Column[dict[str, Any]], ...] = (
    Column("Run", lambda run: Markup("<code>{}</code>").format(run["cell"]), "row"),
    Column(
        "Status",
        lambda run: _status(run["status"]),
    ),
    Column("steps", lambda run: _steps(run["step"], run["steps"]), "number"),
    Column("seconds", lambda run: fixed(run["train"].get("seconds") or math.nan, 1), "number"),
    Column(
        "tokens/s",
        lambda run: fixed(run["train"].get("tokens_per_second") or math.nan, 0),
        "number",
    ),
    Column("Reason", lambda run: run["reason"] or "", "wrap"),
)


def _runs(material: Material) -> Iterator[Block]:
    runs = material.manifest["cells"]
    lost = [run for run in runs if run["status"] != COMPLETED]
    yield Text("Not completed:" if lost else "All runs completed.")
    sentence = Markup('<span class="status bad">{}</span> <code>{}</code>: {}')
    yield Items([sentence.format(run["status"], run["cell"], run["reason"]) for run in lost])
    yield Fold(plural(len(runs), "run"), [Grid("Runs", _RUNS, runs, tall=True)])


_LEFT_OUT = {
    "n_empty_documents": "documents without text",
    "n_invalid_documents": "rows without valid text",
    "n_files_without_text": "files without text",
    "n_hidden_files": "hidden files and folders",
}


def _left_out(data: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield a term for each text of which something was not read, with the counts."""
    for one in data:
        source = one["meta"]["source"] if one["meta"] else {}
        counts = [
            f"{what}: {source[name]:,}" for name, what in _LEFT_OUT.items() if source.get(name)
        ]
        counts += [
            f"files {ending}: {number:,}"
            for ending, number in source.get("other_files", {}).items()
        ]
        if counts:
            yield f"left out of {one['id']}", ", ".join(counts)


def _protocol(material: Material) -> Iterator[Block]:
    manifest = material.manifest

    def named(versions: Mapping[str, Any]) -> str:
        return ", ".join(f"{name} {version}" for name, version in versions.items())

    terms = [
        ("protocol", manifest["protocol"]["name"]),
        ("versions", named(manifest["protocol"]["versions"])),
        ("data", "; ".join(data["id"] for data in manifest["data"])),
        *_left_out(manifest["data"]),
        ("source revision of this report", manifest["git_revision"] or "not in a git repository"),
    ]
    # What differs between runs has all of its values, so that a change on the way can be seen.
    for name, texts in environments(manifest["cells"]).items():
        terms.append((f"runs: {name}", "; ".join(texts)))
    terms.append(("packages of the report", named(manifest["packages"])))
    yield Text("Results are comparable only within a protocol and its versions.")
    yield Terms(terms)
    yield Text(
        Markup(
            "Settings, checksums of results, tables, figures and data, and the record of every run:"
            ' <a href="../manifest.json">manifest.json</a>.'
        )
    )


def _cite(material: Material) -> Iterator[Block]:
    yield Part("cite.html.j2", {"tables": list(material.study.layout.tables)})


def _stated(material: Material) -> str:
    """Return whether hypotheses were stated before the runs."""
    stated = material.plan.stated
    if stated is None:
        return "No plan was stated before the runs: every test of this report is exploratory."
    is_before = in_advance(plan_checks(material))
    return Markup('A plan was stated {}: <code>{}</code>, see <a href="#stated">{}</a>.').format(
        "before the first run" if is_before else "but is not shown to be older than the first run",
        stated.path,
        "Stated in advance",
    )


def _reproduce(material: Material) -> Iterator[Block]:
    cells = material.manifest["cells"]
    statuses = Counter(cell["status"] for cell in cells)
    completed = [cell["cell"] for cell in cells if cell["status"] == COMPLETED]
    values = {
        "revision": material.manifest["git_revision"],
        "name": material.plan.name,
        "statuses": statuses,
        "n_failed": len(cells) - len(completed),
        "cell": next(iter(completed), ""),
        "stated": _stated(material),
    }
    yield Part("reproduce.html.j2", values)
    yield from (Fold(name, [Code(text)]) for name, text in study_files(material.plan).items())


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
        Section("runs", "Runs", _runs),
        Section("protocol", "Protocol and environment", _protocol),
        Section("cite", "Paste and cite", _cite),
        Section("reproduce", "This page again", _reproduce),
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
