"""What the stage ``theory`` measured: read, grouped over seeds, and set against what the paper derives."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from math import isnan
from pathlib import Path
from typing import Any

from coupled_adam_bench.cells import Cell, readable_count
from coupled_adam_bench.files import read_json
from coupled_adam_bench.plan import Plan

ADAM, COUPLED, SGD = "adamw", "coupled_adam", "sgd"
"""Names of optimizers."""
EMBEDDING, HEAD = "embedding", "head"
"""The matrices of a ``theory.json``; a tied embedding is both in one."""


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
class Drift:
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
    """A cell's ``theory.json``; ``reason`` says why something in it is missing."""

    cell: Cell
    status: str
    reason: str | None = None
    gradient_sum: dict[str, dict[str, float]] | None = None
    moment: Moment | None = None
    adam_moment: Moment | None = None
    drift: dict[str, Drift] | None = None
    replay_difference: float | None = None

    @property
    def matrices(self) -> dict[str, Drift]:
        """The drift by matrix, none for a cell that was not measured."""
        return self.drift or {}


Choose = Callable[[Record], float | None]
"""Finds a number in a record, or that it is not there."""


@dataclass(frozen=True)
class TheoryGroup:
    """Records that differ in the seed only."""

    shape: str
    """The model apart from its names and its tying: tied and untied models of a shape are compared."""
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
    def model_label(self) -> str:
        """N as tables print it."""
        return self.cell.model.label or readable_count(self.cell.n_params)

    @property
    def tokens_label(self) -> str:
        """D as tables print it."""
        return self.cell.tokens_label or readable_count(self.cell.n_tokens)

    def values(self, choose: Choose) -> list[float]:
        """Return what ``choose`` finds in the records, those without it or with NaN left out."""
        return [value for record in self.records if (value := choose(record)) is not None and not isnan(value)]


def theory_cells(plan: Plan) -> list[Cell]:
    """Return the cells on which the theory is checked: those of parts with ``evaluation.theory``."""
    parts = [part for part in plan.parts if part.study.evaluation.theory is not None]
    return [part.cells[cell_id] for part in parts for cell_id in plan.cells_of(part)]


def _part(kind: type[Any], values: dict[str, Any] | None) -> Any:
    return None if values is None else kind(**{field.name: values[field.name] for field in fields(kind)})


def read_record(path: Path, cell: Cell) -> Record:
    """Read a cell's ``theory.json``; a missing one is a record that says so, ``ValueError`` for a broken one."""
    if not path.is_file():
        return Record(cell, "missing", "no theory.json")
    values = read_json(path)
    try:
        owner, status, reason = values["cell"], values["status"], values["reason"]
        if owner != cell.id:
            raise ValueError(f"{path}: belongs to cell {owner!r}, not to {cell.id!r}; delete it and run again")
        if status == "diverged":
            return Record(cell, status, reason)
        return Record(
            cell,
            status,
            reason,
            values["gradient_sum"],
            _part(Moment, values["second_moment"]),
            _part(Moment, values["second_moment_adam"]),
            {matrix: _part(Drift, drift) for matrix, drift in values["drift"].items()},
            values["replay_max_relative_loss_difference"],
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: not a file of the stage theory ({error!r}); delete it and run again") from None


def _shape(cell: Cell) -> str:
    return cell.model.model_copy(update={"name": "", "label": None, "tied": True}).model_dump_json()


def read_theory(plan: Plan, runs: Path) -> tuple[TheoryGroup, ...]:
    """Return the groups of a plan in the order of size, tokens and tying, optimizers as in the study."""
    order = list(dict.fromkeys(cell.optimizer.key for cell in plan.cells.values()))
    found: dict[tuple[Any, ...], list[Record]] = {}
    for cell in theory_cells(plan):
        tied = cell.model.model_copy(update={"tied": True})
        size = tied.n_params(cell.vocab_size, cell.training.seq_len)
        key = (size, _shape(cell), cell.n_tokens, not cell.model.tied, order.index(cell.optimizer.key))
        found.setdefault(key, []).append(read_record(runs / cell.id / "theory.json", cell))
    return tuple(TheoryGroup(key[1], tuple(records)) for key, records in sorted(found.items(), key=lambda kv: kv[0]))


def gradient_sum(side: str, precision: str) -> Choose:
    """Return what finds the relative sum of the gradients of one side, ``input`` or ``output``."""
    return lambda record: None if record.gradient_sum is None else record.gradient_sum[side][precision]


def largest_update_sum(matrix: str) -> Choose:
    """Return what finds the largest relative sum of a matrix's updates after the warmup, in which they are tiny."""

    def choose(record: Record) -> float | None:
        if matrix not in record.matrices:
            return None
        drift, warmup = record.matrices[matrix], record.cell.training.warmup(record.cell.steps)
        settled = [value for step, value in zip(drift.step, drift.update_sum, strict=True) if step > warmup]
        return max(settled, default=None)

    return choose


def drift_value(matrix: str, choose: Callable[[Drift], float | None]) -> Choose:
    """Return what finds a number of the drift of a matrix."""
    return lambda record: choose(record.matrices[matrix]) if matrix in record.matrices else None
