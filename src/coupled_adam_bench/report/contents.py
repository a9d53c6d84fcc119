"""What the page has: the sections without a file of their own, and all sections in the order of the catalogue."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import yaml
from markupsafe import Markup

from coupled_adam_bench.report.answers import answer_section
from coupled_adam_bench.report.blocks import Block, Column, Figures, Fold, Grid, Kind, Part, Terms, Text
from coupled_adam_bench.report.figures import FIGURES, figures_of
from coupled_adam_bench.report.frequency import frequency_section
from coupled_adam_bench.report.published import published_section
from coupled_adam_bench.report.setup_tables import SetupTable, setup_tables
from coupled_adam_bench.report.statistics import statistics_section
from coupled_adam_bench.report.table import build_tables
from coupled_adam_bench.report.variants import variant_section
from coupled_adam_bench.report.word_similarity import word_similarity_section
from coupled_adam_bench.statistics import paired_text, summary
from coupled_adam_bench.statistics.declared import Material, Section, Statistic
from coupled_adam_bench.statistics.scores import (
    CLAIMED,
    CONSISTENT,
    LOSS,
    NOT_JUDGED,
    NOT_REPRODUCED,
    PARTLY,
    REPRODUCED,
    SEEN,
    scorecards,
    verdicts,
)
from coupled_adam_bench.statistics.stated_plan import is_exploratory
from coupled_adam_bench.store.stored import named
from coupled_adam_bench.study.catalog.contents import CONTENTS, STATISTICS, StatisticFile
from coupled_adam_bench.study.catalog.metrics import METRICS
from coupled_adam_bench.study.plan import Plan
from coupled_adam_bench.tools.estimate.text import basis, memory_table, totals, training_table

TABLE_FILES = {
    "tex": "LaTeX", "tabular.tex": "LaTeX, rows alone", "html": "HTML", "md": "Markdown", "csv": "CSV",
}  # fmt: skip
"""What the page calls each format of ``TABLE_ENDINGS``."""
_TONES = {REPRODUCED: "good", PARTLY: "middle", NOT_REPRODUCED: "bad"}
VERDICT_TONES = (
    _TONES
    | {SEEN[word]: tone for word, tone in _TONES.items()}
    | dict.fromkeys((NOT_JUDGED, *CONSISTENT.values()), "open")
)


def _environments(cells: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Return every value of every item of the runs' environments."""
    values: dict[str, dict[str, None]] = {}
    for cell in cells:
        for name, value in cell["environment"].items():
            values.setdefault(name, {})[str(value)] = None
    return {name: list(texts) for name, texts in values.items()}


def _cell_of(heading: str, index: int, kind: Kind) -> Column[Sequence[str]]:
    return Column(heading, lambda row: row[index], kind)


def _as_printed(title: str, rows: Sequence[Sequence[str]]) -> Grid[Sequence[str]]:
    """Return a table of text, header first, whose columns but the first are numbers."""
    columns = [_cell_of(name, index, "number" if index else "text") for index, name in enumerate(rows[0])]
    return Grid(title, columns, rows[1:], caption=title)


def _cost(material: Material) -> Iterator[Block]:
    estimate = material.estimate
    says = Markup("{} <code>snakemake plan</code> says the same of any study before its first job.")
    yield Text(says.format(basis(estimate)))
    yield Terms(totals(estimate))
    machine = "GPU" if estimate.on_gpus else "process"
    memory = f"Memory of a {machine} by a count of its tensors, and what a training job asks for"
    training = _as_printed(
        "Training: estimated, and of ended runs the median", training_table(estimate, by_study=False)
    )
    yield Fold("By model", [training, _as_printed(memory, memory_table(estimate, by_study=False))])


def setup_grid(table: SetupTable, has_file: bool) -> Grid[Sequence[str]]:
    """Return a table of settings, with a link to its file in LaTeX if the study has that."""
    kind: Kind = "wrap" if table.is_text else "number"
    columns = [_cell_of(name, index, kind if index else "row") for index, name in enumerate(table.header)]
    latex = Markup(' (<a href="../tables/{}.tex">LaTeX</a>)').format(table.name)
    return Grid(table.title, columns, table.rows, caption=table.title + latex if has_file else table.title)


def _setup(material: Material) -> Iterator[Block]:
    yield Text("What the study sets, printed from its settings: the counterparts of the paper's Tables 5 and 6.")
    yield from (setup_grid(table, bool(material.study.tables)) for table in setup_tables(material.plan))


def study_files(plan: Plan) -> dict[str, str]:
    """Return study files that give this plan again, by name; their ``paths`` are left out."""
    files = {
        study.name: study.model_dump(mode="json", exclude={"paths"}, exclude_unset=True)
        for study in plan.studies.values()
    }
    if plan.name not in files:
        files = {plan.name: {"study": plan.name, "title": plan.title, "studies": list(files)}, **files}
    return {f"{name}.yaml": yaml.safe_dump(values, sort_keys=False, width=100) for name, values in files.items()}


def _titles(material: Material) -> dict[str, str]:
    return {name: table.title for name, table in material.study.tables.items()}


def _of(template: str, variables: Callable[[Material], dict[str, Any] | None]) -> Callable[[Material], Iterator[Block]]:
    """Return the blocks of a section that has a template of its own."""

    def blocks(material: Material) -> Iterator[Block]:
        if (found := variables(material)) is not None:
            yield Part(template, {"titles": _titles(material), "metrics": METRICS, "plan": material.plan} | found)

    return blocks


def _if(name: str, section: Any, **others: Any) -> dict[str, Any] | None:
    return {name: section, **others} if section else None


def _verdict(material: Material) -> dict[str, Any]:
    judged = verdicts(material.study, scorecards(material.study))
    claimed = [METRICS[name] for name in CLAIMED]
    return {"verdicts": judged, "claimed": claimed, "loss": METRICS[LOSS], "verdict_tones": VERDICT_TONES}


def _answers(material: Material) -> dict[str, Any] | None:
    judged = verdicts(material.study, scorecards(material.study))
    found = answer_section(material, judged)
    return _if("answers", found, stated=material.plan.stated)


def _tables(material: Material) -> Iterator[Block]:
    yield Part("tables.html.j2", {"tables": build_tables(material.study), "table_files": TABLE_FILES})
    if cards := scorecards(material.study):
        yield Part("scores.html.j2", {"cards": cards})


def _figures(material: Material) -> Iterator[Block]:
    yield Figures([name for name in figures_of(material.plan) if not FIGURES[name].section])


def _statistics(material: Material) -> dict[str, Any]:
    paired, summaries = material.frame(paired_text.STATISTIC), material.frame(summary.STATISTIC)
    section = statistics_section(material.study, paired, summaries)
    return {"statistics": section, "is_exploratory": is_exploratory(material)}


def _protocol(material: Material) -> dict[str, Any]:
    return {"manifest": material.manifest, "environments": _environments(material.manifest["cells"])}


_SECTIONS = {
    section.id: section
    for section in (
        Section("verdict", "Did it reproduce?", _of("verdict.html.j2", _verdict)),
        Section("answers", "In short", _of("answers.html.j2", _answers)),
        Section("tables", "Tables", _tables),
        Section("figures", "Figures", _figures),
        Section(
            "frequency",
            "Rare tokens and long rows",
            _of("frequency.html.j2", lambda material: _if("frequency", frequency_section(material.study))),
            "Rare tokens",
        ),
        Section(
            "variants",
            "Other ways to isotropy",
            _of("variants.html.j2", lambda material: _if("variants", variant_section(material.study))),
            "Other ways",
        ),
        Section(
            "word-similarity",
            "Word similarity",
            _of("word_similarity.html.j2", lambda m: _if("word_similarity", word_similarity_section(m.study))),
        ),
        Section("theory", "Theory", lambda material: named("tools.theory.section:theory")(material)),
        Section("statistics", "Statistics", _of("statistics.html.j2", _statistics)),
        Section(
            "published",
            "Beside the paper",
            _of("published.html.j2", lambda m: _if("published", published_section(m.study))),
        ),
        Section("setup", "Models and training", _setup),
        Section("cost", "What it takes", _cost),
        Section("runs", "Runs", _of("runs.html.j2", lambda m: {"manifest": m.manifest})),
        Section("protocol", "Protocol and environment", _of("protocol.html.j2", _protocol), "Protocol"),
        Section("cite", "Paste and cite", _of("cite.html.j2", lambda m: {"tables": build_tables(m.study)})),
        Section(
            "reproduce",
            "This page again",
            _of("reproduce.html.j2", lambda m: {"manifest": m.manifest, "study_files": study_files(m.plan)}),
        ),
    )
}


def declared(listed: StatisticFile) -> Statistic:
    """Return the statistic that the catalogue lists; ``ValueError`` if it declares another file."""
    statistic: Statistic = named(listed.declaration)
    if statistic.file != listed.file:
        raise ValueError(f"{listed.declaration} declares {statistic.file}, the catalogue lists it for {listed.file}")
    return statistic


def statistics_of(plan: Plan) -> tuple[Statistic, ...]:
    """Return the statistics that a study has."""
    return tuple(declared(listed) for listed in STATISTICS if listed.is_of(plan))


def sections() -> tuple[Section, ...]:
    """Return the sections of the page in its order."""
    found = [_SECTIONS[each] if isinstance(each, str) else declared(each).section for each in CONTENTS]
    return tuple(section for section in found if section is not None)
