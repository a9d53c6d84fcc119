"""Writes the tables of a study of the book anew from its results, in seconds: LaTeX, HTML, Markdown
and CSV, and ``tests.csv``.

python research/tables.py regime [--out FOLDER]
"""

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

from claims import ROOT, contents_of, file_of

from coupled_adam_bench.report.make import Places, material_of, report
from coupled_adam_bench.statistics.compare import STATISTIC as TESTS
from coupled_adam_bench.study.plan import Plan
from coupled_adam_bench.tools.verify.recorded import read_recorded

LENGTH = "mean_length"


def unpack(study: str, folder: Path) -> Path:
    """Unpack a study's results and the manifest with its settings into a folder, and return the
    manifest; ``ValueError`` if the book has no results of it."""
    if file_of(f"{study}/results.csv") is None:
        raise ValueError(f"{study}: no study of the book with results")
    for name in ("results.csv", "manifest.json"):
        (folder / name).write_bytes(contents_of(f"{study}/{name}"))
    return folder / "manifest.json"


def with_length(plan: Plan) -> Plan:
    """Return a plan whose own tables show the length of the rows beside the isotropy, which falls
    with it; the tables of the paper keep their columns."""
    changed = {}
    for name, study in plan.studies.items():
        tables = dict(study.tables)
        for key, table in study.tables.items():
            columns = list(table.columns or ())
            if "isotropy" in columns and LENGTH not in columns:
                columns.insert(columns.index("isotropy") + 1, LENGTH)
                tables[key] = table.model_copy(update={"columns": tuple(columns)})
        changed[name] = study.model_copy(update={"tables": tables})
    blocks = [replace(planned, study=changed[planned.study.name]) for planned in plan.blocks]
    return replace(plan, blocks=tuple(blocks))


def write_tests(study: str, out: Path) -> None:
    """Write ``tests.csv`` of a study into the folder ``out``."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        plan = read_recorded(unpack(study, folder)).plan
        places = Places(ROOT / "templates", folder, results=folder / "results.csv")
        material_of(plan, places).write(TESTS)
        (out / TESTS.file).write_bytes((folder / TESTS.file).read_bytes())


def write_tables(study: str, out: Path) -> None:
    """Write the tables of a study into the folder ``out``."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        recorded = read_recorded(unpack(study, folder))
        report(
            with_length(recorded.plan),
            Places(ROOT / "templates", folder, results=folder / "results.csv"),
            only="tables",
        )
        out.mkdir(parents=True, exist_ok=True)
        for table in sorted((folder / "tables").iterdir()):
            (out / table.name).write_bytes(table.read_bytes())


def main() -> None:
    """Write the tables of the study that the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("tables"),
        help="folder of the tables (default: %(default)s)",
    )
    arguments = parser.parse_args()
    write_tables(arguments.study, arguments.out)
    write_tests(arguments.study, arguments.out)


if __name__ == "__main__":
    main()
