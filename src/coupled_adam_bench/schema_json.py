"""JSON schema of a study file, generated from the config classes, for editors and for readers."""

from pathlib import Path
from typing import Any

from coupled_adam_bench.config import Study
from coupled_adam_bench.files import write_json

SCHEMA_FILE = Path("workflow/schemas/study.schema.json")


def study_schema() -> dict[str, Any]:
    """Return the JSON schema of a study file; rules that link fields, such as divisibility, are only in ``config``."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | Study.model_json_schema(mode="validation")


def write_schema(path: Path = SCHEMA_FILE) -> None:
    """Write the schema to ``path``."""
    write_json(path, study_schema())
