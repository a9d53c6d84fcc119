"""The command ``verify``: trains cells of a manifest again, elsewhere, and says whether they reproduce."""

import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, chdir
from pathlib import Path

from coupled_adam_bench.data.check import META, file_damage, read_meta, split_checksums
from coupled_adam_bench.machine.process import environment
from coupled_adam_bench.machine.progress import say
from coupled_adam_bench.store import paths
from coupled_adam_bench.store.files import write_json, write_sealed
from coupled_adam_bench.study.cells import Cell, data_digest
from coupled_adam_bench.study.config import CustomSettings, Paths
from coupled_adam_bench.study.dotted import changed_code
from coupled_adam_bench.study.plan import Plan, plan_from_json
from coupled_adam_bench.study.tuning import choice_file
from coupled_adam_bench.tools.verify.compare import Verdict, Word, judge
from coupled_adam_bench.tools.verify.recorded import Recorded, read_recorded, with_choices

Run = Callable[[list[str], int], int]
"""Runs a command of the package with a number of threads, and returns its exit status."""
_PLAN = "plan.json"
REPRODUCED, OTHERWISE, UNCHECKED = 0, 1, 2
"""Exit statuses: all cells reproduce; one does not; one could not be checked, and the others reproduce."""


def run_in_process(command: list[str], threads: int) -> int:
    """Run a command of the package in a process of its own, as the rules of the workflow do."""
    variables = os.environ | {"OMP_NUM_THREADS": str(threads)}
    program = [sys.executable, "-m", "coupled_adam_bench"]
    return subprocess.run([*program, *command], env=variables, check=False).returncode


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


def choose(recorded: Recorded, sample: int, seed: int) -> list[str]:
    """Return ``sample`` of the trained cells of a manifest, drawn at random without replacement, in its order."""
    trained = [cell_id for cell_id, cell in recorded.cells.items() if cell["status"] in ("completed", "diverged")]
    if sample > len(trained):
        raise ValueError(f"--sample: {sample}, but the manifest has {len(trained)} trained cells")
    chosen = set(random.Random(seed).sample(trained, sample))
    return [cell_id for cell_id in trained if cell_id in chosen]


def _with_threads(recorded: Recorded, threads: int | None) -> Plan:
    """Return the plan with another number of threads for training and evaluation; None leaves it as it is."""
    values = recorded.plan.to_json()
    for entry in values["studies"] if threads is not None else ():
        entry["study"]["execution"] |= {"train_threads": threads, "evaluation_threads": threads}
    return with_choices(plan_from_json(values, "--threads"), recorded.choices)


def verify_cell(
    recorded: Recorded, plan: Plan, cell_id: str, folder: Path, device: str, own: Mapping[str, float], run: Run
) -> Verdict:
    """Train and evaluate a cell again in ``folder``, and return the verdict on it."""
    if recorded.cells[cell_id]["status"] not in ("completed", "diverged"):
        return Verdict(cell_id, Word.UNCHECKED, f"it was not trained: {recorded.cells[cell_id]['reason']}")
    if (damage := recorded.damage(cell_id)) is not None:
        return Verdict(cell_id, Word.OTHER, f"the recorded files are not what was written: {damage}")
    cell = plan.cells[cell_id]
    if (problem := rerun(recorded, plan, cell, folder, device, run)) is not None:
        return Verdict(cell_id, Word.UNCHECKED, problem)
    return judge(recorded, cell, paths.RunFiles(paths.run_dir(cell_id, folder / paths.RESULTS)), own)


def verify(
    manifest: Path, cells: Sequence[str], sample: int | None, *, sample_seed: int = 0, folder: Path | None = None,
    device: str = "auto", threads: int | None = None, own: Mapping[str, float] | None = None,
    json: Path | None = None, given: Mapping[str, str] | None = None, run: Run = run_in_process,
) -> int:  # fmt: skip
    """Verify ``cells`` of a manifest, or a ``sample`` of them, print the verdicts and return an exit status.

    They are trained in ``folder``, in which a start goes on with what an earlier one left, or in a temporary one;
    ``own`` are tolerances by metric that replace the default ones, ``json`` is where the verdicts are written, and
    ``given`` are paths of the user's files by their names in a study.
    """
    recorded = read_recorded(manifest, given)
    if unknown := [cell for cell in cells if cell not in recorded.cells]:
        raise ValueError(f"--cells: {', '.join(unknown)} not in {manifest}")
    chosen = choose(recorded, sample, sample_seed) if sample is not None else list(dict.fromkeys(cells))
    plan = _with_threads(recorded, threads)
    home = os.pathsep.join(filter(None, (str(Path.cwd()), os.environ.get("PYTHONPATH"))))
    verdicts = []
    with ExitStack() as stack:
        stack.enter_context(environment({"PYTHONPATH": home}))  # the user's own modules are found from any folder
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="coupled-adam-bench-")))
        folder = folder.absolute()
        say(f"verify: {len(chosen)} of {len(recorded.cells)} cells of {manifest}, in {folder}")
        for cell_id in chosen:
            verdicts.append(verify_cell(recorded, plan, cell_id, folder, device, own or {}, run))
            print(*verdicts[-1].lines(), sep="\n", flush=True)
    if json is not None:
        write_json(json, {"manifest": str(manifest), "cells": [verdict.to_json() for verdict in verdicts]})
    return status_of(verdicts)


def status_of(verdicts: Sequence[Verdict]) -> int:
    """Return the exit status for verdicts: the worst of them."""
    words = {verdict.word for verdict in verdicts}
    return OTHERWISE if Word.OTHER in words else UNCHECKED if Word.UNCHECKED in words else REPRODUCED


def parse_tolerances(texts: Sequence[str]) -> dict[str, float]:
    """Return tolerances by metric from texts such as ``loss=0.02``; ``ValueError`` for others."""
    found: dict[str, float] = {}
    for text in texts:
        name, _, number = text.partition("=")
        try:
            found[name] = float(number)
        except ValueError:
            found[name] = -1.0
        if not name or not found[name] >= 0:
            raise ValueError(f"--tolerance: {text!r} is not METRIC=NUMBER with a number of at least 0, as loss=0.02")
    return found


def parse_paths(texts: Sequence[str]) -> dict[str, str]:
    """Return paths by their names in a study from texts such as ``text=FOLDER``; ``ValueError`` for others."""
    found = {name: path for name, _, path in (text.partition("=") for text in texts)}
    for name, path in found.items():
        if name not in Paths.model_fields or not path:
            raise ValueError(f"--paths: {name!r} is none of {', '.join(f'{one}=PATH' for one in Paths.model_fields)}")
    return found
