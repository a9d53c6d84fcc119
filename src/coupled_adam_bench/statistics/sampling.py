"""How much the numbers of an evaluation depend on which text and questions are in it: sampling variances."""

import math
from collections.abc import Mapping
from pathlib import Path

from pandas import DataFrame

from coupled_adam_bench.evaluation.kept import WINDOWS, WindowLosses, read_windows
from coupled_adam_bench.statistics.units import document_means, of_held_out
from coupled_adam_bench.store import paths
from coupled_adam_bench.store.stored import Measurement, measured_cells
from coupled_adam_bench.study.catalog.bands import RAREST
from coupled_adam_bench.study.plan import Plan

LOSS, ACCURACY = "loss", "acc"
SamplingVariances = Mapping[tuple[str, str], float]
"""Variances by the id of a cell and the name of a metric."""


def variance_of_mean_loss(windows: WindowLosses) -> float:
    """Return the variance of the mean loss over the draw of the documents, in nats squared; NaN for fewer than two."""
    n_targets_G, (losses_G,) = document_means(windows.documents, windows.n_targets, windows.losses)
    return of_held_out(losses_G, n_targets_G).standard_error ** 2


def _of_loss(measurement: Measurement, cell_id: str) -> float:
    """Return the sampling variance of a cell's loss; NaN if it has diverged, or its windows are not kept."""
    if not measurement.is_there(cell_id) or WINDOWS not in measurement.read(cell_id).get("files", {}):
        return math.nan
    return variance_of_mean_loss(read_windows(measurement, cell_id))


def sampling_variances(plan: Plan, results: DataFrame, runs: Path = paths.RUNS) -> SamplingVariances:
    """Return the sampling variance of each cell's loss, from its held-out documents, and of what has a standard error.

    NaN where a cell has none. Other metrics are not a mean over text and have none.
    """
    found: dict[tuple[str, str], float] = {}
    for cell, measurements in measured_cells(plan, runs):
        for measurement in measurements:
            if measurement.stage.name == "test_loss":
                found[cell.id, LOSS] = _of_loss(measurement, cell.id)
    for task, metric in (("average", ACCURACY), ("test", RAREST.pooled_calibration)):
        errors = results[(results["task"] == task) & (results["metric"] == f"{metric}_stderr")]
        for cell_id, error in zip(errors["cell"], errors["value"], strict=True):
            found[cell_id, metric] = error**2
    return found
