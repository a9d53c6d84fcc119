"""Joins the three runs of this study with the nine of regime_memory, and writes tests and tables.

    python research/memory/join.py RESULTS

RESULTS is ``results/memory``, a partial report of the runs with beta2 = 0.999. The other nine cells
have the ids of the cells of regime_memory, so their lines are taken from its bundle.
"""

import argparse
import gzip
import io
import json
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from claims import ROOT, file_of  # noqa: E402
from tables import write_tables  # noqa: E402

from coupled_adam_bench.report.contents import statistics_of  # noqa: E402
from coupled_adam_bench.report.make import Places, material_of  # noqa: E402
from coupled_adam_bench.report.manifest import write_manifest  # noqa: E402
from coupled_adam_bench.study.preregistration import read_stated  # noqa: E402
from coupled_adam_bench.tools.verify.recorded import read_recorded  # noqa: E402

KEY = ["cell", "task", "metric"]


def joined(own: Path) -> str:
    """Return the results of all twelve cells, in the order of the study's own, as CSV."""
    bundle = file_of("regime_memory/results.csv")
    if bundle is None:
        raise ValueError("regime_memory: its results are missing")
    texts = {"dtype": str, "keep_default_na": False}
    lines = pd.read_csv(own, **texts)
    values = pd.read_csv(bundle, **texts).set_index(KEY)["value"]
    for index, line in lines.iterrows():
        key = tuple(line[KEY])
        if key in values.index:
            lines.loc[index, "value"] = values[key]
    table = io.StringIO()
    lines.to_csv(table, index=False, lineterminator="\n")
    return table.getvalue()


def manifest(own: Path) -> dict[str, Any]:
    """Return the study's own manifest, with the nine cells as the bundle's manifest has them."""
    whole: dict[str, Any] = json.loads((own / "manifest.json").read_text(encoding="utf-8"))
    bundle = file_of("regime_memory/manifest.json")
    if bundle is None:
        raise ValueError("regime_memory: its manifest is missing")
    before = {
        cell["cell"]: cell for cell in json.loads(gzip.decompress(bundle.read_bytes()))["cells"]
    }
    whole["cells"] = [before.get(cell["cell"], cell) for cell in whole["cells"]]
    return {key: value for key, value in whole.items() if key not in {"sha256", "seal"}}


def main() -> None:
    """Write the files of this folder from the partial report that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    own = parser.parse_args().results
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "results.csv").write_text(joined(own / "results.csv"), encoding="utf-8")
        write_manifest(manifest(own), folder)
        for name in ("results.csv", "manifest.json"):
            (HERE / f"{name}.gz").write_bytes(gzip.compress((folder / name).read_bytes(), mtime=0))
        recorded = read_recorded(folder / "manifest.json").plan
        plan = replace(recorded, stated=read_stated(str(HERE / "registration.yaml")))
        places = Places(ROOT / "templates", folder, results=folder / "results.csv")
        material = material_of(plan, places)
        for statistic in statistics_of(plan):
            if statistic.file in {"tests.csv", "stated.csv"}:
                material.write(statistic)
                shutil.copyfile(folder / statistic.file, HERE / statistic.file)
    with tempfile.TemporaryDirectory() as temporary:
        write_tables("memory", Path(temporary))
        (HERE / "tables").mkdir(exist_ok=True)
        shutil.copyfile(Path(temporary) / "paper.md", HERE / "tables" / "paper.md")


if __name__ == "__main__":
    main()
