"""JSON schema of a study file, generated from the config classes, for editors and for readers."""

from pathlib import Path
from typing import Any

from pydantic.json_schema import models_json_schema

from coupled_adam_bench.config import Composite, Study
from coupled_adam_bench.files import write_json

_DRAFT = "https://json-schema.org/draft/2020-12/schema"
SCHEMA_FILE = Path("workflow/schemas/study.schema.json")


def study_schema() -> dict[str, Any]:
    """Return the JSON schema of a study file; rules that link fields, such as divisibility, are only in ``config``."""
    _, definitions = models_json_schema([(Study, "validation"), (Composite, "validation")])
    kinds = {kind: {"$ref": f"#/$defs/{name}"} for kind, name in (("then", "Composite"), ("else", "Study"))}
    return {"$schema": _DRAFT, "if": {"required": ["studies"]}} | kinds | definitions


def write_schema(path: Path = SCHEMA_FILE) -> None:
    """Write the schema to ``path``."""
    write_json(path, study_schema())
