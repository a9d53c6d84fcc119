"""Joins the runs of a study of the book with those of another, and writes its tests and the tables
that its page shows.

    python research/join.py STUDY RESULTS OTHER

RESULTS is the folder of a partial report of STUDY. The cells that it lacks are taken from the
results and the manifest of OTHER, whose cells have the same ids; OTHER may be what the book has of
STUDY itself.
"""

import argparse
import gzip
import json
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

BOOK = Path(__file__).parent
sys.path.insert(0, str(BOOK))

from claims import ROOT, need  # noqa: E402
from tables import unpack, write_tables  # noqa: E402

from coupled_adam_bench.report.contents import statistics_of  # noqa: E402
from coupled_adam_bench.report.make import Places, material_of  # noqa: E402
from coupled_adam_bench.report.manifest import write_manifest  # noqa: E402
from coupled_adam_bench.study.plan.preregistration import read_stated  # noqa: E402
from coupled_adam_bench.tools.verify.recorded import read_recorded  # noqa: E402


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest that lies in a folder."""
    found: dict[str, Any] = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    return found


def trained(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return the cells of a manifest that were trained to the end, by id."""
    return {cell["cell"]: cell for cell in manifest["cells"] if cell["status"] == "completed"}


def read_results(folder: Path) -> pd.DataFrame:
    """Return the lines of the results that lie in a folder, each value as it is written there."""
    return pd.read_csv(folder / "results.csv", dtype=str, keep_default_na=False)


def joined_results(own: pd.DataFrame, other: pd.DataFrame, taken: set[str]) -> pd.DataFrame:
    """Return a study's results with the lines of the taken cells from another's, in its own order
    of cells."""
    theirs = other[other["cell"].isin(taken)].assign(study=own["study"].iloc[0])
    order = {cell: number for number, cell in enumerate(own["cell"].unique())}
    lines = pd.concat([own[~own["cell"].isin(taken)], theirs])
    return lines.sort_values("cell", key=lambda cells: cells.map(order), kind="stable")


def joined_manifest(own: dict[str, Any], taken: dict[str, Any]) -> dict[str, Any]:
    """Return a study's manifest with the taken cells, without its seal."""
    cells = [taken.get(cell["cell"], cell) for cell in own["cells"]]
    kept = {key: value for key, value in own.items() if key not in {"sha256", "seal"}}
    return kept | {"cells": cells}


def write_statistics(study: str, folder: Path) -> None:
    """Write the tests of joined results, and what became of the stated hypotheses."""
    recorded = read_recorded(folder / "manifest.json").plan
    plan = replace(recorded, stated=read_stated(str(BOOK / study / "registration.yaml")))
    places = Places(ROOT / "templates", folder, results=folder / "results.csv")
    material = material_of(plan, places)
    for statistic in statistics_of(plan):
        if statistic.file in {"tests.csv", "stated.csv"}:
            material.write(statistic)
            shutil.copyfile(folder / statistic.file, BOOK / study / statistic.file)


def main() -> None:
    """Write the files of the study that the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study")
    parser.add_argument("results", type=Path)
    parser.add_argument("other")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder, other = Path(temporary, "joined"), Path(temporary, "other")
        folder.mkdir()
        other.mkdir()
        unpack(arguments.other, other)
        own = read_manifest(arguments.results)
        missing = {cell["cell"] for cell in own["cells"]} - set(trained(own))
        taken = {
            cell: record
            for cell, record in trained(read_manifest(other)).items()
            if cell in missing
        }
        need(taken, f"{arguments.other}: it has no cell that {arguments.results} lacks")
        results = joined_results(read_results(arguments.results), read_results(other), set(taken))
        results.to_csv(folder / "results.csv", index=False, lineterminator="\n")
        write_manifest(joined_manifest(own, taken), folder)
        for name in ("results.csv", "manifest.json"):
            packed = gzip.compress((folder / name).read_bytes(), mtime=0)
            (BOOK / arguments.study / f"{name}.gz").write_bytes(packed)
        write_statistics(arguments.study, folder)
        write_tables(arguments.study, folder / "tables")
        for table in (BOOK / arguments.study / "tables").iterdir():
            shutil.copyfile(folder / "tables" / table.name, table)


if __name__ == "__main__":
    main()
