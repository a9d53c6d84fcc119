"""Identity of cells: everything that can change a number is in the id, and nothing else is."""

import functools
import re
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
import yaml

from coupled_adam_bench.study.catalogue import versions
from coupled_adam_bench.study.plan import make_plan
from coupled_adam_bench.study.plan.cells import data_digest, make_cell, readable_count
from coupled_adam_bench.study.settings import (
    AdamWSettings,
    CoupledAdamSettings,
    Data,
    Execution,
    HubSource,
    Model,
    Settings,
    SgdSettings,
    Split,
    Steps,
    Study,
    SyntheticSource,
    Training,
    load_study,
    parse_study,
)
from coupled_adam_bench.study.settings.optimizers import WidthScale

CONFIGS = Path(__file__).parents[4] / "workflow" / "config"
SYNTHETIC = "0123456789"
SGD = SgdSettings(name="sgd", lr_factor=100)


@functools.cache
def demo_study() -> Study:
    return load_study(CONFIGS / "demo.yaml")


@pytest.fixture
def demo() -> Study:
    return demo_study()


def cell_of(
    study: Study,
    data: str = SYNTHETIC,
    model: Model | None = None,
    optimizer: Any = SGD,
    seed: int = 1,
):
    return make_cell(
        study, data, model or study.models[0], Steps(steps=100, label="x"), optimizer, seed
    )


def changed(settings: Settings, name: str) -> Settings:
    """Return the settings with another value of one field, allowed or not: identity asks for no
    validity."""
    value, annotation = getattr(settings, name), type(settings).model_fields[name].annotation
    literals = [kind for kind in (annotation, *get_args(annotation)) if get_origin(kind) is Literal]
    if literals:
        other: Any = next(option for option in get_args(literals[0]) if option != value)
    elif isinstance(value, bool):
        other = not value
    elif isinstance(value, int):
        other = value + 1
    elif isinstance(value, float):
        other = value * 1.25 + 1e-9
    elif value is None:
        kinds = [get_args(kind)[0] if get_args(kind) else kind for kind in get_args(annotation)]
        of_kind = {int: 7, float: 0.25, str: "x", WidthScale: WidthScale(power=0.5, reference=64)}
        other = of_kind[kinds[0]]
    else:
        other = f"{value}x"
    return settings.model_copy(update={name: other})


def fields_of(*classes: type[Settings], without: tuple[str, ...] = ()):
    return [
        pytest.param(cls, name, id=f"{cls.__name__}.{name}")
        for cls in classes
        for name in cls.model_fields
        if name not in without
    ]


@pytest.mark.parametrize(("cls", "name"), fields_of(Model, without=("name", "label")))
def test_every_size_of_a_model_is_in_the_hash(demo, cls, name):
    assert cell_of(demo, model=changed(demo.models[0], name)).id != cell_of(demo).id


@pytest.mark.parametrize("name", list(Training.model_fields))
def test_every_setting_of_training_is_in_the_hash(demo, name):
    other = demo.model_copy(update={"training": changed(demo.training, name)})
    assert cell_of(other).id != cell_of(demo).id


@pytest.mark.parametrize(
    ("cls", "name"), fields_of(AdamWSettings, CoupledAdamSettings, SgdSettings, without=("name",))
)
def test_every_setting_of_an_optimizer_is_in_the_hash(demo, cls, name):
    optimizer = (
        SGD
        if cls is SgdSettings
        else cls(name={AdamWSettings: "adamw", CoupledAdamSettings: "coupled_adam"}[cls])
    )
    assert (
        cell_of(demo, optimizer=changed(optimizer, name)).id
        != cell_of(demo, optimizer=optimizer).id
    )


@pytest.mark.parametrize(("cls", "name"), fields_of(Data, without=("name", "source", "split")))
def test_every_setting_of_the_data_is_in_its_id(demo, cls, name):
    assert data_digest(demo.model_copy(update={"data": changed(demo.data, name)})) != data_digest(
        demo
    )


@pytest.mark.parametrize(("cls", "name"), fields_of(SyntheticSource, HubSource, without=("kind",)))
def test_every_setting_of_a_source_is_in_the_data_id(demo, cls, name):
    source = cls() if cls is SyntheticSource else cls(kind="hub", preset="openwebtext")
    data = demo.data.model_copy(update={"source": source})
    other = data.model_copy(update={"source": changed(source, name)})
    assert data_digest(demo.model_copy(update={"data": data})) != data_digest(
        demo.model_copy(update={"data": other})
    )


@pytest.mark.parametrize("name", list(Split.model_fields))
def test_every_setting_of_the_split_is_in_the_data_id(demo, name):
    data = demo.data.model_copy(update={"split": changed(demo.data.split, name)})
    assert data_digest(demo.model_copy(update={"data": data})) != data_digest(demo)


def test_data_steps_vocabulary_and_protocol_are_in_the_hash(demo, monkeypatch):
    reference = cell_of(demo).id
    assert cell_of(demo, data="synthetic-9876543210").id != reference
    assert cell_of(demo, seed=2).id.rpartition("_")[2] != reference.rpartition("_")[2]
    other = demo.model_copy(update={"data": changed(demo.data, "vocab_size")})
    assert cell_of(other).id != reference
    longer = make_cell(demo, SYNTHETIC, demo.models[0], Steps(steps=101), SGD, 1).id
    assert longer.rsplit("_", 1)[1] != reference.rsplit("_", 1)[1]
    data = data_digest(demo)
    monkeypatch.setattr(versions, "TRAIN", versions.TRAIN + 1)
    monkeypatch.setattr(versions, "DATA", versions.DATA + 1)
    assert cell_of(demo).id != reference
    assert data_digest(demo) != data


def variations() -> dict[str, dict[str, Any]]:
    """Return changes of a study file that change no number of a run."""
    return {
        "study": {"study": "other"},
        "title": {"title": "other"},
        "statistics": {"statistics": {"bold": "holm", "margins": {"loss": 0.01}}},
        "stated": {"stated": "a plan"},
        "tables": {
            "tables": {
                "table1": {"title": "First", "columns": ["loss"]},
                "control": {"title": "Last", "comparison": "each_other", "columns": ["acc"]},
            }
        },
        "budget": {
            "budget": {
                "gpu": "A100",
                "gpus": 2,
                "mfu": 0.4,
                "price_per_gpu_hour": 3,
            }
        },
        "paths": {
            "paths": {
                "text": "a",
                "tokenizer": "b",
                "word_similarity": "c",
                "hub_mirror": "d",
                "tasks": "e",
            }
        },
        "execution": {
            "execution": dict.fromkeys(Execution.model_fields, 8)
            | {"measurements": [{"name": "a", "path": "m.A"}]}
            | {"parallel": "fsdp", "compile": True, "deterministic": True}
        },
        "evaluation": {
            "evaluation": {
                "word_similarity": "synthetic",
                "downstream": {"tasks": "synthetic", "limit": 3},
                "test_loss": {
                    "split": "val",
                    "windows": "random",
                    "n_batches": 3,
                    "batch_sequences": 2,
                },
                "leading_space": False,
                "isotropy": "eig_float32",
            }
        },
    }


@pytest.mark.parametrize("section", list(variations()))
def test_what_changes_no_number_is_not_in_an_id(section, tmp_path, monkeypatch):
    hypothesis = {
        "name": "a",
        "table": "table1",
        "metric": "loss",
        "better": "coupled_adam",
        "than": "adamw",
    }
    (tmp_path / "a plan").write_text(
        yaml.safe_dump({"hypotheses": [hypothesis], "seeds": [1, 2, 3]})
    )
    monkeypatch.chdir(tmp_path)
    values = yaml.safe_load((CONFIGS / "demo.yaml").read_text(encoding="utf-8"))
    before, after = parse_study(values), parse_study(values | variations()[section])
    assert before != after
    assert make_plan(before).cells.keys() == make_plan(after).cells.keys()


def test_every_section_of_a_study_is_tested_here():
    # A protocol changes settings of training, and with them the ids: see test_protocols.py.
    assert set(Study.model_fields) - set(variations()) == {
        "data",
        "models",
        "training",
        "grid",
        "protocol",
    }


def test_names_and_labels_are_not_in_the_hash(demo):
    model = demo.models[0]
    relabelled = model.model_copy(update={"label": "5B"})
    renamed = model.model_copy(update={"name": "mine"})
    assert cell_of(demo, model=relabelled).id == cell_of(demo).id
    assert cell_of(demo, model=renamed).id == cell_of(demo).id.replace(model.name, "mine")
    unlabelled = make_cell(demo, SYNTHETIC, model, Steps(steps=100), SGD, 1)
    assert unlabelled == cell_of(demo)
    renamed_data = demo.model_copy(update={"data": demo.data.model_copy(update={"name": "other"})})
    assert data_digest(renamed_data) == data_digest(demo)


@pytest.mark.parametrize("lr_factor", [1e-9, 0.5, 100, 1e6, 123456.7])
@pytest.mark.parametrize("steps", [1, 999, 10**12])
def test_ids_are_names_of_folders_everywhere(demo, lr_factor, steps):
    cell = make_cell(
        demo,
        SYNTHETIC,
        demo.models[0],
        Steps(steps=steps),
        SgdSettings(name="sgd", lr_factor=lr_factor),
        2**63,
    )
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+\-]*", cell.id)
    assert len(cell.id) < 120


def test_an_id_says_what_the_cell_is(demo):
    cell = make_cell(
        demo,
        SYNTHETIC,
        demo.models[1],
        400_000,
        CoupledAdamSettings(name="coupled_adam", scale_exponent=-2),
        3,
    )
    assert re.fullmatch(r"gpt2-2x64_399K_coupled_adam_n-2_s3_[0-9a-f]{10}", cell.id)
    assert cell.steps == 400_000 // (16 * 64)
    assert cell.n_tokens == cell.steps * 16 * 64
    assert cell.tokens_label == "400K"


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (7, "7"),
        (999, "999"),
        (1000, "1K"),
        (124_373_760, "124M"),
        (999_499, "999K"),
        (999_500, "1M"),
        (2 * 10**12, "2T"),
    ],
)
def test_counts_in_three_digits(count, text):
    assert readable_count(count) == text


# Text files.


def text_study(*patterns: Path, tokenizer: Path | None = None) -> Study:
    values = yaml.safe_load((CONFIGS / "local_text.yaml").read_text(encoding="utf-8"))
    values["paths"] = {"text": [str(pattern) for pattern in patterns]}
    if tokenizer is not None:
        values["paths"]["tokenizer"] = str(tokenizer)
        values["data"]["tokenizer"] = "file"
    return parse_study(values)


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_text_is_known_by_its_contents_not_its_place(tmp_path):
    for folder in ("here", "there"):
        write(tmp_path / folder / "sub" / "a.txt", "one")
        write(tmp_path / folder / "b.jsonl", "two")
        write(tmp_path / folder / "notes.md", folder)
    here, there = tmp_path / "here", tmp_path / "there"
    reference = data_digest(text_study(here))
    assert data_digest(text_study(there)) == reference
    assert (
        data_digest(text_study(here, here / "b.jsonl")) == reference
    )  # a file given twice is read once
    write(there / "b.jsonl", "too")
    assert data_digest(text_study(there)) != reference


@pytest.mark.parametrize("change", ["begin", "end", "size", "name", "added"])
def test_a_change_of_a_large_file_changes_the_data_id(tmp_path, change):
    text = "".join(
        f"line {number}\n" for number in range(30_000)
    )  # 3 times what is read of it at either end
    file = write(tmp_path / "a.txt", text)
    reference = data_digest(text_study(tmp_path))
    match change:
        case "begin":
            write(file, "L" + text[1:])
        case "end":
            write(file, text[:-2] + "x\n")
        case "size":
            write(file, text[: len(text) // 2] + "x" + text[len(text) // 2 :])
        case "name":
            file.rename(tmp_path / "b.txt")
        case "added":
            write(tmp_path / "b.txt", "")
    assert data_digest(text_study(tmp_path)) != reference


def test_a_tokenizer_file_and_what_is_read_of_text_are_in_the_data_id(tmp_path):
    write(tmp_path / "text" / "a.txt", "one")
    first, second = write(tmp_path / "1" / "tokenizer.json", "{}"), write(tmp_path / "2.json", "{}")
    study = text_study(tmp_path / "text", tokenizer=first)
    for same in (first.parent, second):
        assert data_digest(text_study(tmp_path / "text", tokenizer=same)) == data_digest(study)
    write(second, "{ }")
    assert data_digest(text_study(tmp_path / "text", tokenizer=second)) != data_digest(study)
    for name in ("text_field", "txt_document"):
        data = study.data.model_copy(update={"source": changed(study.data.source, name)})
        assert data_digest(study.model_copy(update={"data": data})) != data_digest(study), name


# Shipped studies.


def cells_of(name: str):
    study = load_study(CONFIGS / f"{name}.yaml")
    return make_plan(study).cells


def test_the_papers_grids_have_their_size():
    small, sgd, scale = cells_of("paper_small"), cells_of("paper_sgd"), cells_of("paper_scale")
    assert (len(small), len(sgd), len(scale)) == (54, 72, 33)
    assert len(small.keys() & sgd.keys()) == 18  # both Adams at 5B, 10B and 20B, three seeds
    assert len(small.keys() & scale.keys()) == 3  # n = 0
    tokens = sorted({(cell.tokens_label, cell.n_tokens) for cell in small.values()})
    assert tokens == [("10B", 9_830_400_000), ("20B", 19_660_800_000), ("5B", 4_915_200_000)]
    assert {cell.optimizer.key for cell in scale.values()} == {
        "coupled_adam" if n == 0 else f"coupled_adam_n{n}" for n in range(-5, 6)
    }


def test_ids_stay_from_version_to_version():
    """A new id orphans the runs of all users: change this text only together with a version in
    versions.py."""
    assert next(iter(cells_of("paper_small"))) == "gpt2-125m_4.92B_adamw_s1_2b038100e2"
