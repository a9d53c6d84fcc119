"""``results.csv`` to ``noise.csv``: the spread of each number, split into where it comes from.

A block of the grid that crosses ``seeds`` with ``data_seeds`` gives three parts: initial weights, order of the data,
and the rest, which is their interaction and the rounding. A block without ``data_seeds`` changes both with one seed and
gives their sum. Which text and questions an evaluation has is a part of its own: cells that are measured on the same
ones share it, so that it is no part of the spread over seeds.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from pandas import DataFrame

from coupled_adam_bench.results.study_results import StudyResults, load_results
from coupled_adam_bench.results.tidy import read_csv, typed_frame, write_csv
from coupled_adam_bench.statistics.sampling import SamplingVariances, sampling_variances
from coupled_adam_bench.statistics.variance_components import MISSING, Component, one_way, two_way
from coupled_adam_bench.store import paths
from coupled_adam_bench.study.cells import Cell
from coupled_adam_bench.study.config import GridBlock
from coupled_adam_bench.study.plan import Plan

SEEDS, INIT, ORDER, REST, EVALUATION = "seeds", "initial weights", "order of the data", "rest", "evaluation"
"""Values of ``source``; ``seeds`` are both seeds at once, ``rest`` is interaction and rounding, and ``evaluation``
which text and questions the evaluation has."""
GROUP_COLUMNS = ("n_params", "n_tokens", "optimizer", "model", "data", "recipe", "block")
NOISE_COLUMNS: dict[str, type] = {
    "n_params": int, "n_tokens": int, "optimizer": str, "metric": str, "source": str, "variance": float, "low": float,
    "high": float, "df": int, "n": int, "design": str, "reason": str, "model": str, "data": str, "recipe": str,
    "block": str,
}  # fmt: skip
"""Columns of noise.csv; ``low`` and ``high`` are the 95 % interval of the ``variance``."""
Parts = list[tuple[str, Component]]
"""Components by their source."""


def seed_parts(values: Sequence[float], n_seeds: int, n_orders: int | None) -> tuple[Parts, str]:
    """Return the components of values over seeds, and why there are none.

    ``values`` are those of ``n_seeds`` seeds or, if ``n_orders`` is given, of the cross of both, the order of the data
    changing faster.
    """
    if n_orders is None:
        sources = [SEEDS]
    elif n_orders == 1:
        sources = [INIT]
    elif n_seeds == 1:
        sources = [ORDER]
    else:
        sources = [INIT, ORDER, REST]
    missing = sum(not math.isfinite(value) for value in values)
    if missing:
        return [(source, MISSING) for source in sources], f"{missing} of {len(values)} values missing"
    if len(values) < 2:
        return [(source, MISSING) for source in sources], "one run has no spread"
    found = np.array(values, dtype=np.float64)
    components = two_way(found.reshape(n_seeds, -1)) if len(sources) > 1 else (one_way(found),)
    return list(zip(sources, components, strict=True)), ""


def evaluation_part(variances: Sequence[float]) -> tuple[Component, str]:
    """Return the mean sampling variance of the cells that have one; it has no interval here."""
    finite = [variance for variance in variances if math.isfinite(variance)]
    if not finite:
        return MISSING, "no losses of windows, or no standard errors, are kept"
    mean = math.fsum(finite) / len(finite)
    return Component(mean, math.nan, math.nan, 0), ""


def design_of(block: GridBlock) -> str:
    """Return in words which seeds a block has."""
    if block.data_seeds is None:
        return f"{len(block.seeds)} seeds"
    return f"{len(block.seeds)} seeds x {len(block.data_seeds)} orders"


def _same_place(cell: Cell) -> tuple[str, int, str]:
    return cell.model.name, cell.steps, cell.optimizer.key


def noise_rows(study: StudyResults, sampling: SamplingVariances) -> Iterator[dict[str, Any]]:
    """Yield the rows of ``noise.csv``: for each block, place and metric one for each source."""
    done: set[tuple[str, ...]] = set()
    for planned in study.plan.blocks:
        for _, found in groupby(planned.cells, key=_same_place):
            cells = list(found)
            if (ids := tuple(cell.id for cell in cells)) in done:
                continue
            done.add(ids)
            setup = study.layout.setups[cells[0].id]
            place = {
                "n_params": setup.n_params, "n_tokens": cells[0].n_tokens, "optimizer": cells[0].optimizer.key,
                "model": setup.model, "data": setup.data, "recipe": setup.recipe,
                "block": f"{planned.study.name} {planned.place}", "design": design_of(planned.block),
            }  # fmt: skip
            for metric in study.layout.metrics:
                rows = _metric_rows(planned.block, cells, metric, study.values, sampling)
                yield from (place | {"metric": metric} | row for row in rows)


def _metric_rows(
    block: GridBlock,
    cells: Sequence[Cell],
    metric: str,
    values: Mapping[tuple[str, str], float],
    sampling: SamplingVariances,
) -> Iterator[dict[str, Any]]:
    n_orders = None if block.data_seeds is None else len(block.data_seeds)
    parts, reason = seed_parts([values.get((cell.id, metric), math.nan) for cell in cells], len(block.seeds), n_orders)
    for source, component in parts:
        yield _row(source, component, len(cells), reason)
    variances = [sampling[cell.id, metric] for cell in cells if (cell.id, metric) in sampling]
    if variances:
        component, reason = evaluation_part(variances)
        yield _row(EVALUATION, component, len(cells), reason)


def _row(source: str, component: Component, n: int, reason: str) -> dict[str, Any]:
    return {
        "source": source, "variance": component.variance, "low": component.low, "high": component.high,
        "df": component.df, "n": n, "reason": reason,
    }  # fmt: skip


def write_noise_rows(rows: Iterable[dict[str, Any]], path: Path) -> None:
    """Write ``noise.csv`` atomically, in full precision."""
    write_csv(typed_frame(list(rows), NOISE_COLUMNS), path)


def write_noise(plan: Plan, results_csv: Path, out: Path, runs: Path = paths.RUNS) -> None:
    """Write ``noise.csv`` from ``results.csv`` and from the evaluations in ``runs``."""
    study = load_results(plan, results_csv)
    write_noise_rows(noise_rows(study, sampling_variances(plan, study.results, runs)), out)


def read_noise(path: Path) -> DataFrame:
    """Read ``noise.csv``; ``ValueError`` for a wrong column, a value of the wrong type or a duplicate row."""
    return read_csv(path, NOISE_COLUMNS, (*GROUP_COLUMNS, "metric", "source"))
