"""Tunings: the candidates of a row of the grid, the choice of one of them, and the cells that wait
for it; and a block of the grid in a plan, with both.

A cell whose settings are to be chosen has a *slot*, a name that hashes its tuning. The jobs of the
workflow are named by slots, so that all of them are known before anything is trained. When the
choice is made, the cell in the slot gets its settings and the id that any study gives to a cell of
these settings.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from coupled_adam_bench.store.files import digest, read_sealed
from coupled_adam_bench.study.catalogue.stages import VALIDATION_LOSS
from coupled_adam_bench.study.plan.cells import Cell, make_cell, readable_count
from coupled_adam_bench.study.settings import GridBlock, Model, Optimizer, Steps, Study, rate_factor
from coupled_adam_bench.study.settings.tune import Values, candidates, value_of, with_values


@dataclass(frozen=True)
class Candidate:
    """Settings that may be chosen, and the cells that try them, one for each seed of the tuning."""

    settings: Values
    cells: tuple[Cell, ...]

    @property
    def cell_ids(self) -> list[str]:
        """The ids of its cells, in the order of the seeds."""
        return [cell.id for cell in self.cells]

    @property
    def model_lr(self) -> float:
        """The peak learning rate of the recipe."""
        return self.cells[0].model.learning_rate

    @property
    def embedding_lr(self) -> float:
        """The peak learning rate of the embedding."""
        cell = self.cells[0]
        return self.model_lr * rate_factor(cell.optimizer.embedding, cell.model.d_model)


@dataclass(frozen=True)
class Tuning:
    """The trial that chooses the settings of an optimizer for a model and a number of tokens."""

    id: str
    """A readable name that ends in a hash of everything that can change the choice."""
    row: Optimizer
    """The optimizer with the names of its row."""
    candidates: tuple[Candidate, ...]

    @property
    def cells(self) -> tuple[Cell, ...]:
        """The cells of all candidates."""
        return tuple(cell for candidate in self.candidates for cell in candidate.cells)

    @property
    def first(self) -> Cell:
        """One of the cells, for what all of them share."""
        return self.candidates[0].cells[0]

    @property
    def n_tokens(self) -> int:
        """Tokens that the whole trial trains on: its budget."""
        return sum(cell.n_tokens for cell in self.cells)


def tune_block(
    study: Study, data: str, block: GridBlock, cells: Iterable[Cell]
) -> tuple[list[Cell], dict[str, Tuning]]:
    """Return the cells of a block, tuned ones in their slots, and the tunings by id; ``data``
    hashes the data."""
    placed: list[Cell] = []
    tunings: dict[str, Tuning] = {}
    by_key = {
        row.key: optimizer for row, optimizer in zip(block.rows, block.optimizers, strict=True)
    }
    for cell in cells:
        optimizer = by_key[cell.optimizer.key]
        if block.tune is None or not block.tune.grid_of(optimizer):
            placed.append(cell)
            continue
        tuning = _tuning(study, data, block, cell, optimizer)
        tunings.setdefault(tuning.id, tuning)
        # The hash in the cell's own id covers what is not tuned: recipe, length, seed and data.
        size = f"{cell.model.name}_{readable_count(cell.n_tokens)}"
        slot = f"{size}_{cell.optimizer.key}_s{cell.seed}_tuned-{digest([cell.id, tuning.id])}"
        placed.append(replace(cell, id=slot, slot=slot, tuning=tuning.id))
    return placed, tunings


def _tuning(study: Study, data: str, block: GridBlock, cell: Cell, optimizer: Optimizer) -> Tuning:
    tune = block.tune
    assert tune is not None
    models = {model.name: model for model in study.models}
    model: Model = cell.model if tune.model is None else models[tune.model]
    tokens = tune.tokens or Steps(steps=cell.steps, label=cell.tokens_label)
    found = []
    for values in candidates(tune.grid_of(optimizer), model, optimizer):
        tuned_model, tuned = with_values(values, model, optimizer)
        of_seeds = (make_cell(study, data, tuned_model, tokens, tuned, seed) for seed in tune.seeds)
        found.append(Candidate(values, tuple(of_seeds)))
    row, first = cell.optimizer, found[0].cells[0]
    tried = [[candidate.settings, candidate.cell_ids] for candidate in found]
    identity = [VALIDATION_LOSS.version, row.key, *tried]
    name = f"{model.name}_{readable_count(first.n_tokens)}_{row.key}_{digest(identity)}"
    return Tuning(name, row, tuple(found))


def fill_slot(cell: Cell, values: Mapping[str, Any]) -> Cell:
    """Return a tuned cell with the chosen values: its id is that of the same settings in any
    study."""
    model, optimizer = with_values(values, cell.model, cell.optimizer)
    tokens = Steps(steps=cell.steps, label=cell.tokens_label)
    chosen = make_cell(cell.study, cell.data_digest, model, tokens, optimizer, cell.seed)
    row = optimizer.in_row(cell.optimizer.key, cell.optimizer.label)
    return replace(chosen, optimizer=row, slot=cell.slot, tuning=cell.tuning)


def chosen_settings(tuning: Tuning, cell: Cell) -> Values:
    """Return the settings that a tuning has chosen for a cell, which has them."""
    return {
        name: value_of(name, cell.model, cell.optimizer) for name in tuning.candidates[0].settings
    }


def choice_file(folder: Path, tuning_id: str) -> Path:
    """Return the file of a choice in the folder ``tuning`` of a study."""
    return folder / f"{tuning_id}.json"


def read_choice(path: Path, tuning: Tuning) -> dict[str, Any]:
    """Return the record of a choice; ``ValueError`` if it is damaged, or of other candidates."""
    record = read_sealed(path)
    ids = []
    for candidate in record.get("candidates", ()):
        ids.append([cell["cell"] for cell in candidate["cells"]])
    expected = [candidate.cell_ids for candidate in tuning.candidates]
    if (
        record.get("tuning") != tuning.id
        or ids != expected
        or record.get("chosen") not in range(len(expected))
    ):
        raise ValueError(f"{path}: not the choice of {tuning.id}; delete it and start again")
    return record


def chosen_values(tunings: Iterable[Tuning], folder: Path) -> dict[str, Values]:
    """Return the chosen values of the tunings whose choice is in ``folder``; ``ValueError`` as
    :func:`read_choice`."""
    made = [(tuning, choice_file(folder, tuning.id)) for tuning in tunings]
    return {
        tuning.id: tuning.candidates[read_choice(path, tuning)["chosen"]].settings
        for tuning, path in made
        if path.is_file()
    }


@dataclass(frozen=True)
class PlannedBlock:
    """A block of a study's grid and its cells, in the order of the grid."""

    study: Study
    place: str
    """The field of the study that holds the block, such as ``grid.0``."""
    block: GridBlock
    cells: tuple[Cell, ...]
    tunings: Mapping[str, Tuning] = field(default_factory=dict)
    """The tunings for which cells of the block wait, by id."""
