"""The command ``verify``: trains cells of a manifest again, elsewhere, and says whether their numbers come out."""

import math
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, chdir
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from coupled_adam_bench.data.check import data_is_damaged, split_checksums
from coupled_adam_bench.machine.process import environment
from coupled_adam_bench.machine.progress import say
from coupled_adam_bench.store import paths
from coupled_adam_bench.store.files import write_sealed
from coupled_adam_bench.store.runs import read_run
from coupled_adam_bench.store.stored import measurement_of
from coupled_adam_bench.store.weights import sha256_without_cell
from coupled_adam_bench.study.cells import Cell, data_digest
from coupled_adam_bench.study.config import CustomSettings, Paths
from coupled_adam_bench.study.dotted import changed_code
from coupled_adam_bench.study.tuning import choice_file
from coupled_adam_bench.tools.verify.recorded import Number, Recorded, read_recorded

Run = Callable[[list[str], int], int]
"""Runs a command of the package with a number of threads, and returns its exit status."""
_PLAN = "plan.json"
_TRAINED = ("completed", "diverged")
_SHOWN = 10


class Word(StrEnum):
    """What comes out of the check of a cell, the worst first."""

    OTHER = "NOT reproduced"
    UNCHECKED = "not checked"
    CLOSE = "reproduced within the tolerances"
    EXACT = "reproduced bit for bit"


EXIT_STATUS = {Word.OTHER: 1, Word.UNCHECKED: 2, Word.CLOSE: 0, Word.EXACT: 0}


@dataclass(frozen=True)
class Verdict:
    """What came out of the check of a cell, and what it rests on."""

    word: Word
    notes: Sequence[str]


@dataclass(frozen=True)
class Difference:
    """A number that came out otherwise; its ``tolerance`` is NaN if it is not judged."""

    number: Number
    recorded: float
    here: float
    tolerance: float

    @property
    def is_far(self) -> bool:
        """Whether the number differs by more than its tolerance; NaN and a number always do."""
        return not math.isnan(self.tolerance) and not abs(self.here - self.recorded) <= self.tolerance

    def __str__(self) -> str:
        """Say both values, in full."""
        judged = "not judged" if math.isnan(self.tolerance) else f"tolerance {self.tolerance:g}"
        name = " ".join(self.number)
        return f"{name}: {self.recorded!r} in the manifest's results, {self.here!r} here ({judged})"


def run_in_process(command: list[str], threads: int) -> int:
    """Run a command of the package in a process of its own, as the rules of the workflow do."""
    variables = os.environ | {"OMP_NUM_THREADS": str(threads)}
    program = [sys.executable, "-m", "coupled_adam_bench"]
    return subprocess.run([*program, *command], env=variables, check=False).returncode


def tolerances(recorded: Recorded, cell: Cell, own: Mapping[str, float]) -> Callable[[Number], float]:
    """Return the tolerance of each number of a cell: a user's ``own`` by metric, else one of ours, else NaN.

    Ours, for metrics that tables print, is one unit of the last printed digit, or the standard deviation over seeds if
    that is larger: a training that rounds otherwise may end as far away, and changes no conclusion.
    """
    spread = recorded.spread(cell)
    ours = {
        (metric.task, metric.name): max(10.0**-metric.digits, spread.get((metric.task, metric.name), 0.0))
        for metric in cell.study.metrics.values()
    }
    return lambda number: own.get(number[1], ours.get(number, math.nan))


def compare(
    recorded: Mapping[Number, float], here: Mapping[Number, float], tolerance: Callable[[Number], float]
) -> list[Difference]:
    """Return the numbers that differ, in the order of ``here``; a number that only one side has is NaN on the other."""
    differences = []
    for number in dict.fromkeys((*here, *recorded)):
        then, now = (values.get(number, math.nan) for values in (recorded, here))
        if then != now and not (math.isnan(then) and math.isnan(now)):
            differences.append(Difference(number, then, now, tolerance(number)))
    return differences


def _judge(recorded: Recorded, cell: Cell, results: Path, own: Mapping[str, float]) -> Verdict:
    """Return the verdict on a cell that was trained and evaluated again in ``results``."""
    files = paths.RunFiles(paths.run_dir(cell.id, results))
    then, now = recorded.cells[cell.id], read_run(files.record)
    environments = then["environment"], now["environment"]
    notes = [
        f"another {name}: {environments[0].get(name)} then, {environments[1].get(name)} here"
        for name in dict.fromkeys((*environments[0], *environments[1]))
        if environments[0].get(name) != environments[1].get(name)
    ]
    for name in ("status", "reason", "step"):
        if then[name] != now[name]:
            return Verdict(Word.OTHER, [f"{name}: {then[name]!r} in the manifest, {now[name]!r} here", *notes])
    weights = [now["model_sha256"]]
    if now["model_sha256"] is not None:
        weights.append(sha256_without_cell(files.weights))  # that of manifests of versions that wrote no cell's id
    same_weights = then["model_sha256"] in weights
    known = recorded.values.get(cell.id, {})
    here: dict[Number, float] = {}
    for stage in cell.study.stages:
        evaluation = measurement_of(stage, cell.study, cell.data_id, files.folder.parent).read(cell.id)
        numbers = {(row["task"], row["metric"]): row["value"] for row in evaluation["results"]}
        if stage.name in recorded.other_stages:
            notes.append(f"not compared: {stage.name}, whose mathematics has another version here")
            known = {number: value for number, value in known.items() if number not in numbers}
        else:
            here |= numbers
    differences = compare(known, here, tolerances(recorded, cell, own))
    far = [difference for difference in differences if difference.is_far]
    near = [difference for difference in differences if not difference.is_far]
    found = [f"compared: {len(here)} numbers of evaluations, and the weights"]
    found += [] if same_weights else ["the weights are not the same"]
    found += [f"too far: {difference}" for difference in far[:_SHOWN]]
    found += [f"and {len(far) - _SHOWN} more that are too far"] if len(far) > _SHOWN else []
    found += [f"{len(near)} numbers differ and are allowed to, such as {near[0]}"] if near else []
    word = Word.OTHER if far else Word.EXACT if same_weights and not near else Word.CLOSE
    return Verdict(word, [*found, *notes])


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

    Those of the study are linked, if they are what the manifest says; otherwise they are prepared again.
    """
    expected = recorded.cells[cell.id]["data_sha256"]
    target, present = (paths.data_dir(cell.data_id, results) for results in (folder / paths.RESULTS, recorded.results))
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
            return f"{files}: not the text, or not with the tokenizer, of the manifest; give its place with --paths"
    except ValueError as error:
        return f"its data are not there, nor what they are made of ({error}); give its place with --paths"
    threads = cell.study.execution.data_threads
    with chdir(folder):
        if run(["prepare", "--plan", _PLAN, "--data", cell.data_id, "--workers", str(threads)], threads):
            return "its data are not there, and could not be prepared again"
    return None if _has_data(target, expected) else f"{target}: the tokens are not those of the manifest"


def _commands(cell: Cell, device: str) -> Iterator[tuple[list[str], int]]:
    """Yield the commands that train and evaluate a cell, each with its number of threads."""
    execution = cell.study.execution
    given = ["--plan", _PLAN, "--cells", cell.job_name, "--device", device]
    yield ["train", *given], execution.training_threads
    for stage in cell.study.stages:
        yield [stage.name.replace("_", "-"), *given, "--done", f"{stage.name}.done"], execution.evaluation_threads


def _other_code(cell: Cell) -> str | None:
    """Return why a user's own optimizer is not that of the cell, or ``None``; old manifests do not say which it was."""
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
    """Write the choice of a trial, which is not repeated, for the jobs of a cell whose settings it chose."""
    tuning = recorded.plan.tunings[tuning_id]
    candidates = [{"cells": [{"cell": cell.id} for cell in candidate.cells]} for candidate in tuning.candidates]
    record = {"tuning": tuning_id, "candidates": candidates, "chosen": recorded.choices[tuning_id]}
    write_sealed(choice_file(folder / paths.TUNING, tuning_id), record)


def _rerun(recorded: Recorded, cell: Cell, folder: Path, device: str, run: Run) -> str | None:
    """Train and evaluate a cell in ``folder``, and return why that could not be done, or ``None``."""
    if (problem := _other_code(cell)) is not None:
        return problem
    folder.mkdir(parents=True, exist_ok=True)
    write_sealed(folder / _PLAN, recorded.plan.to_json())
    if cell.tuning is not None:
        _write_choice(recorded, cell.tuning, folder)
    if (problem := _offer_data(recorded, cell, folder, run)) is not None:
        return problem
    with chdir(folder):
        for command, threads in _commands(cell, device):
            if status := run(command, threads):
                return f"`{command[0]}` ended with exit status {status}; its own lines above say why"
    return None


def verify_cell(
    recorded: Recorded, cell_id: str, folder: Path, device: str, own: Mapping[str, float], run: Run
) -> Verdict:
    """Train and evaluate a cell again in ``folder``, and return the verdict on it."""
    if recorded.cells[cell_id]["status"] not in _TRAINED:
        return Verdict(Word.UNCHECKED, [f"it was not trained: {recorded.cells[cell_id]['reason']}"])
    cell = recorded.plan.cells[cell_id]
    if (problem := _rerun(recorded, cell, folder, device, run)) is not None:
        return Verdict(Word.UNCHECKED, [problem])
    return _judge(recorded, cell, folder / paths.RESULTS, own)


def choose(recorded: Recorded, sample: int, seed: int) -> list[str]:
    """Return ``sample`` of the trained cells of a manifest, drawn at random without replacement, in its order."""
    trained = [cell_id for cell_id, cell in recorded.cells.items() if cell["status"] in _TRAINED]
    if sample > len(trained):
        raise ValueError(f"--sample: {sample}, but the manifest has {len(trained)} trained cells")
    chosen = set(random.Random(seed).sample(trained, sample))
    return [cell_id for cell_id in trained if cell_id in chosen]


def verify(
    manifest: Path, cells: Sequence[str], sample: int | None, *, sample_seed: int = 0, folder: Path | None = None,
    device: str = "auto", own: Mapping[str, float] | None = None, given: Mapping[str, str] | None = None,
    run: Run = run_in_process,
) -> int:  # fmt: skip
    """Verify ``cells`` of a manifest, or a ``sample`` of them, print the verdicts and return the worst exit status.

    They are trained in ``folder``, in which a start goes on with what an earlier one left, or in a temporary one;
    ``own`` are tolerances by metric that replace the default ones, and ``given`` are paths of the user's files by their
    names in a study.
    """
    recorded = read_recorded(manifest, given)
    if unknown := [cell for cell in cells if cell not in recorded.cells]:
        raise ValueError(f"--cells: {', '.join(unknown)} not in {manifest}")
    chosen = choose(recorded, sample, sample_seed) if sample is not None else list(dict.fromkeys(cells))
    home = os.pathsep.join(filter(None, (str(Path.cwd()), os.environ.get("PYTHONPATH"))))
    words = []
    with ExitStack() as stack:
        stack.enter_context(environment({"PYTHONPATH": home}))  # the user's own modules are found from any folder
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="coupled-adam-bench-")))
        folder = folder.absolute()
        say(f"verify: {len(chosen)} of {len(recorded.cells)} cells of {manifest}, in {folder}")
        for cell_id in chosen:
            verdict = verify_cell(recorded, cell_id, folder, device, own or {}, run)
            words.append(verdict.word)
            print(f"{cell_id}: {verdict.word}", *verdict.notes, sep="\n  ", flush=True)
    return EXIT_STATUS[min(words, key=list(Word).index)]


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
