"""JSON schemas of studies, bundles and results.csv, generated from what declares them, for editors
and readers."""

import ast
import inspect
import textwrap
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue, models_json_schema
from pydantic_core.core_schema import ModelSchema

from coupled_adam_bench.cli.registry import bundle_form
from coupled_adam_bench.store.files import write_json
from coupled_adam_bench.study.catalogue.metrics import RESULT_COLUMNS
from coupled_adam_bench.study.settings import Composite, Study

_DRAFT = "https://json-schema.org/draft/2020-12/schema"
_KINDS: dict[type, Any] = {int: "integer", str: "string", float: ["number", "null"]}


def study_schema() -> dict[str, Any]:
    """Return the JSON schema of a study file; rules that link fields, such as divisibility, are
    only in ``config``."""
    _, definitions = models_json_schema(
        [(Study, "validation"), (Composite, "validation")], schema_generator=_WithDocstrings
    )
    kinds = {
        kind: {"$ref": f"#/$defs/{name}"}
        for kind, name in (("then", "Composite"), ("else", "Study"))
    }
    return {"$schema": _DRAFT, "if": {"required": ["studies"]}} | kinds | definitions


def bundle_schema() -> dict[str, Any]:
    """Return the JSON schema of ``bundle.json``."""
    form = bundle_form()
    return {"$schema": _DRAFT} | form.model_json_schema(schema_generator=_WithDocstrings)


def results_schema() -> dict[str, Any]:
    """Return the JSON schema of ``results.csv``, given as the list of its rows."""
    from coupled_adam_bench.results.collect import TYPES

    columns = {
        name: {"type": _KINDS[TYPES[name]], "description": text}
        for name, text in RESULT_COLUMNS.items()
    }
    row = {
        "type": "object",
        "properties": columns,
        "required": list(columns),
        "additionalProperties": False,
    }
    return {"$schema": _DRAFT, "title": "results.csv", "type": "array", "items": row}


def write_schemas(folder: Path) -> None:
    """Write each schema to ``NAME.schema.json`` in ``folder``."""
    for name, schema in (
        ("study", study_schema()),
        ("bundle", bundle_schema()),
        ("results", results_schema()),
    ):
        write_json(folder / f"{name}.schema.json", schema)


class _WithDocstrings(GenerateJsonSchema):
    """Describes fields by the docstrings below them.

    Pydantic's own ``use_attribute_docstrings`` reads them from the source whenever the classes are
    imported, which would be a quarter of what each job takes to start.
    """

    def model_schema(self, schema: ModelSchema) -> JsonSchemaValue:
        """Return the schema of a class, with descriptions of its fields."""
        described = super().model_schema(schema)
        if "description" in described:
            described["description"] = _one_line(described["description"])
        docstrings = _docstrings_of_fields(schema["cls"])
        for name, field in described.get("properties", {}).items():
            if name in docstrings:
                field.setdefault("description", docstrings[name])
        return described


def _one_line(text: str) -> str:
    """Return a docstring without the ends of its lines in the source, which a schema does not
    have."""
    return " ".join(text.split())


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
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(
                    value=ast.Constant(value=str(text))
                ):
                    docstrings[name] = _one_line(text)
    return docstrings
