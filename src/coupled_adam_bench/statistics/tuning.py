"""``tuning.csv``: what each optimizer was given to choose from, what was chosen, and what to be wary of."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup
from pandas import DataFrame

from coupled_adam_bench.report.blocks import Block, Column, Figures, Grid, Items, Text
from coupled_adam_bench.report.formats import MISSING, Shorthand, fixed, plural, shorthand
from coupled_adam_bench.statistics.declared import PLACE, Field, Material, Section, Statistic
from coupled_adam_bench.statistics.t_test import summarize
from coupled_adam_bench.store import paths
from coupled_adam_bench.study.cells import Cell, readable_count
from coupled_adam_bench.study.plan import Plan
from coupled_adam_bench.study.tuning import Tuning, choice_file, read_choice


def _rows(material: Material) -> Iterator[dict[str, Any]]:
    """Yield a row for each candidate and seed of the tunings whose choice is made."""
    for tuning in material.plan.tunings.values():
        path = choice_file(material.study_dir / paths.TUNING, tuning.id)
        if not path.is_file():
            continue
        record = read_choice(path, tuning)
        for index, (candidate, found) in enumerate(zip(tuning.candidates, record["candidates"], strict=True)):
            for cell, measured in zip(candidate.cells, found["cells"], strict=True):
                yield {
                    "study": material.plan.name, "tuning": tuning.id, "model": cell.model.name,
                    "n_params": cell.n_params, "n_tokens": cell.n_tokens, "optimizer": tuning.row.key,
                    "candidate": index, "settings": json.dumps(candidate.settings),
                    "learning_rate": candidate.model_lr, "embedding_learning_rate": candidate.embedding_lr,
                    "seed": cell.seed, "cell": cell.id, "val_loss": measured["val_loss"],
                    "reason": measured["reason"] or "", "mean_val_loss": found["mean_val_loss"],
                    "chosen": index == record["chosen"],
                }  # fmt: skip


def learning_rate_sensitivity(losses: Mapping[float, Sequence[float]], initial_loss: float) -> float:
    """Return the mean over learning rates of min(loss, ``initial_loss``), minus the least of these, in nats.

    ``losses`` are those of the seeds by learning rate; one that is not finite counts as the loss at initialisation,
    and the loss of a rate is the mean over its seeds. The definition is that of Wortsman et al. 2023 (arXiv
    2309.14322). It is NaN for fewer than two rates. Only rates of the same range and spacing can be compared.
    """
    if len(losses) < 2:
        return math.nan
    capped = [
        summarize([min(loss, initial_loss) if math.isfinite(loss) else initial_loss for loss in of_rate]).mean
        for of_rate in losses.values()
    ]
    return math.fsum(capped) / len(capped) - min(capped)


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


def place_of(cell: Cell) -> str:
    """Return what candidates that are drawn together have in common, as a title."""
    size = cell.model.label or readable_count(cell.n_params)
    return f"N = {size}, D = {cell.tokens_label or readable_count(cell.n_tokens)}"


def at_edge(name: str, value: Any, values: Sequence[Any]) -> str | None:
    """Return a sentence if the chosen value is the least or the largest of the numbers that were tried."""
    numbers = {each for each in values if isinstance(each, int | float) and not isinstance(each, bool)}
    if len(numbers) < 2 or value not in (min(numbers), max(numbers)) or isinstance(value, bool):
        return None
    end, beyond = ("least", "smaller") if value == min(numbers) else ("largest", "larger")
    return f"{name} {value:g} is the {end} that was tried: {beyond} ones may be better"


def _shown_row(tuning: Tuning, found: DataFrame) -> TuningRow:
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


def _sensitivity(tuning: Tuning, found: DataFrame) -> float:
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


_COLUMNS: tuple[Column[TuningRow], ...] = (
    Column("Trial", lambda row: row.place),
    Column("Optimizer", lambda row: row.optimizer, "row"),
    Column("Budget", lambda row: row.budget, "number"),
    Column("Chosen", lambda row: row.chosen),
    Column("Validation loss", lambda row: str(row.loss), "number"),
    Column("Sensitivity", lambda row: row.sensitivity, "number"),
    Column("Remark", lambda row: _remark(row.warnings), "wrap"),
)


def _remark(warnings: Sequence[str]) -> str:
    return Markup('<span class="status middle">Warning:</span> {}').format("; ".join(warnings)) if warnings else ""


def _blocks(material: Material) -> Iterator[Block]:
    plan, tried = material.plan, material.frame(STATISTIC)
    yield Text(
        Markup(
            "Before the cells of a tuned row were trained, candidates were trained with seeds of their own. The one "
            "with the least mean loss on the whole split <code>val</code> was taken; of equal ones, that with the "
            "smaller learning rate. The split <code>test</code> was not looked at, and no candidate is in a table. All "
            'numbers are in <a href="../tuning.csv">tuning.csv</a>.'
        )
    )
    if unequal := unequal_budgets(plan):
        differ = Markup('<span class="status bad">The budgets differ</span>, {}')
        yield Text(differ.format("so the comparison is easier for the rows with more candidates:"))
        yield Items(unequal)
    else:
        yield Text("All optimizers of a block have the same budget: the same number of candidates, seeds and tokens.")
    yield Grid(
        "Tuning",
        _COLUMNS,
        [_shown_row(tuning, tried[tried["tuning"] == tuning.id]) for tuning in plan.tunings.values()],
        caption="What was tried, and what was chosen; the budget is candidates × seeds × tokens",
    )
    yield Text(
        "The sensitivity to the learning rate is the mean over the embedding's learning rates of min(loss, that of "
        "guessing), minus the least loss, in nats (Wortsman et al. 2023): 0 if the choice does not matter. A run that "
        "diverged counts as guessing. It compares optimizers whose learning rates span the same range.",
        small=True,
    )
    yield Figures(["tuning"])


STATISTIC = Statistic(
    file="tuning.csv",
    columns={
        "study": Field(str, "name of the study"),
        "tuning": Field(str, "id of the tuning"),
        "model": PLACE["model"],
        "n_params": PLACE["n_params"],
        "n_tokens": PLACE["n_tokens"],
        "optimizer": Field(str, "key of the tuned row"),
        "candidate": Field(int, "number of the candidate, from 0"),
        "settings": Field(str, "its settings, JSON"),
        "learning_rate": Field(float, "peak learning rate of the model"),
        "embedding_learning_rate": Field(float, "peak learning rate of the embedding"),
        "seed": Field(int, "seed of the run"),
        "cell": Field(str, "id of the run"),
        "val_loss": Field(float, "loss on the whole split val", "nat/token"),
        "reason": Field(str, "why the loss is missing"),
        "mean_val_loss": Field(float, "mean over the seeds of the candidate", "nat/token"),
        "chosen": Field(bool, "whether the candidate was chosen"),
    },
    key=("tuning", "candidate", "seed"),
    rows=_rows,
    section=Section("tuning", "Tuning", lambda material: _blocks(material) if material.plan.tunings else ()),
)
