"""What a manifest and the files around it record of cells: how they were made, and the numbers that came out."""

import math
from dataclasses import dataclass
from pathlib import Path
from statistics import stdev
from typing import Any

from coupled_adam_bench import versions
from coupled_adam_bench.catalog.stages import STAGES
from coupled_adam_bench.cells import Cell
from coupled_adam_bench.config import Paths
from coupled_adam_bench.files import read_json, sha256_file
from coupled_adam_bench.paths import RunFiles, run_dir
from coupled_adam_bench.plan import Plan, load_plan, plan_from_json
from coupled_adam_bench.results.collect import read_results
from coupled_adam_bench.runs import run_damage

Number = tuple[str, str]
"""Task and metric of a number in ``results.csv``."""


@dataclass(frozen=True)
class Recorded:
    """A manifest and the plan that it describes.

    ``cells`` are its records of cells and ``values`` the numbers of ``results.csv``, by the id of the cell. ``results``
    is the folder of ``runs`` and ``data``, whether they are there or not.
    """

    plan: Plan
    manifest: dict[str, Any]
    cells: dict[str, dict[str, Any]]
    values: dict[str, dict[Number, float]]
    results: Path

    @property
    def other_stages(self) -> list[str]:
        """The stages of evaluation whose mathematics is not that of the manifest."""
        then = self.manifest["protocol"]["versions"]
        return [name for name, stage in STAGES.items() if then.get(name) != stage.version]

    def spread(self, cell: Cell) -> dict[Number, float]:
        """Return the standard deviation over seeds of each number of a cell, where other seeds of the cell have it."""
        alike = [
            other.id
            for other in self.plan.cells.values()
            if (other.model, other.data_id, other.steps, other.training, other.optimizer)
            == (cell.model, cell.data_id, cell.steps, cell.training, cell.optimizer)
        ]
        spread = {}
        for number in self.values.get(cell.id, {}):
            values = [self.values.get(other, {}).get(number, math.nan) for other in alike]
            finite = [value for value in values if math.isfinite(value)]
            if len(finite) > 1:
                spread[number] = stdev(finite)
        return spread

    def run(self, cell_id: str) -> RunFiles | None:
        """Return the files of a cell's recorded run, ``None`` if it is not there."""
        files = RunFiles(run_dir(cell_id, self.results))
        return files if files.record.is_file() else None

    def damage(self, cell_id: str) -> str | None:
        """Return what is wrong with the files of a cell's recorded run, ``None`` if nothing is or they are not there.

        The record must be that of the manifest, and the files those of the record.
        """
        files = self.run(cell_id)
        if files is None:
            return None
        if (damage := run_damage(files.folder, model=True)) is not None:
            return damage
        ours, theirs = read_json(files.record), self.cells[cell_id]
        differing = [name for name in ("status", "step", "model_sha256", "train") if ours[name] != theirs[name]]
        return f"{files.record}: another {', '.join(differing)} than in the manifest" if differing else None


def read_recorded(path: Path) -> Recorded:
    """Read the manifest at ``path``, and ``results.csv`` and, if it is there, ``plan.json`` beside it.

    The plan gives the paths of the user's files, which the manifest leaves out. ``ValueError`` for what is no manifest,
    for one whose cells this version of the program would train in another way, and for other results than its own.
    """
    manifest = read_json(path)
    try:
        plan = _plan(manifest, path)
        cells = {cell["cell"]: cell for cell in manifest["cells"]}
        versions_then, results_sha256 = manifest["protocol"]["versions"], manifest["sha256"]["results.csv"]
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise ValueError(f"{path}: not a manifest of this program ({error!r})") from None
    if unknown := sorted(set(cells) - set(plan.cells)):
        raise ValueError(
            f"{path}: {len(unknown)} of its cells, such as {unknown[0]}, would be trained in another way: it is of "
            f"version {versions_then.get('data')} of the data and {versions_then.get('train')} of training, this "
            f"program has {versions.DATA} and {versions.TRAIN}; check out revision {manifest.get('git_revision')}"
        )
    table = path.with_name("results.csv")
    if not table.is_file() or sha256_file(table) != results_sha256:
        state = "changed since the manifest was written" if table.is_file() else "missing"
        raise ValueError(f"{table}: {state}, so there is nothing to compare with")
    values: dict[str, dict[Number, float]] = {}
    for row in read_results(table).to_dict("records"):
        values.setdefault(row["cell"], {})[row["task"], row["metric"]] = row["value"]
    return Recorded(plan, manifest, cells, values, path.absolute().parent.parent)


def _plan(manifest: dict[str, Any], path: Path) -> Plan:
    """Return the plan of a manifest's studies, each on the data of its name with which the cells are the manifest's."""
    origin, places = str(path), _places(path.with_name("plan.json"))
    known = {cell["cell"] for cell in manifest["cells"]}
    entries = []
    for values in manifest["studies"]:
        study = values | {"paths": places.get(values["study"], _absolute(Paths()))}
        names = [data["id"].rpartition("-") for data in manifest["data"]]
        choices = [{"study": study, "data": digest} for name, _, digest in names if name == values["data"]["name"]]
        one = ({"name": "one", "title": "", "studies": [choice], "stated": None} for choice in choices)
        fits = [set(plan_from_json(plan, origin).cells) <= known for plan in one]
        entries.append(choices[fits.index(True) if True in fits else 0])
    # A stated plan changes no run.
    whole = {"name": manifest["study"], "title": manifest["title"], "studies": entries, "stated": None}
    return plan_from_json(whole, origin)


def _places(plan: Path) -> dict[str, Any]:
    """Return the paths of each study of a ``plan.json``; there are none without one."""
    return {name: _absolute(study.paths) for name, study in load_plan(plan).studies.items()} if plan.is_file() else {}


def _absolute(places: Paths) -> dict[str, Any]:
    """Return paths as seen from any folder; relative ones are from the working folder."""
    values = places.model_dump(mode="json")
    return {
        name: [str(Path(text).absolute()) for text in value] if isinstance(value, list)
        else None if value is None else str(Path(value).absolute())
        for name, value in values.items()
    }  # fmt: skip
