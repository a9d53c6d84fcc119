"""Writes ``report/index.html``, a page that says whether the paper was reproduced and needs no other file."""

import base64
import hashlib
from collections import Counter
from pathlib import Path
from typing import Any

from coupled_adam_bench.report import formats
from coupled_adam_bench.report.answers import answer_section
from coupled_adam_bench.report.figures import FIGURES, figures_in, figures_of
from coupled_adam_bench.report.frequency import frequency_section
from coupled_adam_bench.report.noise import noise_section
from coupled_adam_bench.report.power import power_section
from coupled_adam_bench.report.published import published_section
from coupled_adam_bench.report.render import html_environment
from coupled_adam_bench.report.seeds import seeds_section
from coupled_adam_bench.report.setup_tables import setup_tables
from coupled_adam_bench.report.stated import stated_section
from coupled_adam_bench.report.statistics import statistics_section
from coupled_adam_bench.report.table import build_tables
from coupled_adam_bench.report.target import target_section
from coupled_adam_bench.report.trend import trend_section
from coupled_adam_bench.report.tuning import tuning_section
from coupled_adam_bench.report.variants import variant_section
from coupled_adam_bench.report.word_similarity import word_similarity_section
from coupled_adam_bench.results.comparisons import read_paired
from coupled_adam_bench.results.study_results import load_results
from coupled_adam_bench.results.tuning import read_tuning
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
from coupled_adam_bench.statistics.summary import read_summary
from coupled_adam_bench.store import paths
from coupled_adam_bench.store.files import read_json, write_text
from coupled_adam_bench.study.catalog.metrics import METRICS
from coupled_adam_bench.study.plan import Plan
from coupled_adam_bench.tools.estimate.study import Estimate, estimate_study
from coupled_adam_bench.tools.estimate.text import basis, memory_table, totals, training_table
from coupled_adam_bench.tools.theory.section import theory_section

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


def _figure(path: Path) -> str:
    """Return an SVG file as a data URI: its ids then cannot collide with those of the others on the page."""
    try:
        svg = path.read_bytes()
    except FileNotFoundError:
        raise ValueError(f"{path}: missing; draw the figures first") from None
    return "data:image/svg+xml;base64," + base64.b64encode(svg).decode()


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
    import yaml

    files = {
        study.name: study.model_dump(mode="json", exclude={"paths"}, exclude_unset=True)
        for study in plan.studies.values()
    }
    if plan.name not in files:
        files = {plan.name: {"study": plan.name, "title": plan.title, "studies": list(files)}, **files}
    return {f"{name}.yaml": yaml.safe_dump(values, sort_keys=False, width=100) for name, values in files.items()}


def write_report(plan: Plan, study_dir: Path, templates_dir: Path, runs: Path = paths.RUNS) -> None:
    """Write ``report/index.html`` from the other files of the study, which lie in ``study_dir``, and from ``runs``."""
    study = load_results(plan, study_dir / "results.csv", study_dir / "tests.csv")
    manifest = read_json(study_dir / "manifest.json")
    estimate = estimate_study(plan, runs.parent)
    cards = scorecards(study)
    judged = verdicts(study, cards)
    figures = {name: (_figure(study_dir / "figures" / f"{name}.svg"), text) for name, text in figures_of(plan).items()}
    environment = html_environment(templates_dir)
    environment.filters |= {
        "fixed": formats.fixed,
        "significant": formats.significant,
        "p_value": formats.p_value,
        "interval": lambda ends, digits=3: formats.interval(ends[0], ends[1], digits),
        "plural": formats.plural,
    }
    script = (templates_dir / "html" / "page.js").read_text(encoding="utf-8")
    page = environment.get_template("report.html.j2").render(
        plan=plan,
        generated=any(study.data.source.kind == "synthetic" for study in plan.studies.values()),
        statuses=Counter(cell["status"] for cell in manifest["cells"]),
        verdicts=judged,
        answers=answer_section(study, judged, study_dir / "power.csv", runs),
        cards=cards,
        tables=build_tables(study),
        titles={name: table.title for name, table in study.tables.items()},
        target=target_section(study, study_dir / "target.csv"),
        frequency=frequency_section(study),
        variants=variant_section(study),
        word_similarity=word_similarity_section(study),
        noise=noise_section(study, study_dir / "noise.csv"),
        seeds=seeds_section(study_dir / "seeds.csv"),
        figures={name: figure for name, figure in figures.items() if not FIGURES[name].section},
        tuning=tuning_section(plan, read_tuning(study_dir / paths.TUNING_CSV) if plan.tunings else None),
        tuning_figures={name: figure for name, figure in figures.items() if name in figures_in("tuning")},
        stated=stated_section(study, study_dir),
        trend=trend_section(study, study_dir),
        trend_figures={name: figure for name, figure in figures.items() if name in figures_in("trend")},
        theory=theory_section(study.layout, runs),
        theory_figures={name: figure for name, figure in figures.items() if name in figures_in("theory")},
        published=published_section(study),
        setup=setup_tables(plan),
        statistics=statistics_section(
            study, read_paired(study_dir / "paired.csv"), read_summary(study_dir / "summary.csv")
        ),
        claimed=[METRICS[name] for name in CLAIMED],
        loss=METRICS[LOSS],
        metrics=METRICS,
        manifest=manifest,
        cost=estimate_tables(estimate),
        power=power_section(study.layout, study_dir / "power.csv", estimate),
        environments=_environments(manifest["cells"]),
        verdict_tones=VERDICT_TONES,
        table_files=TABLE_FILES,
        study_files=study_files(plan),
        script=script,
        script_hash="sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )
    write_text(study_dir / "report" / "index.html", page)
