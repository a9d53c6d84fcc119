#!/usr/bin/env bash
# A column of CSV that a Croissant file declares as text is read as numbers and written out again:
# "7" becomes "7.0" if another row of the column is empty, and "007" becomes "7".
#
# Versions: mlcroissant 1.1.1, pandas 3.1.1. Seen on 2026-11-27 with Python 3.11 on Linux,
# x86-64, without a GPU.
# Guess: sc:Text gives the characters of the file. Sure: 60 %.
# Who meets it: who describes a table with codes, versions or seeds in Croissant, for others to
# load.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet mlcroissant==1.1.1 pandas==3.1.1
cd "$folder"
venv/bin/python - <<'END'
import hashlib
import json
import logging
import sys

import mlcroissant as mlc

logging.disable(logging.CRITICAL)  # recommendations on fields that are not in this small description


def column(cells: list[str]) -> list[bytes | None]:
    """Return a column of text as mlcroissant's records have it."""
    csv = "row,code\n" + "".join(f"{row},{cell}\n" for row, cell in enumerate(cells))
    with open("table.csv", "w") as file:
        file.write(csv)
    table = mlc.FileObject(
        id="table.csv",
        name="table.csv",
        content_url="table.csv",
        encoding_formats=["text/csv"],
        sha256=hashlib.sha256(csv.encode()).hexdigest(),
    )
    source = mlc.Source(file_object="table.csv", extract=mlc.Extract(column="code"))
    code = mlc.Field(id="table/code", name="code", data_types=[mlc.DataType.TEXT], source=source)
    description = mlc.Metadata(
        name="table",
        description="A table.",
        url="https://example.org",
        license="MIT",
        distribution=[table],
        record_sets=[mlc.RecordSet(id="table", name="table", fields=[code])],
    )
    with open("croissant.json", "w") as file:
        json.dump(description.to_json(), file, default=str)
    return [record["table/code"] for record in mlc.Dataset(jsonld="croissant.json").records("table")]


seen = [column(cells) for cells in (["7", "", "8"], ["007", "008"], ["007", "b"])]
expected = [[b"7.0", None, b"8.0"], [b"7", b"8"], [b"007", b"b"]]
print(seen)
sys.exit(seen != expected)
END
