"""Checks a stated plan against a study before the first job, and records when its text and settings were seen."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coupled_adam_bench.store import paths
from coupled_adam_bench.store.files import digest, read_sealed, write_sealed
from coupled_adam_bench.study.cells import Cell, make_cell, readable_count
from coupled_adam_bench.study.config import Steps
from coupled_adam_bench.study.config.stated import Hypothesis, Stated
from coupled_adam_bench.study.tuning import choice_file, chosen_values

if TYPE_CHECKING:
    from coupled_adam_bench.study.plan import Plan, PlannedBlock

RECORD = "stated.json"


def _tokens(cell: Cell) -> str:
    """Return a cell's number of tokens as tables print it."""
    return cell.tokens_label or readable_count(cell.n_tokens)


def is_meant(hypothesis: Hypothesis, table: str | None, cell: Cell) -> bool:
    """Tell whether a hypothesis is about a cell of a table."""
    return (
        table == hypothesis.table
        and hypothesis.model in (None, cell.model.name)
        and hypothesis.tokens in (None, _tokens(cell))
        and cell.optimizer.key in (hypothesis.better, hypothesis.than)
    )


def meant_cells(stated: Stated, blocks: "Sequence[PlannedBlock]") -> list[Cell]:
    """Return the cells that any hypothesis is about, each once."""
    return list(
        {
            cell.id: cell
            for planned in blocks
            for cell in planned.cells
            if any(is_meant(hypothesis, planned.block.table, cell) for hypothesis in stated.plan.hypotheses)
        }.values()
    )


def check_stated(stated: Stated, blocks: "Sequence[PlannedBlock]") -> None:
    """Raise ``ValueError`` for a hypothesis about something that the study does not have."""
    for number, hypothesis in enumerate(stated.plan.hypotheses):
        for message in _problems(hypothesis, blocks):
            raise ValueError(f"stated: {stated.path}: hypotheses.{number}.{message}")


def _problems(hypothesis: Hypothesis, blocks: "Sequence[PlannedBlock]") -> Iterator[str]:
    of_table = [planned for planned in blocks if planned.block.table == hypothesis.table]
    if not of_table:
        tables = dict.fromkeys(planned.block.table for planned in blocks if planned.block.table)
        yield f"table: {hypothesis.table!r} is no table of the study; there are {', '.join(tables) or 'none'}"
        return
    metrics = [name for name in of_table[0].study.metrics if all(name in p.study.metrics for p in of_table)]
    if hypothesis.metric not in metrics:
        yield f"metric: {hypothesis.metric!r} is nothing that the study measures; there are {', '.join(metrics)}"
    cells = [cell for planned in of_table for cell in planned.cells]
    for field, value, known in (
        ("better", hypothesis.better, [cell.optimizer.key for cell in cells]),
        ("than", hypothesis.than, [cell.optimizer.key for cell in cells]),
        ("model", hypothesis.model, [cell.model.name for cell in cells]),
        ("tokens", hypothesis.tokens, [_tokens(cell) for cell in cells]),
    ):
        if value is not None and value not in known:
            yield f"{field}: {value!r} is not in {hypothesis.table}; there are {', '.join(dict.fromkeys(known))}"
    keys: dict[tuple[Any, ...], set[str]] = {}
    for cell in cells:
        if is_meant(hypothesis, hypothesis.table, cell):
            place = (cell.data_id, cell.model.name, cell.n_tokens, cell.training.model_dump_json())
            keys.setdefault(place, set()).add(cell.optimizer.key)
    if {hypothesis.better, hypothesis.than} not in keys.values():
        yield f"than: {hypothesis.better} and {hypothesis.than} are nowhere compared at the model and tokens given"
    compared = {n_tokens for (_, _, n_tokens, _), found in keys.items() if len(found) > 1}
    if hypothesis.test == "trend" and len(compared) == 1:
        yield f"test: a trend needs several numbers of tokens, and {hypothesis.table} compares at one"


def read_record(study_dir: Path) -> list[dict[str, Any]]:
    """Return what was seen of stated plans, in its order; an empty list without a record.

    ``ValueError`` for a record that was edited or damaged: it is not made anew, since nothing else has what it says.
    """
    path = study_dir / RECORD
    if not path.exists():
        return []
    try:
        seen: list[dict[str, Any]] = read_sealed(path)["seen"]
        if not all("begun" in entry for entry in seen):
            raise ValueError(f"{path}: of an earlier version, which did not record the settings of the runs")
    except (ValueError, KeyError) as error:
        raise ValueError(
            f"{error}; put it back as it was, or delete it: the stated plan then counts as first seen at the next start"
        ) from None
    return seen


def measured_as(
    stated: Stated, blocks: "Sequence[PlannedBlock]", measurements: Mapping[tuple[str, str], Any]
) -> dict[str, str]:
    """Return a hash of each stage that measures a stated metric: of its version, settings and directions of metrics.

    ``measurements`` are those of the studies, by the names of stage and study.
    """
    better: dict[tuple[str, str], dict[str, bool]] = defaultdict(dict)
    for planned in blocks:
        for hypothesis in stated.plan.hypotheses:
            if planned.block.table == hypothesis.table:
                metric = planned.study.metrics[hypothesis.metric]
                better[metric.stage, planned.study.name][metric.name] = metric.higher_is_better
    found = {key: (measurements.get(key), directions) for key, directions in better.items()}
    return {
        f"{stage} of {study}": digest([m.stage.version, m.settings, directions]) if m else "unknown"
        for (stage, study), (m, directions) in found.items()
    }


def _settings(cell: Cell) -> str:
    """Return a hash of all but the seed that can change a cell's numbers, or the choice of its settings."""
    seedless = make_cell(cell.study, cell.data_digest, cell.model, Steps(steps=cell.steps), cell.optimizer, seed=0)
    return digest([seedless.id, cell.tuning])


def _signs(plan: "Plan", study_dir: Path) -> dict[str, list[str]]:
    """Return the paths in ``results/`` that show that a run has begun, by the name of its job.

    They are its folder and that of its trunk. As long as its settings are not chosen its folder is not known, and the
    path is that of the choice, which comes just before it.
    """
    chosen = plan.with_choices(chosen_values(plan.tunings.values(), study_dir / paths.TUNING))
    trunks = {cell_id: trunk_id for trunk_id, trunk in plan.trunks.items() for cell_id in trunk.prefixes}
    signs: dict[str, list[str]] = {}
    for cell in chain.from_iterable(planned.cells for planned in chosen.blocks):
        found = [paths.run_dir(cell.id, Path())]
        if cell.tuning is not None and not cell.is_chosen:
            found = [choice_file(Path(study_dir.name, paths.TUNING), cell.tuning)]
        elif cell.id in trunks:
            found.append(paths.trunk_dir(trunks[cell.id], Path()))
        signs[cell.job_name] = [str(path) for path in found]
    return signs


def note_stated(plan: "Plan", study_dir: Path, measured: Mapping[str, str]) -> None:
    """Record a stated plan if it is not what was seen last: its text, its runs, and how its metrics are ``measured``.

    The record says which of all runs that it ever meant had begun by then. It is kept on the user's own machine, so it
    is a help to honest people and no proof to others.
    """
    assert plan.stated is not None
    seen = read_record(study_dir)
    cells = {cell.job_name: _settings(cell) for cell in meant_cells(plan.stated, plan.blocks)}
    now = {"sha256": plan.stated.sha256, "measured": dict(measured), "cells": cells}
    if seen and {name: seen[-1][name] for name in now} == now:
        return
    signs = _signs(plan, study_dir)
    now["signs"] = {name: signs[name] for name in cells}
    known = {name: found for entry in (*seen, now) for name, found in entry["signs"].items()}
    begun = [name for name, found in known.items() if any((study_dir.parent / path).exists() for path in found)]
    at = datetime.now(UTC).isoformat(timespec="seconds")
    entry = {**now, "at": at, "begun": begun, "n_cells": len(known)}
    write_sealed(study_dir / RECORD, {"seen": [*seen, entry]})
