"""Checks bundles: that nothing was changed or left out, that all follows from the results, and some cells again."""

import csv
import hashlib
import json
import math
import platform
import random
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import chdir
from dataclasses import replace
from enum import StrEnum
from itertools import zip_longest
from pathlib import Path
from typing import Any

from pandas import DataFrame

from coupled_adam_bench.machine.process import git_revision
from coupled_adam_bench.report import contents, manifest, render, table
from coupled_adam_bench.results import collect, groups, tidy
from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.statistics import compare, declared
from coupled_adam_bench.store.runs import FINISHED
from coupled_adam_bench.study.config import Study, parse_study
from coupled_adam_bench.study.config.reading import read_study_file
from coupled_adam_bench.study.stated import read_stated
from coupled_adam_bench.tools.registry import form
from coupled_adam_bench.tools.verify import verify
from coupled_adam_bench.tools.verify.judge import Number, Rerun, Word, judge
from coupled_adam_bench.tools.verify.recorded import Recorded
from coupled_adam_bench.tools.verify.rerun import Run, run_in_process

CHECKS = "checks.jsonl"
"""The file of a registry with a line for each check that was recorded."""
MAX_BYTES = 1_000_000
MAX_FLOPS = 1e13
"""The largest cell that is trained again: some minutes on two cores, which do about 5e10 FLOPs a second."""
REPEATS = 3
"""Trainings of a cell that lies off, as many as ``verify`` makes by itself."""
_ROUNDING = 1e-12
"""What a number of a statistic may be off, since processors sum in different orders; above 1, as a share of it."""
_ANEW = "run `report` on the unchanged results of the study, and bundle it again"


class Mark(StrEnum):
    """How much of a bundle has been checked, the least first."""

    SELF_REPORTED = "self-reported"
    RECOMPUTED = "recomputed"
    AGAIN = "run again here"


def check(
    registry: Path,
    given: Sequence[Path],
    again: int,
    device: str,
    record: bool = False,
    paths: Mapping[str, Any] | None = None,
    run: Run = run_in_process,
) -> int:
    """Check the ``given`` bundles, or all, print what is found, and return the exit status: 1 if one is refused.

    ``again`` cells of each are trained anew; where none are given, only of those without a record that this was done.
    ``record`` appends what is found to ``checks.jsonl``, and ``paths`` are those of the user's text and tasks.
    """
    refused = [
        f"{registry / name}: removed, or changed and so renamed, after it was committed; bundles only come in: "
        f"`git log -- {registry / name}` has the commit from which to put it back"
        for name in _committed(registry)
        if not (registry / name / form.BUNDLE).is_file()
    ]
    done = {entry["bundle"] for entry in recorded_checks(registry) if entry["mark"] == Mark.AGAIN}
    for folder in given or sorted(path.parent for path in registry.glob(f"*/{form.BUNDLE}")):
        try:
            count = again if given or folder.name not in done else 0
            mark, cells, notes = check_bundle(folder, registry, count, device, run, paths)
        except (ValueError, OSError) as error:
            refused.append(str(error))
            continue
        print(f"{folder.name}: {mark}", *notes, sep="\n  ", flush=True)
        if record and (cells or folder.name not in done):
            found = {"bundle": folder.name, "mark": mark, "cells": cells}
            made = {"program": git_revision(), "platform": platform.platform()}
            with (registry / CHECKS).open("a", encoding="utf-8") as file:
                file.write(json.dumps(found | made) + "\n")
    for reason in refused:
        print("REFUSED:", reason)
    return 1 if refused else 0


def recorded_checks(registry: Path) -> list[dict[str, Any]]:
    """Return the checks that were recorded, in their order."""
    file = registry / CHECKS
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.is_file() else []


def _committed(registry: Path) -> list[str]:
    """Return the bundles that the history of a repository has, none outside of one."""
    command = ["git", "log", "--format=", "--name-only", "--no-renames", "--relative", "--", "."]
    try:
        log = subprocess.run(command, cwd=registry, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return []
    return sorted({line.partition("/")[0] for line in log.splitlines() if line.endswith(f"/{form.BUNDLE}")})


def check_bundle(
    folder: Path, registry: Path, again: int, device: str, run: Run, paths: Mapping[str, Any] | None = None
) -> tuple[Mark, dict[str, str], list[str]]:
    """Check a bundle and return its mark, the cells that were trained again, and notes; ``ValueError`` refuses it."""
    check_whole(folder)
    here, then = manifest.protocol_versions(), json.loads(form.unpack(folder, form.MANIFEST))["protocol"]["versions"]
    bundle = form.read_bundle(folder)
    if other := [name for name in here if then.get(name) != here[name]]:
        note = f"not recomputed: {', '.join(other)} have other versions here; check it with revision {bundle.program}"
        return Mark.SELF_REPORTED, {}, [note]
    with form.unpacked(folder, paths) as (recorded, root):
        check_numbers(folder, recorded)
        if (said := bundle.reproduces) and (found := verdict_on(registry / said.bundle, recorded)) != said.verdict:
            raise ValueError(
                f"{folder / form.BUNDLE}: reproduces.verdict: {said.verdict!r}, but by the numbers of both it is "
                f"{found!r}; make the bundle anew with --reproduces"
            )
        cells = [cell.id for cell in recorded.plan.cells.values() if cell.flops <= MAX_FLOPS]
        cells = [cell for cell in cells if not recorded.plan.cells[cell].study.execution.gpus]
        drawn = random.Random(folder.name).sample(cells, min(again, len(cells)))
        with chdir(root):  # where the modules of own optimizers are
            n_numbers = verify.n_that_decide(recorded, drawn, {})
            verdicts = {
                cell: verify.verify_cell(
                    recorded, cell, root, device=device, own={}, repeats=REPEATS, n_numbers=n_numbers, run=run
                )
                for cell in drawn
            }
    notes = [
        f"{cell}: {one.word}; {'; '.join([*(f'{found.said}: {found}' for found in one.findings), *one.notes])}"
        for cell, one in verdicts.items()
    ]
    words = {cell: str(one.word) for cell, one in verdicts.items()}
    if Word.OTHER in words.values():
        what = "value: not what training again gives; run the study anew and bundle it again"
        raise ValueError("\n  ".join([f"{folder / form.RESULTS}: {what}", *notes]))
    return Mark.AGAIN if words and Word.UNCHECKED not in words.values() else Mark.RECOMPUTED, words, notes


def verdict_on(original: Path, recorded: Recorded) -> str:
    """Return whether the numbers of a bundle came out again in the cells that a study shares with it."""
    if not (original / form.BUNDLE).is_file():
        raise ValueError(f"reproduces.bundle: {original} is no bundle; name one that is in the registry")
    values = recorded.values  # noqa: PD011 - no frame
    with form.unpacked(original) as (first, _):
        both = {cell: values[cell].keys() & first.values[cell].keys() for cell in first.plan.cells if cell in values}
        n_numbers = verify.n_that_decide(first, list(both), {})
        findings = []
        for cell, shared in both.items():
            then, now = ({number: of[cell][number] for number in shared} for of in (first.values, values))
            rerun = Rerun(cell, then, [now], verify.digits(first.plan.cells[cell], then))
            findings += judge(rerun, first.seeds, {}, n_numbers)
    if not both:
        raise ValueError(f"reproduces.bundle: {original} has no cell in common with the study; name one that has")
    return "not reproduced" if any(finding.word is Word.OTHER for finding in findings) else "reproduced"


def check_whole(folder: Path) -> None:
    """Raise ``ValueError`` for a bundle that is too large, not of the form, or changed after it was made."""
    bundle, found = form.read_bundle(folder), form.files_of(folder)
    if (size := sum((folder / name).stat().st_size for name in found)) > MAX_BYTES:
        raise ValueError(f"{folder}: {size:,} bytes, allowed are {MAX_BYTES:,}; bundle the parts of the study alone")
    changed = [name for name in bundle.files if found.get(name) != bundle.files[name]]
    changed += sorted(found.keys() - bundle.files.keys() - {form.BUNDLE})
    if not changed and form.name_of(folder) != folder.name:
        changed = [form.BUNDLE]
    if changed:
        raise ValueError(
            f"{folder / changed[0]}: added, removed or changed after the bundle was made, by the field files or the "
            "name of the folder; put the bundle back as it was, or make another from the study"
        )


def check_numbers(folder: Path, recorded: Recorded) -> None:
    """Raise ``ValueError`` for a bundle that lacks a cell, or has a number that does not follow from its results."""
    _check_grid(folder, recorded)
    bundle = form.read_bundle(folder).model_dump(mode="json")
    facts = form.described(recorded) | {"histories": {cell: bundle["histories"].get(cell) for cell in recorded.cells}}
    for name, value in json.loads(json.dumps(facts)).items():
        if bundle[name] != value:
            raise ValueError(f"{folder / form.BUNDLE}: {name}: not what manifest.json says; {_ANEW}")
    plan, results = recorded.plan, _check_results(folder, recorded)
    if (stated := recorded.manifest["stated"]) is not None:
        plan = replace(plan, stated=read_stated(str(folder / form.STATED)))
        if plan.stated is None or plan.stated.sha256 != stated["sha256"]:
            raise ValueError(f"{folder / form.STATED}: not the stated plan of the study; put back {stated['sha256']}")
    untested = StudyResults(groups.layout_of(plan), results)
    material = declared.Material(replace(untested, tests=compare.compare(untested)))
    for statistic in contents.statistics_of(plan):
        if statistic.file in form.STATISTICS:
            path, frame = folder / statistic.file, material.frame(statistic)
            stored = path.read_bytes() if path.is_file() else b""
            # A column that a later version adds is no number of the bundle.
            known = [name for name in frame if name in stored.decode().partition("\n")[0].split(",")]
            _check_fields(path, stored, frame[known or [*frame]], _ROUNDING)
    for printed in table.build_tables(material.study):
        name = f"tables/{printed.name}.csv"
        if recorded.manifest["sha256"].get(name) != hashlib.sha256(_csv(render.numbers(printed))).hexdigest():
            raise ValueError(f"{folder}: sha256.{name} of manifest.json: not the table of these results; {_ANEW}")


def _check_grid(folder: Path, recorded: Recorded) -> None:
    """Refuse study files that are not those of the manifest, and a study without all cells; one may have diverged."""
    plan, top = recorded.plan, folder / f"{recorded.plan.name}.yaml"
    if (names := read_study_file(top).get("studies", [plan.name])) != [*plan.studies]:
        raise ValueError(
            f"{top}: studies: {', '.join(names)}, but manifest.json has {', '.join(plan.studies)}; {_ANEW}"
        )
    for name, study in plan.studies.items():
        path = folder / f"{name}.yaml"
        given = parse_study(read_study_file(path) | {"paths": study.paths.model_dump(mode="json")}, str(path))
        if changed := [setting for setting in Study.model_fields if getattr(given, setting) != getattr(study, setting)]:
            raise ValueError(
                f"{path}: {changed[0]}: not that of manifest.json, with which the cells were trained; put the study "
                "back as it ran, or run it as it is now and bundle it again"
            )
    records = [*recorded.cells.values(), *recorded.manifest.get("tuning_cells", ())]
    statuses = {cell["cell"]: cell["status"] for cell in records}
    for cell in plan.trained:
        if (status := statuses.get(cell, "missing")) not in FINISHED:
            raise ValueError(
                f"{folder}: cells of manifest.json: {cell}, to which {top.name} expands, is {status}, allowed are "
                f"{' and '.join(FINISHED)}; no seed, size or optimizer may be left out: train it and bundle again"
            )


def _check_results(folder: Path, recorded: Recorded) -> DataFrame:
    """Return ``results.csv``; refuse one that lacks a number, or has another value in any column but ``value``."""
    plan, shown, path = recorded.plan, folder / form.RESULTS, recorded.results / "study" / form.RESULTS
    values = recorded.values  # noqa: PD011 - no frame
    of_study: dict[str, set[Number]] = {}
    for name, cell in plan.cells.items():
        of_study.setdefault(cell.study.name, set()).update(values.get(name, ()))
    wanted = {(name, *number) for name, cell in plan.cells.items() for number in of_study[cell.study.name]}
    if odd := sorted(wanted ^ {(name, *number) for name, of_cell in values.items() for number in of_cell}):
        raise ValueError(
            f"{shown}: {' '.join(odd[0])}: only one of the results and the study has it; no seed and no number may be "
            f"left out: {_ANEW}"
        )
    for name, of_cell in values.items():
        if recorded.cells[name]["status"] == "completed" and all(map(math.isnan, of_cell.values())):
            raise ValueError(f"{shown}: value: only NaN of {name}, which was trained; evaluate it, then {_ANEW}")
    results = collect.read_results(path)
    columns = (results[name].tolist() for name in ("cell", "task", "metric", "value", "unit"))
    rows = ((plan.cells[name], *rest) for name, *rest in zip(*columns, strict=True))
    _check_fields(shown, path.read_bytes(), collect.results_frame(plan, rows))
    return results


def _csv(frame: DataFrame) -> bytes:
    """Return a frame as a CSV file has it."""
    with tempfile.TemporaryDirectory() as folder:
        tidy.write_csv(frame, path := Path(folder) / "frame.csv")
        return path.read_bytes()


def _is_same(one: str, other: str, rounding: float) -> bool:
    """Tell whether two fields of a CSV file are the same text, or numbers that differ by ``rounding`` at most."""
    try:
        return one == other or math.isclose(float(one), float(other), rel_tol=rounding, abs_tol=rounding)
    except ValueError:
        return False


def _check_fields(path: Path, stored: bytes, frame: DataFrame, rounding: float = 0.0) -> None:
    """Raise ``ValueError`` that names the first line and column in which a CSV file is not what it should be."""
    texts = stored.decode(errors="replace"), _csv(frame).decode()
    lines = [[*csv.reader(text.splitlines())] for text in texts]
    for number, (old, new) in enumerate(zip_longest(*lines, fillvalue=[]), 1):
        for name, one, other in zip_longest(lines[1][0], old, new, fillvalue=""):
            if not _is_same(one, other, rounding):
                what = f"{one!r} in the bundle, {other!r} from its study and its results"
                raise ValueError(f"{path}: line {number}, {name}: {what}; {_ANEW}")
