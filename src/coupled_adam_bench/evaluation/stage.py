"""The driver of the evaluation stages: for each cell one file, found by a hash of everything that
can change it."""

import hashlib
import math
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

from coupled_adam_bench.machine.process import rarely_collected
from coupled_adam_bench.machine.progress import say
from coupled_adam_bench.records.stored import (
    Evaluation,
    Evaluator,
    Measurement,
    beside,
    is_usable,
    measurement_of,
    named,
    row,
    settings_of,
    wrong_row,
)
from coupled_adam_bench.store.files import (
    await_files,
    read_sealed,
    write_bytes,
    write_sealed,
    write_text,
)
from coupled_adam_bench.store.runs import mark_damaged, run_damage
from coupled_adam_bench.study.catalogue.stages import Stage
from coupled_adam_bench.study.plan import study_of
from coupled_adam_bench.study.plan.cells import Cell
from coupled_adam_bench.study.settings import Study

Opener = Callable[[Study, str, str], AbstractContextManager[Evaluator]]
"""A function that loads once what all cells share, given the study, the id of its data and the
device."""


def run_stage(stage: Stage, cells: Sequence[Cell], done: Path, device: str = "auto") -> int:
    """Evaluate trained cells, each into its file of ``evaluations/``, then write the marker
    ``done``; return 0 or 1.

    What was measured before of the same model under the same settings is kept. A diverged cell gets
    NaN and its reason. If a cell fails, its error goes to stderr, the others are evaluated, no
    marker is written and the result is 1. ``ValueError`` for cells of several studies.
    """
    study, data_id = study_of(cells), cells[0].data_id
    done.unlink(missing_ok=True)
    measurement = measurement_of(stage, study, data_id)
    await_files(measurement.files(cell.id).record for cell in cells)
    # What is measured already costs nothing: the stage is opened only if a cell is pending.
    failed = []
    pending = []
    for cell in cells:
        try:
            if _is_pending(measurement, cell.id):
                pending.append(cell)
        except Exception as error:
            failed.append(_report(stage, cell.id, error))
    if pending:
        with ExitStack() as stack:
            with rarely_collected():
                open_stage: Opener = named(stage.opener)
                evaluate = stack.enter_context(open_stage(study, data_id, device))
            _check_settings(measurement, study, data_id)
            for cell in pending:
                start = time.perf_counter()
                try:
                    evaluation = evaluate(cell, measurement.files(cell.id).model)
                    _write(measurement, cell.id, evaluation, seconds=time.perf_counter() - start)
                except Exception as error:
                    failed.append(_report(stage, cell.id, error))
                else:
                    seconds = time.perf_counter() - start
                    say(f"{stage.name}: {cell.id}: {_summary(stage, evaluation)} ({seconds:.1f} s)")
    if failed:
        say(f"{stage.name}: {len(failed)} of {len(cells)} cells failed: {', '.join(failed)}")
        return 1
    write_text(done, "")
    return 0


def _check_settings(measurement: Measurement, study: Study, data_id: str) -> None:
    """Raise ``ValueError`` if a file has changed between its hash in the settings and its reading,
    which is over."""
    now, before = settings_of(measurement.stage, study, data_id), measurement.settings
    if changed := [name for name in now if now[name] != before[name]]:
        raise ValueError(
            f"{measurement.stage.name}: the files behind {', '.join(changed)} changed while they"
            " were read; start again"
        )


def _is_pending(measurement: Measurement, cell_id: str) -> bool:
    """Tell whether a cell is still to be evaluated; the file of a diverged one is written here."""
    stage, files = measurement.stage, measurement.files(cell_id)
    expected = measurement.model_sha256(cell_id)
    path = measurement.path(cell_id, expected)
    if expected is None:
        reason = read_sealed(files.record)["reason"]
        if measurement.damage(cell_id) is not None:
            undefined = [
                row(task, metric, math.nan, unit) for task, metric, unit in measurement.columns
            ]
            _write(measurement, cell_id, Evaluation(undefined, [reason]), status="diverged")
        say(f"{stage.name}: {cell_id}: diverged ({reason})")
        return False
    if (damage := run_damage(files.folder, model=True)) is not None:
        raise ValueError(f"{damage}; {mark_damaged(files.folder)}")
    if path.exists():
        if (damage := measurement.damage(cell_id)) is None:
            say(f"{stage.name}: {cell_id}: kept, evaluated before with the same settings")
            return False
        say(f"{stage.name}: {cell_id}: evaluated again: {damage}")
    return True


def _write(measurement: Measurement, cell_id: str, evaluation: Evaluation, **facts: Any) -> None:
    """Write a cell's evaluation; ``ValueError`` for other metrics than the stage declares, or
    impossible numbers.

    A number that statistics cannot use, as of a model whose weights are huge, is recorded as NaN
    with that reason. The files beside the record come first, and it has their checksums.
    """
    model_sha256 = measurement.model_sha256(cell_id)
    results, reasons = list(evaluation.results), list(evaluation.undefined)
    for index, found in enumerate(results):
        if not is_usable(found["value"]) or (
            math.isnan(found["value"]) and not evaluation.undefined
        ):
            reasons.append(f"{found['task']} {found['metric']} of this model is {found['value']}")
            results[index] = row(found["task"], found["metric"], math.nan, found["unit"])
    path = measurement.path(cell_id, model_sha256)
    record = {
        "cell": cell_id,
        "stage": measurement.stage.name,
        "status": "ok",
        "reason": "; ".join(reasons) or None,
        "version": measurement.stage.version,
        "settings": measurement.settings,
        "model_sha256": model_sha256,
        "results": results,
        **evaluation.detail,
        **facts,
    }
    if evaluation.files:
        record["files"] = {
            name: hashlib.sha256(contents).hexdigest()
            for name, contents in evaluation.files.items()
        }
    if problem := measurement.undeclared(results) or wrong_row(results):
        raise ValueError(problem)
    for name, contents in evaluation.files.items():
        write_bytes(beside(path, name), contents)
    write_sealed(path, record)  # last: a file that it names is there


def _summary(stage: Stage, evaluation: Evaluation) -> str:
    """Return the values of the stage's columns, for the log."""
    columns = [(task, metric) for task, metric, _ in stage.measures]
    shown = [found for found in evaluation.results if (found["task"], found["metric"]) in columns]
    return ", ".join(f"{found['metric']} {found['value']:.4g}" for found in shown)


def _report(stage: Stage, cell_id: str, error: Exception) -> str:
    """Print the traceback of what is not a user's error, and a line that says which cell failed;
    return its id."""
    if not isinstance(error, ValueError):
        traceback.print_exception(error)
    say(f"{stage.name}: {cell_id}: FAILED: {type(error).__name__}: {error}")
    return cell_id
