"""What a bundle is: the fields of ``bundle.json``, the files beside it, and its name.

A bundle is a folder below ``registry/``. Its name is the SHA-256 of the lines that ``sha256sum``
prints of its files, sorted by their names, so whatever changes in it gives another name. What is
for programs is packed with gzip.

Bundles are made by strangers: their files are read once, bounded, without following a link, and
checked as they were read.
"""

import hashlib
import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from math import prod
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from coupled_adam_bench.report.contents import statistics_of, study_files
from coupled_adam_bench.store.files import gunzip, read_folder
from coupled_adam_bench.study.plan.cells import Cell
from coupled_adam_bench.study.plan.preregistration import Stated, read_stated
from coupled_adam_bench.study.settings import CustomSettings
from coupled_adam_bench.study.settings.base import Label, Settings, Term
from coupled_adam_bench.study.settings.errors import in_words, validate
from coupled_adam_bench.study.settings.reading import DEEPEST
from coupled_adam_bench.tools.verify.recorded import Recorded, read_recorded

BUNDLE, MANIFEST, RESULTS, STATED = "bundle.json", "manifest.json", "results.csv", "stated.yaml"
"""The names of the files of a bundle."""
PACKED = (MANIFEST, RESULTS)
"""The files that a bundle has as ``NAME.gz``: they are long, and programs read them."""
TUNING = "tuning.csv"
STATISTICS = ("tests.csv", "stated.csv", TUNING)
"""The statistics of a study that its bundle has, as far as the study has them. The first two follow
from ``results.csv``; ``tuning.csv`` has what the choices of its trials rest on."""
MAX_BYTES = 1_000_000
MAX_UNPACKED_BYTES = 50_000_000
MAX_FILES = 1000
MAX_CELLS = 20_000
"""The most cells and candidates to which the studies of a bundle may expand."""

_OPENING = (
    yaml.FlowSequenceStartToken,
    yaml.FlowMappingStartToken,
    yaml.BlockSequenceStartToken,
    yaml.BlockMappingStartToken,
)
_CLOSING = (yaml.FlowSequenceEndToken, yaml.FlowMappingEndToken, yaml.BlockEndToken)

Texts = Mapping[str, Any] | None
"""Paths of the user's files by their names in a study."""
Sha256 = Annotated[
    str,
    Field(
        pattern=in_words(
            r"^[0-9a-f]{64}$", "must be a SHA-256: 64 digits from 0 to 9 and from a to f"
        )
    ),
]
OWN = "own.txt"
"""The file of a registry that names the bundles of its own project, a line each."""


class Bundle(Settings):
    """The results of a study as somebody hands them in: the file ``bundle.json``."""

    form: Literal[2] = 2
    """The version of this form."""
    submitter: Label
    """Who hands the bundle in."""
    notes: Term
    """A few words of the submitter."""
    reproduces: Sha256 | None = None
    """The name of the bundle whose cells were trained again, null for a bundle that stands for
    itself."""
    data: dict[str, dict[str, Any]]
    """By the id of the data, what identifies the files that they were made of, from which the id
    follows."""
    histories: dict[str, Sha256]
    """The SHA-256 of the training history of each cell."""


def _zoned(text: str) -> str:
    try:
        has_zone = datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        has_zone = False
    if not has_zone:
        raise ValueError("must be a date and time with its zone, such as 2026-11-24T16:04:22+00:00")
    return text


class SeenPlan(BaseModel):
    """What a submitter's machine noted when it saw a stated plan; other notes are not read here."""

    model_config = ConfigDict(extra="allow", strict=True)

    at: Annotated[str, AfterValidator(_zoned)]
    """When that was, by the submitter's clock."""
    sha256: Sha256
    cells: dict[str, str]
    begun: list[str]
    """The runs that had begun by then."""
    n_cells: int


class Seen(BaseModel):
    """The record of a stated plan in a manifest."""

    seen: list[SeenPlan]


@dataclass(frozen=True)
class Opened:
    """A bundle as it was read: where it is, the contents of its files by their paths, and
    ``bundle.json``."""

    folder: Path
    files: dict[str, bytes]
    bundle: Bundle

    def unpack(self, name: str) -> bytes:
        """Return the contents of a packed file; ``ValueError`` if it is missing, damaged or too
        large."""
        name = f"{name}.gz"
        return gunzip(self.folder / name, self.files.get(name, b"missing"), MAX_UNPACKED_BYTES)


def name_of(files: Mapping[str, bytes]) -> str:
    """Return the name that the files of a bundle give it."""
    lines = [
        f"{hashlib.sha256(contents).hexdigest()}  {name}\n"
        for name, contents in sorted(files.items())
    ]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def open_bundle(folder: Path) -> Opened:
    """Read a bundle; ``ValueError`` for one that is too large, not of the form, or changed after it
    was made."""
    files = read_folder(folder, MAX_BYTES, MAX_FILES)
    if BUNDLE not in files:
        raise ValueError(f"{folder / BUNDLE}: missing; a bundle is made by the command `bundle`")
    bundle = validate(Bundle, json.loads(files[BUNDLE]), str(folder / BUNDLE))
    if (name := name_of(files)) != folder.name:
        raise ValueError(
            f"{folder}: a file was added, removed or changed after the bundle was made, since their"
            f" sums give the name {name}; put the bundle back as it was, or make another from the"
            " study"
        )
    return Opened(folder, files, bundle)


@contextmanager
def unpacked(opened: Opened, given: Texts = None) -> Iterator[tuple[Recorded, Path]]:
    """Yield for a while what a bundle records, and the folder of its study, which has no code."""
    manifest = json.loads(opened.unpack(MANIFEST))
    if (n_cells := _n_cells(manifest)) > MAX_CELLS:
        raise ValueError(
            f"{opened.folder}: grid of {MANIFEST}: {n_cells:,} cells and candidates, allowed"
            f" {MAX_CELLS:,}"
        )
    with tempfile.TemporaryDirectory(prefix="coupled-adam-bench-") as temporary:
        study_dir = Path(temporary, "results", "study")
        study_dir.mkdir(parents=True)
        try:
            yield _written(opened, study_dir, given), study_dir
        except ValueError as error:
            # The folder is gone when this is read, so the files are named as the bundle has them.
            shown = str(error).replace(str(study_dir), str(opened.folder))
            raise ValueError(shown) from error


def _written(opened: Opened, study_dir: Path, given: Texts) -> Recorded:
    """Write the files of a bundle's study, and return what they record."""
    for name in PACKED:
        (study_dir / name).write_bytes(opened.unpack(name))
    for name in {*STATISTICS} & opened.files.keys():
        (study_dir / name).write_bytes(opened.files[name])
    recorded = read_recorded(study_dir / MANIFEST, given)
    if (stated := recorded.manifest["stated"]) is None:
        return recorded
    validate(Seen, {"seen": stated["seen"]}, f"{study_dir / MANIFEST}: stated")
    plan = replace(recorded.plan, stated=_stated(opened, study_dir, stated["sha256"]))
    return replace(recorded, plan=plan)


def own_bundles(registry: Path) -> set[str]:
    """Return the names of the bundles of a registry's own project; ``ValueError`` for one that it
    does not have."""
    file = registry / OWN
    names = set(file.read_text(encoding="utf-8").split()) if file.is_file() else set()
    if absent := sorted(name for name in names if not (registry / name).is_dir()):
        raise ValueError(f"{file}: {absent[0]} is no bundle of {registry}; take it out of the file")
    return names


def _stated(opened: Opened, study_dir: Path, sha256: str) -> Stated:
    """Return the stated plan of a bundle; ``ValueError`` if it is not that of its manifest."""
    text = opened.files.get(STATED, b"")
    if hashlib.sha256(text).hexdigest() != sha256:
        raise ValueError(
            f"{opened.folder / STATED}: not the stated plan of the study; put back {sha256}"
        )
    refuse_bombs(opened.folder / STATED, text)
    (study_dir / STATED).write_bytes(text)
    return read_stated(str(study_dir / STATED))


def refuse_bombs(path: Path, text: bytes) -> None:
    """Raise ``ValueError`` for YAML with an alias, which can make a text of a kilobyte a value of a
    terabyte, or with more levels than any study has, of which each takes longer to read."""
    depth = 0
    for token in yaml.scan(text):
        if isinstance(token, yaml.AliasToken):
            raise ValueError(f"{path}: has an alias of YAML; write its value out")
        depth += isinstance(token, _OPENING) - isinstance(token, _CLOSING)
        if depth > DEEPEST:
            raise ValueError(f"{path}: more than {DEEPEST} levels, which no study has; remove them")


def _n_cells(manifest: Mapping[str, Any]) -> int:
    """Return how many cells and candidates the studies of a manifest expand to, before they are
    expanded."""
    count = 0
    for block in (block for study in manifest["studies"] for block in study["grid"]):
        tune = block.get("tune") or {"seeds": (), "grids": {}}
        trials = len(tune["seeds"]) * sum(
            prod(map(len, grid.values())) for grid in tune["grids"].values()
        )
        count += prod(len(block[field]) for field in ("models", "tokens", "optimizers")) * (
            len(block["seeds"]) + trials
        )
    return count


def code_of(cells: Iterable[Cell]) -> dict[str, str]:
    """Return by their names the SHA-256 of the modules of cells' own optimizers; of installed
    packages there are none.

    ``ValueError`` for a name that is none of a module.
    """
    entries = (entry for cell in cells for entry in cell.optimizer.entries.values())
    code = [entry.code or {} for entry in entries if isinstance(entry, CustomSettings)]
    found = {
        module: sha256
        for of_entry in code
        for module, sha256 in of_entry.items()
        if len(sha256) == 64
    }
    if odd := [module for module in found if not all(map(str.isidentifier, module.split(".")))]:
        raise ValueError(
            f"code of {MANIFEST}: {odd[0]!r} is no name of a module; run the study as it was"
        )
    return found


def code_file(module: str) -> str:
    """Return the path below a bundle of the code of a module."""
    return f"code/{module}.py"


def names_of_files(recorded: Recorded) -> set[str]:
    """Return the paths of the files that a bundle has beside ``bundle.json``."""
    plan = recorded.plan
    statistics = {statistic.file for statistic in statistics_of(plan)} & {*STATISTICS}
    stated = () if plan.stated is None else (STATED,)
    packed, code = (f"{name}.gz" for name in PACKED), map(code_file, code_of(plan.trained.values()))
    return {*study_files(plan), *packed, *statistics, *stated, *code}
