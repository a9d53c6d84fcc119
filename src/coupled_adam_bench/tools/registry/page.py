"""The page of a registry: a table of optimizers for each regime, how much of it was checked, and all bundles."""

import math
import os
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

import yaml
from markupsafe import Markup

from coupled_adam_bench.report.blocks import Cell, Code, Column, Fold, Grid, Part, metric_column, with_arrow
from coupled_adam_bench.report.formats import MISSING, fixed, shorthand, with_interval
from coupled_adam_bench.report.make import write_page
from coupled_adam_bench.statistics.speedup import LESS, MORE, needed_tokens
from coupled_adam_bench.statistics.t_test import interval, summarize
from coupled_adam_bench.study.catalog.metrics import METRICS, RAREST, Metric
from coupled_adam_bench.study.cells import readable_count
from coupled_adam_bench.tools.registry import form
from coupled_adam_bench.tools.registry.check import Mark, recorded_checks

_LOSS = METRICS["loss"]
_BESIDE = (METRICS["isotropy"], METRICS[RAREST.pooled_calibration])
"""The metrics that the page shows beside the loss."""
_ADAM = re.compile(r"adamw(_f[^_]+)?")
"""Keys of plain Adam, by whatever factor its learning rate on the embedding differs from the model's."""


@dataclass
class _Line:
    """An optimizer in the table of a regime; the first of the ``bundles`` gives the numbers, and all have its cells."""

    row: form.Row
    bundles: list[str]
    numbers: dict[tuple[str, str], float]
    rank: str = MISSING
    speedup: str | Cell = MISSING

    @property
    def size(self) -> tuple[int, str]:
        return self.row.n_params, self.row.model

    @property
    def place(self) -> tuple[int, int, str]:
        return self.row.n_tokens, self.row.n_params, self.row.model

    def by_seed(self, metric: Metric) -> dict[int, float]:
        """Return the values by the seed of the cell."""
        return {int(seed): self.numbers.get((cell, metric.name), math.nan) for seed, cell in self.row.cells.items()}

    def values(self, metric: Metric) -> list[float]:
        return list(self.by_seed(metric).values())

    @cached_property
    def loss(self) -> tuple[float, float, float]:
        """The mean loss and the ends of its interval, which one seed leaves open."""
        sample = summarize(self.values(_LOSS))
        if sample.n < 2 or math.isnan(sample.mean):
            return sample.mean, -math.inf, math.inf
        return sample.mean, *interval(sample.mean, sample.sd / math.sqrt(sample.n), sample.n - 1)


def write_registry(registry: Path, out: Path, templates_dir: Path) -> None:
    """Write the page of a registry; it reads no plan and computes no test, so thousands of cells take seconds."""
    found = {path.parent.name: form.read_bundle(path.parent) for path in sorted(registry.glob(f"*/{form.BUNDLE}"))}
    bundles = dict(sorted(found.items(), key=lambda item: item[1].reproduces is not None))
    marks = {name: _marks(name, bundles, registry) for name in bundles}
    place = os.path.relpath(registry, out.parent)
    links = {
        name: Markup('<a href="{}/{}/{}"><code>{}</code></a>').format(place, name, form.BUNDLE, name[:10])
        for name in bundles
    }
    regimes: dict[str, tuple[form.Regime, dict[frozenset[str], _Line]]] = {}
    for name, bundle in bundles.items():
        numbers = form.numbers_of(registry / name, (_LOSS, *_BESIDE))
        for regime in bundle.regimes:
            _, lines = regimes.setdefault(regime.id, (regime, {}))
            for row in regime.rows:
                lines.setdefault(frozenset(row.cells.values()), _Line(row, [], numbers)).bundles.append(name)
    sections = [_section(regime, lines.values(), marks, links) for regime, lines in regimes.values()]
    columns = [Column("Bundle", links.__getitem__, "row"), Column("Marks", marks.__getitem__), *_columns(bundles)]
    shown = [Part("registry_marks.html.j2"), Grid("Bundles", columns, list(bundles))]
    sections.append(({"id": "bundles", "title": "Bundles", "short": ""}, shown))
    n_cells = len({cell for _, lines in regimes.values() for cells in lines for cell in cells})
    write_page(out, templates_dir, "registry.html.j2", {}, sections=sections, n_bundles=len(bundles), n_cells=n_cells)


def _marks(name: str, bundles: dict[str, form.Bundle], registry: Path) -> Markup:
    recorded = {entry["bundle"]: entry["mark"] for entry in recorded_checks(registry)}
    mark = recorded.get(name, Mark.SELF_REPORTED)
    marks = {mark: "middle" if mark == Mark.SELF_REPORTED else "good"}
    for other_name, other in bundles.items():
        said = other.reproduces
        # Whoever repeats their own results, or whose numbers nobody has recomputed, is no other witness.
        if said and said.bundle == name and other.submitter != bundles[name].submitter and other_name in recorded:
            good = said.verdict == "reproduced"
            marks[f"{'run again' if good else said.verdict} by {other.submitter}"] = "good" if good else "bad"
    span = Markup('<span class="status {}">{}</span>')
    return Markup(", ").join(span.format(tone, text) for text, tone in marks.items())


def _columns(bundles: dict[str, form.Bundle]) -> list[Column[str]]:
    def machine(fact: str) -> Callable[[str], str]:
        return lambda name: ", ".join(bundles[name].environments.get(fact, ())) or MISSING

    return [
        Column("Study", lambda name: bundles[name].title or bundles[name].study, "wrap"),
        Column("By", lambda name: bundles[name].submitter),
        Column("Notes", lambda name: bundles[name].notes, "wrap"),
        Column("Machine", machine("device")),
        Column("PyTorch", machine("torch")),
        Column("cells", lambda name: str(len(bundles[name].histories)), "number"),
        Column("Plan stated", lambda name: (bundles[name].first_seen or MISSING)[:10]),
    ]


def _section(
    regime: form.Regime, lines: Iterable[_Line], marks: dict[str, Markup], links: dict[str, Markup]
) -> tuple[dict[str, str], list[Any]]:
    placed = sorted(lines, key=lambda line: (line.place, math.isnan(line.loss[0]), line.loss[0]))
    for _, of_place in groupby(placed, key=lambda line: line.place):
        rivals = [line for line in of_place if not math.isnan(line.loss[0])]
        lows, highs = (sorted(line.loss[end] for line in rivals) for end in (1, 2))
        for line in rivals:  # all ranks that the intervals allow
            best, worst = 1 + bisect_left(highs, line.loss[1]), bisect_right(lows, line.loss[2])
            line.rank = str(best) if best == worst else f"{best}–{worst}"
    _set_speedups(placed)
    columns: list[Column[_Line]] = [
        Column(Markup("<i>D</i>"), lambda line: readable_count(line.row.n_tokens), "rows"),
        Column(Markup("<i>N</i>"), lambda line: readable_count(line.row.n_params), "rows"),
        Column("Optimizer", lambda line: Cell(line.row.label, title=line.row.optimizer), "row"),
        Column("Rank", lambda line: line.rank, "number", title="by the loss: all ranks that the intervals allow"),
        metric_column(_LOSS, _loss, with_arrow(_LOSS)),
        Column(
            "Speedup", lambda line: line.speedup, "number", title="tokens that Adam needs for the same loss, over D"
        ),
        *(metric_column(metric, _mean(metric), with_arrow(metric)) for metric in _BESIDE),
        Column("seeds", lambda line: str(len(line.row.cells)), "number"),
        Column("Marks", lambda line: marks[line.bundles[0]], "wrap"),
        Column("Bundles", lambda line: Markup(", ").join(links[name] for name in line.bundles)),
    ]
    settings, data = regime.settings, regime.settings["data_id"]
    batch = settings["training"]["batch_sequences"] * settings["training"]["seq_len"]
    title = f"{data}, {batch:,} tokens a batch, protocol {settings['protocol']}"
    shown = Code(yaml.safe_dump(settings, sort_keys=False, width=100))
    blocks = [Grid(f"Optimizers, {title}", columns, placed), Fold("Data, recipe, protocol and versions", [shown])]
    return {"id": f"regime-{regime.id}", "title": title, "short": f"{data}, {batch:,}"}, blocks


def _set_speedups(lines: list[_Line]) -> None:
    """Set how many tokens Adam needs for the loss of each line, in a model whose Adam was trained with several D.

    Of Adams that differ in the rate of the embedding, it is the one that has the seeds of the line at the most D.
    """
    adams: dict[tuple[int, str], dict[str, dict[int, dict[int, float]]]] = {}
    for line in lines:
        if _ADAM.fullmatch(line.row.optimizer) and not math.isnan(line.loss[0]):
            curve = adams.setdefault(line.size, {}).setdefault(line.row.label, {})
            curve[line.row.n_tokens] = line.by_seed(_LOSS) | curve.get(line.row.n_tokens, {})
    for line in lines:
        found: list[tuple[int, int, str, dict[int, float]]] = []
        for label, curve in adams.get(line.size, {}).items():
            seeds = {seed for of_tokens in curve.values() for seed in of_tokens}
            own = {seed: loss for seed, loss in line.by_seed(_LOSS).items() if seed in seeds}
            found.append((sum(own.keys() <= of_tokens.keys() for of_tokens in curve.values()), len(own), label, own))
        n_tokens, n_seeds, label, own = max(found, default=(0, 0, "", {}))
        if n_tokens < 2 or not n_seeds or label == line.row.label:
            continue
        curve = adams[line.size][label]
        needed = needed_tokens(own, curve)
        said, low, high = (tokens / line.row.n_tokens for tokens in (needed.tokens, needed.low, needed.high))
        text = fixed(said, 2)
        if not (math.isnan(low) and math.isnan(high)):
            text += f" [{fixed(low, 2)}, {fixed(high, 2)}]"
        if needed.reason.startswith(MORE):
            text = f"> {fixed(max(curve) / line.row.n_tokens, 2)}"
        elif needed.reason.startswith(LESS):
            text = f"< {fixed(min(curve) / line.row.n_tokens, 2)}"
        line.speedup = Cell(text, title=f"beside {label}" + (needed.reason and f"; {needed.reason}"))


def _loss(line: _Line) -> str:
    mean, low, high = line.loss
    digits = _LOSS.digits + 1
    return with_interval(mean, low, high, digits) if math.isfinite(low) else fixed(mean, digits)


def _mean(metric: Metric) -> Callable[[_Line], str]:
    return lambda line: str(shorthand(summarize(line.values(metric)), metric.digits))
