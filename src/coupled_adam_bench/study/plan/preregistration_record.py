"""The record of stated plans: their text, the settings of their runs and what is measured, noted
when they are seen."""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from coupled_adam_bench.store import paths
from coupled_adam_bench.store.files import digest, read_sealed, write_sealed
from coupled_adam_bench.study.plan import Plan
from coupled_adam_bench.study.plan.cells import Cell, make_cell
from coupled_adam_bench.study.plan.preregistration import meant_cells
from coupled_adam_bench.study.plan.tuning import choice_file, chosen_values
from coupled_adam_bench.study.settings import Steps

RECORD = "stated.json"


def read_record(study_dir: Path) -> list[dict[str, Any]]:
    """Return what was seen of stated plans, in its order; an empty list without a record.

    ``ValueError`` for a record that was edited or damaged: it is not made anew, since nothing else
    has what it says.
    """
    path = study_dir / RECORD
    if not path.exists():
        return []
    try:
        seen: list[dict[str, Any]] = read_sealed(path)["seen"]
    except (ValueError, KeyError) as error:
        raise ValueError(
            f"{error}; put it back as it was, or delete it: the stated plan then counts as first"
            " seen at the next start"
        ) from None
    return seen


def _settings(cell: Cell) -> str:
    """Return a hash of all but the seed that can change a cell's numbers, or the choice of its
    settings."""
    seedless = make_cell(
        cell.study, cell.data_digest, cell.model, Steps(steps=cell.steps), cell.optimizer, seed=0
    )
    return digest([seedless.id, cell.tuning])


def _sign(cell: Cell, study: str) -> Path:
    """Return the path in ``results/`` that shows that a run has begun: its folder, or the choice
    just before it."""
    if cell.tuning is not None and not cell.is_chosen:
        return choice_file(Path(study, paths.TUNING), cell.tuning)
    return paths.run_dir(cell.id, Path())


def note_stated(plan: Plan, study_dir: Path, measured: Mapping[str, str]) -> None:
    """Record a stated plan if it is not what was seen last: its text, the settings of its runs, and
    what is measured.

    ``measured`` has by study and metric a hash of everything but the model that can change the
    metric.

    The record says which of all runs that it ever meant had begun by then. It is kept on the user's
    own machine, so it is a help to honest people and no proof to others.
    """
    assert plan.stated is not None
    seen = read_record(study_dir)
    cells = {cell.job_name: _settings(cell) for cell in meant_cells(plan.stated, plan.blocks)}
    now = {"sha256": plan.stated.sha256, "cells": cells, "measured": measured}
    if seen and {name: seen[-1].get(name) for name in now} == now:
        return
    chosen = plan.with_choices(chosen_values(plan.tunings.values(), study_dir / paths.TUNING))
    signs = {
        cell.job_name: [str(_sign(cell, study_dir.name))]
        for cell in meant_cells(plan.stated, chosen.blocks)
    }
    known = {name: found for entry in seen for name, found in entry["signs"].items()} | signs
    begun = []
    for name, found in known.items():
        if any((study_dir.parent / path).exists() for path in found):
            begun.append(name)
    at = datetime.now(UTC).isoformat(timespec="seconds")
    entry = {**now, "signs": signs, "at": at, "begun": begun, "n_cells": len(known)}
    write_sealed(study_dir / RECORD, {"seen": [*seen, entry]})
