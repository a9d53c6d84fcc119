"""The page of a registry: a table of optimizers for each regime, and all bundles. It shows what it
has recomputed."""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml
from markupsafe import Markup

from coupled_adam_bench.page.blocks import (
    Block,
    Cell,
    Code,
    Column,
    Fold,
    Grid,
    Part,
    Text,
    metric_column,
    with_arrow,
)
from coupled_adam_bench.page.formats import MISSING, fixed, shorthand, with_interval
from coupled_adam_bench.report.contents import environments
from coupled_adam_bench.report.make import write_page
from coupled_adam_bench.statistics.preregistered import stated_in_advance
from coupled_adam_bench.study.catalogue.metrics import Metric
from coupled_adam_bench.study.plan.cells import readable_count
from coupled_adam_registry import form
from coupled_adam_registry.check import Checked, checked_bundles
from coupled_adam_registry.regimes import (
    BESIDE,
    DIGITS,
    LOSS,
    Line,
    Regime,
    flat,
    regimes_of,
)


def write_registry(registry: Path, out: Path, templates_dir: Path) -> list[str]:
    """Write the page of a registry with all bundles that follow from themselves, and return why
    others do not."""
    found = list(checked_bundles(registry))
    bundles = [bundle for bundle in found if not isinstance(bundle, str)]
    regimes, links = regimes_of(bundles), _links(bundles, os.path.relpath(registry, out.parent))
    sections = []
    # Each regime has a section of its own, and the last section has all bundles.
    for number, (title, regime) in enumerate(zip(_titles(regimes), regimes, strict=True), 1):
        section = {"id": f"regime-{number}", "title": title, "is_front": True}
        sections.append((section, _blocks(title, regime, links)))
    columns = [
        Column[Checked]("Bundle", lambda bundle: links[bundle.folder.name], "row"),
        *_COLUMNS,
    ]
    shown = [Part("registry_marks.html.j2"), Grid("Bundles", columns, bundles, dense=True)]
    sections.append(({"id": "bundles", "title": "Bundles", "is_front": True}, shown))
    n_cells = len({cell for bundle in bundles for cell in bundle.recorded.cells})
    write_page(
        out,
        templates_dir,
        "registry.html.j2",
        {},
        sections=sections,
        n_bundles=len(bundles),
        n_cells=n_cells,
        day=f"{datetime.now(UTC):%d %B %Y}".lstrip("0"),
    )
    return [reason for reason in found if isinstance(reason, str)]


def _links(bundles: Sequence[Checked], place: str) -> dict[str, Markup]:
    """Return by the name of each bundle the link to it, given the ``place`` of the registry beside
    the page."""
    link = Markup('<a href="{}/{}/{}" title="{}">[{}]</a>')
    links = {}
    for number, each in enumerate(bundles, 1):
        name, title = each.folder.name, f"{_title(each)}, by {each.bundle.submitter}"
        links[name] = link.format(place, name, form.BUNDLE, title, number)
    return links


def _title(bundle: Checked) -> str:
    """Return what people call the study of a bundle."""
    return bundle.recorded.plan.title or bundle.recorded.plan.name


def told_apart(names: Sequence[str], facts: Sequence[Mapping[str, str]]) -> list[str]:
    """Return names, those that occur several times with the facts in which they differ."""
    alike: dict[str, list[Mapping[str, str]]] = {}
    for name, known in zip(names, facts, strict=True):
        alike.setdefault(name, []).append(known)
    told = []
    for name, known in zip(names, facts, strict=True):
        others = alike[name]
        differing = []
        for key, value in known.items():
            if any(other.get(key) != value for other in others):
                differing.append(key)
        words = [f"{key.replace('_', ' ')} {known[key]}" for key in differing]
        told.append(", ".join([name, *words]))
    return told


def _titles(regimes: Sequence[Regime]) -> list[str]:
    """Return what people call each regime: the title of the study that has most of its lines."""
    names = [regime.studies.most_common(1)[0][0] for regime in regimes]
    # The id of the data and what is measured follow from the settings, and are no words.
    said = []
    for regime in regimes:
        shown = {name: regime.settings[name] for name in ("data", "training", "protocol")}
        said.append(flat(shown))
    return told_apart(names, said)


def _marks(line: Line, links: dict[str, Markup]) -> Markup:
    """Return the marks of a line: who ran its cells again, and all numbers that are others than
    those in the row."""
    shown = [(Markup("recomputed"), "good")]
    if line.source is not None and line.source.is_own:
        shown.append((Markup("of this project"), "good"))
    printed = None if line.source is None else line.printed(line.source)
    repeated = [] if line.source is None else line.witnesses[line.source.folder.name]
    for other in [*repeated, *(bundle for bundle in line.bundles if bundle not in repeated)]:
        link, found = links[other.folder.name], line.printed(other)
        is_same = found == printed
        if other in repeated:
            mark = Markup("run again by {} ({}){}").format(
                other.bundle.submitter, link, "" if is_same else f": {found}"
            )
            shown.append((mark, "good" if is_same else "middle"))
        elif not is_same:
            shown.append((Markup("{} in {}").format(found, link), "bad"))
    span = Markup('<span class="status {}">{}</span>')
    return Markup(", ").join(span.format(tone, text) for text, tone in shown)


def _machines(bundle: Checked) -> str:
    return ", ".join(environments(bundle.recorded.manifest["cells"]).get("device", ())) or MISSING


def _stated(bundle: Checked) -> str:
    stated = bundle.recorded.manifest["stated"]
    if stated is None:
        return MISSING
    found = stated_in_advance(stated["seen"], stated["sha256"])
    return f"by the submitter's word, {found.kept}: {found.finding}"


_COLUMNS: tuple[Column[Checked], ...] = (
    Column("Study", _title, "wrap"),
    Column("By", lambda bundle: bundle.bundle.submitter, "wrap"),
    Column("Notes", lambda bundle: bundle.bundle.notes, "wrap"),
    Column("Machines", _machines, "wrap"),
    Column("cells", lambda bundle: str(len(bundle.recorded.cells)), "number"),
    Column("Plan stated in advance", _stated, "wrap"),
)


def _blocks(title: str, regime: Regime, links: dict[str, Markup]) -> list[Block]:
    """Return what the page shows of a regime."""
    settings, placed = regime.settings, regime.lines
    shown = [(line.place[:2], line.label) for line in placed]
    facts = [line.facts | {"seeds": ", ".join(map(str, line.cells))} for line in placed]
    labels = dict(zip(map(id, placed), _told_labels(shown, facts), strict=True))
    beside = [metric_column(metric, _mean(metric), with_arrow(metric)) for metric in BESIDE]
    # The marks stand before what a narrow window has to scroll to.
    columns: list[Column[Line]] = [
        Column(Markup("<i>D</i>"), lambda line: readable_count(line.place[0]), "rows"),
        Column(Markup("<i>N</i>"), lambda line: readable_count(line.place[1]), "rows"),
        Column("Optimizer", lambda line: Cell(labels[id(line)], "wrap", line.optimizer), "row"),
        Column(
            "Rank",
            lambda line: line.rank,
            "number",
            title="by the loss: all ranks that the intervals allow",
        ),
        metric_column(LOSS, _loss, with_arrow(LOSS)),
        Column("Marks", lambda line: _marks(line, links), "wrap"),
        Column(
            "Speedup",
            lambda line: line.speedup,
            "wrap",
            title="tokens that the strongest Adam of the same D needs for the same loss, over D",
        ),
        *beside,
        Column("seeds", lambda line: str(len(line.cells)), "number"),
        Column(
            "Bundles",
            lambda line: Markup(", ").join(links[bundle.folder.name] for bundle in line.bundles),
        ),
    ]
    batch = settings["training"]["batch_sequences"] * settings["training"]["seq_len"]
    studies = dict.fromkeys(title for line in placed for title in line.studies)
    text = (
        f"Text {settings['data']['name']}, {batch:,} tokens a batch, protocol"
        f" {settings['protocol']}."
    )
    if len(studies) > 1:
        text += f" Studies: {'; '.join(studies)}."
    code = Code(yaml.safe_dump(settings, sort_keys=False, width=100))
    return [
        Text(text),
        Grid(f"Optimizers, {title}", columns, placed, dense=True),
        Fold("Data, recipe and protocol", [code]),
    ]


def _told_labels(
    shown: Sequence[tuple[tuple[int, int], str]], facts: Sequence[dict[str, str]]
) -> list[str]:
    """Return the labels of lines, which are told apart where they have the same place, too."""
    labels = [""] * len(shown)
    places: dict[Any, list[int]] = {}
    for index, (place, _) in enumerate(shown):
        places.setdefault(place, []).append(index)
    for here in places.values():
        names = [shown[index][1] for index in here]
        told = told_apart(names, [facts[index] for index in here])
        for index, label in zip(here, told, strict=True):
            labels[index] = label
    return labels


def _loss(line: Line) -> str:
    mean, low, high = line.loss
    return (
        with_interval(mean, low, high, DIGITS[LOSS])
        if math.isfinite(low)
        else fixed(mean, DIGITS[LOSS])
    )


def _mean(metric: Metric) -> Callable[[Line], str]:
    return lambda line: str(shorthand(line.sample(metric, line.source), metric.digits))
