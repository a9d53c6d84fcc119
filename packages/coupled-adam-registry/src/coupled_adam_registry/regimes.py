"""The regimes of a registry: optimizers that may be compared, and what their bundles say of
them."""

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import Any, NamedTuple

from coupled_adam_bench.study.catalogue.bands import RAREST

from coupled_adam_bench.page.blocks import Cell
from coupled_adam_bench.page.formats import MISSING, fixed
from coupled_adam_bench.records.stored import settings_of
from coupled_adam_bench.results.sample import Sample, summarize
from coupled_adam_bench.statistics.student import mean_interval
from coupled_adam_bench.store.files import digest
from coupled_adam_bench.study.catalogue.metrics import METRICS, Metric
from coupled_adam_bench.study.catalogue.stages import STAGES
from coupled_adam_registry.check import Checked
from coupled_adam_registry.loss_curves import Curve, is_adam, needed_tokens, reference_of

LOSS = METRICS["loss"]
BESIDE = (METRICS["isotropy"], METRICS[RAREST.pooled_calibration])
"""The metrics that the page shows beside the loss."""
DIGITS = {LOSS: LOSS.digits + 1} | {metric: metric.digits for metric in BESIDE}


@dataclass
class Line:
    """An optimizer in the table of a regime: its cells by their seeds, and the ``bundles`` that
    have these cells.

    ``witnesses`` are the bundles of others who trained the cells of one of these again. ``source``
    gives the numbers, None where none can, since the bundles disagree and no one of them was run
    again, or is of the registry's own project.
    """

    place: tuple[int, int, str]
    optimizer: str
    label: str
    is_tuned: bool
    is_adam: bool
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
            f"{each.name} {fixed(self.sample(each, bundle).mean, n)}" for each, n in DIGITS.items()
        )

    @cached_property
    def loss(self) -> tuple[float, float, float]:
        """The mean loss and the ends of its interval, which one seed leaves open."""
        sample = self.sample(LOSS, self.source)
        low, high = mean_interval(sample)
        if math.isnan(low):
            return sample.mean, -math.inf, math.inf
        return sample.mean, low, high


class Regime(NamedTuple):
    """Lines that may be compared: the settings that they have in common, and the lines in the order
    of their places and losses."""

    settings: dict[str, Any]
    lines: list[Line]
    studies: Counter[str]
    """How many of the lines each study has, by its title."""


def flat(settings: Mapping[str, Any], start: str = "") -> dict[str, str]:
    """Return settings by their path, in the words of a study file."""
    found: dict[str, str] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{start}{name}.")
        else:
            found[f"{start}{name}"] = str(value)
    return found


def _lines_of(bundle: Checked) -> Iterator[tuple[dict[str, Any], Line]]:
    """Yield the lines of a bundle with what they have in common that may be compared."""
    found: dict[str, tuple[dict[str, Any], Line]] = {}
    for cell in bundle.recorded.plan.cells.values():
        study, optimizer = cell.study, cell.optimizer
        # What is in these settings makes another regime; what follows, another line of one.
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
            is_adam(optimizer),
        )
        _, line = found.setdefault(digest([settings, *kind]), (settings, Line(*kind)))
        line.cells[cell.seed] = cell.id
        line.facts |= flat(cell.model.model_dump(mode="json", exclude={"name", "label"}))
        line.studies[study.title or study.name] = None
    yield from found.values()


def regimes_of(bundles: Sequence[Checked]) -> list[Regime]:
    """Return the regimes of bundles, whose lines have their sources, ranks and speedups."""
    # By a hash of the settings of each, its lines by their cells.
    found: dict[str, tuple[dict[str, Any], dict[tuple[Any, ...], Line]]] = {}
    for bundle in bundles:
        for settings, line in _lines_of(bundle):
            _, lines = found.setdefault(digest(settings), (settings, {}))
            same = lines.setdefault((*line.cells.values(), line.is_tuned), line)
            same.bundles.append(bundle)
            same.studies |= line.studies
    regimes = []
    for settings, by_cells in found.values():
        for line in by_cells.values():
            _set_source(line, bundles)
        in_order = sorted(by_cells.values(), key=_place_and_loss)
        _set_ranks(in_order)
        _set_speedups(in_order)
        titles = Counter(title for line in by_cells.values() for title in line.studies)
        regimes.append(Regime(settings, in_order, titles))
    return regimes


def _place_and_loss(line: Line) -> tuple[Any, ...]:
    mean, _, _ = line.loss
    return line.place, math.isnan(mean), mean


def _set_ranks(lines: list[Line]) -> None:
    """Set all ranks at its place that the interval of each loss allows."""
    for _, of_place in groupby(lines, key=lambda line: line.place):
        rivals = [line for line in of_place if not math.isnan(line.loss[0])]
        lows = sorted(line.loss[1] for line in rivals)
        highs = sorted(line.loss[2] for line in rivals)
        for line in rivals:
            best, worst = 1 + bisect_left(highs, line.loss[1]), bisect_right(lows, line.loss[2])
            line.rank = str(best) if best == worst else f"{best}–{worst}"


def _set_source(line: Line, bundles: Iterable[Checked]) -> None:
    """Set who ran the cells of a line again, and which bundle gives its numbers: never by its
    name, and never that of a stranger where the registry's own project has the line."""
    cells = {*line.cells.values()}
    for bundle in line.bundles:
        others = [other for other in bundles if other.bundle.submitter != bundle.bundle.submitter]
        repeated = [other for other in others if other.bundle.reproduces == bundle.folder.name]
        line.witnesses[bundle.folder.name] = [
            other for other in repeated if cells <= other.recorded.cells.keys()
        ]
    own = [bundle for bundle in line.bundles if bundle.is_own]
    run_again = [bundle for bundle in line.bundles if line.witnesses[bundle.folder.name]]
    candidates = own or run_again or line.bundles
    if len({line.printed(bundle) for bundle in candidates}) == 1:
        line.source = candidates[0]


def _set_speedups(lines: list[Line]) -> None:
    """Set how many tokens the strongest Adam of the same tokens and model needs for the loss of
    each line."""
    curves: dict[tuple[int, str], dict[tuple[str, bool], Curve]] = {}
    for line in lines:
        if not math.isnan(line.loss[0]):
            of_size = curves.setdefault(line.place[1:], {})
            name = line.optimizer, line.is_tuned
            empty = Curve(line.optimizer, line.label, line.is_tuned, line.is_adam, {})
            curve = of_size.setdefault(name, empty)
            losses = curve.losses.setdefault(line.place[0], {})
            losses |= line.by_seed(LOSS, line.source) | losses
    for line in lines:
        n_tokens, rivals = line.place[0], curves.get(line.place[1:], {})
        reference, _ = reference_of(rivals.values(), n_tokens, line.is_tuned)
        if reference is None or reference is rivals.get((line.optimizer, line.is_tuned)):
            continue
        needed = needed_tokens(line.by_seed(LOSS, line.source), reference.losses)
        said, low, high = (tokens / n_tokens for tokens in (needed.tokens, needed.low, needed.high))
        text = MISSING if math.isnan(said) else f"{fixed(said, 2)} of {reference.label}"
        if not (math.isnan(low) and math.isnan(high)):
            text = f"{fixed(said, 2)} [{fixed(low, 2)}, {fixed(high, 2)}] of {reference.label}"
        line.speedup = Cell(text, title=f"beside {reference.label}; {needed.reason}")
