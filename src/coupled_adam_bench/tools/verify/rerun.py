"""Trains and evaluates a cell of a manifest once more, in a folder of its own, by the commands of
the workflow."""

import math
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import chdir
from pathlib import Path

from coupled_adam_bench.data.check import data_is_damaged, split_checksums
from coupled_adam_bench.machine.process import environment
from coupled_adam_bench.machine.progress import say
from coupled_adam_bench.store import paths
from coupled_adam_bench.store.files import write_sealed
from coupled_adam_bench.study.plan.cells import Cell, data_digest
from coupled_adam_bench.study.plan.dotted import changed_code
from coupled_adam_bench.study.plan.tuning import choice_file
from coupled_adam_bench.study.settings import CustomSettings, SyntheticSource
from coupled_adam_bench.tools.verify.recorded import Recorded


class OtherTokensError(ValueError):
    """Says that a generated text has other tokens than a manifest says, which it cannot have."""


Run = Callable[[list[str], int], int]
"""Runs a command of the package with a number of threads, and returns its exit status."""
_PLAN = "plan.json"
_ASK = "give its place with --config 'paths={text: FOLDER}'"
_LAST_LINES = 10


def run_in_process(command: list[str], threads: int) -> int:
    """Run a command of the package in a process of its own, as the rules of the workflow do.

    What it says goes into a log in the working folder, and its last lines to stderr if it fails.
    """
    log = Path(f"{command[0]}.log")
    program = [sys.executable, "-m", "coupled_adam_bench", *command]
    with log.open("w") as file, environment({"OMP_NUM_THREADS": str(threads)}):
        status = subprocess.run(program, stdout=file, stderr=file, check=False).returncode
    if status:
        say(
            f"{log.absolute()} ends with:\n"
            + "\n".join(log.read_text(errors="replace").splitlines()[-_LAST_LINES:])
        )
    return status


def _has_data(folder: Path, expected: Mapping[str, str]) -> bool:
    """Tell whether a folder has whole bins with these SHA-256; every byte is read."""
    if not folder.exists() or data_is_damaged(folder, math.inf) is not None:
        return False
    try:
        return split_checksums(folder) == expected
    except ValueError:
        return False


def _offer_data(recorded: Recorded, cell: Cell, folder: Path, run: Run) -> str | None:
    """Put the data of a cell into ``folder``, and return why that cannot be done, or ``None``.

    Those of the study are linked, if they are what the manifest says; otherwise they are prepared
    again. ``OtherTokensError`` for a generated text, which follows from its settings, with other
    tokens than the manifest says.
    """
    expected = recorded.cells[cell.id]["data_sha256"]
    target, present = (
        paths.data_dir(cell.data_id, results)
        for results in (folder / paths.RESULTS, recorded.results)
    )
    if target.is_symlink():
        target.unlink()  # of an earlier start; nothing is ever written through it
    if _has_data(target, expected):
        return None
    if not target.exists() and _has_data(present, expected):
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(present)
        return None
    try:
        if data_digest(cell.study) != cell.data_digest:
            files = ", ".join(cell.study.paths.text)
            return f"{files}: not the text, or not with the tokenizer, of the manifest; {_ASK}"
    except ValueError as error:
        return f"its data are not there, nor what they are made of ({error}); {_ASK}"
    threads = cell.study.execution.data_threads
    with chdir(folder):
        if run(
            ["prepare", "--plan", _PLAN, "--data", cell.data_id, "--workers", str(threads)], threads
        ):
            return "its data are not there, and could not be prepared again"
    if _has_data(target, expected):
        return None
    problem = f"{cell.data_id}: the tokens are not those of the manifest"
    if isinstance(cell.study.data.source, SyntheticSource):
        raise OtherTokensError(f"{problem}, and a generated text has no others")
    return problem


def _commands(cell: Cell, device: str) -> Iterator[tuple[list[str], int]]:
    """Yield the commands that train and evaluate a cell, each with its number of threads."""
    execution = cell.study.execution
    given = ["--plan", _PLAN, "--cells", cell.job_name, "--device", device]
    yield ["train", *given], execution.training_threads
    for stage in cell.study.stages:
        yield [stage.command, *given, "--done", f"{stage.name}.done"], execution.evaluation_threads


def _other_code(cell: Cell) -> str | None:
    """Return why a user's own optimizer is not that of the cell, or ``None``; old manifests do not
    say which it was."""
    for optimizer in cell.optimizer.entries.values():
        if not isinstance(optimizer, CustomSettings) or optimizer.code is None:
            continue
        try:
            changed = changed_code(optimizer.path, optimizer.code)
        except ValueError as error:
            return str(error)
        if changed:
            return f"{optimizer.path} is other code here than that of the manifest ({changed})"
    return None


def _write_choice(recorded: Recorded, tuning_id: str, folder: Path) -> None:
    """Write the choice of a trial, which is not repeated, for the jobs of a cell whose settings it
    chose."""
    tuning = recorded.plan.tunings[tuning_id]
    candidates = []
    for candidate in tuning.candidates:
        candidates.append({"cells": [{"cell": cell.id} for cell in candidate.cells]})
    record = {"tuning": tuning_id, "candidates": candidates, "chosen": recorded.choices[tuning_id]}
    write_sealed(choice_file(folder / paths.TUNING, tuning_id), record)


def train_again(
    recorded: Recorded,
    cell: Cell,
    folder: Path,
    device: str,
    run: Run,
    micro_batch: int | None = None,
) -> str | None:
    """Train and evaluate a cell in ``folder``, and return why that could not be done, or ``None``.

    ``micro_batch`` is the number of sequences of a forward pass, in place of the study's.
    """
    if (problem := _other_code(cell)) is not None:
        return problem
    folder.mkdir(parents=True, exist_ok=True)
    plan = recorded.plan.to_json()
    for entry in plan["studies"] if micro_batch else ():
        entry["study"]["execution"]["micro_batch_sequences"] = micro_batch
    write_sealed(folder / _PLAN, plan)
    if cell.tuning is not None:
        _write_choice(recorded, cell.tuning, folder)
    if (problem := _offer_data(recorded, cell, folder, run)) is not None:
        return problem
    with chdir(folder):
        for command, threads in _commands(cell, device):
            say(f"verify: {cell.id}: {command[0]}, in {folder}")
            if status := run(command, threads):
                return (
                    f"`{command[0]}` ended with exit status {status}; its own lines above say why"
                )
    return None
