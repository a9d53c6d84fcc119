"""Checksums of a study's outputs: the stage that writes a file records its SHA-256, those that read it compare.

A stage's record is ``results/<study>/checksums/<stage>.json``, sealed; files are named relative to the study's folder.
"""

from collections.abc import Iterable
from pathlib import Path

from coupled_adam_bench.store.files import read_json, read_sealed, sha256_file, write_sealed

IMPORT_SUMMARY = "mlflow.json"
"""The file in the folder of a study that says what the last import into MLflow did."""
NOT_IMPORTED = "not_imported"
"""The key of that summary with the reason why a server did not take the import."""


def write_checksums(record: Path, files: Iterable[Path], made_for: str | None = None) -> None:
    """Write the SHA-256 of each of ``files``, which lie in the study's folder, to ``record``.

    ``made_for`` is a hash of the cells, labels and settings that the files show, for stages that are given it.
    """
    study_dir = record.parent.parent
    sums = {file.relative_to(study_dir).as_posix(): sha256_file(file) for file in sorted(files)}
    write_sealed(record, {"files": sums, "made_for": made_for})


def written_files(study_dir: Path, without: str) -> dict[str, str]:
    """Return the SHA-256 of every file that is there and that the stages wrote, but for one stage, by its name."""
    records = sorted(path for path in (study_dir / "checksums").glob("*.json") if path.stem != without)
    sums = {name: sha256 for record in records for name, sha256 in read_sealed(record)["files"].items()}
    return {name: sha256 for name, sha256 in sums.items() if (study_dir / name).is_file()}


def made_for_of(record: Path) -> str | None:
    """Return what the files of ``record`` were made for, ``None`` where that is not known or the record is damaged."""
    try:
        made_for: str | None = read_sealed(record).get("made_for")
    except (ValueError, OSError):
        return None
    return made_for


def changed_outputs(record: Path) -> list[Path]:
    """Return the files of ``record`` that are there and are not what was written.

    ``ValueError`` if the record itself is missing or damaged.
    """
    files = {record.parent.parent / name: sha256 for name, sha256 in read_sealed(record)["files"].items()}
    return [path for path, sha256 in files.items() if path.is_file() and sha256_file(path) != sha256]


def check_outputs(records: Iterable[Path]) -> None:
    """Compare all files of ``records`` with what was written; ``ValueError`` names the first that differs."""
    for record in records:
        if changed := changed_outputs(record):
            raise ValueError(
                f"{changed[0]}: changed since it was written (its SHA-256 is not that of {record}); start again: it is "
                "made anew"
            )


def not_imported(study_dir: Path) -> str | None:
    """Return why MLflow has not everything of a study, as its last import noted; ``None`` if nothing is noted."""
    try:
        reason: str | None = read_json(study_dir / IMPORT_SUMMARY).get(NOT_IMPORTED)
    except (ValueError, AttributeError):  # there is none, or it is damaged, which its checksum shows
        return None
    return reason
