"""The reporting of a study in one go: results, statistics, tables, figures, the record behind them,
and the page.

All of it is made in a folder beside, and moved to its place at the end. So a report that fails
leaves the last one.
"""

import base64
import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from markupsafe import Markup

from coupled_adam_bench.machine.progress import say
from coupled_adam_bench.report.contents import sections, statistics_of
from coupled_adam_bench.report.figures import FIGURE_ENDINGS as FIGURE_ENDINGS
from coupled_adam_bench.report.figures import figures_of
from coupled_adam_bench.report.figures.write import write_figures
from coupled_adam_bench.report.manifest import made_before, manifest_of, write_manifest
from coupled_adam_bench.report.render import html_environment, write_tables
from coupled_adam_bench.results.collect import collect, read_results
from coupled_adam_bench.results.groups import layout_of
from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.results.tidy import write_csv
from coupled_adam_bench.statistics.compare import STATISTIC as TESTS
from coupled_adam_bench.statistics.decisions import decide
from coupled_adam_bench.statistics.declared import Material
from coupled_adam_bench.statistics.plug_ins import own_statistics
from coupled_adam_bench.store import paths
from coupled_adam_bench.store.files import atomic_path, move_aside, remove, sha256_file, write_text
from coupled_adam_bench.store.locks import folder_lock
from coupled_adam_bench.study.plan import Plan

Only = Literal["tables", "figures"]
"""A part of the reporting that can be asked for alone."""


@dataclass(frozen=True)
class Places:
    """The folders that reporting reads and writes: the templates, the study, and the runs."""

    templates: Path
    study_dir: Path
    runs: Path = paths.RUNS
    results: Path | None = None
    """The file of results that were collected before, for a reader who has no runs."""
    out: Path | None = None
    """The folder in which files are made, by default that of the study."""


def material_of(plan: Plan, places: Places, partial: bool = False) -> Material:
    """Collect the results of a study and compare them; write ``results.csv``.

    What is not evaluated yet is NaN if ``partial``, and ``ValueError`` otherwise.
    """
    results = (
        collect(plan, places.runs, partial)
        if places.results is None
        else read_results(places.results)
    )
    write_csv(results, (places.out or places.study_dir) / "results.csv")
    layout = layout_of(plan)
    study = decide(StudyResults(layout, results))
    return Material(study, places.runs, places.study_dir, places.out)


_EMBEDDED_BYTES = 1_000_000
"""The most bytes of figures that a page has within; those of a small study can be sent as one
file, and a page of many runs stays one that a browser opens at once."""


def _figure_sources(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Return where a page finds the figures: within, as data URIs, or beside it where they are too
    many bytes.

    A data URI also keeps the ids of an SVG file from colliding with those of the others.
    """
    sources, embedded = {}, 0
    for name in names:
        path = folder / f"{name}.svg"
        if not path.is_file():
            raise ValueError(f"{path}: missing; draw the figures first")
        size = path.stat().st_size * 4 // 3  # in base64
        if embedded + size > _EMBEDDED_BYTES:
            sources[name] = f"../{folder.name}/{name}.svg"
            continue
        embedded += size
        encoded = base64.b64encode(path.read_bytes()).decode()
        sources[name] = "data:image/svg+xml;base64," + encoded
    return sources


def write_page(
    out: Path, templates_dir: Path, template: str, figures: Mapping[str, Any], **variables: Any
) -> None:
    """Write a page from one of the templates that extend page.html.j2.

    ``figures`` are source and caption by name; ``variables`` has the ``sections``, each with its
    blocks.
    """
    environment = html_environment(templates_dir)
    environment.globals["figures"] = figures
    environment.globals["render"] = lambda template, values: Markup(
        environment.get_template(template).render(**values)
    )
    environment.globals["show"] = environment.get_template("section.html.j2").module.show  # type: ignore[attr-defined]
    script = (templates_dir / "html" / "page.js").read_text(encoding="utf-8")
    script_hash = "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = environment.get_template(template).stream(
        script=script, script_hash=script_hash, **variables
    )
    # Section by section, as a page of many runs is long.
    with atomic_path(out) as temporary:
        page.dump(str(temporary), encoding="utf-8")


def write_report(material: Material, templates_dir: Path) -> None:
    """Write ``report/index.html`` from the material of a study, whose figures are in its folder
    ``out``."""
    plan, folder = material.plan, material.out
    shown = [(section, list(section.blocks(material))) for section in sections(plan)]
    captions = figures_of(plan)
    sources = _figure_sources(folder / "figures", captions)
    figures = {name: (sources[name], text) for name, text in captions.items()}
    kinds = {study.data.source.kind for study in plan.studies.values()}
    # A section without blocks is one that this study does not have.
    having = [(section, blocks) for section, blocks in shown if blocks]
    write_page(
        folder / "report" / "index.html",
        templates_dir,
        "report.html.j2",
        figures,
        plan=plan,
        generated="synthetic" in kinds,
        manifest=material.manifest,
        statuses=Counter(cell["status"] for cell in material.manifest["cells"]),
        sections=having,
    )


_BESIDE = ".report"
"""The folder in that of the study in which a report is made."""


def move_in(made: Path, study_dir: Path, is_whole: bool) -> None:
    """Move the files of a report from where they were ``made`` to their places, the manifest last.

    A file there that somebody has edited is kept under another name. A ``whole`` report also takes
    away what belonged to the one before and not to this one.
    """
    before = made_before(study_dir)
    new = [path.relative_to(made).as_posix() for path in sorted(made.rglob("*")) if path.is_file()]
    obsolete = before.files.keys() - {*new} if is_whole else set()
    # Until the manifest is in its place, some files are not those that it has: a start then makes
    # the report anew.
    (study_dir / paths.REPORTED).unlink(missing_ok=True)
    for name in before.edited:
        place = study_dir / name
        is_as_made = name in new and sha256_file(made / name) == sha256_file(place)
        if (name in new or name in obsolete) and not is_as_made:
            say(f"{place}: edited since it was made; kept as {move_aside(place).name}")
    for name in sorted(new, key=lambda name: name == paths.MANIFEST):
        (study_dir / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).replace(study_dir / name)
    for name in obsolete:
        (study_dir / name).unlink(missing_ok=True)
    if is_whole:
        write_text(study_dir / paths.REPORTED, "")


def report(
    plan: Plan,
    places: Places,
    only: Only | None = None,
    partial: bool = False,
    made_for: str = "",
    endings: Collection[str] = FIGURE_ENDINGS,
) -> None:
    """Write everything that shows a study's results, or ``only`` its tables or its figures.

    ``made_for`` is a hash of what the results show, which the manifest notes. The figures are
    written with ``endings``. The files come to their places when all are made: before that, and
    after an error, the last ones are there.
    """
    folder = places.study_dir
    with folder_lock(
        folder, ".report.lock", f"{folder}: waits for the process that makes its report"
    ):
        made = folder / _BESIDE
        remove(made)  # of a process that was killed
        made.mkdir()
        try:
            _make(plan, replace(places, out=made), only, partial, made_for, endings)
            move_in(made, folder, is_whole=only is None)
        finally:
            remove(made)


def _make(
    plan: Plan,
    places: Places,
    only: Only | None,
    partial: bool,
    made_for: str,
    endings: Collection[str],
) -> None:
    material = material_of(plan, places, partial)
    every = [*statistics_of(plan), *own_statistics(plan)]
    for statistic in every if only != "tables" else [TESTS]:
        material.write(statistic)
    if only != "figures":
        write_tables(material.study, material.out / "tables", places.templates)
    if only != "tables":
        write_figures(material, material.out / "figures", endings)
    if only is None:
        material.manifest = manifest_of(plan, places.study_dir, places.runs.parent, made_for)
        write_report(material, places.templates)
        write_manifest(material.manifest, material.out)
