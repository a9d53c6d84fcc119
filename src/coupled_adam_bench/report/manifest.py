"""``manifest.json``: what made a report, so that it can be made again."""

import platform
import shutil
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pandas import DataFrame

from coupled_adam_bench import __version__
from coupled_adam_bench.evaluation.stage import STAGE_VERSIONS
from coupled_adam_bench.statistics.tests import VERSION
from coupled_adam_bench.store.runs import run_of
from coupled_adam_bench.study.plan import VERSIONS, Plan

PACKAGES = ("torch", "numpy", "pandas", "scipy", "lm_eval", "snakemake")


def _git(*arguments: str) -> str:
    """Return what Git says of the folder of our code, nothing where it fails."""
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return found.stdout.strip()


def _revision() -> str | None:
    """Return the commit of the code, with ``-dirty`` behind it if files were changed since.

    None where the code is in no Git repository, or only installed below that of another project.
    """
    if shutil.which("git") is None or not _git("ls-files"):
        return None
    return _git("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")


def manifest(plan: Plan, runs: DataFrame) -> dict[str, Any]:
    """Return settings, versions of the stages, software, and the cells with their machines."""
    # Reports are published, and paths tell of the user's machine.
    study = plan.study.model_dump(mode="json", exclude_unset=True, exclude={"paths"})
    software = {"coupled_adam_bench": __version__, "python": platform.python_version()}
    software |= {name: version(name) for name in PACKAGES}
    cells = []
    for row in runs.to_dict("records"):
        run = run_of(row["cell"])
        record = run.read() if run.record.exists() else {}
        found = {name: record.get(name) for name in ("environment", "sha256")}
        cells.append({name: row[name] for name in ("cell", "status", "step")} | found)
    return {
        "study": study,
        "data": plan.data_id,
        "versions": {**VERSIONS, **STAGE_VERSIONS, "statistics": VERSION},
        "revision": _revision(),
        "software": software,
        "cells": cells,
    }
