"""Reads what the stage ``theory`` measured, and groups it over seeds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from math import isnan
from pathlib import Path
from typing import Any

from coupled_adam_bench.results.groups import Layout, Setup
from coupled_adam_bench.store.stored import Measurement, measured_cells
from coupled_adam_bench.study.cells import Cell, readable_count


@dataclass(frozen=True)
class Moment:
    """Mean squared gradient of each vocabulary row against its probability, and the line fitted through it."""

    probability: list[float]
    mean_square: list[float]
    slope: float
    intercept: float
    r_squared: float
    n_batches: int | None


@dataclass(frozen=True)
class DriftRecord:
    """How far the mean row of a matrix moved, by step and by origin, as norms; the shares are of the last step.

    An optimizer whose update cannot be split leaves ``input`` to ``residual`` and the shares None.
    """

    step: list[int]
    mean_norm_ratio: list[float]
    displacement: list[float]
    update_sum: list[float]
    input: list[float] | None
    output: list[float] | None
    decay: list[float] | None
    residual: list[float] | None
    input_share: float | None
    output_share: float | None
    decay_share: float | None


@dataclass(frozen=True)
class Record:
    """What the stage ``theory`` measured in a cell; ``reason`` says why something in it is missing."""

    cell: Cell
    status: str
    reason: str | None = None
    gradient_sum: dict[str, dict[str, float]] | None = None
    moment: Moment | None = None
    adam_moment: Moment | None = None
    drift: dict[str, DriftRecord] | None = None
    replay_difference: float | None = None

    @property
    def matrices(self) -> dict[str, DriftRecord]:
        """The drift by matrix, none for a cell that was not measured."""
        return self.drift or {}


Choose = Callable[[Record], float | None]
"""A function that returns a number of a record, or None if it is not there."""


@dataclass(frozen=True)
class TheoryGroup:
    """Records that differ in the seed only."""

    shape: str
    """Identifies model, data and recipe apart from the tying: a tied and an untied model of one shape are compared."""
    model_label: str
    """The label of the model."""
    records: tuple[Record, ...]

    @property
    def cell(self) -> Cell:
        """One of the group's cells, for what all of them share."""
        return self.records[0].cell

    @property
    def tied(self) -> bool:
        """Whether the head's weight is the embedding's."""
        return self.cell.model.tied

    @property
    def size(self) -> tuple[int, str]:
        """What groups that differ in optimizer and tying only have in common."""
        return self.cell.n_tokens, self.shape

    @property
    def tokens_label(self) -> str:
        """D as tables print it."""
        return self.cell.tokens_label or readable_count(self.cell.n_tokens)

    def values(self, choose: Choose) -> list[float]:
        """Return what ``choose`` finds in the records, those without it or with NaN left out."""
        return [value for record in self.records if (value := choose(record)) is not None and not isnan(value)]


def _read_fields(kind: type[Any], values: dict[str, Any] | None) -> Any:
    return None if values is None else kind(**{field.name: values[field.name] for field in fields(kind)})


def read_record(measurement: Measurement, cell: Cell) -> Record:
    """Read a cell's evaluation of the stage; a missing one is a record that says so.

    ``ValueError`` for a broken one.
    """
    if not measurement.is_there(cell.id):
        return Record(cell, "missing", "not measured")
    values = measurement.read(cell.id)
    try:
        status, reason = values["status"], values["reason"]
        if status == "diverged":
            return Record(cell, status, reason)
        return Record(
            cell,
            status,
            reason,
            values["gradient_sum"],
            _read_fields(Moment, values["second_moment"]),
            _read_fields(Moment, values["second_moment_adam"]),
            {matrix: _read_fields(DriftRecord, drift) for matrix, drift in values["drift"].items()},
            values["replay_max_relative_loss_difference"],
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{measurement.find(cell.id)}: not a file of the stage theory ({error!r}); delete it and run again"
        ) from None


def _shape(cell: Cell, setup: Setup) -> str:
    model = cell.model.model_copy(update={"name": "", "label": None, "tied": True})
    return f"{model.model_dump_json()} {setup.data} {setup.recipe}"


def read_theory(layout: Layout, runs: Path) -> tuple[TheoryGroup, ...]:
    """Return the groups of a plan in the order of size, tokens and tying, optimizers as in the study."""
    order = list(dict.fromkeys(cell.optimizer.key for cell in layout.plan.cells.values()))
    members: dict[tuple[Any, ...], list[Record]] = {}
    for cell, measurements in measured_cells(layout.plan, runs):
        measurement = next((each for each in measurements if each.stage.name == "theory"), None)
        if measurement is None:
            continue
        setup = layout.setups[cell.id]
        tied = cell.model.model_copy(update={"tied": True})
        size = tied.n_params(cell.vocab_size, cell.training.seq_len)
        shape, label = _shape(cell, setup), layout.labels[setup]
        place = (size, shape, cell.n_tokens, not cell.model.tied, order.index(cell.optimizer.key), label)
        members.setdefault(place, []).append(read_record(measurement, cell))
    return tuple(TheoryGroup(place[1], place[-1], tuple(members[place])) for place in sorted(members))


def slope(record: Record) -> float | None:
    """Return the slope of the line through the second moments."""
    return None if record.moment is None else record.moment.slope


def r_squared(record: Record) -> float | None:
    """Return how much of the variance of the second moments that line explains."""
    return None if record.moment is None else record.moment.r_squared


def adam_r_squared(record: Record) -> float | None:
    """Return the same of Adam's own second moments."""
    return None if record.adam_moment is None else record.adam_moment.r_squared


def gradient_sum(side: str, precision: str) -> Choose:
    """Return what finds the relative sum of the gradients of one side, ``input`` or ``output``."""
    return lambda record: None if record.gradient_sum is None else record.gradient_sum[side][precision]


def largest_after_warmup(steps: Sequence[int], update_sums: Sequence[float], warmup: int) -> float | None:
    """Return the largest relative sum of updates of the steps after the warmup, in which updates are tiny."""
    settled = [value for step, value in zip(steps, update_sums, strict=True) if step > warmup]
    return max(settled, default=None)


def largest_update_sum(matrix: str) -> Choose:
    """Return what finds the largest relative sum of a matrix's updates after the warmup, in which they are tiny."""

    def choose(record: Record) -> float | None:
        if matrix not in record.matrices:
            return None
        drift = record.matrices[matrix]
        return largest_after_warmup(drift.step, drift.update_sum, record.cell.training.warmup(record.cell.steps))

    return choose


def drift_value(matrix: str, choose: Callable[[DriftRecord], float | None]) -> Choose:
    """Return what finds a number of the drift of a matrix."""
    return lambda record: choose(record.matrices[matrix]) if matrix in record.matrices else None
