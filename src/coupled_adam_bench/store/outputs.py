"""The note in the folder of a study on its copy in MLflow."""

from pathlib import Path

from coupled_adam_bench.store.files import read_json

IMPORT_SUMMARY = "mlflow.json"
"""The file in the folder of a study that says what the last import into MLflow did."""
NOT_IMPORTED = "not_imported"
"""The key of that summary with the reason why a server did not take the import."""


def not_imported(study_dir: Path) -> str | None:
    """Return why MLflow has not everything of a study, as its last import noted; ``None`` if nothing is noted."""
    try:
        reason: str | None = read_json(study_dir / IMPORT_SUMMARY).get(NOT_IMPORTED)
    except (ValueError, AttributeError):  # there is none, or it is damaged
        return None
    return reason
