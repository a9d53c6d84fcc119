"""What the report has, in its order: sections, and statistics with the section that shows them."""

from collections.abc import Callable, Iterator
from typing import Any

import yaml

from coupled_adam_bench.report.answers import answer_section
from coupled_adam_bench.report.blocks import Block, Figures, Part
from coupled_adam_bench.report.figures import FIGURES, figures_in, figures_of
from coupled_adam_bench.report.frequency import frequency_section
from coupled_adam_bench.report.published import published_section
from coupled_adam_bench.report.setup_tables import setup_tables
from coupled_adam_bench.report.stated import stated_section
from coupled_adam_bench.report.statistics import statistics_section
from coupled_adam_bench.report.table import build_tables
from coupled_adam_bench.report.tuning import tuning_section
from coupled_adam_bench.report.variants import variant_section
from coupled_adam_bench.report.word_similarity import word_similarity_section
from coupled_adam_bench.results.tuning import read_tuning
from coupled_adam_bench.statistics import crossings, noise, paired_text, power, seeds, summary, target, trend
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
from coupled_adam_bench.store import paths
from coupled_adam_bench.store.stored import named
from coupled_adam_bench.study.catalog.metrics import METRICS
from coupled_adam_bench.study.plan import Plan
from coupled_adam_bench.tools.estimate.study import Estimate
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


def estimate_tables(estimate: Estimate) -> dict[str, Any]:
    """Return what ``plan`` says as tables of text, header first, and sentences."""
    return {
        "training": training_table(estimate, by_study=False),
        "memory": memory_table(estimate, by_study=False),
        "totals": totals(estimate),
        "basis": basis(estimate),
        "machine": "GPU" if estimate.on_gpus else "process",
    }


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


def _tuning(material: Material) -> Iterator[Block]:
    if material.plan.tunings:
        tried = read_tuning(material.study_dir / paths.TUNING_CSV)
        yield Part("tuning.html.j2", {"tuning": tuning_section(material.plan, tried)})
        yield Figures(figures_in("tuning"))


def _statistics(material: Material) -> dict[str, Any]:
    study, folder = material.study, material.study_dir
    section = statistics_section(study, material.frame(paired_text.STATISTIC), material.frame(summary.STATISTIC))
    return {"statistics": section, "stated": stated_section(study, folder)}


def _protocol(material: Material) -> dict[str, Any]:
    return {"manifest": material.manifest, "environments": _environments(material.manifest["cells"])}


CONTENTS: tuple[Section | Statistic, ...] = (
    Section("verdict", "Did it reproduce?", _of("verdict.html.j2", _verdict)),
    Section("answers", "In short", _of("answers.html.j2", _answers)),
    Section(
        "stated",
        "Stated in advance",
        _of("stated.html.j2", lambda material: _if("stated", stated_section(material.study, material.study_dir))),
    ),
    Section("tables", "Tables", _tables),
    Section("figures", "Figures", _figures),
    Section("tuning", "Tuning", _tuning),
    crossings.STATISTIC,
    trend.STATISTIC,
    target.STATISTIC,
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
        _of(
            "word_similarity.html.j2", lambda material: _if("word_similarity", word_similarity_section(material.study))
        ),
    ),
    noise.STATISTIC,
    seeds.STATISTIC,
    Section("theory", "Theory", lambda material: named("tools.theory.section:theory")(material)),
    paired_text.STATISTIC,
    summary.STATISTIC,
    Section("statistics", "Statistics", _of("statistics.html.j2", _statistics)),
    power.STATISTIC,
    Section(
        "published",
        "Beside the paper",
        _of("published.html.j2", lambda m: _if("published", published_section(m.study))),
    ),
    Section(
        "setup",
        "Models and training",
        _of("setup.html.j2", lambda m: {"setup": setup_tables(m.plan), "tables": m.study.tables}),
    ),
    Section("cost", "What it takes", _of("cost.html.j2", lambda m: {"cost": estimate_tables(m.estimate)})),
    Section("runs", "Runs", _of("runs.html.j2", lambda m: {"manifest": m.manifest})),
    Section("protocol", "Protocol and environment", _of("protocol.html.j2", _protocol), "Protocol"),
    Section("cite", "Paste and cite", _of("cite.html.j2", lambda m: {"tables": build_tables(m.study)})),
    Section(
        "reproduce",
        "This page again",
        _of("reproduce.html.j2", lambda m: {"manifest": m.manifest, "study_files": study_files(m.plan)}),
    ),
)
STATISTICS = tuple(each for each in CONTENTS if isinstance(each, Statistic))
SECTIONS = tuple(
    section for each in CONTENTS if (section := each.section if isinstance(each, Statistic) else each) is not None
)


def undeclared(plan: Plan) -> list[str]:
    """Return the files of statistics that are not declared yet."""
    return [*["stated.csv"][: plan.stated is not None], *["tuning.csv"][: bool(plan.tunings)]]
