"""``tuning.csv``: what each optimizer was given to choose from, what was chosen, and what to be
wary of."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from markupsafe import Markup
from pandas import DataFrame

from coupled_adam_bench.page.blocks import Block, Figures, Grid, Items, Kind, Text, listed
from coupled_adam_bench.page.formats import MISSING, fixed, plural, shorthand
from coupled_adam_bench.results.choices import describe_settings, edges_of
from coupled_adam_bench.results.sample import summarize
from coupled_adam_bench.statistics.declared import Material, Section, Statistic
from coupled_adam_bench.store import paths
from coupled_adam_bench.study.catalogue.metrics import LOSS
from coupled_adam_bench.study.plan import Plan
from coupled_adam_bench.study.plan.cells import Cell, readable_count
from coupled_adam_bench.study.plan.tuning import Tuning, choice_file, read_choice


def _rows(material: Material) -> Iterator[dict[str, Any]]:
    """Yield a row for each candidate and seed of the tunings whose choice is made."""
    for tuning in material.plan.tunings.values():
        # A trial that has not ended, or of which every candidate diverged, has no choice.
        path = choice_file(material.study_dir / paths.TUNING, tuning.id)
        if not path.is_file():
            continue
        record = read_choice(path, tuning)
        for index, (candidate, found) in enumerate(
            zip(tuning.candidates, record["candidates"], strict=True)
        ):
            for cell, measured in zip(candidate.cells, found["cells"], strict=True):
                yield {
                    "study": material.plan.name,
                    "tuning": tuning.id,
                    "model": cell.model.name,
                    "n_params": cell.n_params,
                    "n_tokens": cell.n_tokens,
                    "optimizer": tuning.row.key,
                    "candidate": index,
                    "settings": json.dumps(candidate.settings),
                    "learning_rate": candidate.model_lr,
                    "embedding_learning_rate": candidate.embedding_lr,
                    "seed": cell.seed,
                    "cell": cell.id,
                    "val_loss": measured["val_loss"],
                    "reason": measured["reason"] or "",
                    "mean_val_loss": found["mean_val_loss"],
                    "chosen": index == record["chosen"],
                }


def learning_rate_sensitivity(
    losses: Mapping[float, Sequence[float]], initial_loss: float
) -> float:
    """Return the mean over learning rates of min(loss, ``initial_loss``), minus the least of these,
    in nats.

    ``losses`` are those of the seeds by learning rate; one that is not finite counts as the loss at
    initialisation, and the loss of a rate is the mean over its seeds. The definition is that of
    Wortsman et al. 2023 (arXiv 2309.14322). It is NaN for fewer than two rates. Only rates of the
    same range and spacing can be compared.
    """
    if len(losses) < 2:
        return math.nan
    capped = []
    for of_rate in losses.values():
        # A NaN is no number that min can compare, so a diverged seed is replaced before.
        finite = [loss for loss in of_rate if math.isfinite(loss)]
        diverged = [initial_loss] * (len(of_rate) - len(finite))
        below = [min(loss, initial_loss) for loss in finite]
        capped.append(summarize(below + diverged).mean)
    return math.fsum(capped) / len(capped) - min(capped)


_DIGITS = 4


def size_and_length(cell: Cell) -> str:
    """Return what candidates that are drawn together have in common, as a title."""
    return f"N = {cell.size_label}, D = {cell.length_label}"


_BEYOND = {"least": "smaller", "largest": "larger"}


def seed_spread(material: Material, tuning: Tuning, found: DataFrame) -> float:
    """Return the standard deviation over seeds of the losses that a trial compares; NaN where it is
    not known.

    It is pooled over the candidates of a trial with several seeds, and over the trained cells of
    one with one seed.
    """
    samples = [losses.to_list() for _, losses in found.groupby("candidate")["val_loss"]]
    if len(tuning.candidates[0].cells) < 2:
        by_size: dict[tuple[str, int], list[float]] = {}
        for cell in material.plan.cells.values():
            if cell.tuning == tuning.id:
                by_size.setdefault((cell.model.name, cell.n_tokens), []).append(
                    material.study.value(cell, LOSS)
                )
        samples = list(by_size.values())
    every = [summarize(sample).sd for sample in samples]
    sds = [sd for sd in every if not math.isnan(sd)]
    return math.sqrt(math.fsum(sd**2 for sd in sds) / len(sds)) if sds else math.nan


def narrow_choice(tuning: Tuning, found: DataFrame, spread: float) -> str | None:
    """Return by how little a candidate was chosen if that is within the noise of its trial, two
    standard errors."""
    others = found[~found["chosen"]]
    columns = (others[name].tolist() for name in ("candidate", "mean_val_loss"))
    means = {
        candidate: mean for candidate, mean in zip(*columns, strict=True) if not math.isnan(mean)
    }
    if not means:
        return None
    nearest = min(means, key=means.__getitem__)
    gap = means[nearest] - found[found["chosen"]]["mean_val_loss"].iloc[0]
    noise = 2 * spread * math.sqrt(2 / len(tuning.candidates[0].cells))
    if not gap < noise:
        return None
    settings = describe_settings(tuning.candidates[nearest].settings)
    return (
        f"chosen by {fixed(gap, _DIGITS)}, within the noise of the trial ({fixed(noise, _DIGITS)}),"
        f" before {settings}"
    )


def _line(material: Material, tuning: Tuning, found: DataFrame) -> list[str]:
    """Return a tuning in print: its budget, the chosen settings, their validation loss, and what to
    be wary of."""
    first = tuning.first
    n_candidates, n_seeds = len(tuning.candidates), len(tuning.candidates[0].cells)
    budget = (
        f"{n_candidates} × {n_seeds} × {readable_count(first.n_tokens)} ="
        f" {readable_count(tuning.n_tokens)}"
    )
    # This is what is shown of a trial that has no rows, since nothing is chosen.
    chosen, loss, sensitivity = MISSING, MISSING, math.nan
    warnings = ["nothing is chosen yet: its log file says why"]
    if len(found):
        taken = found[found["chosen"]]
        settings = json.loads(taken["settings"].iloc[0])
        chosen = describe_settings(settings)
        loss = str(shorthand(summarize(taken["val_loss"].to_list()), _DIGITS))
        sensitivity = _sensitivity(tuning, found)
        # None of these undoes the choice: they say how far it can be trusted.
        warnings = [
            f"{text} is the {end} that was tried: {_BEYOND[end]} ones may be better"
            for text, end in edges_of(tuning, settings)
        ]
        if narrow := narrow_choice(tuning, found, seed_spread(material, tuning, found)):
            warnings.append(narrow)
        if failed := sum(
            math.isnan(mean) for mean in found.groupby("candidate")["mean_val_loss"].first()
        ):
            warnings.append(
                f"{failed} of {plural(n_candidates, 'candidate')} diverged in at least one seed"
            )
    return [
        size_and_length(first),
        tuning.row.label,
        budget,
        chosen,
        loss,
        fixed(sensitivity, _DIGITS),
        (
            Markup('<span class="status middle">Warning:</span> {}').format("; ".join(warnings))
            if warnings
            else ""
        ),
    ]


def _sensitivity(tuning: Tuning, found: DataFrame) -> float:
    """Return the sensitivity to the embedding's learning rate, at the best of whatever else was
    tuned at each rate.

    The loss at initialisation is taken as that of guessing.
    """
    guessing = math.log(tuning.first.vocab_size)
    by_rate: dict[float, list[list[float]]] = {}
    for _, of_candidate in found.groupby("candidate"):
        measured = of_candidate["val_loss"]
        losses = measured.where(measured.map(math.isfinite), guessing).tolist()
        by_rate.setdefault(of_candidate["embedding_learning_rate"].iloc[0], []).append(losses)
    best = {rate: min(of_rate, key=math.fsum) for rate, of_rate in by_rate.items()}
    return learning_rate_sensitivity(best, guessing)


def unequal_budgets(plan: Plan) -> tuple[str, ...]:
    """Return a sentence for each block whose optimizers have different numbers of candidates."""
    sentences = []
    for planned in plan.blocks:
        if not planned.tunings:
            continue
        counts = {row.label: 0 for row in planned.block.rows}
        counts |= {tuning.row.label: len(tuning.candidates) for tuning in planned.tunings.values()}
        if len(set(counts.values())) > 1:
            named = ", ".join(
                f"{label} {plural(count, 'candidate')}" for label, count in counts.items()
            )
            sentences.append(f"{planned.study.name}, {planned.place}: {named}")
    return tuple(sentences)


_HEADS: tuple[tuple[str, Kind], ...] = (
    ("Trial", "text"),
    ("Optimizer", "row"),
    ("Budget", "number"),
    ("Chosen", "text"),
    ("Validation loss", "number"),
    ("Sensitivity", "number"),
    ("Remark", "wrap"),
)


def _blocks(material: Material) -> Iterator[Block]:
    plan, tried = material.plan, material.frame(STATISTIC)
    yield Text(
        Markup(
            "Before the cells of a tuned row were trained, candidates were trained with seeds of"
            " their own. The one with the least mean loss on the whole split <code>val</code> was"
            " taken; of equal ones, that with the smaller learning rate. The split"
            " <code>test</code> was not looked at, and no candidate is in a table. All numbers are"
            ' in <a href="../tuning.csv">tuning.csv</a>.'
        )
    )
    # More tries find a better candidate, if only by luck, and no table would show it.
    if unequal := unequal_budgets(plan):
        differ = Markup('<span class="status bad">The budgets differ</span>, {}')
        yield Text(differ.format("so the comparison is easier for the rows with more candidates:"))
        yield Items(unequal)
    else:
        yield Text(
            "All optimizers of a block have the same budget: the same number of candidates, seeds"
            " and tokens."
        )
    yield Grid(
        "Tuning",
        listed(*_HEADS),
        [
            _line(material, tuning, tried[tried["tuning"] == tuning.id])
            for tuning in plan.tunings.values()
        ],
        caption="What was tried, and what was chosen; the budget is candidates × seeds × tokens",
    )
    yield Text(
        "The sensitivity to the learning rate is the mean over the embedding's learning rates of"
        " min(loss, that of guessing), minus the least loss, in nats (Wortsman et al. 2023): 0 if"
        " the choice does not matter. A run that diverged counts as guessing. It compares"
        " optimizers whose learning rates span the same range.",
        small=True,
    )
    yield Figures(["tuning"])


STATISTIC = Statistic(
    file="tuning.csv",
    columns={
        "study": str,
        "tuning": str,
        "model": str,
        "n_params": int,
        "n_tokens": int,
        "optimizer": str,
        "candidate": int,
        "settings": str,
        "learning_rate": float,
        "embedding_learning_rate": float,
        "seed": int,
        "cell": str,
        "val_loss": float,
        "reason": str,
        "mean_val_loss": float,
        "chosen": bool,
    },
    key=("tuning", "candidate", "seed"),
    rows=_rows,
    section=Section(
        "tuning", "Tuning", lambda material: _blocks(material) if material.plan.tunings else ()
    ),
)
