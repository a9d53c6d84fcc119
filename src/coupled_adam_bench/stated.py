"""Checks a stated plan against a study before the first job, and records when each text of it was first seen."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coupled_adam_bench.cells import Cell, readable_count
from coupled_adam_bench.config.stated import Hypothesis, Stated
from coupled_adam_bench.files import digest, read_sealed, write_sealed
from coupled_adam_bench.paths import RunFiles

if TYPE_CHECKING:
    from coupled_adam_bench.plan import PlannedBlock

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
    except (ValueError, KeyError) as error:
        raise ValueError(
            f"{error}; put it back as it was, or delete it: the stated plan then counts as first seen at the next start"
        ) from None
    return seen


def measured_as(
    stated: Stated, blocks: "Sequence[PlannedBlock]", measurements: Mapping[tuple[str, str], Any]
) -> dict[str, str]:
    """Return a hash of version and settings of each stage that measures a stated metric.

    ``measurements`` are those of the studies, by the names of stage and study.
    """
    keys = dict.fromkeys(
        (planned.study.metrics[hypothesis.metric].stage, planned.study.name)
        for planned in blocks
        for hypothesis in stated.plan.hypotheses
        if planned.block.table == hypothesis.table
    )
    found = {f"{stage} of {study}": measurements.get((stage, study)) for stage, study in keys}
    return {name: digest([m.stage.version, m.settings]) if m else "unknown" for name, m in found.items()}


def note_stated(
    stated: Stated, blocks: "Sequence[PlannedBlock]", study_dir: Path, runs: Path, measured: Mapping[str, str]
) -> None:
    """Record the text of a stated plan, and how its metrics are ``measured``, if they are not what was seen last.

    The record says how many of the runs that it is about had ended by then. It is kept on the user's own machine, so it
    is a help to honest people and no proof to others.
    """
    seen = read_record(study_dir)
    now = {"sha256": stated.sha256, "measured": dict(measured)}
    if seen and {name: seen[-1][name] for name in now} == now:
        return
    cells = meant_cells(stated, blocks)
    ended = sum(RunFiles(runs / cell.id).record.is_file() for cell in cells)
    at = datetime.now(UTC).isoformat(timespec="seconds")
    write_sealed(study_dir / RECORD, {"seen": [*seen, {**now, "at": at, "n_ended": ended, "n_cells": len(cells)}]})
