"""Trains and evaluates one cell again, by the commands of the workflow, in a folder of its own."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import chdir
from pathlib import Path

from coupled_adam_bench.data.check import META, file_damage, read_meta, split_checksums
from coupled_adam_bench.store import paths
from coupled_adam_bench.store.files import write_sealed
from coupled_adam_bench.study.cells import Cell, data_digest
from coupled_adam_bench.study.config import CustomSettings
from coupled_adam_bench.study.dotted import changed_code
from coupled_adam_bench.study.plan import Plan
from coupled_adam_bench.study.tuning import choice_file
from coupled_adam_bench.tools.verify.recorded import Recorded

Run = Callable[[list[str], int], int]
"""Runs a command of the package with a number of threads, and returns its exit status."""
_PLAN = "plan.json"


def run_in_process(command: list[str], threads: int) -> int:
    """Run a command of the package in a process of its own, as the rules of the workflow do."""
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    program = [sys.executable, "-m", "coupled_adam_bench"]
    return subprocess.run([*program, *command], env=environment, check=False).returncode


def unlike(data_dir: Path, expected: dict[str, str]) -> str | None:
    """Return why prepared data are not whole or not those of the manifest, or ``None``; every byte is read."""
    try:
        _, files = read_meta(data_dir / META)
        damage = next(filter(None, (file_damage(data_dir / name, file) for name, file in files.items())), None)
        found = split_checksums(data_dir)
    except (ValueError, KeyError) as error:
        return str(error)
    if damage is None and found != expected:
        damage = f"{data_dir}: the tokens are not those of the manifest"
    return damage


def offer_data(recorded: Recorded, cell: Cell, folder: Path, run: Run) -> str | None:
    """Put the data of a cell into ``folder``, and return why that cannot be done, or ``None``.

    Those of the study are linked, if they are what the manifest says; otherwise they are prepared again.
    """
    expected, target = recorded.cells[cell.id]["data_sha256"], paths.data_dir(cell.data_id, folder / paths.RESULTS)
    present = paths.data_dir(cell.data_id, recorded.results)
    if target.is_symlink():
        target.unlink()  # of an earlier start; nothing is ever written through it
    if unlike(target, expected) is None:
        return None
    if not target.exists() and unlike(present, expected) is None:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(present)
        return None
    try:
        if data_digest(cell.study) != cell.data_digest:
            files = ", ".join(cell.study.paths.text)
            return f"{files}: not the text, or not with the tokenizer, of the manifest; give its place with --paths"
    except ValueError as error:
        return f"its data are not there, nor what they are made of ({error}); give its place with --paths"
    threads = cell.study.execution.data_threads
    with chdir(folder):
        if run(["prepare", "--plan", _PLAN, "--data", cell.data_id, "--workers", str(threads)], threads):
            return "its data are not there, and could not be prepared again"
    return unlike(target, expected)


def commands(cell: Cell, device: str) -> Iterator[tuple[list[str], int]]:
    """Yield the commands that train and evaluate a cell, each with its number of threads."""
    execution = cell.study.execution
    given = ["--plan", _PLAN, "--cells", cell.job_name, "--device", device]
    yield ["train", *given], execution.training_threads
    for stage in cell.study.stages:
        yield [stage.name.replace("_", "-"), *given, "--done", f"{stage.name}.done"], execution.evaluation_threads


def _other_code(cell: Cell) -> str | None:
    """Return why a user's own optimizer is not that of the cell, or ``None``; old manifests do not say which it was."""
    optimizer = cell.optimizer
    if not isinstance(optimizer, CustomSettings) or optimizer.code is None:
        return None
    try:
        changed = changed_code(optimizer.path, optimizer.code)
    except ValueError as error:
        return str(error)
    return changed and f"{optimizer.path} is other code here than that of the manifest ({changed})"


def _write_choice(recorded: Recorded, tuning_id: str, folder: Path) -> None:
    """Write the choice of a trial, which is not repeated, for the jobs of a cell whose settings it chose."""
    tuning = recorded.plan.tunings[tuning_id]
    candidates = [{"cells": [{"cell": cell.id} for cell in candidate.cells]} for candidate in tuning.candidates]
    record = {"tuning": tuning_id, "candidates": candidates, "chosen": recorded.choices[tuning_id]}
    write_sealed(choice_file(folder / paths.TUNING, tuning_id), record)


def rerun(recorded: Recorded, plan: Plan, cell: Cell, folder: Path, device: str, run: Run) -> str | None:
    """Train and evaluate a cell in ``folder``, and return why that could not be done, or ``None``.

    ``plan`` is that of the manifest, with the settings of execution that are to hold here.
    """
    if (problem := _other_code(cell)) is not None:
        return problem
    folder.mkdir(parents=True, exist_ok=True)
    write_sealed(folder / _PLAN, plan.to_json())
    if cell.tuning is not None:
        _write_choice(recorded, cell.tuning, folder)
    if (problem := offer_data(recorded, cell, folder, run)) is not None:
        return problem
    with chdir(folder):
        for command, threads in commands(cell, device):
            if status := run(command, threads):
                return f"`{command[0]}` ended with exit status {status}; its own lines above say why"
    return None
