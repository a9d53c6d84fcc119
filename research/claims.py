"""Checks what README, docs and the book say of studies against their files, and exports it for
machines.

    python research/claims.py [--out claims.json]

``claims.schema.json`` is the JSON schema of what is exported.

``pages.py`` says how the sentences are named that rest on results. A claim is a file and what
selects its lines, and a condition that these meet:

    english/tests.csv table=table1 n_tokens=2398208 metric=r_bar optimizer=coupled_adam p_value<0.05

A file is looked for in the folder of its study in the book, then in the bundle there, then in
docs/examples. ``=`` selects lines, and exactly one must be left, or as many as
``lines=`` says; ``a|b`` selects a line for each. For ``<``, ``>`` and ``==`` a column is compared;
``~`` asks for the same number, rounded to the digits that stand there, and the sentence has that
number.

With ``seeds=`` that many runs of a results.csv become one line: mean, low, high and, with
``reference=``, mean_reference and difference. The interval has 95 % and is paired by seed where
there is a reference. ``reference_X=`` is what the reference has in another column X.

A name that ends in ``*`` selects what begins so. Where a rate was tuned, only ``cell=`` tells cells
of one key apart.

``rule.py`` has what a sentence says along with its numbers, and is asked at the end.

``every=X`` asks the condition of every value that the column X has in the selected lines, so a new
line that does not hold ends the check.
"""

import argparse
import csv
import gzip
import hashlib
import io
import itertools
import json
import math
import re
import shlex
import sys
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from pages import BOOK, ROOT, Entry, entries, need
from scipy import stats

CLAIM = re.compile(r"(?P<column>\w+)(?P<operator>==|[=<>~])(?P<text>.+)")
OTHERS = ("every", "lines", "holding", "seeds")
"""Words of a claim that select no column."""

Line = dict[str, str] | dict[str, float]


def places(study: str) -> Iterator[Path]:
    """Yield the folders that may hold a file of a study."""
    yield BOOK / study
    yield BOOK / study / "bundle"
    yield ROOT / "docs" / "examples" / study


def file_of(name: str) -> Path | None:
    """Return where a file of a study lies, packed or not; None if it lies nowhere."""
    study, _, rest = name.partition("/")
    paths = (folder / f"{rest}{ending}" for folder in places(study) for ending in ("", ".gz"))
    return next((path for path in paths if path.is_file()), None)


def contents_of(name: str) -> bytes:
    """Return what a file of a study has, unpacked; ``ValueError`` if there is no such file."""
    path = file_of(name)
    if path is None:
        raise ValueError(f"{name}: no such file of a study")
    contents = path.read_bytes()
    return gzip.decompress(contents) if path.suffix == ".gz" else contents


@cache
def lines_of(name: str) -> list[dict[str, str]]:
    """Return the lines of a file of a study; ``ValueError`` if there is no such file."""
    return list(csv.DictReader(io.StringIO(contents_of(name).decode("utf-8"))))


def is_selected(line: dict[str, str], wanted: dict[str, str]) -> bool:
    """Tell whether a line has what is wanted in each column."""
    return all(
        fnmatchcase(line[column], text) if "*" in text else line[column] == text
        for column, text in wanted.items()
    )


def of_seeds(lines: list[dict[str, str]], wanted: dict[str, str], seeds: int) -> dict[str, float]:
    """Return the mean over seeds or, with a reference, the difference to it."""

    def runs(selected: dict[str, str]) -> list[float]:
        its = [line for line in lines if is_selected(line, selected)]
        found = {line["seed"]: float(line["value"]) for line in its}
        need(
            len(its) == len(found) == seeds,
            f"{len(its)} lines of {len(found)} seeds for {selected}",
        )
        return [found[seed] for seed in sorted(found)]

    own = {name: text for name, text in wanted.items() if not name.startswith("reference")}
    values = runs(own)
    line = {"mean": math.fsum(values) / seeds}
    if "reference" in wanted:
        changed = {
            name[10:]: text for name, text in wanted.items() if name.startswith("reference_")
        }
        others = runs(own | {"optimizer": wanted["reference"]} | changed)
        line["mean_reference"] = math.fsum(others) / seeds
        values = [value - other for value, other in zip(values, others, strict=True)]
        line["difference"] = math.fsum(values) / seeds
    line["low"], line["high"] = stats.t.interval(
        0.95, seeds - 1, math.fsum(values) / seeds, stats.sem(values)
    )
    return line


def rounded(value: float, text: str) -> str:
    """Return a number with as many digits as a text has."""
    digits = len(text.partition("e")[0].partition(".")[2])
    return f"{value:.{digits}{'e' if 'e' in text else 'f'}}"


def holds(line: Line, column: str, operator: str, text: str) -> bool:
    """Tell whether a condition holds of a line."""
    if operator == "==":
        return str(line[column]) == text
    value = float(line[column])
    if operator == "~":
        return float(rounded(value, text)) == float(text)
    return value < float(text) if operator == "<" else value > float(text)


def read(claim: str) -> tuple[str, dict[str, str], list[tuple[str, str, str]]]:
    """Return the file of a claim, what selects its lines, and the conditions."""
    name, *words = shlex.split(claim)
    parts = [CLAIM.fullmatch(word) for word in words]
    need(all(parts), f"unreadable: {claim}")
    wanted = {part["column"]: part["text"] for part in parts if part and part["operator"] == "="}
    need(
        len(wanted) == sum(part["operator"] == "=" for part in parts if part),
        f"selected twice: {claim}",
    )
    conditions = [(part[1], part[2], part[3]) for part in parts if part and part["operator"] != "="]
    return name, wanted, conditions


def selections(lines: list[dict[str, str]], wanted: dict[str, str]) -> Iterator[dict[str, str]]:
    """Yield what selects each line of a claim: a selection for each alternative and each value
    under ``every``."""
    columns = [column for column in wanted.pop("every", "").split(",") if column]
    alternatives = [[(name, text) for text in texts.split("|")] for name, texts in wanted.items()]
    for selected in map(dict, itertools.product(*alternatives)):
        own = {
            name: text
            for name, text in selected.items()
            if not name.startswith("reference") or name in lines[0]
        }
        found = {
            tuple(line[column] for column in columns) for line in lines if is_selected(line, own)
        }
        need(found, f"no line for {selected}")
        need(
            not columns or len(found) > 1,
            f"one value of {columns} is no reason to say every: {selected}",
        )
        for values in sorted(found):
            yield selected | dict(zip(columns, values, strict=True))


def check(claim: str) -> list[Line]:
    """Return the lines that a claim names; ``ValueError`` if it does not hold, or does not name its
    lines."""
    name, wanted, conditions = read(claim)
    seeds, count = int(wanted.pop("seeds", "0")), int(wanted.pop("lines", "1"))
    holding = int(wanted.pop("holding", str(count)))
    lines = lines_of(name)
    named: list[Line] = []
    for selected in selections(lines, wanted):
        found: list[Line] = (
            [of_seeds(lines, selected, seeds)]
            if seeds
            else [line for line in lines if is_selected(line, selected)]
        )
        need(len(found) == count, f"{len(found)} lines, not {count}: {selected} of {claim}")
        failing = [
            line for line in found if not all(holds(line, *condition) for condition in conditions)
        ]
        need(
            len(found) - len(failing) == holding,
            f"{conditions} hold of {len(found) - len(failing)} lines, not {holding}; not of"
            f" {failing[:1]}: {claim}",
        )
        named += found
    return named


def exported(claim: str) -> dict[str, Any]:
    """Return a claim with its file, what selects its lines, its conditions, and what was found of
    their columns."""
    name, wanted, conditions = read(claim)
    path = file_of(name)
    need(path is not None, f"{name}: no such file of a study")
    columns = sorted({column for column, _, _ in conditions})
    return {
        "file": path.relative_to(ROOT).as_posix(),
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "select": {
            column: text.split("|") for column, text in wanted.items() if column not in OTHERS
        },
        **{word: wanted[word] for word in OTHERS if word in wanted},
        "conditions": [
            dict(zip(("column", "operator", "value"), each, strict=True)) for each in conditions
        ],
        "found": [{column: line[column] for column in columns} for line in check(claim)],
    }


def checked(entry: Entry) -> dict[str, Any]:
    """Return a sentence with its claims for machines; ``ValueError`` if it is not on its page, does
    not hold, or lacks a number of its claims."""
    sentence = entry.sentence
    for number in re.findall(r"~-?(\S+)", " ".join(entry.claims)):
        said = re.search(rf"(?<![\d.]){re.escape(number)}(?!\.?\d)", sentence)
        need(said, f"{number} is not said: {sentence}")
    claims = [exported(claim) for claim in entry.claims]
    return {"page": entry.page, "sentence": sentence, "claims": claims}


def main() -> int:
    """Check all sentences, write them as JSON if they hold, and return the exit status: 1 if one
    does not."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, default=Path("claims.json"), help="default: %(default)s"
    )
    out = parser.parse_args().out
    found, refused = [], 0
    for entry in entries():
        try:
            found.append(checked(entry))
        except ValueError as error:
            refused += 1
            print(f"REFUSED: {entry.page}: {entry.key}\n  {error}")
    # The rule reads the plans and results of the studies with the bench, and imports this module.
    from rule import problems

    for problem in problems(entries()) if not refused else ():
        refused += 1
        print(f"REFUSED: {problem}")
    if not refused:
        out.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"{out}: {len(found)} sentences hold")
    return min(refused, 1)


if __name__ == "__main__":
    sys.exit(main())
