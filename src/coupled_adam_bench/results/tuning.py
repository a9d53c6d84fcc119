"""The choice of a tuning: its validation losses, the candidate that is taken, and the table of all of them."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pandas import DataFrame

from coupled_adam_bench.results.tidy import read_csv, typed_frame, write_csv
from coupled_adam_bench.store import paths
from coupled_adam_bench.store.files import write_sealed
from coupled_adam_bench.store.stored import Measurement, measurement_of
from coupled_adam_bench.study.catalog.stages import VALIDATION_LOSS
from coupled_adam_bench.study.plan import Plan
from coupled_adam_bench.study.tuning import Candidate, Tuning, choice_file, read_choice

_TYPES: dict[str, type] = {
    "study": str, "tuning": str, "model": str, "n_params": int, "n_tokens": int, "optimizer": str, "candidate": int,
    "settings": str, "learning_rate": float, "embedding_learning_rate": float, "seed": int, "cell": str,
    "val_loss": float, "reason": str, "mean_val_loss": float, "chosen": bool,
}  # fmt: skip
_KEY = ("tuning", "candidate", "seed")


@dataclass(frozen=True)
class Tried:
    """A candidate with the validation loss of each of its cells, NaN with a reason for one that has none."""

    candidate: Candidate
    losses: tuple[float, ...]
    reasons: tuple[str | None, ...]

    @property
    def mean(self) -> float:
        """The mean over seeds in nats per token; NaN if the loss of any seed is."""
        return math.fsum(self.losses) / len(self.losses)


def validation_measurement(tuning: Tuning, runs: Path = paths.RUNS) -> Measurement:
    """Return the stage that measures the candidates of a tuning."""
    return measurement_of(VALIDATION_LOSS, tuning.first.study, tuning.first.data_id, runs)


def read_losses(tuning: Tuning, runs: Path = paths.RUNS) -> list[Tried]:
    """Return the candidates with their losses; ``ValueError`` for one that is not measured."""
    measurement = validation_measurement(tuning, runs)
    tried = []
    for candidate in tuning.candidates:
        records = [measurement.read(cell.id) for cell in candidate.cells]
        losses = tuple(float(record["results"][0]["value"]) for record in records)
        tried.append(Tried(candidate, losses, tuple(record["reason"] for record in records)))
    return tried


def choose(tuning: Tuning, tried: Sequence[Tried]) -> int:
    """Return the index of the candidate with the least mean loss.

    Of equal ones, that with the smaller learning rate of the embedding is taken, then of the model, then the first. A
    candidate of which any seed has diverged cannot be taken; ``ValueError`` names all of them if that leaves none.
    """
    ranks = {
        index: (one.mean, one.candidate.embedding_lr, one.candidate.model_lr, index)
        for index, one in enumerate(tried)
        if math.isfinite(one.mean)
    }
    if not ranks:
        reasons = "; ".join(
            f"{describe_settings(one.candidate)}: {next(reason for reason in one.reasons if reason)}" for one in tried
        )
        raise ValueError(
            f"{tuning.id}: no candidate can be chosen, of each at least one seed has no validation loss ({reasons}); "
            "give the grid smaller learning rates. Cells of other optimizers go on, and "
            "`snakemake --config partial=true` makes tables without these"
        )
    return min(ranks, key=ranks.__getitem__)


def describe_settings(candidate: Candidate) -> str:
    """Return a candidate's settings as text, such as ``learning_rate 0.001, lr_factor 0.5``."""
    return ", ".join(f"{name} {json.dumps(value)}" for name, value in candidate.settings.items())


def write_choice(tuning: Tuning, path: Path, runs: Path = paths.RUNS) -> int:
    """Write the record of a choice, sealed, and return the index of the chosen candidate."""
    tried = read_losses(tuning, runs)
    chosen = choose(tuning, tried)
    measurement = validation_measurement(tuning, runs)
    record = {
        "tuning": tuning.id,
        "measured": {"version": measurement.stage.version, **measurement.settings},
        "candidates": [
            {
                "settings": one.candidate.settings,
                "mean_val_loss": one.mean,
                "cells": [
                    {"cell": cell.id, "seed": cell.seed, "val_loss": loss, "reason": reason}
                    for cell, loss, reason in zip(one.candidate.cells, one.losses, one.reasons, strict=True)
                ],
            }
            for one in tried
        ],
        "chosen": chosen,
    }
    write_sealed(path, record)
    return chosen


def tuning_frame(plan: Plan, folder: Path) -> DataFrame:
    """Return all tunings of a plan whose choice is in ``folder``, a row for each candidate and seed."""
    rows = []
    for tuning in plan.tunings.values():
        path = choice_file(folder, tuning.id)
        if path.is_file():
            rows += _rows(plan.name, tuning, read_choice(path, tuning))
    return typed_frame(rows, _TYPES)


def _rows(study: str, tuning: Tuning, record: dict[str, Any]) -> list[dict[str, Any]]:
    rows = []
    for index, (candidate, found) in enumerate(zip(tuning.candidates, record["candidates"], strict=True)):
        for cell, measured in zip(candidate.cells, found["cells"], strict=True):
            values = (
                study, tuning.id, cell.model.name, cell.n_params, cell.n_tokens, tuning.row.key, index,
                json.dumps(candidate.settings), candidate.model_lr, candidate.embedding_lr, cell.seed, cell.id,
                measured["val_loss"], measured["reason"] or "", found["mean_val_loss"], index == record["chosen"],
            )  # fmt: skip
            rows.append(dict(zip(_TYPES, values, strict=True)))
    return rows


def write_tuning(plan: Plan, folder: Path, out: Path) -> None:
    """Write ``tuning.csv`` atomically, in full precision."""
    write_csv(tuning_frame(plan, folder), out)


def read_tuning(path: Path) -> DataFrame:
    """Read ``tuning.csv``; ``ValueError`` for a wrong column, a value of the wrong type or a duplicate row."""
    return read_csv(path, _TYPES, _KEY)
