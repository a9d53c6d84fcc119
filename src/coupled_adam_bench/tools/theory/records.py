"""Reads what the stage ``theory`` measured, and groups it over seeds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from typing import Any

from coupled_adam_bench.records.stored import Measurement, measured_cells
from coupled_adam_bench.results.groups import Layout, Setup
from coupled_adam_bench.study.cells import Cell, readable_count

ZERO_FLOAT64 = 1e-12
"""The sum of vectors over the sum of their norms that counts as zero: rounding alone leaves about
1e-16."""
LARGEST = "largest_update_sum"
"""The name of the largest relative sum of a matrix's updates after the warmup, beside what the
stage keeps of it."""


@dataclass(frozen=True)
class Record:
    """A cell, and what the stage keeps of it by the names in its file; ``reason`` says why
    something is missing."""

    cell: Cell
    values: Mapping[str, Any]

    def find(self, *path: str | int) -> Any:
        """Return what lies at a path of keys, such as ``second_moment`` and ``slope``; None if it
        is not there."""
        found: Any = self.values
        try:
            for key in path:
                found = found[key]
        except (KeyError, IndexError, TypeError):
            return None
        return found

    @property
    def matrices(self) -> Mapping[str, Any]:
        """The drift by matrix, none for a cell that was not measured."""
        return self.find("drift") or {}


@dataclass(frozen=True)
class TheoryGroup:
    """Records that differ in the seed only."""

    shape: str
    """Identifies model, data and recipe apart from the tying: a tied and an untied model of one
    shape are compared."""
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

    def values(self, *path: str | int) -> list[float]:
        """Return the numbers at a path in the records, those without it or with NaN left out."""
        found = (record.find(*path) for record in self.records)
        return [value for value in found if value is not None and not isnan(value)]


def read_record(measurement: Measurement, cell: Cell) -> Record:
    """Read a cell's evaluation of the stage; a missing one is a record that says so."""
    if not measurement.is_there(cell.id):
        return Record(cell, {"reason": "not measured"})
    values = measurement.read(cell.id)
    warmup = cell.training.warmup(cell.steps)
    for drift in values.get("drift", {}).values():
        drift[LARGEST] = largest_after_warmup(drift["step"], drift["update_sum"], warmup)
    return Record(cell, values)


def _shape(cell: Cell, setup: Setup) -> str:
    model = cell.model.model_copy(update={"name": "", "label": None, "tied": True})
    return f"{model.model_dump_json()} {setup.data} {setup.recipe}"


def read_theory(layout: Layout, runs: Path) -> tuple[TheoryGroup, ...]:
    """Return the groups of a plan in the order of size, tokens and tying, optimizers as in the
    study."""
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
        place = (
            size,
            shape,
            cell.n_tokens,
            not cell.model.tied,
            order.index(cell.optimizer.key),
            label,
        )
        members.setdefault(place, []).append(read_record(measurement, cell))
    return tuple(
        TheoryGroup(place[1], place[-1], tuple(members[place])) for place in sorted(members)
    )


def largest_after_warmup(
    steps: Sequence[int], update_sums: Sequence[float], warmup: int
) -> float | None:
    """Return the largest relative sum of updates of the steps after the warmup, in which updates
    are tiny."""
    settled = [value for step, value in zip(steps, update_sums, strict=True) if step > warmup]
    return max(settled, default=None)
