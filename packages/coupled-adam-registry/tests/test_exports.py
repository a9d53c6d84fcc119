"""A manifest in the forms that others ask for."""

import gzip
import hashlib
import json
import shutil
from pathlib import Path

import pytest

from coupled_adam_bench.cli import main
from coupled_adam_registry.exports.checklist import checklist
from coupled_adam_registry.exports.manifest import read_manifest
from coupled_adam_registry.exports.ro_crate import METADATA
from coupled_adam_registry.form import own_bundles

ROOT = Path(__file__).parents[3]
DEMO = ROOT / "docs" / "examples" / "demo"
BUNDLES = sorted(folder / "manifest.json.gz" for folder in own_bundles(ROOT / "registry").values())


def test_the_checklist_of_the_demo_has_what_the_forms_ask(capsys):
    assert main(["export", "checklist", str(DEMO / "manifest.json")]) == 0
    text = capsys.readouterr().out
    cells = json.loads((DEMO / "manifest.json").read_text())["cells"]
    hours = sum(cell["train"]["seconds"] for cell in cells) / 3600
    assert f"Training {len(cells)} models took {hours:.3g} hours on" in text
    for said in (
        "gpt2-2x32 has 59,552 parameters.",
        "train: 1,925,483 tokens in 9,605 documents.",
        "batch_sequences 16, beta1 0.9, beta2 0.95",
        "table1 has a run for each of the seeds (1; 2; 3).",
        "No setting was searched for in this study.",
        "0 of 38 runs did not complete; none is left out.",
        "the study is exploratory",
        f"torch {cells[0]['environment']['torch']}",
    ):
        assert said in text
    assert "None" not in text
    assert "{" not in text


@pytest.mark.parametrize("packed", BUNDLES, ids=lambda path: path.parts[-3])
def test_every_bundle_has_a_checklist_with_its_trials_and_stated_plan(packed, tmp_path):
    path = tmp_path / "manifest.json"
    path.write_bytes(gzip.decompress(packed.read_bytes()))
    manifest = read_manifest(path)
    text = checklist(manifest)
    trials = manifest.get("tuning_cells", [])
    assert (f"{len(trials)} runs were trials" in text) == bool(trials)
    assert ("chose settings by validation loss" in text) == bool(trials)
    assert ("the study is exploratory" in text) == (manifest["stated"] is None)


def test_runs_that_failed_or_were_never_trained_are_told():
    manifest = read_manifest(DEMO / "manifest.json")
    first, second, *_ = manifest["cells"]
    first |= {"status": "not trained", "train": {}, "environment": {}}
    second["status"] = "diverged"
    text = checklist(manifest)
    assert "2 of 38 runs did not complete" in text
    assert "Training 37 models took" in text


@pytest.fixture
def crate(tmp_path, capsys) -> dict[str, dict]:
    """Return the entities of the demo's crate by their ids."""
    shutil.copytree(DEMO, tmp_path / "demo")
    assert main(["export", "ro-crate", str(tmp_path / "demo" / "manifest.json")]) == 0
    path = tmp_path / "demo" / METADATA
    assert capsys.readouterr().out == f"{path}\n"
    document = json.loads(path.read_text())
    assert document["@context"] == "https://w3id.org/ro/crate/1.2/context"
    entities = {entity["@id"]: entity for entity in document["@graph"]}
    assert len(entities) == len(document["@graph"])
    return entities


def test_a_crate_has_the_fields_that_the_specification_requires(crate):
    """Section "Root Data Entity" and those on files and software of https://w3id.org/ro/crate/1.2,
    as the package roc-validator 0.13 checks them."""
    descriptor = crate[METADATA]
    assert descriptor["@type"] == "CreativeWork"
    assert descriptor["about"] == {"@id": "./"}
    assert descriptor["conformsTo"] == {"@id": "https://w3id.org/ro/crate/1.2"}
    root = crate["./"]
    assert root["@type"] == "Dataset"
    for required in ("name", "description", "datePublished", "license"):
        assert root[required]
    assert crate[root["license"]["@id"]]["name"]
    files = {name for name, entity in crate.items() if entity["@type"] == "File"}
    assert {part["@id"] for part in root["hasPart"]} == files
    software = crate[crate[root["mentions"]["@id"]]["instrument"]["@id"]]
    for required in ("name", "url", "version"):
        assert software[required]


def test_a_crate_names_the_files_that_are_there_with_their_bytes(crate):
    names = {"manifest.json", "results.csv", "tests.csv", "tables/table1.tex"}
    assert names <= set(crate)
    for name, entity in crate.items():
        if entity["@type"] == "File":
            contents = (DEMO / name).read_bytes()
            assert entity["contentSize"] == str(len(contents))
            assert entity["sha256"] == hashlib.sha256(contents).hexdigest()


@pytest.mark.fault("results", "a table was edited before its export", "the file is named")
def test_an_edited_file_is_in_no_crate(tmp_path, capsys):
    shutil.copytree(DEMO, tmp_path / "demo")
    with (tmp_path / "demo" / "tests.csv").open("a") as file:
        file.write("more\n")
    assert main(["export", "ro-crate", str(tmp_path / "demo" / "manifest.json")]) == 2
    assert "tests.csv: changed since the manifest was written" in capsys.readouterr().err
    assert not (tmp_path / "demo" / METADATA).exists()


@pytest.mark.fault("results", "another file is exported as a manifest", "it is said which to name")
def test_another_file_than_a_manifest_is_refused(tmp_path, capsys):
    for contents in ("{}", "[]"):
        (tmp_path / "plan.json").write_text(contents)
        assert main(["export", "checklist", str(tmp_path / "plan.json")]) == 2
        said = capsys.readouterr().err
        assert "not the manifest of a study" in said
        assert "results/STUDY/manifest.json" in said
