"""Checks bundles: that nothing was changed or left out, that all follows from the results, and some
cells again.

Without ``again`` nothing that a bundle brings is imported or run.
"""

import hashlib
import json
import random
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import chdir
from dataclasses import dataclass, replace
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import yaml

from coupled_adam_bench.machine.process import environment
from coupled_adam_bench.report import manifest
from coupled_adam_bench.report.record import study_files
from coupled_adam_bench.store.runs import FINISHED
from coupled_adam_bench.study.catalogue.stages import STAGES
from coupled_adam_bench.study.plan.cells import data_digest
from coupled_adam_bench.tools.verify import verify
from coupled_adam_bench.tools.verify.judge import Outcome
from coupled_adam_bench.tools.verify.recorded import Recorded, known_settings
from coupled_adam_bench.tools.verify.rerun import Run, run_in_process
from coupled_adam_registry import form
from coupled_adam_registry.numbers import check_numbers

MAX_FLOPS = 1e13
"""The largest cell that is trained again: some minutes on two cores, which do about 5e10 FLOPs a
second."""
REPEATS = 3
"""Trainings of a cell that comes out with other weights, as many as ``verify`` makes by itself."""


@dataclass(frozen=True)
class Checked(form.Opened):
    """A bundle that follows from itself, and what it records."""

    recorded: Recorded
    is_own: bool = False
    """Whether the registry says that the bundle belongs to its own project."""


def checked_bundles(
    registry: Path, given: Sequence[Path] = (), texts: form.Texts = None
) -> Iterator[Checked | str]:
    """Yield the ``given`` bundles, or all of a registry, and in place of one that is refused the
    reason."""
    own = form.own_bundles(registry)
    handed_in = {
        path.name: path for path in registry.iterdir() if not path.is_file() and path.name[0] != "."
    }
    # In the order of their names, wherever they lie.
    there = [folder for _, folder in sorted((handed_in | own).items())]
    for folder in given or there:
        try:
            found = check_bundle(folder, registry, texts)
            yield replace(found, is_own=found.name in own)
        except Exception as error:  # files of strangers make readers raise anything
            is_sentence = isinstance(error, ValueError | OSError) and str(folder) in str(error)
            yield str(error) if is_sentence else f"{folder}: cannot be read ({error!r:.500})"


def check(
    registry: Path,
    given: Sequence[Path],
    again: int = 0,
    device: str = "auto",
    texts: form.Texts = None,
    run: Run = run_in_process,
) -> int:
    """Check the ``given`` bundles, or all, print what is found, and return the exit status: 1 if
    one is refused, else ``verify.NOT_CHECKED`` if cells that were asked for were not trained again.

    ``again`` cells of each are trained anew, which runs the code of their own optimizers.
    """
    refused: list[str] = []
    unchecked: list[str] = []
    for found in checked_bundles(registry, given, texts):
        if isinstance(found, str):
            refused.append(found)
            continue
        is_named = found.folder.name == found.name
        print(f"{found.name if is_named else found.folder}: recomputed", flush=True)
        if not again:
            continue
        word, reason = _train_again(found, again, device, run)
        if word is Outcome.OTHER:
            refused.append(reason)
        elif word is Outcome.UNCHECKED:
            unchecked.append(reason)
    for reason in refused:
        print("REFUSED:", reason)
    for reason in unchecked:
        print("NOT CHECKED:", reason)
    if refused:
        return 1
    return verify.NOT_CHECKED if unchecked else 0


def check_bundle(folder: Path, registry: Path, texts: form.Texts = None) -> Checked:
    """Return a bundle that follows from itself; ``ValueError`` names the file and the field that do
    not."""
    listed = {own.resolve(): name for name, own in form.own_bundles(registry).items()}
    opened = form.open_bundle(folder, listed.get(folder.resolve()))
    record = json.loads(opened.unpack(form.MANIFEST))
    other = _other_versions(record)
    said = (
        f"versions of {form.MANIFEST}: {', '.join(other)} have other versions here, so it cannot be"
        f" recomputed; revision {record['git_revision']!r:.50} can"
    )
    # The statistics of a bundle are recomputed, so another version matters where a number differs.
    if set(other) - {manifest.STATISTICS}:
        raise ValueError(f"{folder}: {said}")
    with form.unpacked(opened, texts) as (recorded, study_dir):
        _check_files(opened, recorded)
        _check_cells(folder, recorded)
        try:
            check_numbers(opened, recorded, study_dir)
        except ValueError as error:
            raise ValueError(f"{error}; {said}" if other else str(error)) from error
        if opened.bundle.reproduces is not None:
            _check_reproduces(opened, registry)
        return Checked(**vars(opened), recorded=recorded)


def _other_versions(record: Mapping[str, Any]) -> list[str]:
    """Return the parts of the mathematics that a manifest's studies used in another version than
    there is here."""
    here = manifest.protocol_versions()
    then = record["protocol"]["versions"]
    optional = {stage.name for stage in STAGES.values() if stage.optional}
    other = []
    for name in {**here, **then}:
        if then.get(name) == here.get(name):
            continue
        # A study that leaves a stage out has null for its section. An older one cannot have the
        # section of a stage that has come since.
        absent = None if name in optional else name
        if any(study["evaluation"].get(name, absent) is not None for study in record["studies"]):
            other.append(name)
    return other


def _check_files(opened: form.Opened, recorded: Recorded) -> None:
    """Refuse files that the form does not name, studies and code that are not the manifest's, and
    other data."""
    folder, plan = opened.folder, recorded.plan
    there = opened.files.keys() - {form.BUNDLE}
    expected = form.names_of_files(recorded)
    for name in sorted(expected ^ there):
        if name in there:
            raise ValueError(f"{folder / name}: is no file of this bundle; remove it")
        raise ValueError(f"{folder / name}: is missing; make the bundle again")
    for name, text in study_files(plan).items():
        form.refuse_bombs(folder / name, opened.files[name])
        # Comments, the order of settings, and settings that this version no longer has, say nothing
        # about the results.
        if known_settings(yaml.safe_load(opened.files[name])) != yaml.safe_load(text):
            raise ValueError(
                f"{folder / name}: its settings are not those of manifest.json, with which the"
                " cells were trained; put it back"
            )
    code = form.code_of(plan.trained.values())
    for module, sha256 in code.items():
        name = form.code_file(module)
        if hashlib.sha256(opened.files[name]).hexdigest() != sha256:
            raise ValueError(
                f"{folder / name}: not the code of manifest.json, with which the cells were"
                " trained; put it back"
            )
    own = {module.partition(".")[0] for module in code}
    taken = {*sys.stdlib_module_names, "coupled_adam", "coupled_adam_bench"}
    if own:  # to look through all that is installed takes half a second
        taken |= packages_distributions().keys()
    odd = taken & own
    if odd:
        raise ValueError(
            f"{folder}: code of {form.MANIFEST}: {min(odd)} is the name of a module here; rename it"
        )
    for name, study in plan.studies.items():
        data_id = plan.data_id(study)
        if data_digest(study, opened.bundle.data.get(data_id, {})) != plan.data[name]:
            raise ValueError(
                f"{folder / form.BUNDLE}: data.{data_id}: this id does not follow from these files"
                f" and from the settings `data` of {name}; put the study back as it ran"
            )


def _check_cells(folder: Path, recorded: Recorded) -> None:
    """Refuse a study without all cells, and records of cells that contradict themselves."""
    tried = recorded.manifest.get("tuning_cells", ())
    records = recorded.cells | {record["cell"]: record for record in tried}
    for cell in recorded.plan.trained.values():
        record = records.get(cell.id, {"status": "missing"})
        where = f"{folder}: cells of {form.MANIFEST}: {cell.id}"
        if record["status"] not in FINISHED:
            raise ValueError(
                f"{where}, to which {recorded.plan.name}.yaml expands, is {record['status']},"
                f" allowed are {' and '.join(FINISHED)}; no seed, size or optimizer may be left"
                " out: train it and bundle again"
            )
        # Only a whole run has a model, and a whole run has all of its steps.
        is_whole = record["status"] == "completed"
        has_model = record["model_sha256"] is not None
        is_too_short = is_whole and record["step"] != cell.steps
        if is_whole != has_model or is_too_short:
            model = "a model" if record["model_sha256"] else "no model"
            raise ValueError(
                f"{where}: status {record['status']}, but it has {model} of step {record['step']}"
                f" of {cell.steps}; put its record back as it was"
            )


def _check_reproduces(opened: form.Opened, registry: Path) -> None:
    """Refuse a bundle that repeats none, or that is a copy: other runs have other histories."""
    where = f"{opened.folder / form.BUNDLE}: reproduces"
    name = opened.bundle.reproduces
    assert name is not None
    original = form.folder_of(name, registry)
    if not original.is_dir():
        raise ValueError(f"{where}: {original} is no bundle; name one that is in the registry")
    ours, theirs = opened.bundle.histories, form.open_bundle(original, name).bundle.histories
    both = ours.keys() & theirs.keys()
    if not both:
        raise ValueError(
            f"{where}: {original} has no cell in common with the study; name one that has"
        )
    copied = [cell for cell in both if ours[cell] == theirs[cell]]
    if copied:
        raise ValueError(
            f"{where}: {min(copied)} has the history of {original}: this is a copy, train it again"
        )


def _train_again(found: Checked, again: int, device: str, run: Run) -> tuple[Outcome, str]:
    """Train cells of a bundle anew, print what comes of each, and return the worst outcome with
    what it means for the bundle.

    They are drawn by chance, so that nobody can choose a name for a bundle that draws harmless
    ones. Where the code of their optimizers lies, there is nothing else.
    """
    cells = [cell for cell in found.recorded.plan.cells.values() if not cell.study.execution.gpus]
    cells = [cell for cell in cells if cell.flops <= MAX_FLOPS]
    drawn = random.SystemRandom().sample(cells, min(again, len(cells)))
    with tempfile.TemporaryDirectory(prefix="coupled-adam-bench-") as temporary:
        code, work = Path(temporary, "code"), Path(temporary, "work")
        _place_code(found, form.code_of(drawn), code)
        with chdir(code), environment({"PYTHONPATH": str(code)}):
            ids = [cell.id for cell in drawn]
            verdicts = verify.verify_cells(found.recorded, ids, work, device, {}, REPEATS, run)
    word = verify.worst([verdict.word for verdict in verdicts.values()])
    if word is Outcome.OTHER:
        return word, (
            f"{found.folder / form.RESULTS}: value: not what training again gives; run the study"
            " anew and bundle it"
        )
    # What cannot be drawn is chosen by whoever hands the bundle in, so it is no success.
    n_all = len(found.recorded.plan.cells)
    n_left = n_all - len(cells)
    n_open = sum(verdict.word is Outcome.UNCHECKED for verdict in verdicts.values())
    if not n_left and not n_open:
        return word, ""
    return Outcome.UNCHECKED, (
        f"{found.folder}: {n_left} of {n_all} cells take a GPU or more than {MAX_FLOPS:g} FLOPs,"
        f" and {n_open} of the {len(drawn)} that were drawn could not be trained; let somebody who"
        " has the machine and the text train the study and hand it in with --reproduces"
    )


def _place_code(opened: form.Opened, modules: Collection[str], code: Path) -> None:
    """Put modules of a bundle into a new folder, from which they are imported by their names."""
    code.mkdir()
    for module in modules:
        is_package = any(other.startswith(f"{module}.") for other in modules)
        ending = "/__init__.py" if is_package else ".py"
        path = code / (module.replace(".", "/") + ending)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(opened.files[form.code_file(module)])
