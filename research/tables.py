"""Writes the tables of a study of the book anew from its results, in seconds: LaTeX, HTML, Markdown
and CSV.

python research/tables.py regime [--out FOLDER]
"""

import argparse
import gzip
import tempfile
from pathlib import Path

from claims import ROOT, file_of

from coupled_adam_bench.report.make import Places, report
from coupled_adam_bench.tools.verify.recorded import read_recorded


def unpack(study: str, folder: Path) -> Path:
    """Unpack a study's results and the manifest with its settings into a folder, and return the
    manifest."""
    for name in ("results.csv", "manifest.json"):
        packed = file_of(f"{study}/{name}")
        if packed is None or packed.suffix != ".gz":
            raise ValueError(f"{study}: no study of the book with results")
        (folder / name).write_bytes(gzip.decompress(packed.read_bytes()))
    return folder / "manifest.json"


def write_tables(study: str, out: Path) -> None:
    """Write the tables of a study into the folder ``out``."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        recorded = read_recorded(unpack(study, folder))
        report(
            recorded.plan,
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


if __name__ == "__main__":
    main()
