"""Writes ``manifest.json``, the record of the code, the data and the runs behind a study's numbers.

It has the checksums of the files that show them. Each start of the workflow compares these, so this
module is light.
"""

import importlib.metadata
import platform
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coupled_adam_bench.machine.process import git_revision
from coupled_adam_bench.store import paths
from coupled_adam_bench.store.files import read_json, read_sealed, seal, sha256_file, write_json
from coupled_adam_bench.store.runs import read_run
from coupled_adam_bench.study.catalogue import versions
from coupled_adam_bench.study.catalogue.stages import STAGES
from coupled_adam_bench.study.plan import Plan
from coupled_adam_bench.study.plan.cells import Cell
from coupled_adam_bench.study.plan.preregistration_record import read_record

_HASHED = ("*.csv", "tables/*", "figures/*", "report/*")
_EXTRAS_OF_A_RUN = ("train", "pipeline")
_SEAL = "seal"
"""The key of the manifest's own checksum; ``sha256`` has those of the files."""
STATISTICS = "statistics"
"""The name of the statistics among the versions."""


def _versions() -> dict[str, str]:
    """Return the versions of Python and of the installed requirements of a run, the tools of a
    developer left out."""
    versions = {"python": platform.python_version()}
    for requirement in [
        "coupled-adam-bench",
        *(importlib.metadata.requires("coupled-adam-bench") or []),
    ]:
        match = re.match(r"[A-Za-z0-9._-]+", requirement)
        assert match is not None
        extra = re.search(r"extra == ['\"](\w+)", requirement)
        if extra is None or extra[1] in _EXTRAS_OF_A_RUN:
            try:
                versions[match[0]] = importlib.metadata.version(match[0])
            except importlib.metadata.PackageNotFoundError:
                continue
    return versions


def protocol_versions() -> dict[str, int]:
    """Return the version of each part of the mathematics: data, training, statistics and the stages
    of evaluation."""
    found = {"data": versions.DATA, "train": versions.TRAIN, STATISTICS: versions.STATISTICS}
    return found | {stage.name: stage.version for stage in STAGES.values()}


def _cell(cell: Cell, results_root: Path) -> dict[str, Any]:
    identity = {
        "cell": cell.id,
        "model": cell.model.name,
        "n_params": cell.n_params,
        "n_tokens": cell.n_tokens,
        "optimizer": cell.optimizer.key,
        "seed": cell.seed,
        "steps": cell.steps,
    }
    record = ("status", "reason", "step", "model_sha256", "data_sha256", "train", "environment")
    path = paths.RunFiles(paths.run_dir(cell.id, results_root)).record
    # In partial results a cell may not be trained yet: it has all fields, and the reason.
    if not path.is_file():
        return {
            **identity,
            **dict.fromkeys(record),
            "status": "not trained",
            "reason": f"no {path.name}",
            "train": {},
            "environment": {},
        }
    run = read_run(path)
    try:
        return {**identity, **{name: run[name] for name in record}}
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path}: not the record of a run ({error!r}); train again") from None


def _cells(cells: Iterable[Cell], results_root: Path) -> list[dict[str, Any]]:
    return [_cell(cell, results_root) for cell in cells]


def _data(data_id: str, results_root: Path) -> dict[str, Any]:
    meta = paths.data_dir(data_id, results_root) / "meta.json"
    return {"id": data_id, "meta": read_sealed(meta) if meta.is_file() else None}


def manifest_of(
    plan: Plan, study_dir: Path, results_root: Path = paths.RESULTS, made_for: str = ""
) -> dict[str, Any]:
    """Return the manifest of a study before its files are made.

    ``results_root`` is the folder of ``runs`` and ``data``. Runs and data that are not there are
    noted as such. ``made_for`` is a hash of what the results show. ``ValueError`` for the damaged
    record of a run.
    """
    studies = [
        study.model_dump(mode="json", exclude={"paths", "stated"})  # no path changes a number
        for study in plan.studies.values()
    ]
    data = [_data(data_id, results_root) for data_id in plan.data_ids]
    cells = _cells(plan.cells.values(), results_root)
    manifest = {
        "study": plan.name,
        "title": plan.title,
        "made_for": made_for,
        "studies": studies,
        "stated": None
        if plan.stated is None
        else {**plan.stated.model_dump(mode="json"), "seen": read_record(study_dir)},
        "protocol": {"name": plan.protocol_label, "versions": protocol_versions()},
        "git_revision": git_revision(),
        "packages": _versions(),
        "platform": platform.platform(),
        "sha256": {},
        "data": data,
        "cells": cells,
    }
    if plan.tuning_cells:
        manifest["tuning_cells"] = _cells(plan.tuning_cells.values(), results_root)
    return manifest


def _shown(folder: Path) -> dict[str, Path]:
    """Return the files of results in a folder by their names in the manifest."""
    found = [path for pattern in _HASHED for path in sorted(folder.glob(pattern))]
    return {path.relative_to(folder).as_posix(): path for path in found if path.is_file()}


def write_manifest(manifest: dict[str, Any], folder: Path) -> None:
    """Write ``manifest.json`` into the folder of the files that were made, with their checksums and
    its own."""
    checksums = {name: sha256_file(path) for name, path in _shown(folder).items()}
    manifest = {**manifest, "sha256": checksums}
    write_json(folder / paths.MANIFEST, {**manifest, _SEAL: seal({"manifest": manifest})})


@dataclass(frozen=True)
class MadeBefore:
    """What a manifest says of the files in its folder.

    ``files`` has its files that are there, by name. ``edited`` names those that are not as they
    were written; the manifest itself may be one.
    """

    made_for: str | None = None
    files: Mapping[str, Path] = field(default_factory=dict)
    edited: tuple[str, ...] = ()


def made_before(study_dir: Path) -> MadeBefore:
    """Compare the files of a study with its manifest; nothing is known where it is missing."""
    path = study_dir / paths.MANIFEST
    if not path.is_file():
        return MadeBefore()
    try:
        manifest = read_json(path)
        own = manifest.pop(_SEAL, None)
        made_for, checksums = manifest["made_for"], dict(manifest["sha256"])
    except (ValueError, TypeError, KeyError, AttributeError):
        return MadeBefore(edited=(paths.MANIFEST,))
    edited = [] if own == seal({"manifest": manifest}) else [paths.MANIFEST]
    files = {name: file for name, file in _shown(study_dir).items() if name in checksums}
    edited += [name for name, file in files.items() if sha256_file(file) != checksums[name]]
    return MadeBefore(made_for, files, tuple(edited))
