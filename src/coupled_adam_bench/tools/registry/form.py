"""What a bundle is: the fields of ``bundle.json``, the files beside it, and its name.

A bundle is a folder below ``registry/``. Its name is the SHA-256 of the lines that ``sha256sum`` prints of its files,
sorted by their names, so whatever changes in it gives another name. What is for programs is packed with gzip.
"""

import csv
import gzip
import hashlib
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from coupled_adam_bench.report.contents import environments
from coupled_adam_bench.store.files import digest, read_json, sha256_file
from coupled_adam_bench.store.stored import settings_of
from coupled_adam_bench.study.catalog.metrics import Metric
from coupled_adam_bench.study.catalog.stages import STAGES
from coupled_adam_bench.study.config.base import Label, Line, Settings, Term
from coupled_adam_bench.study.config.errors import validate
from coupled_adam_bench.tools.verify.recorded import Recorded, read_recorded

BUNDLE, MANIFEST, RESULTS, STATED, CODE = "bundle.json", "manifest.json", "results.csv", "stated.yaml", "code"
"""The names of the files of a bundle; the last is the folder with the modules of own optimizers."""
PACKED = (MANIFEST, RESULTS)
"""The files that a bundle has as ``NAME.gz``: they are long, and programs read them."""
STATISTICS = ("tests.csv", "stated.csv")
"""The statistics of a study that its bundle has, as far as the study has them; all follow from ``results.csv``."""

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Row(Settings):
    """The cells of an optimizer at one size and number of tokens, which differ in their seeds alone."""

    n_params: int
    """The number of parameters."""
    n_tokens: int
    """The number of training tokens."""
    model: str
    """A hash of the settings of the model, its name, label and learning rate left out."""
    optimizer: Term
    """The key of the optimizer in ``results.csv``."""
    label: Label
    """The name of the optimizer in tables."""
    cells: dict[str, str]
    """The id of each cell by its seed."""


class Regime(Settings):
    """What results have in common that may be compared, and the results of the bundle that have it in common."""

    id: str
    """A hash of the settings."""
    settings: dict[str, Any]
    """Data, recipe, test loss and protocol, with the versions of their mathematics."""
    rows: tuple[Row, ...]
    """The cells, an entry for each optimizer, size and number of tokens."""


class Reproduces(Settings):
    """Whether the numbers of another bundle came out again, in the cells that both have."""

    bundle: Sha256
    """The name of the other bundle."""
    verdict: Literal["reproduced", "not reproduced"]
    """Whether every number that tables print lies within the tolerances of the command ``verify``."""


class Bundle(Settings):
    """The results of a study as somebody hands them in: the file ``bundle.json``."""

    form: Literal[1] = 1
    """The version of this form."""
    submitter: Label
    """Who hands the bundle in."""
    notes: Term
    """A few words of the submitter."""
    study: str
    """The name of the study, whose settings lie in files beside this one."""
    title: Line
    """The title of the study."""
    program: str | None
    """The commit of the bench that made the results."""
    packages: dict[str, str]
    """The version of Python and of each package that made the report."""
    environments: dict[str, tuple[str, ...]]
    """What the runs recorded of their machines: processor or GPU, PyTorch and others, each with all its values."""
    stated: Sha256 | None
    """The SHA-256 of the stated plan in ``stated.yaml``, null for a study that states none."""
    first_seen: str | None
    """When the bench first saw this stated plan, by the clock of the submitter's machine."""
    regimes: tuple[Regime, ...]
    """The cells, by what may be compared."""
    histories: dict[str, Sha256]
    """The SHA-256 of the training history of each cell."""
    reproduces: Reproduces | None = None
    """The bundle whose results this one repeats, null for a bundle that stands for itself."""
    files: dict[str, Sha256]
    """The SHA-256 of every other file of the bundle, by its path."""


def files_of(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file of a bundle by its path; hidden files count too."""
    return {path.relative_to(folder).as_posix(): sha256_file(path) for path in folder.rglob("*") if path.is_file()}


def name_of(folder: Path) -> str:
    """Return the name that the files of a bundle give it."""
    lines = [f"{sha256}  {name}\n" for name, sha256 in sorted(files_of(folder).items())]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def read_bundle(folder: Path) -> Bundle:
    """Read ``bundle.json``; ``ValueError`` names every field that is wrong."""
    return validate(Bundle, read_json(folder / BUNDLE), str(folder / BUNDLE))


def unpack(folder: Path, name: str) -> bytes:
    """Return the contents of a packed file of a bundle; ``OSError`` if it is missing or damaged."""
    return gzip.decompress((folder / f"{name}.gz").read_bytes())


@contextmanager
def unpacked(folder: Path, given: Mapping[str, Any] | None = None) -> Iterator[tuple[Recorded, Path]]:
    """Yield for a while what a bundle records, and a folder with its code and, in ``results/study``, its results.

    ``given`` are paths of the user's files by their names in a study.
    """
    with tempfile.TemporaryDirectory(prefix="coupled-adam-bench-") as temporary:
        root = Path(temporary)
        if (folder / CODE).is_dir():
            shutil.copytree(folder / CODE, root, dirs_exist_ok=True)
        (study_dir := root / "results" / "study").mkdir(parents=True)
        for name in PACKED:
            (study_dir / name).write_bytes(unpack(folder, name))
        yield read_recorded(study_dir / MANIFEST, given), root


def numbers_of(folder: Path, metrics: Collection[Metric]) -> dict[tuple[str, str], float]:
    """Return the values of metrics by the id of the cell and the name of the metric; only their lines are read."""
    header, *lines = unpack(folder, RESULTS).decode().splitlines()
    marks = [f",{metric.task},{metric.name}," for metric in metrics]
    rows = csv.DictReader([header, *(line for line in lines if any(mark in line for mark in marks))])
    return {(row["cell"], row["metric"]): float(row["value"]) for row in rows}


def described(recorded: Recorded) -> dict[str, Any]:
    """Return the fields of ``bundle.json`` that follow from the manifest."""
    manifest, stated = recorded.manifest, recorded.manifest["stated"] or {"sha256": None, "seen": []}
    seen = next((seen["at"] for seen in stated["seen"] if seen["sha256"] == stated["sha256"]), None)
    return {
        "study": manifest["study"], "title": manifest["title"], "program": manifest["git_revision"],
        "packages": manifest["packages"], "environments": environments(manifest["cells"]), "stated": stated["sha256"],
        "first_seen": seen, "regimes": _regimes(recorded),
    }  # fmt: skip


def _regimes(recorded: Recorded) -> list[dict[str, Any]]:
    versions = recorded.manifest["protocol"]["versions"]
    regimes: dict[str, dict[str, Any]] = {}
    rows: dict[str, dict[str, Any]] = {}
    for cell in recorded.plan.cells.values():
        study = cell.study
        stages = {name: versions[name] for name in ("data", "train", *(stage.name for stage in study.stages))}
        settings = {
            "data_id": cell.data_id, **study.model_dump(mode="json", include={"data", "training"}),
            "test_loss": settings_of(STAGES["test_loss"], study, cell.data_id),
            "protocol": study.protocol_label, "versions": stages,
        }  # fmt: skip
        place = {
            "n_params": cell.n_params, "n_tokens": cell.n_tokens, "optimizer": cell.optimizer.key,
            "model": digest(cell.model.model_dump(mode="json", exclude={"name", "label", "learning_rate"})),
            "label": cell.optimizer.label,
        }  # fmt: skip
        regime = regimes.setdefault(digest(settings), {"id": digest(settings), "settings": settings, "rows": []})
        if (key := digest([regime["id"], place])) not in rows:
            regime["rows"].append(rows.setdefault(key, place | {"cells": {}}))
        rows[key]["cells"][str(cell.seed)] = cell.id
    return list(regimes.values())
