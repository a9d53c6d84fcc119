"""What a manifest and the files around it record of cells: how they were made, and the numbers that
came out."""

import csv
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from coupled_adam_bench.machine.process import git_revision
from coupled_adam_bench.store.files import read_json, sha256_file
from coupled_adam_bench.study.catalogue.stages import STAGES
from coupled_adam_bench.study.plan import Plan, plan_from_json
from coupled_adam_bench.study.plan.cells import Cell
from coupled_adam_bench.study.plan.tuning import fill_slot
from coupled_adam_bench.study.settings import Paths, Study
from coupled_adam_bench.study.settings.errors import field_location
from coupled_adam_bench.tools.verify.judge import Group, MetricKey


@dataclass(frozen=True)
class Recorded:
    """A manifest and the plan that it describes.

    ``choices`` are the candidates that trials have chosen, by the id of the tuning. ``cells`` are
    its records of cells and ``values`` the numbers of ``results.csv``, by the id of the cell.
    ``results`` is the folder of ``runs`` and ``data``, whether they are there or not.
    """

    plan: Plan
    choices: dict[str, int]
    manifest: dict[str, Any]
    cells: dict[str, dict[str, Any]]
    values: dict[str, dict[MetricKey, float]]
    results: Path

    @property
    def other_stages(self) -> list[str]:
        """The stages of evaluation whose mathematics is not that of the manifest."""
        then = self.manifest["protocol"]["versions"]
        return [name for name, stage in STAGES.items() if then.get(name) != stage.version]

    @property
    def seeds(self) -> list[Group]:
        """The groups of cells that differ in the seed only, with their recorded numbers."""
        groups: list[tuple[Cell, list[str]]] = []
        for cell in self.plan.cells.values():
            kind = replace(cell, id="", seed=0)
            found = next((ids for other, ids in groups if other == kind), None)
            if found is None:
                groups.append((kind, [cell.id]))
            else:
                found.append(cell.id)
        numbers: list[Group] = []
        for _, ids in groups:
            numbers.append({name: self.values.get(name, {}) for name in ids})
        return numbers


def read_recorded(
    path: Path, given: Mapping[str, Any] | None = None, threads: int | None = None
) -> Recorded:
    """Read the manifest at ``path``, and ``results.csv`` beside it.

    The manifest leaves out the paths of the user's files. They are the default ones, where none is
    ``given`` by name. ``threads`` replaces the study's threads of training processes and of
    evaluation. ``ValueError`` for what is no manifest, for one whose cells this version of the
    program would train in another way, and for other results than its own.
    """
    manifest = read_json(path)
    # What a manifest lacks shows where it is read; what it names in vain shows in the ids.
    try:
        cells = {cell["cell"]: cell for cell in manifest["cells"]}
        plan, choices = _plan(manifest, path, set(cells), given or {}, threads)
        results_sha256 = manifest["sha256"].get("results.csv")
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise ValueError(f"{path}: not a manifest of this program ({error!r})") from None
    if unknown := sorted(set(cells) - set(plan.cells)):
        revision = manifest.get("git_revision")
        mend = (
            "put it back as it was written"
            if revision == git_revision()
            else f"check out revision {revision}"
        )
        raise ValueError(
            f"{path}: {len(unknown)} of its cells, such as {unknown[0]}, would be trained in"
            f" another way by this version of the program; {mend}"
        )
    table = path.with_name("results.csv")
    if not table.is_file() or sha256_file(table) != results_sha256:
        state = "changed since the manifest was written" if table.is_file() else "missing"
        raise ValueError(f"{table}: {state}, so there is nothing to compare with")
    return Recorded(plan, choices, manifest, cells, _values(table), path.absolute().parent.parent)


def known_settings(study: Any) -> Any:
    """Return the settings of a study without those that sections of this version no longer have.

    What such a setting did, does not get lost: ids tell cells that were trained in another way, and
    versions tell stages whose mathematics has changed.
    """
    known = deepcopy(study)
    try:
        Study.model_validate(study)
    except ValidationError as error:
        unknown = [problem for problem in error.errors() if problem["type"] == "extra_forbidden"]
        for problem in unknown:
            *sections, name = field_location(problem, study)
            if sections:
                reduce(getitem, sections, known).pop(name)
    return known


def _values(table: Path) -> dict[str, dict[MetricKey, float]]:
    """Return the numbers of ``results.csv`` by the id of the cell."""
    values: dict[str, dict[MetricKey, float]] = {}
    with table.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            values.setdefault(row["cell"], {})[row["task"], row["metric"]] = float(row["value"])
    return values


def _plan(
    manifest: dict[str, Any],
    path: Path,
    known: set[str],
    given: Mapping[str, Any],
    threads: int | None,
) -> tuple[Plan, dict[str, int]]:
    """Return the plan of a manifest's studies with the choices of its trials, and these.

    Each study is on the data of its name with which the cells are those that are ``known``.
    """
    entries = []
    for values in manifest["studies"]:
        study = known_settings(values) | {"paths": _paths(values, given)}
        if threads is not None:
            study["execution"] |= {"train_threads": threads, "evaluation_threads": threads}
        names = [data["id"].rpartition("-") for data in manifest["data"]]
        choices = [
            {"study": study, "data": digest}
            for name, _, digest in names
            if name == values["data"]["name"]
        ]
        fits = [
            set(_chosen("one", "", [choice], path, known)[0].cells) <= known for choice in choices
        ]
        entries.append(choices[fits.index(True) if True in fits else 0])
    return _chosen(manifest["study"], manifest["title"], entries, path, known)


def _chosen(
    name: str, title: str, entries: list[dict[str, Any]], path: Path, known: set[str]
) -> tuple[Plan, dict[str, int]]:
    """Return a plan of studies with those choices of trials by which its cells are ``known``, and
    these choices."""
    # A stated plan changes no run.
    plan = plan_from_json(
        {"name": name, "title": title, "studies": entries, "stated": None}, str(path)
    )
    cells = [cell for planned in plan.blocks for cell in planned.cells]
    given = {cell.id for cell in cells if cell.tuning is None}
    choices = {}
    for tuning in plan.tunings.values():
        slots = [cell for cell in cells if cell.tuning == tuning.id]
        ids = []
        for candidate in tuning.candidates:
            ids.append({fill_slot(slot, candidate.settings).id for slot in slots})
        if fits := [index for index, found in enumerate(ids) if found <= known]:
            # Another candidate may be in the grid, with these settings and without a trial.
            choices[tuning.id] = min(fits, key=lambda index: ids[index] <= given)
    return with_choices(plan, choices), choices


def with_choices(plan: Plan, choices: Mapping[str, int]) -> Plan:
    """Return a plan with the candidates that trials have chosen, by the id of the tuning."""
    return plan.with_choices(
        {name: plan.tunings[name].candidates[index].settings for name, index in choices.items()}
    )


def _paths(study: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the paths of a study as seen from any folder: those that are ``given``, else the
    default ones."""
    needed = {}  # as in the shipped studies
    if study["data"]["source"]["kind"] == "files":
        needed["text"] = "data/text"
    if study["data"]["tokenizer"] == "file":
        needed["tokenizer"] = "data/tokenizer.json"
    return _absolute(Paths.model_validate({**needed, **given}))


def _absolute(places: Paths) -> dict[str, Any]:
    """Return paths as seen from any folder; relative ones are from the working folder."""
    values: dict[str, Any] = places.model_dump(mode="json")
    for name, value in values.items():
        if isinstance(value, list):
            values[name] = [str(Path(text).absolute()) for text in value]
        elif value is not None:
            values[name] = str(Path(value).absolute())
    return values
