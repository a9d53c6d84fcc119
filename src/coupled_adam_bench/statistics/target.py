"""Histories to ``target.csv``: when each run reaches the target loss, and whether an optimizer's runs end below it.

The loss is the validation loss of training. A run reaches the target at the first measured step whose loss is at or
under it; nothing is interpolated, so the step is known to within ``execution.eval_every``.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coupled_adam_bench.results.groups import GROUP_COLUMNS, layout_of
from coupled_adam_bench.results.target import ALL_SEEDS, write_target_rows
from coupled_adam_bench.statistics.student import one_sided_p, statistic
from coupled_adam_bench.statistics.t_test import summarize
from coupled_adam_bench.store import paths
from coupled_adam_bench.store.runs import run_history
from coupled_adam_bench.study.catalog.names import VALIDATION_LOSS
from coupled_adam_bench.study.plan import Plan


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


def target_rows(plan: Plan, runs: Path = paths.RUNS) -> Iterator[dict[str, Any]]:
    """Yield the rows of ``target.csv``, none without a target."""
    if (target := plan.statistics.target_loss) is None:
        return
    for groups in layout_of(plan).groups.values():
        for group in groups:
            for key, cells in group.cells.items():
                histories = {str(cell.seed): run_history(runs / cell.id) for cell in cells}
                steps, per_step = cells[0].steps, group.n_tokens // cells[0].steps
                reached = {seed: first_reached(rows, target, steps) for seed, rows in histories.items()}
                place = dict(zip(GROUP_COLUMNS, group.place, strict=True)) | {"optimizer": key, "target": target}
                yield from (place | row for row in optimizer_rows(reached, per_step, target))


def write_target(plan: Plan, out: Path, runs: Path = paths.RUNS) -> None:
    """Write ``target.csv`` from the histories in ``runs``."""
    write_target_rows(target_rows(plan, runs), out)
