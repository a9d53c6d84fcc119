"""The section "Tuning" of the report: what each optimizer was given to choose from, what was chosen, and warnings."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from coupled_adam_bench.report.figures import place_of
from coupled_adam_bench.report.formats import MISSING, Shorthand, fixed, plural, shorthand
from coupled_adam_bench.statistics.sensitivity import learning_rate_sensitivity
from coupled_adam_bench.statistics.t_test import summarize
from coupled_adam_bench.study.cells import readable_count
from coupled_adam_bench.study.plan import Plan
from coupled_adam_bench.study.tuning import Tuning

if TYPE_CHECKING:
    from pandas import DataFrame

_DIGITS = 4


@dataclass(frozen=True)
class TuningRow:
    """A tuning in print: its budget, the chosen settings, their validation loss, and what to be wary of."""

    place: str
    optimizer: str
    budget: str
    """Candidates × seeds × tokens, and their product."""
    chosen: str
    loss: Shorthand
    sensitivity: str
    """How much the learning rates that were tried matter."""
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class TuningSection:
    """What the template prints; ``unequal`` are sentences on budgets that differ."""

    rows: tuple[TuningRow, ...]
    unequal: tuple[str, ...]


def at_edge(name: str, value: Any, values: Sequence[Any]) -> str | None:
    """Return a sentence if the chosen value is the least or the largest of the numbers that were tried."""
    numbers = {each for each in values if isinstance(each, int | float) and not isinstance(each, bool)}
    if len(numbers) < 2 or value not in (min(numbers), max(numbers)) or isinstance(value, bool):
        return None
    end, beyond = ("least", "smaller") if value == min(numbers) else ("largest", "larger")
    return f"{name} {value:g} is the {end} that was tried: {beyond} ones may be better"


def _row(tuning: Tuning, found: "DataFrame") -> TuningRow:
    first, n_candidates = tuning.first, len(tuning.candidates)
    n_seeds = len(tuning.candidates[0].cells)
    chosen, loss, warnings = MISSING, Shorthand(MISSING), ["nothing is chosen yet: its log file says why"]
    sensitivity = math.nan
    if len(found):
        sensitivity = _sensitivity(tuning, found)
        taken = found[found["chosen"]]
        settings = json.loads(taken["settings"].iloc[0])
        chosen = ", ".join(f"{name} {_shown(value)}" for name, value in settings.items())
        loss = shorthand(summarize(taken["val_loss"].to_list()), _DIGITS)
        tried = {name: [one.settings[name] for one in tuning.candidates] for name in settings}
        edges = [at_edge(name, value, tried[name]) for name, value in settings.items()]
        failed = sum(math.isnan(mean) for mean in found.groupby("candidate")["mean_val_loss"].first())
        diverged = [f"{failed} of {plural(n_candidates, 'candidate')} diverged in at least one seed"] if failed else []
        warnings = [edge for edge in edges if edge is not None] + diverged
    return TuningRow(
        place=place_of(first),
        optimizer=tuning.row.label,
        budget=f"{n_candidates} × {n_seeds} × {readable_count(first.n_tokens)} = {readable_count(tuning.n_tokens)}",
        chosen=chosen,
        loss=loss,
        sensitivity=fixed(sensitivity, _DIGITS),
        warnings=tuple(warnings),
    )


def _sensitivity(tuning: Tuning, found: "DataFrame") -> float:
    """Return the sensitivity to the embedding's learning rate, at the best of whatever else was tuned at each rate.

    The loss at initialisation is taken as that of guessing.
    """
    guessing = math.log(tuning.first.vocab_size)
    by_rate: dict[float, list[list[float]]] = {}
    for _, of_candidate in found.groupby("candidate"):
        losses = [loss if math.isfinite(loss) else guessing for loss in of_candidate["val_loss"]]
        by_rate.setdefault(of_candidate["embedding_learning_rate"].iloc[0], []).append(losses)
    best = {rate: min(of_rate, key=math.fsum) for rate, of_rate in by_rate.items()}
    return learning_rate_sensitivity(best, guessing)


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else json.dumps(value, ensure_ascii=False)


def unequal_budgets(plan: Plan) -> tuple[str, ...]:
    """Return a sentence for each block whose optimizers have different numbers of candidates."""
    sentences = []
    for planned in plan.blocks:
        if not planned.tunings:
            continue
        counts = {row.label: 0 for row in planned.block.rows}
        counts |= {tuning.row.label: len(tuning.candidates) for tuning in planned.tunings.values()}
        if len(set(counts.values())) > 1:
            named = ", ".join(f"{label} {plural(count, 'candidate')}" for label, count in counts.items())
            sentences.append(f"{planned.study.name}, {planned.place}: {named}")
    return tuple(sentences)


def tuning_section(plan: Plan, tried: "DataFrame | None") -> TuningSection | None:
    """Return the section, given the rows of ``tuning.csv``; None for a study that tunes nothing."""
    if tried is None or not plan.tunings:
        return None
    rows = tuple(_row(tuning, tried[tried["tuning"] == tuning.id]) for tuning in plan.tunings.values())
    return TuningSection(rows, unequal_budgets(plan))
