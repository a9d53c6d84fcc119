"""A plug-in (docs/plugins.md): when each run reaches a target loss, and whether an optimizer's runs
end below it, as ``target.csv`` and a section of the report.

    statistics:
      files:
        - {name: target, path: research.plugins.target.Target, arguments: {loss: 3.28, sd: 0.0013}}

The loss is the validation loss of training. A run reaches the target at the first measured step
whose loss is at or under it; nothing is interpolated, so the step is known to within
``execution.eval_every``. The runs of an optimizer are accepted at the first step, the same for all,
at which the test says that the mean of their losses is below the target.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from markupsafe import Markup

from coupled_adam_bench.page.blocks import (
    PLACE_COLUMNS,
    Block,
    Column,
    Grid,
    Heading,
    Text,
    label_in,
)
from coupled_adam_bench.page.formats import MISSING, fixed, p_value, shorthand
from coupled_adam_bench.results.groups import GROUP, GROUP_COLUMNS
from coupled_adam_bench.results.sample import Sample, difference, summarize
from coupled_adam_bench.statistics.declared import (
    ALL_SEEDS,
    Material,
    Row,
    Statistic,
)
from coupled_adam_bench.statistics.plug_ins import StatisticPlugIn
from coupled_adam_bench.statistics.student import NO_SPREAD, one_sided_p, t_ratio
from coupled_adam_bench.store.runs import run_history
from coupled_adam_bench.study.catalogue.names import VALIDATION_LOSS
from coupled_adam_bench.study.plan import Plan
from coupled_adam_bench.study.plan.cells import Cell, readable_count

ACCEPTED_P = 0.001
"""Level of the test that accepts runs (modded-nanogpt, records/track_3_optimization, rule 3)."""


def _losses(history: Sequence[Mapping[str, Any]]) -> dict[int, float]:
    """Return the measured validation losses by step."""
    return {row["step"]: row[VALIDATION_LOSS] for row in history if VALIDATION_LOSS in row}


def first_reached(
    history: Sequence[Mapping[str, Any]], target: float, steps: int
) -> tuple[float, float, str]:
    """Return the first step at or under the target, the loss at the last of ``steps``, and why one
    of them is NaN."""
    losses = _losses(history)
    finite = [loss for loss in losses.values() if math.isfinite(loss)]
    step = next((float(step) for step, loss in losses.items() if loss <= target), math.nan)
    last = losses.get(steps, math.nan)
    reasons = []
    if math.isnan(step):
        reasons.append(
            f"not reached; the least is {min(finite):.6g}" if finite else "no validation loss"
        )
    if not math.isfinite(last):
        reasons.append(f"no validation loss at the last step, {steps}")
    return step, last if math.isfinite(last) else math.nan, "; ".join(reasons)


def below_target(losses: Sequence[float], target: float, sd: float | None = None) -> dict[str, Any]:
    """Return the one-sided one-sample t-test that the mean of losses is below the target, as
    columns.

    A missing loss, or fewer than two, gives NaN and a reason. Losses that are all equal have no
    test, unless they are the target: p is 1 then. With a known standard deviation ``sd`` it is a
    z-test, for which one loss is enough; its degrees of freedom are infinite.
    """
    sample = summarize(losses)
    columns: dict[str, Any] = {"loss": sample.mean, "sd": sample.sd, "p_value": math.nan}
    if sample.n < len(losses):
        return columns | {
            "reason": (
                f"{len(losses) - sample.n} of {len(losses)} runs have no final validation loss"
            )
        }
    if sample.n < 2 and sd is None:
        return columns | {"reason": "1 run, the test needs 2"}
    gap, error = difference(sample.mean, target), (sample.sd if sd is None else sd)
    error /= math.sqrt(sample.n)
    df = sample.n - 1.0 if sd is None else math.inf
    p = one_sided_p(gap, error, df, higher=False)
    reason = NO_SPREAD if math.isnan(p) else ""
    return columns | {"t": t_ratio(gap, error), "df": df, "p_value": p, "reason": reason}


def first_accepted(
    histories: Sequence[Sequence[Mapping[str, Any]]], target: float, sd: float | None
) -> float:
    """Return the first step that all runs measured at which the test has p < ``ACCEPTED_P``, NaN
    without one."""
    losses = [_losses(history) for history in histories]
    steps = sorted(set.intersection(*map(set, losses)))
    for step in steps:
        at_step = [run[step] for run in losses]
        if below_target(at_step, target, sd)["p_value"] < ACCEPTED_P:
            return float(step)
    return math.nan


def _optimizer_rows(
    cells: Sequence[Cell], runs: Path, target: float, sd: float | None
) -> Iterator[dict[str, Any]]:
    """Yield a row for each seed of an optimizer, and one for all seeds, whose steps are NaN unless
    all reach it."""
    first, found = cells[0], []
    histories = [run_history(runs / cell.id) for cell in cells]
    per_step = first.n_tokens // first.steps
    for cell, history in zip(cells, histories, strict=True):
        step, loss, reason = first_reached(history, target, cell.steps)
        found.append((step, loss))
        yield {
            "seed": str(cell.seed),
            "n": 1,
            "n_reached": int(math.isfinite(step)),
            "step": step,
            "tokens": step * per_step,
            "loss": loss,
            "reason": reason,
        }
    test = below_target([loss for _, loss in found], target, sd)
    # A mean over only the runs that reach it would favour an optimizer of which few do.
    reached = [step for step, _ in found if math.isfinite(step)]
    step = math.fsum(reached) / len(cells) if len(reached) == len(cells) else math.nan
    gap = (
        f"{len(cells) - len(reached)} of {len(cells)} runs do not reach it"
        if math.isnan(step)
        else ""
    )
    yield test | {
        "seed": ALL_SEEDS,
        "n": len(cells),
        "n_reached": len(reached),
        "step": step,
        "tokens": step * per_step,
        "accepted_step": first_accepted(histories, target, sd),
        "reason": "; ".join(filter(None, (gap, test["reason"]))),
    }


def _count(tokens: float) -> str:
    return MISSING if math.isnan(tokens) else readable_count(round(tokens))


def _loss(row: Row) -> str:
    return str(shorthand(Sample(row["n"], row["loss"], row["sd"]), digits=4))


def _positive(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ValueError(f"{name}: must be a number above 0, not {value!r}")
    return float(value)


class Target(StatisticPlugIn):
    """Tokens to a target ``loss`` in nats per token.

    ``sd`` is the standard deviation of the validation loss over seeds, where it is known from
    elsewhere: the test against the target is then a z-test, for which one run is enough. By default
    it is estimated from the runs.
    """

    contract = 1
    title = "Tokens to a target"
    columns: ClassVar[Mapping[str, type]] = {
        "table": str,
        "n_params": int,
        "n_tokens": int,
        "optimizer": str,
        "seed": str,
        "target": float,
        "n": int,
        "n_reached": int,
        "step": float,
        "tokens": float,
        "accepted_step": float,
        "loss": float,
        "sd": float,
        "t": float,
        "df": float,
        "p_value": float,
        "reason": str,
        "model": str,
        "data": str,
        "recipe": str,
    }
    key = (*GROUP_COLUMNS, "optimizer", "seed")

    def __init__(self, loss: float, sd: float | None = None) -> None:
        self.loss = _positive("loss", loss)
        self.sd = None if sd is None else _positive("sd", sd)

    def check(self, plan: Plan) -> None:
        """Refuse a study whose runs measure no validation loss."""
        for study in plan.studies.values():
            if study.execution.eval_every is None:
                raise ValueError(
                    f"the target {self.loss:g} is compared with the validation loss, which"
                    f" {study.name} does not measure; give execution.eval_every a number of steps,"
                    " or leave out the plug-in"
                )

    def rows(self, material: Material) -> Iterator[dict[str, Any]]:
        """Yield a row for each seed of an optimizer, and one for all seeds."""
        for group in material.study.layout.all_groups:
            for key, cells in group.cells.items():
                place = group.columns | {"optimizer": key, "target": self.loss}
                for row in _optimizer_rows(cells, material.runs, self.loss, self.sd):
                    yield place | row

    def blocks(self, material: Material, statistic: Statistic) -> Iterator[Block]:
        """Yield what the test is, and a line for each optimizer."""
        if not material.study.layout.groups:
            return
        test = (
            "<i>t</i>-test"
            if self.sd is None
            else f"<i>z</i>-test with the standard deviation {self.sd:g}"
        )
        yield Text(
            Markup(
                "The target of the study is a validation loss of {} nats per token. A run reaches"
                " it at the first measured step whose loss is at or under it. The <i>p</i> is that"
                " of a one-sided one-sample {} over seeds: small if the runs of an optimizer end"
                " below the target, by which speedruns accept a record. The runs of an optimizer"
                " are accepted at the first step at which the <i>p</i> of their losses there is"
                ' below {}. The runs one by one are in <a href="../target.csv">target.csv</a>.'
            ).format(f"{self.loss:g}", Markup(test), f"{ACCEPTED_P:g}")
        )
        # The columns read this only when a grid is drawn, and the loop below has filled it by then.
        first: dict[Any, float] = {}
        columns: list[Column[Row]] = [
            *PLACE_COLUMNS,
            Column("Optimizer", label_in("optimizer"), "row"),
            Column(
                "runs that reach it",
                lambda row: f"{row['n_reached']} of {row['n']}",
                "number",
            ),
            Column("mean tokens", lambda row: _count(row["tokens"]), "number"),
            Column(
                "of the first",
                lambda row: fixed(row["tokens"] / first[row[GROUP].place], 2),
                "number",
            ),
            Column("accepted at step", lambda row: fixed(row["accepted_step"], 0), "number"),
            Column("final loss", _loss, "number"),
            Column(Markup("<i>p</i>"), lambda row: p_value(row["p_value"], ACCEPTED_P), "number"),
            Column("Remark", lambda row: row["reason"], "wrap"),
        ]
        for table, rows in material.by_table(statistic):
            runs = [row for row in rows if row["seed"] == ALL_SEEDS]
            for row in runs:
                first.setdefault(row[GROUP].place, row["tokens"])
            yield Heading(table.title)
            yield Grid(f"Tokens to a target, {table.title}", columns, runs, tall=True)
