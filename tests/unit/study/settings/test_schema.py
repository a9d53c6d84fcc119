"""The JSON schema of studies: in sync with the config classes, and as strict as it can be."""

import csv
import json
import re
from pathlib import Path

import jsonschema
import pytest
import yaml

from coupled_adam_bench.cli.schema_json import (
    bundle_schema,
    results_schema,
    study_schema,
    write_schemas,
)
from coupled_adam_bench.store.files import read_json
from coupled_adam_bench.study.settings import parse_any_study, parse_study

ROOT = Path(__file__).parents[4]
BOOK = {path for path in (ROOT / "research").glob("*/*.yaml") if path.name != "registration.yaml"}
STUDIES = sorted({*(ROOT / "workflow" / "config").glob("*.yaml"), *BOOK})


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    schema = study_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_the_file_is_what_the_classes_say(tmp_path):
    write_schemas(tmp_path)
    shipped = ROOT / "workflow" / "schemas"
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in shipped.iterdir()}
    for path in tmp_path.iterdir():
        assert read_json(shipped / path.name) == read_json(path), "run `make schema`"


def test_where_lines_of_the_source_break_is_none_of_a_schema():
    assert not re.search(r'"description": "[^"]*\\n', json.dumps(study_schema()))


def test_the_example_has_the_form_of_results():
    validator = jsonschema.Draft202012Validator(results_schema())
    kinds = {"n_params": int, "n_tokens": int, "seed": int, "value": float}
    with (ROOT / "docs" / "examples" / "demo" / "results.csv").open(
        newline="", encoding="utf-8"
    ) as file:
        rows = [
            {name: kinds.get(name, str)(text) for name, text in row.items()}
            for row in csv.DictReader(file)
        ]
    validator.validate(rows[:200])
    assert not validator.is_valid([{**rows[0], "value": "5.6"}])
    assert not validator.is_valid([{**rows[0], "more": 1}])


def test_every_field_of_a_bundle_is_described():
    schema = bundle_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    assert all("description" in field for field in schema["properties"].values())


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_a_shipped_study_is_valid_twice(path, validator):
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    validator.validate(values)
    study = parse_any_study(values)
    assert study.study == path.stem
    validator.validate(study.model_dump(mode="json"))
    assert parse_any_study(study.model_dump(mode="json")) == study


SHORT_FORMS = (
    {
        "models": [{"name": "m", "n_layer": 1, "n_head": 1, "d_model": 8, "learning_rate": 0.1}],
        "m": "m",
    },
    {"tokens": [20_000_000, "30M", "1.5B", {"steps": 100000, "label": "x"}]},
    {"optimizers": ["adamw", {"name": "coupled_adam", "scale_exponent": -1}]},
    {"text": ["a", "b"]},
)


def short_form(form: dict) -> dict:
    """Return a study that uses one short form of a setting."""
    return {
        "study": "s",
        "paths": {"text": form.get("text", "folder")},
        "data": {
            "name": "d",
            "source": {"kind": "files"},
            "tokenizer": "gpt2",
            "vocab_size": 50257,
        },
        "models": form.get("models", ["gpt2-2x32"]),
        "grid": [
            {
                "models": [form.get("m", "gpt2-2x32")],
                "tokens": form.get("tokens", ["20M"]),
                "optimizers": form.get("optimizers", ["adamw"]),
            }
        ],
    }


@pytest.mark.parametrize("form", SHORT_FORMS, ids=lambda form: next(iter(form)))
def test_every_short_form_is_in_the_schema(form, validator):
    validator.validate(short_form(form))
    parse_study(short_form(form))


@pytest.mark.parametrize(
    "form",
    [
        {"models": ["gpt2-1x1"]},
        {"tokens": ["20G"]},
        {"tokens": [{"step": 1}]},
        {"optimizers": ["adam"]},
        {"optimizers": [{"name": "adamw", "scale_exponent": 1}]},
        {"text": 3},
    ],
    ids=str,
)
def test_the_schema_refuses_what_parsing_refuses(form, validator):
    assert not validator.is_valid(short_form(form))
    with pytest.raises(ValueError):
        parse_study(short_form(form))
