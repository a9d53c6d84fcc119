"""Writes ``manifest.json``, the record of the code, the data and the runs behind a study's numbers."""

import importlib.metadata
import platform
import re
from pathlib import Path
from typing import Any

from coupled_adam_bench.machine.process import git_revision
from coupled_adam_bench.store import paths
from coupled_adam_bench.store.files import ASIDE, read_sealed, sha256_file, write_json
from coupled_adam_bench.store.runs import read_run
from coupled_adam_bench.study import versions
from coupled_adam_bench.study.catalog.stages import STAGES
from coupled_adam_bench.study.cells import Cell
from coupled_adam_bench.study.plan import Plan
from coupled_adam_bench.study.stated import read_record

_HASHED = ("*.csv", "tables/*", "figures/*")


def _versions() -> dict[str, str]:
    """Return the versions of Python and of the installed requirements of this package, development tools left out."""
    versions = {"python": platform.python_version()}
    for requirement in ["coupled-adam-bench", *(importlib.metadata.requires("coupled-adam-bench") or [])]:
        match = re.match(r"[A-Za-z0-9._-]+", requirement)
        assert match is not None
        if "extra == 'dev'" not in requirement.replace('"', "'"):
            try:
                versions[match[0]] = importlib.metadata.version(match[0])
            except importlib.metadata.PackageNotFoundError:
                continue
    return versions


def protocol_versions() -> dict[str, int]:
    """Return the version of each part of the mathematics: data, training, statistics and the stages of evaluation."""
    found: dict[str, int] = {name.lower(): value for name, value in vars(versions).items() if name.isupper()}
    return found | {stage.name: stage.version for stage in STAGES.values()}


def _cell(cell: Cell, folder: Path) -> dict[str, Any]:
    identity = {
        "cell": cell.id, "model": cell.model.name, "n_params": cell.n_params, "n_tokens": cell.n_tokens,
        "optimizer": cell.optimizer.key, "seed": cell.seed, "steps": cell.steps,
    }  # fmt: skip
    record = ("status", "reason", "step", "model_sha256", "data_sha256", "train", "environment")
    path = paths.RunFiles(folder).record
    if not path.is_file():
        return {
            **identity, **dict.fromkeys(record), "status": "not trained", "reason": f"no {path.name}", "train": {},
            "environment": {},
        }  # fmt: skip
    run = read_run(path)
    try:
        return {**identity, **{name: run[name] for name in record}}
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path}: not the record of a run ({error!r}); train again") from None


def _data(data_id: str, meta: Path) -> dict[str, Any]:
    return {"id": data_id, "meta": read_sealed(meta) if meta.is_file() else None}


def write_manifest(plan: Plan, study_dir: Path, results_root: Path = paths.RESULTS, made_for: str = "") -> None:
    """Write ``manifest.json`` of a study whose results, tests, tables and figures lie in ``study_dir``.

    ``results_root`` is the folder of ``runs`` and ``data``. Runs and data that are not there are noted as such.
    ``made_for`` is a hash of what the results show.
    """
    found = [path for pattern in _HASHED for path in sorted(study_dir.glob(pattern))]
    files = [path for path in found if not path.name.startswith(".") and ASIDE not in path.name]
    manifest = {
        "study": plan.name,
        "title": plan.title,
        "made_for": made_for,
        # No path changes a number.
        "studies": [study.model_dump(mode="json", exclude={"paths", "stated"}) for study in plan.studies.values()],
        "stated": None
        if plan.stated is None
        else {**plan.stated.model_dump(mode="json"), "seen": read_record(study_dir)},
        "protocol": {"name": plan.protocol_label, "versions": protocol_versions()},
        "git_revision": git_revision(),
        "packages": _versions(),
        "platform": platform.platform(),
        "sha256": {path.relative_to(study_dir).as_posix(): sha256_file(path) for path in files},
        "data": [_data(data_id, paths.data_dir(data_id, results_root) / "meta.json") for data_id in plan.data_ids],
        "cells": [_cell(cell, paths.run_dir(cell.id, results_root)) for cell in plan.cells.values()],
    }
    if plan.tuning_cells:
        manifest["tuning_cells"] = [
            _cell(cell, paths.run_dir(cell.id, results_root)) for cell in plan.tuning_cells.values()
        ]
    write_json(study_dir / "manifest.json", manifest)
