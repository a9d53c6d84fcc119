"""How much the numbers of an evaluation depend on which text and questions are in it: sampling variances."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from coupled_adam_bench import paths
from coupled_adam_bench.evaluation.stored import Measurement, measured_cells
from coupled_adam_bench.evaluation.window_losses import FILE, WindowLosses, read_windows
from coupled_adam_bench.plan import Plan

if TYPE_CHECKING:
    from pandas import DataFrame

LOSS, ACCURACY = "loss", "acc"
SamplingVariances = Mapping[tuple[str, str], float]
"""Variances by the id of a cell and the name of a metric."""


def variance_of_mean_loss(windows: WindowLosses) -> float:
    """Return the variance of the mean loss over the draw of the windows, in nats squared; NaN for fewer than two.

    The mean weighs each window by its targets n_i, so its variance is that of a ratio:
    N / (N - 1) sum n_i^2 (l_i - L)^2 / (sum n_i)^2 (Cochran 1977, section 2.11). Windows count as independent.
    """
    n, losses = windows.n_targets, windows.losses
    if len(n) < 2:
        return math.nan
    mean = (n * losses).sum() / n.sum()
    return float(len(n) / (len(n) - 1) * (n**2 * (losses - mean) ** 2).sum() / n.sum() ** 2)


def _of_loss(measurement: Measurement, cell_id: str) -> float:
    """Return the sampling variance of a cell's loss; NaN if it has diverged, or its windows are not kept."""
    if not measurement.is_there(cell_id) or FILE not in measurement.read(cell_id).get("files", {}):
        return math.nan
    return variance_of_mean_loss(read_windows(measurement, cell_id))


def sampling_variances(plan: Plan, results: "DataFrame", runs: Path = paths.RUNS) -> SamplingVariances:
    """Return the sampling variance of each cell's loss, from its windows, and accuracy, from lm-eval's standard errors.

    NaN where a cell has none. Other metrics are not a mean over text and have none.
    """
    found: dict[tuple[str, str], float] = {}
    for cell, measurements in measured_cells(plan, runs):
        for measurement in measurements:
            if measurement.stage.name == "test_loss":
                found[cell.id, LOSS] = _of_loss(measurement, cell.id)
    errors = results[(results["task"] == "average") & (results["metric"] == f"{ACCURACY}_stderr")]
    for cell_id, error in zip(errors["cell"], errors["value"], strict=True):
        found[cell_id, ACCURACY] = error**2
    return found
