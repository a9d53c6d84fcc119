"""The page of a registry: a table of optimizers for each regime, and all bundles. It shows what it
has recomputed."""

import math
import os
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from itertools import groupby
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
from coupled_adam_bench.records.stored import settings_of
from coupled_adam_bench.report.contents import environments
from coupled_adam_bench.report.make import write_page
from coupled_adam_bench.results.sample import Sample, summarize
from coupled_adam_bench.statistics.preregistered import stated_in_advance
from coupled_adam_bench.statistics.speedup import Curve, needed_tokens, reference_of
from coupled_adam_bench.statistics.student import interval
from coupled_adam_bench.store.files import digest
from coupled_adam_bench.study.catalog.metrics import METRICS, RAREST, Metric
from coupled_adam_bench.study.catalog.stages import STAGES
from coupled_adam_bench.study.cells import readable_count
from coupled_adam_bench.tools.registry import form
from coupled_adam_bench.tools.registry.check import Checked, checked_bundles

_LOSS = METRICS["loss"]
_BESIDE = (METRICS["isotropy"], METRICS[RAREST.pooled_calibration])
"""The metrics that the page shows beside the loss."""
_DIGITS = {_LOSS: _LOSS.digits + 1} | {metric: metric.digits for metric in _BESIDE}


@dataclass
class _Line:
    """An optimizer in the table of a regime: its cells by their seeds, and the ``bundles`` that
    have these cells.

    ``witnesses`` are the bundles of others who trained the cells of one of these again. ``source``
    gives the numbers, None where none can, since the bundles disagree and no one of them was run
    again.
    """

    place: tuple[int, int, str]
    optimizer: str
    label: str
    is_tuned: bool
    facts: dict[str, str] = field(default_factory=dict)
    """What else sets it apart: the settings of its model."""
    studies: dict[str, None] = field(default_factory=dict)
    """The titles of the studies that have it."""
    cells: dict[int, str] = field(default_factory=dict)
    bundles: list[Checked] = field(default_factory=list)
    witnesses: dict[str, list[Checked]] = field(default_factory=dict)
    source: Checked | None = None
    rank: str = MISSING
    speedup: str | Cell = MISSING

    def by_seed(self, metric: Metric, bundle: Checked | None) -> dict[int, float]:
        """Return the values of a bundle by the seed of the cell; one that it does not have is
        NaN."""
        recorded = {} if bundle is None else bundle.recorded.values
        number = metric.task, metric.name
        return {
            seed: recorded.get(cell, {}).get(number, math.nan) for seed, cell in self.cells.items()
        }

    def sample(self, metric: Metric, bundle: Checked | None) -> Sample:
        """Return the values of a bundle in few numbers."""
        return summarize(list(self.by_seed(metric, bundle).values()))

    def printed(self, bundle: Checked) -> str:
        """Return the means of a bundle as the table prints them."""
        return ", ".join(
            f"{each.name} {fixed(self.sample(each, bundle).mean, n)}" for each, n in _DIGITS.items()
        )

    @cached_property
    def loss(self) -> tuple[float, float, float]:
        """The mean loss and the ends of its interval, which one seed leaves open."""
        sample = self.sample(_LOSS, self.source)
        if sample.n < 2 or math.isnan(sample.mean):
            return sample.mean, -math.inf, math.inf
        return sample.mean, *interval(sample.mean, sample.sd / math.sqrt(sample.n), sample.n - 1)


def write_registry(registry: Path, out: Path, templates_dir: Path) -> list[str]:
    """Write the page of a registry with all bundles that follow from themselves, and return why
    others do not."""
    found = list(checked_bundles(registry))
    bundles = [bundle for bundle in found if not isinstance(bundle, str)]
    # By a hash of them the settings that lines have in common which may be compared, and these
    # lines by their cells.
    regimes: dict[str, tuple[dict[str, Any], dict[tuple[Any, ...], _Line]]] = {}
    for bundle in bundles:
        for settings, line in _lines_of(bundle):
            _, lines = regimes.setdefault(digest(settings), (settings, {}))
            same = lines.setdefault((*line.cells.values(), line.is_tuned), line)
            same.bundles.append(bundle)
            same.studies |= line.studies
    for _, lines in regimes.values():
        for line in lines.values():
            _set_source(line, bundles)
    place = os.path.relpath(registry, out.parent)
    link = Markup('<a href="{}/{}/{}" title="{}">[{}]</a>')
    links = {}
    for number, each in enumerate(bundles, 1):
        name, title = each.folder.name, f"{_title(each)}, by {each.bundle.submitter}"
        links[name] = link.format(place, name, form.BUNDLE, title, number)
    sections = []
    titles = _titles(list(regimes.values()))
    for number, (title, (settings, lines)) in enumerate(
        zip(titles, regimes.values(), strict=True), 1
    ):
        section = {"id": f"regime-{number}", "title": title, "short": "", "is_front": True}
        sections.append((section, _blocks(title, settings, list(lines.values()), links)))
    columns = [
        Column[Checked]("Bundle", lambda bundle: links[bundle.folder.name], "row"),
        *_COLUMNS,
    ]
    shown = [Part("registry_marks.html.j2"), Grid("Bundles", columns, bundles)]
    sections.append(({"id": "bundles", "title": "Bundles", "short": "", "is_front": True}, shown))
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


def _title(bundle: Checked) -> str:
    """Return what people call the study of a bundle."""
    return bundle.recorded.plan.title or bundle.recorded.plan.name


def _flat(settings: Mapping[str, Any], start: str = "") -> dict[str, str]:
    """Return settings by their path, in the words of a study file."""
    found: dict[str, str] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{start}{name}.")
        else:
            found[f"{start}{name}"] = str(value)
    return found


def told_apart(names: Sequence[str], facts: Sequence[Mapping[str, str]]) -> list[str]:
    """Return names, those that occur several times with the facts in which they differ."""
    alike: dict[str, list[Mapping[str, str]]] = {}
    for name, known in zip(names, facts, strict=True):
        alike.setdefault(name, []).append(known)
    told = []
    for name, known in zip(names, facts, strict=True):
        others = alike[name]
        differing = [key for key in known if any(other.get(key) != known[key] for other in others)]
        words = [f"{key.replace('_', ' ')} {known[key]}" for key in differing]
        told.append(", ".join([name, *words]))
    return told


def _titles(regimes: Sequence[tuple[dict[str, Any], dict[Any, _Line]]]) -> list[str]:
    """Return what people call each regime: the title of the study that has most of its lines."""
    names = []
    for _, lines in regimes:
        counts = Counter(title for line in lines.values() for title in line.studies)
        names.append(counts.most_common(1)[0][0])
    # The id of the data and what is measured follow from the settings, and are no words.
    said = [
        {name: settings[name] for name in ("data", "training", "protocol")}
        for settings, _ in regimes
    ]
    return told_apart(names, [_flat(settings) for settings in said])


def _lines_of(bundle: Checked) -> Iterator[tuple[dict[str, Any], _Line]]:
    """Yield the lines of a bundle with what they have in common that may be compared."""
    found: dict[str, tuple[dict[str, Any], _Line]] = {}
    for cell in bundle.recorded.plan.cells.values():
        study, optimizer = cell.study, cell.optimizer
        settings = {
            "data_id": cell.data_id,
            **study.model_dump(mode="json", include={"data", "training"}),
            "test_loss": settings_of(STAGES["test_loss"], study, cell.data_id),
            "protocol": study.protocol_label,
        }
        model = digest(
            cell.model.model_dump(mode="json", exclude={"name", "label", "learning_rate"})
        )
        kind = (
            (cell.n_tokens, cell.n_params, model),
            optimizer.key,
            optimizer.label,
            cell.tuning is not None,
        )
        _, line = found.setdefault(digest([settings, *kind]), (settings, _Line(*kind)))
        line.cells[cell.seed] = cell.id
        line.facts |= _flat(cell.model.model_dump(mode="json", exclude={"name", "label"}))
        line.studies[study.title or study.name] = None
    yield from found.values()


def _set_source(line: _Line, bundles: Iterable[Checked]) -> None:
    """Set who ran the cells of a line again, and which bundle gives its numbers: never by its
    name."""
    cells = {*line.cells.values()}
    for bundle in line.bundles:
        others = [other for other in bundles if other.bundle.submitter != bundle.bundle.submitter]
        repeated = [other for other in others if other.bundle.reproduces == bundle.folder.name]
        line.witnesses[bundle.folder.name] = [
            other for other in repeated if cells <= other.recorded.cells.keys()
        ]
    candidates = [
        bundle for bundle in line.bundles if line.witnesses[bundle.folder.name]
    ] or line.bundles
    if len({line.printed(bundle) for bundle in candidates}) == 1:
        line.source = candidates[0]


def _marks(line: _Line, links: dict[str, Markup]) -> Markup:
    """Return the marks of a line: who ran its cells again, and all numbers that are others than
    those in the row."""
    shown = [(Markup("recomputed"), "good")]
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
    return f"{found.kept}: {found.finding}"


_COLUMNS: tuple[Column[Checked], ...] = (
    Column("Study", _title, "wrap"),
    Column("By", lambda bundle: bundle.bundle.submitter),
    Column("Notes", lambda bundle: bundle.bundle.notes, "wrap"),
    Column("Machines", _machines),
    Column("cells", lambda bundle: str(len(bundle.recorded.cells)), "number"),
    Column("Plan stated in advance", _stated, "wrap"),
)


def _blocks(
    title: str, settings: dict[str, Any], lines: list[_Line], links: dict[str, Markup]
) -> list[Block]:
    """Return what the page shows of a regime."""
    placed = sorted(lines, key=lambda line: (line.place, math.isnan(line.loss[0]), line.loss[0]))
    for _, of_place in groupby(placed, key=lambda line: line.place):
        rivals = [line for line in of_place if not math.isnan(line.loss[0])]
        lows, highs = (sorted(line.loss[end] for line in rivals) for end in (1, 2))
        for line in rivals:  # all ranks that the intervals allow
            best, worst = 1 + bisect_left(highs, line.loss[1]), bisect_right(lows, line.loss[2])
            line.rank = str(best) if best == worst else f"{best}–{worst}"
    _set_speedups(placed)
    shown = [(line.place[:2], line.label) for line in placed]
    facts = [line.facts | {"seeds": ", ".join(map(str, line.cells))} for line in placed]
    labels = dict(zip(map(id, placed), _told_labels(shown, facts), strict=True))
    # The marks stand before what a narrow window has to scroll to.
    columns: list[Column[_Line]] = [
        Column(Markup("<i>D</i>"), lambda line: readable_count(line.place[0]), "rows"),
        Column(Markup("<i>N</i>"), lambda line: readable_count(line.place[1]), "rows"),
        Column("Optimizer", lambda line: Cell(labels[id(line)], "wrap", line.optimizer), "row"),
        Column(
            "Rank",
            lambda line: line.rank,
            "number",
            title="by the loss: all ranks that the intervals allow",
        ),
        metric_column(_LOSS, _loss, with_arrow(_LOSS)),
        Column("Marks", lambda line: _marks(line, links), "wrap"),
        Column(
            "Speedup",
            lambda line: line.speedup,
            "number",
            title="tokens that the strongest Adam of the same D needs for the same loss, over D",
        ),
        *(metric_column(metric, _mean(metric), with_arrow(metric)) for metric in _BESIDE),
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
        Grid(f"Optimizers, {title}", columns, placed),
        Fold("Data, recipe and protocol", [code]),
    ]


def _told_labels(
    shown: Sequence[tuple[tuple[int, int], str]], facts: Sequence[dict[str, str]]
) -> list[str]:
    """Return the labels of lines, which are told apart where they have the same place, too."""
    labels = [""] * len(shown)
    for place in dict.fromkeys(place for place, _ in shown):
        here = [index for index, (other, _) in enumerate(shown) if other == place]
        told = told_apart([shown[index][1] for index in here], [facts[index] for index in here])
        for index, label in zip(here, told, strict=True):
            labels[index] = label
    return labels


def _set_speedups(lines: list[_Line]) -> None:
    """Set how many tokens the strongest Adam of the same tokens and model needs for the loss of
    each line."""
    curves: dict[tuple[int, str], dict[tuple[str, bool], Curve]] = {}
    for line in lines:
        if not math.isnan(line.loss[0]):
            of_size = curves.setdefault(line.place[1:], {})
            name = line.optimizer, line.is_tuned
            curve = of_size.setdefault(name, Curve(line.optimizer, line.label, line.is_tuned, {}))
            losses = curve.losses.setdefault(line.place[0], {})
            losses |= line.by_seed(_LOSS, line.source) | losses
    for line in lines:
        n_tokens, rivals = line.place[0], curves.get(line.place[1:], {})
        reference, _ = reference_of(rivals.values(), n_tokens, line.is_tuned)
        if reference is None or reference is rivals.get((line.optimizer, line.is_tuned)):
            continue
        needed = needed_tokens(line.by_seed(_LOSS, line.source), reference.losses)
        said, low, high = (tokens / n_tokens for tokens in (needed.tokens, needed.low, needed.high))
        text = MISSING if math.isnan(said) else f"{fixed(said, 2)} of {reference.label}"
        if not (math.isnan(low) and math.isnan(high)):
            text = f"{fixed(said, 2)} [{fixed(low, 2)}, {fixed(high, 2)}] of {reference.label}"
        line.speedup = Cell(text, title=f"beside {reference.label}; {needed.reason}")


def _loss(line: _Line) -> str:
    mean, low, high = line.loss
    return (
        with_interval(mean, low, high, _DIGITS[_LOSS])
        if math.isfinite(low)
        else fixed(mean, _DIGITS[_LOSS])
    )


def _mean(metric: Metric) -> Callable[[_Line], str]:
    return lambda line: str(shorthand(line.sample(metric, line.source), metric.digits))
