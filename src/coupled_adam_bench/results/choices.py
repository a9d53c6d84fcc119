"""The choice of a tuning: its validation losses, and the candidate that is taken."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pandas import DataFrame

from coupled_adam_bench.records.stored import Measurement, measurement_of
from coupled_adam_bench.results.sample import difference
from coupled_adam_bench.store import paths
from coupled_adam_bench.store.files import write_sealed
from coupled_adam_bench.study.catalogue.stages import VALIDATION_LOSS
from coupled_adam_bench.study.plan.tuning import Candidate, Tuning


@dataclass(frozen=True)
class Tried:
    """A candidate with the validation loss of each of its cells, NaN with a reason for a cell that
    has no loss."""

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


def tried_of(tuning: Tuning, table: DataFrame) -> list[Tried]:
    """Return the candidates with the losses and reasons that ``tuning.csv`` has; ``KeyError`` for
    one it has not."""
    rows = table[table["tuning"] == tuning.id].set_index("cell")
    tried = []
    for candidate in tuning.candidates:
        found = rows.loc[[cell.id for cell in candidate.cells]]
        tried.append(
            Tried(
                candidate,
                tuple(found["val_loss"]),
                tuple(reason or None for reason in found["reason"]),
            )
        )
    return tried


def choose(tuning: Tuning, tried: Sequence[Tried]) -> int:
    """Return the index of the candidate with the least mean loss.

    If several are equal, the candidate with the smaller learning rate of the embedding is taken,
    then the one with the smaller rate of the model, then the first. A candidate that diverged with
    any seed cannot be taken; ``ValueError`` names all of them if no other is left.
    """
    means = {index: one.mean for index, one in enumerate(tried) if math.isfinite(one.mean)}
    if not means:
        reasons = []
        for one in tried:
            first_reason = next(reason for reason in one.reasons if reason)
            reasons.append(f"{describe_settings(one.candidate.settings)}: {first_reason}")
        raise ValueError(
            f"{tuning.id}: no candidate can be chosen, of each at least one seed has no validation"
            f" loss ({'; '.join(reasons)}); give the grid smaller learning rates. Cells of other"
            " optimizers go on, and `snakemake --config partial=true` makes tables without these"
        )
    least = min(means.values())
    equal = [index for index, mean in means.items() if not difference(mean, least)]
    rates = {
        index: (tried[index].candidate.embedding_lr, tried[index].candidate.model_lr)
        for index in equal
    }
    return min(rates, key=rates.__getitem__)


def describe_settings(settings: Mapping[str, Any]) -> str:
    """Return a candidate's settings as text, such as ``learning_rate 0.001, lr_factor 0.5``."""
    return ", ".join(f"{name} {_shown(value)}" for name, value in settings.items())


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else json.dumps(value, ensure_ascii=False)


def edge(value: Any, values: Sequence[Any]) -> str | None:
    """Return whether a chosen value is the ``least`` or the ``largest`` of several numbers that
    were tried."""
    numbers = {
        each for each in values if isinstance(each, int | float) and not isinstance(each, bool)
    }
    if len(numbers) < 2 or isinstance(value, bool) or value not in (min(numbers), max(numbers)):
        return None
    return "least" if value == min(numbers) else "largest"


def edges_of(tuning: Tuning, settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each of the chosen settings that lies at the edge of what was tried, as text, and at
    which edge."""
    for name, value in settings.items():
        if (found := edge(value, [one.settings[name] for one in tuning.candidates])) is not None:
            yield f"{name} {value:g}", found


def choice_record(tuning: Tuning, tried: Sequence[Tried]) -> dict[str, Any]:
    """Return the candidates of a tuning with their losses, and the choice; ``ValueError`` as
    :func:`choose`."""
    candidates = []
    for one in tried:
        measured = zip(one.candidate.cells, one.losses, one.reasons, strict=True)
        cells = [
            {"cell": cell.id, "seed": cell.seed, "val_loss": loss, "reason": reason}
            for cell, loss, reason in measured
        ]
        candidates.append(
            {"settings": one.candidate.settings, "mean_val_loss": one.mean, "cells": cells}
        )
    return {"tuning": tuning.id, "candidates": candidates, "chosen": choose(tuning, tried)}


def write_choice(tuning: Tuning, path: Path, runs: Path = paths.RUNS) -> int:
    """Write the record of a choice, sealed, and return the index of the chosen candidate."""
    record = choice_record(tuning, read_losses(tuning, runs))
    measurement = validation_measurement(tuning, runs)
    write_sealed(
        path, record | {"measured": {"version": measurement.stage.version, **measurement.settings}}
    )
    chosen: int = record["chosen"]
    return chosen
