"""Two plug-ins (docs/plugins.md): how many tokens the reference needs for the same loss, and which
optimizers change their order between two D, as ``speedup.csv`` and ``flips.csv``.

    statistics:
      files:
        - {name: speedup, path: research.plugins.speedup.Speedup}
        - {name: flips, path: research.plugins.speedup.Flips}

The effective speedup of an optimizer at D tokens is the number of tokens that the reference needs
for the same test loss, over D (arXiv 2509.02046): at 1.2 the reference needs 20 % more tokens.

The reference is the Adam with the lowest mean loss at D, over all tables, with any learning rates,
beta1, beta2 and weight decay, and with or without AMSGrad. An Adam with another head, such as
mu-centering, is another method. What a trial has tuned is compared only with what one has tuned.
``coupled_adam_registry.loss_curves`` has the curve of the reference and the interval. For a longer
curve, add a block of the grid without a ``table``, with only the reference at more tokens. Take at
least three D, each twice the one before: with two D there is no interval.

S: seeds    T: numbers of tokens
"""

import math
from collections.abc import Iterator, Mapping
from itertools import combinations, permutations
from typing import Any, ClassVar

from markupsafe import Markup

from coupled_adam_bench.page.blocks import (
    PLACE_COLUMNS,
    Block,
    Column,
    Grid,
    Heading,
    Items,
    Text,
    label_in,
)
from coupled_adam_bench.page.formats import MISSING, fixed, p_value, plural
from coupled_adam_bench.results.facts import Comparison, Fact, Outcome
from coupled_adam_bench.results.groups import GROUP, GROUP_COLUMNS, PLACE
from coupled_adam_bench.results.sample import difference
from coupled_adam_bench.results.setups import Setup
from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.statistics.declared import Material, Row, Statistic
from coupled_adam_bench.statistics.plug_ins import StatisticPlugIn
from coupled_adam_bench.study.catalogue.metrics import LOSS
from coupled_adam_bench.study.plan.cells import Cell, readable_count
from coupled_adam_registry.loss_curves import (
    Curve,
    Needed,
    is_adam,
    needed_tokens,
    reference_of,
)


def _is_tuned(cell: Cell) -> bool:
    return cell.tuning is not None


def _curves(study: StudyResults) -> dict[Setup, dict[tuple[str, bool], Curve]]:
    """Return the curves of each setup by key and tuning, also of blocks that are in another table
    or in none."""
    curves: dict[Setup, dict[tuple[str, bool], Curve]] = {}
    for planned in study.plan.blocks:
        for cell in planned.cells:
            name = cell.optimizer.key, _is_tuned(cell)
            of_setup = curves.setdefault(study.layout.setups[cell.id], {})
            empty = Curve(name[0], cell.optimizer.label, name[1], is_adam(cell.optimizer), {})
            curve = of_setup.setdefault(name, empty)
            curve.losses.setdefault(cell.n_tokens, {})[cell.seed] = study.value(cell, LOSS)
    return curves


def _rows(study: StudyResults) -> Iterator[dict[str, Any]]:
    curves = _curves(study)
    for group in study.layout.all_groups:
        rivals = curves[group.setup].values()
        # One number of tokens is no curve, so no Adam of this setup can be a reference.
        if not any(curve.is_adam and len(curve.losses) > 1 for curve in rivals):
            continue
        facts = study.at(group, LOSS)
        means = {key: fact.sample.mean for key, fact in facts.items()}
        for key, loss in means.items():
            is_tuned = _is_tuned(group.cells[key][0])
            reference, reason = reference_of(rivals, group.n_tokens, is_tuned)
            if reference is None:
                own = Needed(0, reason=reason)
            elif (reference.key, reference.is_tuned) == (key, is_tuned):
                own = Needed(0, reason="the reference")
            else:
                own = needed_tokens(facts[key].by_seed, reference.losses)
            # Losses that differ only by rounding share a rank.
            rank = (
                math.nan
                if math.isnan(loss)
                else 1 + sum(difference(other, loss) < 0 for other in means.values())
            )
            yield group.columns | {
                "optimizer": key,
                "reference": "" if reference is None else reference.key,
                "rank": rank,
                "loss": loss,
                "n": own.n,
                "tokens_reference": own.tokens,
                "speedup": own.tokens / group.n_tokens,
                "low": own.low / group.n_tokens,
                "high": own.high / group.n_tokens,
                "reason": own.reason,
            }


def _flips(study: StudyResults) -> Iterator[dict[str, Any]]:
    """Yield every two optimizers whose order changes between two numbers of tokens, the one that
    was ahead first, with what the study decided of them there."""
    for groups in study.layout.groups.values():
        # Groups are in the order of their tokens, and groups of a setup differ only in these.
        for one, other in ((a, b) for a, b in combinations(groups, 2) if a.setup == b.setup):
            earlier, later = study.at(one, LOSS), study.at(other, LOSS)
            for ahead, behind in permutations([key for key in earlier if key in later], 2):
                gap, gap_later = (_gap(facts, ahead, behind) for facts in (earlier, later))
                # A pair is there in both orders, and only one of these has its gap below 0.
                if gap < 0 < gap_later:
                    decided, decided_later = (
                        facts[ahead].against.get(behind) for facts in (earlier, later)
                    )
                    yield one.columns | {
                        "n_tokens_later": other.n_tokens,
                        "optimizer": ahead,
                        "reference": behind,
                        "difference": gap,
                        "p_paired_holm": _corrected(decided),
                        "difference_later": gap_later,
                        "p_paired_holm_later": _corrected(decided_later),
                        "told_apart": _is_told_apart(decided) and _is_told_apart(decided_later),
                    }


def _gap(facts: Mapping[str, Fact], key: str, rival: str) -> float:
    return difference(facts[key].sample.mean, facts[rival].sample.mean)


def _is_told_apart(decided: Comparison | None) -> bool:
    return decided is not None and decided.outcome in (Outcome.BETTER, Outcome.WORSE)


def _corrected(decided: Comparison | None) -> float:
    """Return the corrected p-value of a decision, NaN where nothing was tested."""
    return math.nan if decided is None else decided.p_corrected


def _ends(row: Row) -> str:
    """Return the ends of an interval; one that it does not have is ``-``."""
    if math.isnan(row["low"]) and math.isnan(row["high"]):
        return MISSING
    return f"[{fixed(row['low'], 2)}, {fixed(row['high'], 2)}]"


def _reference(row: Row) -> Any:
    """Return the reference as tables call it: it is tuned as the optimizer is."""
    key, tuned = row["reference"], _is_tuned(row[GROUP].cells[row["optimizer"]][0])
    cells = (cell for cells in row[GROUP].cells.values() for cell in cells)
    return next(
        (
            cell.optimizer.label
            for cell in cells
            if (cell.optimizer.key, _is_tuned(cell)) == (key, tuned)
        ),
        key,
    )


_COLUMNS: tuple[Column[Row], ...] = (
    *PLACE_COLUMNS,
    Column("Optimizer", label_in("optimizer"), "row"),
    Column("rank", lambda row: fixed(row["rank"], 0), "number"),
    Column("loss", lambda row: fixed(row["loss"], 4), "number"),
    Column("speedup", lambda row: fixed(row["speedup"], 2), "number"),
    Column("95 % interval", _ends, "number"),
    Column("Reference", lambda row: _reference(row) or MISSING),
    Column("Remark", lambda row: row["reason"], "wrap"),
)


def _flip(row: Row) -> Markup:
    labels = row[GROUP].optimizer_labels
    return Markup(
        "<i>N</i> = {}: {} has the lower loss at {}, and {} at {} tokens (<i>p</i> = {} and {})."
    ).format(
        row[GROUP].model_label,
        labels[row["optimizer"]],
        row[GROUP].tokens_label,
        labels[row["reference"]],
        readable_count(row["n_tokens_later"]),
        p_value(row["p_paired_holm"]),
        p_value(row["p_paired_holm_later"]),
    )


class Speedup(StatisticPlugIn):
    """The speedup of each optimizer at each place, and its rank by the mean loss."""

    contract = 1
    title = "Tokens for the same loss"
    columns: ClassVar[Mapping[str, type]] = PLACE | {
        "optimizer": str,
        "reference": str,
        "rank": float,
        "loss": float,
        "n": int,
        "tokens_reference": float,
        "speedup": float,
        "low": float,
        "high": float,
        "reason": str,
    }
    key = (*GROUP_COLUMNS, "optimizer")

    def rows(self, material: Material) -> Iterator[dict[str, Any]]:
        """Yield a row for each optimizer of each place whose curve an Adam has."""
        return _rows(material.study)

    def blocks(self, material: Material, statistic: Statistic) -> Iterator[Block]:
        """Yield what the reference is, and a table of speedups for each table of the study."""
        if not material.rows(statistic):
            return
        yield Text(
            Markup(
                "The speedup of an optimizer is the number of tokens that the reference needs for"
                " the same loss, over its own: above 1, the reference needs more. The reference is"
                " the strongest Adam with these tokens, whatever its rates, beta1, beta2 and weight"
                " decay, and with or without AMSGrad; the table names it. One that is tuned stands"
                " beside what is tuned, and no other. Its losses are interpolated by a power law"
                " and never extrapolated; the interval is over seeds, given this curve. All are in"
                ' <a href="../{0}">{0}</a>.'
            ).format(statistic.file)
        )
        for table, rows in material.by_table(statistic):
            yield Heading(table.title)
            yield Grid(f"Speedups, {table.title}", _COLUMNS, rows, tall=True)


class Flips(StatisticPlugIn):
    """Every two optimizers whose order changes between two numbers of tokens."""

    contract = 1
    title = "Changes of order"
    columns: ClassVar[Mapping[str, type]] = PLACE | {
        "n_tokens_later": int,
        "optimizer": str,
        "reference": str,
        "difference": float,
        "p_paired_holm": float,
        "difference_later": float,
        "p_paired_holm_later": float,
        "told_apart": bool,
    }
    key = (*GROUP_COLUMNS, "n_tokens_later", "optimizer", "reference")

    def rows(self, material: Material) -> Iterator[dict[str, Any]]:
        """Yield a row for each change, the optimizer that was ahead first."""
        return _flips(material.study)

    def blocks(self, material: Material, statistic: Statistic) -> Iterator[Block]:
        """Yield the changes that are told apart, and how many there are."""
        for table, flips in material.by_table(statistic):
            # Changes that may be noise are counted and not named, so nobody quotes them.
            clear = [_flip(row) for row in flips if row["told_apart"]]
            yield Heading(table.title)
            yield Items(clear)
            yield Text(
                Markup(
                    "{0} of order between two numbers of tokens, {1} of them with both differences"
                    " significant by tests paired by seed, after Holm's correction over the table."
                    ' The others are not told apart. All are in <a href="../{2}">{2}</a>.'
                ).format(plural(len(flips), "change"), len(clear), statistic.file),
                small=True,
            )
