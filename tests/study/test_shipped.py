"""The studies that ship: the paper's cells, the protocols line by line, and the schema."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from snakemake.utils import update_config
from tiny import REPOSITORY

from coupled_adam_bench.study.catalogue.presets import PAPER_TASKS
from coupled_adam_bench.study.plan import Plan
from coupled_adam_bench.study.schema import study_schema
from coupled_adam_bench.study.study import Study, load_study, parse_study

CONFIG = REPOSITORY / "workflow/config"
# Cells, and their training tokens in all: those of the house before this one [P].
CELLS = {
    "demo": (38, 6_782_976),
    "paper_small": (54, 619_315_200_000),
    "paper_large": (8, 786_432_000_000),
    "paper_sgd": (72, 825_753_600_000),
    "paper_scale": (33, 648_806_400_000),
    "paper": (138, 1_828_454_400_000),
    "quarter_hour": (9, 283_115_520),
    "local_text": (12, 7_790_592),
    "search": (18, 7_188_480),
}


def shipped(name: str) -> Plan:
    """Return the plan of a shipped study, whose text need not be there."""
    return Plan(load_study(CONFIG / f"{name}.yaml"), "")


def with_protocol(name: str, protocol: str) -> Study:
    """Return a study as Snakemake merges it with a protocol."""
    values: dict[str, Any] = {}
    for file in (CONFIG / f"{name}.yaml", CONFIG / f"protocols/{protocol}.yaml"):
        update_config(values, yaml.safe_load(file.read_text()))
    return parse_study(values)


@pytest.mark.parametrize("name", CELLS)
def test_cells(name: str) -> None:
    plan = shipped(name)
    assert plan.study.study == name
    assert (len(plan.cells), sum(cell.n_tokens for cell in plan.cells.values())) == CELLS[name]
    assert all(name in plan.tables for name in plan.study.tables)


def test_every_study_is_held_and_fits_the_schema() -> None:
    schema = json.loads((REPOSITORY / "workflow/schemas/study.schema.json").read_text())
    files = sorted(CONFIG.glob("*.yaml"))
    assert {file.stem for file in files} - {"own_optimizer"} == set(CELLS)
    for file in files:
        jsonschema.validate(yaml.safe_load(file.read_text()), schema)
        assert "study.schema.json" in file.read_text().splitlines()[0]


def test_the_paper_is_its_three_studies() -> None:
    parts = [shipped(name).cells for name in ("paper_small", "paper_sgd", "paper_scale")]
    assert shipped("paper").cells == {**parts[0], **parts[1], **parts[2]}
    assert [len(parts[0].keys() & part) for part in parts[1:]] == [18, 3]


def test_sizes_and_recipes_of_the_paper() -> None:
    found = {
        cell.model.name: (cell.n_params, cell.model.learning_rate, cell.training.batch_tokens)
        for name in ("paper_small", "paper_large")
        for cell in shipped(name).cells.values()
    }
    # GPT-2's positions count; 1.336 B and 2.666 B are [I].
    assert found == {
        "gpt2-125m": (124_373_760, 6e-4, 98_304),
        "gpt2-355m": (354_599_936, 3e-4, 98_304),
        "gpt2-760m": (758_392_320, 2.5e-4, 98_304),
        "stablelm-1.3b": (1_336_248_320, 2e-4, 524_288),
        "stablelm-2.6b": (2_666_498_560, 1.6e-4, 524_288),
    }


# Section 6 of the facts of the paper: what the authors' code does, what the text says and what is
# right, line by line; then what was found since of its harness.
LEDGER = {
    "training.embedding_weight_decay": (0.0, 0.1, 0.0),
    "training.warmup_from": ("zero", "first_step", "first_step"),
    "training.data_order": ("per_rank", "with_replacement", "with_replacement"),
    "evaluation.test_loss.split": ("val", "test", "test"),
    "evaluation.test_loss.windows": ("random", "all", "all"),
    "evaluation.test_loss.n_batches": (2000, None, None),
    "evaluation.test_loss.batch_sequences": (12, None, None),
    "evaluation.test_loss.batch_sequences_of": ({"gpt2-760m": 6}, None, None),
    "evaluation.leading_space": (False, True, True),
    "evaluation.isotropy": ("eig_float32", "both_signs", "both_signs"),
    "evaluation.downstream.task_versions": ("0.4.3", "installed", "installed"),
    "evaluation.downstream.precision": ("fp32", "fp32", "fp32"),
    "evaluation.downstream.tasks": (PAPER_TASKS, PAPER_TASKS, PAPER_TASKS),
    "protocol": ("official", "paper", "corrected"),
    "folder_name": ("paper_small_official", "paper_small_paper", "paper_small"),
}


@pytest.mark.parametrize("place", LEDGER)
def test_protocols(place: str) -> None:
    studies = with_protocol("paper_small", "official"), with_protocol("paper_small", "paper")
    for study, wanted in zip((*studies, shipped("paper_small").study), LEDGER[place], strict=True):
        found: Any = study
        for name in place.split("."):
            found = getattr(found, name)
        assert wanted in (None, found)


@pytest.mark.parametrize("protocol", ["official", "paper"])
def test_protocols_say_nothing_else(protocol: str) -> None:
    plain, other = shipped("paper_small").study, with_protocol("paper_small", protocol)

    def settings(values: Any, place: str = "") -> dict[str, Any]:
        if not isinstance(values, dict):
            return {place: values}
        inner = [settings(value, f"{place}.{name}") for name, value in values.items()]
        return {key: value for each in inner for key, value in each.items()}

    before, after = settings(plain.model_dump()), settings(other.model_dump())
    named = tuple(f".{place}" for place in LEDGER)
    assert [
        place
        for place in after
        if after[place] != before.get(place) and not place.startswith(named)
    ] == []


def test_a_protocol_adds_no_tasks() -> None:
    assert shipped("quarter_hour").study.evaluation.downstream is None
    assert with_protocol("quarter_hour", "official").evaluation.downstream is None
    demo = with_protocol("demo", "official").evaluation.downstream
    assert demo is not None
    assert demo.tasks == "synthetic"


def test_the_schema_is_that_of_the_code() -> None:
    assert (
        Path(REPOSITORY / "workflow/schemas/study.schema.json").read_text() == study_schema() + "\n"
    )


def test_settings_are_few_and_described() -> None:
    schema = json.loads(study_schema())
    sections = {**schema["$defs"], "Study": schema}
    settings = [(name, *each) for name in sections for each in sections[name]["properties"].items()]
    assert len(settings) <= 130
    for section, name, setting in settings:
        # pydantic leaves out what is said of the section already.
        inner = sections.get(setting.get("$ref", "").rpartition("/")[2], {})
        assert "description" in setting | inner, f"{section}.{name}"
