"""The JSON schema of studies: in sync with the config classes, and as strict as it can be."""

from pathlib import Path

import jsonschema
import pytest
import yaml

from coupled_adam_bench.cli.schema_json import SCHEMA_FILE, study_schema, write_schema
from coupled_adam_bench.store.files import read_json
from coupled_adam_bench.study.config import parse_any_study, parse_study

ROOT = Path(__file__).parents[3]
STUDIES = sorted((ROOT / "workflow" / "config").glob("*.yaml"))


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    schema = study_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_the_file_is_what_the_classes_say(tmp_path):
    write_schema(tmp_path / "schema.json")
    assert read_json(ROOT / SCHEMA_FILE) == read_json(tmp_path / "schema.json"), "run `make schema`"


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_a_shipped_study_is_valid_twice(path, validator):
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    validator.validate(values)
    study = parse_any_study(values)
    assert study.study == path.stem
    validator.validate(study.model_dump(mode="json"))
    assert parse_any_study(study.model_dump(mode="json")) == study


SHORT_FORMS = (
    {"models": [{"name": "m", "n_layer": 1, "n_head": 1, "d_model": 8, "learning_rate": 0.1}], "m": "m"},
    {"tokens": [20_000_000, "30M", "1.5B", {"steps": 100000, "label": "x"}]},
    {"optimizers": ["adamw", {"name": "coupled_adam", "scale_exponent": -1}]},
    {"text": ["a", "b"]},
)


def short_form(form: dict) -> dict:
    """Return a study that uses one short form of a setting."""
    return {
        "study": "s",
        "paths": {"text": form.get("text", "folder")},
        "data": {"name": "d", "source": {"kind": "files"}, "tokenizer": "gpt2", "vocab_size": 50257},
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
