"""Makes a bundle of a study that has run through: what a pull request hands in."""

import gzip
import shutil
import tempfile
from pathlib import Path
from typing import Any

from coupled_adam_bench.report.contents import study_files
from coupled_adam_bench.store import paths
from coupled_adam_bench.store.files import sha256_file, write_json, write_text
from coupled_adam_bench.store.runs import read_run
from coupled_adam_bench.study.config import CustomSettings
from coupled_adam_bench.study.config.errors import validate
from coupled_adam_bench.study.dotted import find_modules
from coupled_adam_bench.tools.registry import check, form
from coupled_adam_bench.tools.verify.recorded import Recorded, read_recorded


def write_bundle(study_dir: Path, registry: Path, submitter: str, notes: str, reproduces: str | None = None) -> Path:
    """Write the bundle of a study's folder into a registry, and return its folder.

    ``reproduces`` names the bundle whose cells the study has trained again. ``ValueError`` for a study that ``check``
    would refuse; nothing is left behind then.
    """
    recorded = read_recorded(study_dir / form.MANIFEST)
    records = {cell: paths.RunFiles(paths.run_dir(cell, recorded.results)).record for cell in recorded.cells}
    values: dict[str, Any] = {"submitter": submitter, "notes": notes, **form.described(recorded)}
    values["histories"] = {cell: read_run(record)["history_sha256"] for cell, record in records.items()}
    if reproduces is not None:
        verdict = check.verdict_on(registry / reproduces, recorded)
        values["reproduces"] = {"bundle": reproduces, "verdict": verdict}
    registry.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=registry, prefix=".bundle-") as temporary:
        folder = Path(temporary) / "new"
        _write_files(recorded, study_dir, folder)
        bundle = validate(form.Bundle, values | {"files": form.files_of(folder)}, "bundle")
        write_json(folder / form.BUNDLE, bundle.model_dump(mode="json"))
        folder = folder.rename(folder.with_name(form.name_of(folder)))
        check.check_whole(folder)
        with form.unpacked(folder) as (found, _):
            check.check_numbers(folder, found)
        if (registry / folder.name).exists():
            raise ValueError(f"{registry / folder.name}: is there already; the same bundle need not be made twice")
        return folder.rename(registry / folder.name)


def _write_files(recorded: Recorded, study_dir: Path, folder: Path) -> None:
    """Write all files of a bundle but ``bundle.json``."""
    for name, text in study_files(recorded.plan).items():
        write_text(folder / name, text)
    for name in form.PACKED:
        # Without the time, so that the same study gives the same bytes.
        (folder / f"{name}.gz").write_bytes(gzip.compress((study_dir / name).read_bytes(), 9, mtime=0))
    for name in form.STATISTICS:
        if (study_dir / name).is_file():
            shutil.copyfile(study_dir / name, folder / name)
    if (stated := recorded.manifest["stated"]) is not None:
        _copy(Path(stated["path"]), stated["sha256"], folder / form.STATED)
    for optimizer in {cell.optimizer.own_key: cell.optimizer for cell in recorded.plan.trained.values()}.values():
        code = optimizer.code if isinstance(optimizer, CustomSettings) else None
        for module, sha256 in (code or {}).items():
            if len(sha256) == 64:  # an installed package has its version there
                file = find_modules(module).get(module, Path(f"{module}.py"))
                names = [*module.split("."), "__init__"] if file.stem == "__init__" else module.split(".")
                _copy(file, sha256, folder.joinpath(form.CODE, *names).with_suffix(file.suffix))


def _copy(file: Path, sha256: str, to: Path) -> None:
    if not file.is_file() or sha256_file(file) != sha256:
        raise ValueError(f"{file}: not what the study ran with; put that back, whose SHA-256 is {sha256}")
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, to)
