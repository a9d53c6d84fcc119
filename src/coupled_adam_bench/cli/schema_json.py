"""JSON schema of a study file, generated from the config classes, for editors and for readers."""

import ast
import inspect
import textwrap
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue, models_json_schema
from pydantic_core.core_schema import ModelSchema

from coupled_adam_bench.store.files import write_json
from coupled_adam_bench.study.config import Composite, Study

_DRAFT = "https://json-schema.org/draft/2020-12/schema"
SCHEMA_FILE = Path("workflow/schemas/study.schema.json")


def study_schema() -> dict[str, Any]:
    """Return the JSON schema of a study file; rules that link fields, such as divisibility, are only in ``config``."""
    _, definitions = models_json_schema(
        [(Study, "validation"), (Composite, "validation")], schema_generator=_WithDocstrings
    )
    kinds = {kind: {"$ref": f"#/$defs/{name}"} for kind, name in (("then", "Composite"), ("else", "Study"))}
    return {"$schema": _DRAFT, "if": {"required": ["studies"]}} | kinds | definitions


def write_schema(path: Path = SCHEMA_FILE) -> None:
    """Write the schema to ``path``."""
    write_json(path, study_schema())


class _WithDocstrings(GenerateJsonSchema):
    """Describes fields by the docstrings below them.

    Pydantic's own ``use_attribute_docstrings`` reads them from the source whenever the classes are imported, which
    would be a quarter of what each job takes to start.
    """

    def model_schema(self, schema: ModelSchema) -> JsonSchemaValue:
        """Return the schema of a class, with descriptions of its fields."""
        described = super().model_schema(schema)
        docstrings = _docstrings_of_fields(schema["cls"])
        for name, field in described.get("properties", {}).items():
            if name in docstrings:
                field.setdefault("description", docstrings[name])
        return described


def _docstrings_of_fields(model: type[BaseModel]) -> dict[str, str]:
    """Return the docstrings of a class's fields by name, those of its base classes too."""
    docstrings: dict[str, str] = {}
    for kind in reversed(model.__mro__):
        if not issubclass(kind, BaseModel) or kind is BaseModel:
            continue
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
        assert isinstance(definition, ast.ClassDef)
        for field, below in pairwise(definition.body):
            match field, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    docstrings[name] = inspect.cleandoc(text)
    return docstrings
