"""When each run reaches the target loss, and whether an optimizer's runs end below it: ``target.csv``.

The loss is the validation loss of training. A run reaches the target at the first measured step whose loss is at or
under it; nothing is interpolated, so the step is known to within ``execution.eval_every``.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from coupled_adam_bench.report.blocks import Block, Column, Grid, Heading, Text
from coupled_adam_bench.report.formats import MISSING, fixed, p_value, shorthand
from coupled_adam_bench.results.comparisons import ALL_SEEDS
from coupled_adam_bench.results.groups import GROUP_COLUMNS
from coupled_adam_bench.statistics.declared import PLACE, Field, Material, Placed, Section, Statistic
from coupled_adam_bench.statistics.student import one_sided_p, statistic
from coupled_adam_bench.statistics.t_test import Sample, summarize
from coupled_adam_bench.store.runs import run_history
from coupled_adam_bench.study.catalog.names import VALIDATION_LOSS
from coupled_adam_bench.study.cells import readable_count


@dataclass(frozen=True)
class Reached:
    """A run: the first step at or under the target, and the loss at its last step; NaN with a reason where none is."""

    step: float
    loss: float
    reason: str


def first_reached(history: Sequence[Mapping[str, Any]], target: float, steps: int) -> Reached:
    """Return when a run of ``steps`` reaches the target, given the rows of its history."""
    measured = [(row["step"], row[VALIDATION_LOSS]) for row in history if VALIDATION_LOSS in row]
    step = next((float(step) for step, loss in measured if loss <= target), math.nan)
    last = [loss for at, loss in measured if at == steps and math.isfinite(loss)]
    loss = last[-1] if last else math.nan
    reasons = []
    if math.isnan(step):
        finite = [loss for _, loss in measured if math.isfinite(loss)]
        reasons.append(f"not reached; the least is {min(finite):.6g}" if finite else "no validation loss")
    if math.isnan(loss):
        reasons.append(f"no validation loss at the last step, {steps}")
    return Reached(step, loss, "; ".join(dict.fromkeys(reasons)))


def below_target(losses: Sequence[float], target: float) -> dict[str, Any]:
    """Return the one-sided one-sample t-test that the mean of final losses is below the target, as columns.

    A missing loss, or fewer than two, gives NaN and a reason. If the losses are all equal, p is 0 below the target,
    and 1 otherwise.
    """
    sample = summarize(losses)
    columns: dict[str, Any] = {"loss": sample.mean, "sd": sample.sd, "t": math.nan, "df": math.nan, "p_value": math.nan}
    if sample.n < len(losses):
        return columns | {"reason": f"{len(losses) - sample.n} of {len(losses)} runs have no final validation loss"}
    if sample.n < 2:
        return columns | {"reason": "1 run, the test needs 2"}
    t = statistic(sample.mean - target, sample.sd / math.sqrt(sample.n))
    df = sample.n - 1
    return columns | {"t": t, "df": float(df), "p_value": one_sided_p(t, df, higher=False), "reason": ""}


def optimizer_rows(runs: Mapping[str, Reached], tokens_per_step: int, target: float) -> Iterator[dict[str, Any]]:
    """Yield a row for each seed of an optimizer, and one for all seeds, whose steps are NaN unless all reach it."""
    missing = dict.fromkeys(("sd", "t", "df", "p_value"), math.nan)
    for seed, run in runs.items():
        place = {"step": run.step, "tokens": run.step * tokens_per_step}
        counts = {"seed": seed, "n": 1, "n_reached": int(not math.isnan(run.step))}
        yield counts | place | missing | {"loss": run.loss, "reason": run.reason}
    test = below_target([run.loss for run in runs.values()], target)
    reached = [run.step for run in runs.values() if not math.isnan(run.step)]
    step = math.fsum(reached) / len(runs) if len(reached) == len(runs) else math.nan
    gap = f"{len(runs) - len(reached)} of {len(runs)} runs do not reach it" if math.isnan(step) else ""
    yield test | {
        "seed": ALL_SEEDS, "n": len(runs), "n_reached": len(reached), "step": step, "tokens": step * tokens_per_step,
        "reason": "; ".join(filter(None, (gap, test["reason"]))),
    }  # fmt: skip


def target_rows(material: Material) -> Iterator[dict[str, Any]]:
    """Yield the rows of ``target.csv``, none without a target."""
    if (target := material.plan.statistics.target_loss) is None:
        return
    for groups in material.study.groups.values():
        for group in groups:
            for key, cells in group.cells.items():
                histories = {str(cell.seed): run_history(material.runs / cell.id) for cell in cells}
                steps, per_step = cells[0].steps, group.n_tokens // cells[0].steps
                reached = {seed: first_reached(rows, target, steps) for seed, rows in histories.items()}
                place = dict(zip(GROUP_COLUMNS, group.place, strict=True)) | {"optimizer": key, "target": target}
                yield from (place | row for row in optimizer_rows(reached, per_step, target))


@dataclass(frozen=True)
class _Shown(Placed):
    """The runs of an optimizer together; ``first`` are the mean tokens of the group's first one."""

    first: float


_COLUMNS: tuple[Column[_Shown], ...] = (
    Column(Markup("<i>D</i>"), lambda each: each.group.tokens_label),
    Column(Markup("<i>N</i>"), lambda each: each.group.model_label),
    Column("Optimizer", lambda each: each.label("optimizer"), "row"),
    Column("runs that reach it", lambda each: f"{each.row['n_reached']} of {each.row['n']}", "number"),
    Column("mean tokens", lambda each: _count(each.row["tokens"]), "number"),
    Column("of the first", lambda each: fixed(each.row["tokens"] / each.first, 2), "number"),
    Column("final loss", lambda each: _loss(each), "number"),
    Column(Markup("<i>p</i>"), lambda each: p_value(each.row["p_value"]), "number"),
    Column("Remark", lambda each: each.row["reason"], "wrap"),
)


def _count(tokens: float) -> str:
    return MISSING if math.isnan(tokens) else readable_count(round(tokens))


def _loss(each: Placed) -> str:
    return str(shorthand(Sample(each.row["n"], each.row["loss"], each.row["sd"]), digits=4))


def _blocks(material: Material) -> Iterator[Block]:
    target = material.plan.statistics.target_loss
    if target is None or not material.study.groups:
        return
    yield Text(
        Markup(
            "The target of the study is a validation loss of {} nats per token. A run reaches it at the first measured "
            "step whose loss is at or under it. The <i>p</i> is that of a one-sided one-sample <i>t</i>-test over "
            "seeds: small if the runs of an optimizer end below the target, by which speedruns accept a record. "
            'The runs one by one are in <a href="../target.csv">target.csv</a>.'
        ).format(f"{target:g}")
    )
    for name, table in material.study.tables.items():
        runs = [each for each in material.placed(STATISTIC, name) if each.row["seed"] == ALL_SEEDS]
        first = {each.group.place: each.row["tokens"] for each in reversed(runs)}
        shown = [_Shown(each.group, each.row, each.metrics, first[each.group.place]) for each in runs]
        yield Heading(table.title)
        yield Grid(f"Tokens to a target, {table.title}", _COLUMNS, shown, tall=True)


STATISTIC = Statistic(
    file="target.csv",
    columns={name: PLACE[name] for name in GROUP_COLUMNS[:3]}
    | {
        "optimizer": Field(str, "key of the optimizer"),
        "seed": Field(str, f"a seed, or {ALL_SEEDS} for the runs of an optimizer together"),
        "target": Field(float, "the target loss", "nat/token"),
        "n": Field(int, "runs"),
        "n_reached": Field(int, "runs that reach the target"),
        "step": Field(float, "first measured step at or under the target"),
        "tokens": Field(float, "tokens up to that step"),
        "loss": Field(float, "validation loss at the last step", "nat/token"),
        "sd": Field(float, "its standard deviation over seeds", "nat/token"),
        "t": Field(float, "t of the one-sample test that the loss is below the target"),
        "df": Field(float, "its degrees of freedom"),
        "p_value": Field(float, "its one-sided p"),
        "reason": Field(str, "why a number is missing"),
    }
    | {name: PLACE[name] for name in GROUP_COLUMNS[3:]},
    key=(*GROUP_COLUMNS, "optimizer", "seed"),
    rows=target_rows,
    section=Section("target", "Tokens to a target", _blocks),
)
