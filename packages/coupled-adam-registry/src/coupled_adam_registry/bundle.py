"""Makes a bundle of a study that has run through: its results for a supplement, or for a pull
request to a registry."""

import gzip
import tempfile
from collections.abc import Iterator
from pathlib import Path

from coupled_adam_bench.report.contents import study_files
from coupled_adam_bench.store import paths
from coupled_adam_bench.store.files import check_plain, sha256_file, write_json
from coupled_adam_bench.store.runs import read_run
from coupled_adam_bench.study.plan import read_plan_file
from coupled_adam_bench.study.plan.cells import data_inputs
from coupled_adam_bench.study.plan.dotted import find_modules
from coupled_adam_bench.study.settings.errors import validate
from coupled_adam_bench.tools.verify.recorded import Recorded, read_recorded
from coupled_adam_registry import check, form


def write_bundle(
    study_dir: Path, registry: Path, submitter: str, notes: str, reproduces: str | None = None
) -> Path:
    """Write the bundle of a study's folder into a registry, and return its folder.

    ``reproduces`` names the bundle whose cells the study has trained again. ``ValueError`` for a
    study that ``check`` would refuse; nothing is left behind then.
    """
    recorded = read_recorded(study_dir / form.MANIFEST)
    plan = read_plan_file(study_dir / paths.plan_file("").name)
    data = {plan.data_id(study): data_inputs(study) for study in plan.studies.values()}
    histories = {}
    for cell in recorded.cells:
        run = read_run(paths.RunFiles(paths.run_dir(cell, recorded.results)).record)
        histories[run["cell"]] = run["history_sha256"]
    values = {
        "submitter": submitter,
        "notes": notes,
        "reproduces": reproduces,
        "data": data,
        "histories": histories,
    }
    bundle = validate(form.Bundle, values, "bundle")
    return write(dict(_files(recorded, study_dir)), bundle, registry)


def write(files: dict[str, bytes], bundle: form.Bundle, registry: Path) -> Path:
    """Write the files of a bundle into a registry, and return its folder; ``ValueError`` if
    ``check`` refuses it."""
    registry.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=registry, prefix=".bundle-") as temporary:
        folder = Path(temporary, "new")
        for name, contents in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(contents)
        write_json(folder / form.BUNDLE, bundle.model_dump(mode="json"))
        named = form.name_of(files | {form.BUNDLE: (folder / form.BUNDLE).read_bytes()})
        folder = folder.rename(folder.with_name(named))
        try:
            check.check_bundle(folder, registry)
        except ValueError as error:  # the folder that it names is gone when this is read
            raise ValueError(str(error).replace(str(folder), "the new bundle")) from error
        if (registry / folder.name).exists():
            raise ValueError(
                f"{registry / folder.name}: is there already; the same bundle need not be made"
                " twice"
            )
        return folder.rename(registry / folder.name)


def _files(recorded: Recorded, study_dir: Path) -> Iterator[tuple[str, bytes]]:
    """Yield path and contents of all files of a bundle but ``bundle.json``."""
    for name, text in study_files(recorded.plan).items():
        yield name, text.encode()
    for name in form.PACKED:
        # Without the time, so that the same study gives the same bytes.
        yield f"{name}.gz", gzip.compress(check_plain(study_dir / name).read_bytes(), 9, mtime=0)
    for name in form.STATISTICS:
        if (study_dir / name).is_file():
            yield name, (study_dir / name).read_bytes()
    if (stated := recorded.manifest["stated"]) is not None:
        yield form.STATED, _contents(Path(stated["path"]), stated["sha256"])
    for module, sha256 in form.code_of(recorded.plan.trained.values()).items():
        file = find_modules(module).get(module, Path(f"{module}.py"))
        yield form.code_file(module), _contents(file, sha256)


def _contents(file: Path, sha256: str) -> bytes:
    if not file.is_file() or sha256_file(file) != sha256:
        raise ValueError(
            f"{file}: not what the study ran with; put that back, whose SHA-256 is {sha256}"
        )
    return file.read_bytes()
