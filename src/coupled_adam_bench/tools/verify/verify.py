"""The command ``verify``: trains cells of a manifest again and says whether they reproduce."""

import os
import random
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from coupled_adam_bench.machine.environ import environment
from coupled_adam_bench.machine.progress import say
from coupled_adam_bench.store import paths
from coupled_adam_bench.store.files import write_json
from coupled_adam_bench.study.config import Paths
from coupled_adam_bench.study.plan import Plan, plan_from_json
from coupled_adam_bench.tools.verify.compare import Verdict, Word, judge
from coupled_adam_bench.tools.verify.recorded import Recorded, read_recorded, with_choices
from coupled_adam_bench.tools.verify.rerun import Run, rerun, run_in_process

REPRODUCED, OTHERWISE, UNCHECKED = 0, 1, 2
"""Exit statuses: all cells reproduce; one does not; one could not be checked, and the others reproduce."""


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
