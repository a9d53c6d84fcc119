"""What evaluations are kept by: everything that can change a number, and nothing that cannot."""

import shutil
from pathlib import Path

import pytest
import yaml
from text_study import text_settings

from coupled_adam_bench.evaluation import settings
from coupled_adam_bench.evaluation.settings import check_evaluation
from coupled_adam_bench.store import files
from coupled_adam_bench.store.files import digest
from coupled_adam_bench.study.settings import Study, parse_study

DATA_ID = "d-0123456789"
TASK = {
    "task": "own",
    "include": "base/base.yaml",
    "dataset_path": "json",
    "dataset_kwargs": {
        "data_files": {"test": "data/test.jsonl", "train": ["data/a.jsonl", "data/b*.jsonl"]}
    },
}
FUNCTIONS = (
    "doc_to_text: !function code.text\nmetric_list:\n  - metric: !function below.score.acc\n"
)
PAIRS = "sun\tmoon\t3\t7\nday\tnight\t4\t8\n"


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """A working directory with a user's task of several files and a set of word pairs."""
    folder = tmp_path / "here"
    written = {
        "tasks/own.yaml": yaml.safe_dump(TASK) + FUNCTIONS,
        "tasks/base/base.yaml": "test_split: test\nprocess_docs: !function prepare.clean\n",
        "tasks/base/prepare.py": "def clean(rows):\n    return rows\n",
        "tasks/code.py": "import math\nfrom helper import text\n",
        "tasks/helper.py": (
            "from helper_of_helper import *\n\n\ndef text(item):\n    return item['text']\n"
        ),
        "tasks/helper_of_helper.py": "import code\n",
        "tasks/below/score.py": "acc = print\n",
        "data/test.jsonl": "{}\n",
        "data/a.jsonl": "{}\n",
        "data/b1.jsonl": "{}\n",
        "words/pairs.tsv": PAIRS,
    }
    for name, text in written.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    monkeypatch.chdir(folder)
    return folder


def make_study(evaluation: dict | None = None, where: dict | None = None, **changes) -> Study:
    # Two columns of the file could be the rating, so the study says which.
    pairs = {"name": "pairs", "file": "pairs.tsv", "columns": [0, 1, 2]}
    own = {"word_similarity": [pairs], "downstream": {"tasks": ["own"]}}
    places = {"tasks": "tasks", "word_similarity": "words", "tokenizer": None}
    settings = text_settings(
        paths=places | (where or {}),
        data={"tokenizer": "gpt2", "vocab_size": 50304},
        evaluation=own | (evaluation or {}),
        **changes,
    )
    return parse_study(settings)


def hash_of(study: Study) -> str:
    return digest(settings.downstream(study, DATA_ID))


@pytest.mark.fault(
    "evaluation",
    "a task's file, a file that it includes, its Python code or its data changes after a cell was"
    " evaluated",
    "the settings that evaluations are kept by are others, so the cell is evaluated again",
)
@pytest.mark.parametrize(
    "name",
    [
        "tasks/own.yaml",
        "tasks/base/base.yaml",
        "tasks/base/prepare.py",
        "tasks/code.py",
        "tasks/helper.py",
        "tasks/helper_of_helper.py",
        "tasks/below/score.py",
        "data/test.jsonl",
        "data/a.jsonl",
        "data/b1.jsonl",
    ],
)
def test_every_file_of_a_task_counts(here, name):
    before = hash_of(make_study())
    with (here / name).open("a") as file:
        file.write("\n")
    assert hash_of(make_study()) != before


def test_other_files_and_places_do_not_count(here):
    before = hash_of(make_study())
    (here / "tasks/other.yaml").write_text("task: other\n")
    assert hash_of(make_study()) == before
    shutil.move("tasks", "elsewhere")
    assert hash_of(make_study(where={"tasks": "elsewhere"})) == before
    check_evaluation(make_study(where={"tasks": "elsewhere"}))
    (here / "data/b2.jsonl").write_text("{}\n")  # matches the glob
    assert hash_of(make_study(where={"tasks": "elsewhere"})) != before


def test_settings_of_downstream_count_and_those_of_others_do_not(here, monkeypatch):
    changes = [
        {"limit": 3},
        {"num_fewshot": 1},
        {"precision": "bf16"},
        {"task_versions": "0.4.3"},
        {"tasks": ["own", "arc_easy"]},
        {"tasks": ["arc_easy", "own"]},
        {"tasks": ["arc_easy"]},
    ]
    seen = [
        hash_of(make_study({"downstream": {"tasks": ["own"]} | change}))
        for change in ({}, *changes)
    ]
    seen.append(hash_of(make_study(training={"seq_len": 512})))
    assert len(set(seen)) == len(seen)
    others = {"leading_space": False, "test_loss": {"split": "val"}}
    assert (
        hash_of(make_study(others, title="T", execution={"evaluation_batch_sequences": 3}))
        == seen[0]
    )
    found = settings.downstream(make_study(), DATA_ID)
    assert found["tokenizer"] == "gpt2"
    assert set(found["versions"]) == {"lm_eval", "transformers", "tokenizers", "datasets"}
    monkeypatch.setattr(settings, "installed", lambda library: "0")
    assert hash_of(make_study()) not in seen


def test_the_prompts_of_the_authors_count(here):
    def tasks(protocol: str) -> list:
        evaluated = {"downstream": {"tasks": ["race", "arc_easy"]}}
        study = make_study(evaluated, protocol=protocol, training={"batch_sequences": 4})
        return settings.downstream(study, DATA_ID)["tasks"]

    (race, arc), (older_race, same_arc) = tasks("corrected"), tasks("official")
    assert arc == same_arc and race != older_race
    assert [name for name, _ in older_race["files"]] == ["race.yaml", "older.py"]


def test_a_group_counts_with_all_of_the_users_tasks(here):
    (here / "tasks/all.yaml").write_text("group: all\ntask: [own]\n")
    study = make_study({"downstream": {"tasks": ["all"]}})
    before = hash_of(study)
    (here / "tasks/helper.py").write_text("text = str\n")
    after = hash_of(study)
    assert after != before
    (here / "data/test.jsonl").write_text("{}\n{}\n")
    assert hash_of(study) not in (before, after)


def test_folders_of_data_are_read_whole_and_the_hub_is_not(here):
    def data(**values) -> list:
        (here / "tasks/own.yaml").write_text(yaml.safe_dump({"task": "own", **values}))
        (task,) = settings.downstream(make_study(), DATA_ID)["tasks"]
        return [
            {split: [name for name, _ in named] for split, named in one.items()}
            for one in task["data"]
        ]

    assert data(dataset_path="data") == [{"": ["a.jsonl", "b1.jsonl", "test.jsonl"]}]
    assert data(
        dataset_path="json", dataset_kwargs={"data_dir": "data", "data_files": "a.jsonl"}
    ) == [{"": ["a.jsonl"]}]
    assert data(dataset_path="json", dataset_kwargs={"data_files": "https://x.org/a.jsonl"}) == [
        {"": ["https://x.org/a.jsonl"]}
    ]
    assert data(dataset_path="org/set", dataset_kwargs={"data_files": "a.jsonl"}) == [{}]
    assert data(doc_to_text="x") == [{}]


def test_what_studies_write_is_no_data_of_a_task(here):
    (here / "results/runs/cell").mkdir(parents=True)
    (here / "results/runs/cell/history.jsonl").write_text("{}\n")
    task = {"task": "own", "dataset_path": "json"}

    def write(pattern: str) -> None:
        values = task | {"dataset_kwargs": {"data_files": {"test": pattern}}}
        (here / "tasks/own.yaml").write_text(yaml.safe_dump(values))

    write("**/*.jsonl")
    with pytest.raises(ValueError, match=r"takes results/runs/cell/history\.jsonl, which studies"):
        hash_of(make_study())
    for pattern in ("data/**/*.jsonl", "results/runs/*/history.jsonl"):
        write(pattern)
        assert hash_of(make_study())


@pytest.mark.fault(
    "evaluation",
    "a data file of the user's own task, a file that it includes, or the task itself is not there",
    "it is said before the first job, with the names of task and file",
)
@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "data/test.jsonl",
            r"own needs data/test\.jsonl, which does not exist \(data_files in .*own\.yaml",
        ),
        ("tasks/base/base.yaml", r"base\.yaml: no such task file"),
        ("tasks/own.yaml", "no task 'own'"),
    ],
)
def test_a_file_that_is_not_there_is_named(here, name, message):
    (here / name).unlink()
    for find in (hash_of, check_evaluation):
        with pytest.raises(ValueError, match=message):
            find(make_study())


def test_a_file_is_hashed_once_for_all_cells_and_again_when_it_changes(here, monkeypatch):
    hashed = []
    sha256_file = files.sha256_file
    monkeypatch.setattr(
        files, "sha256_file", lambda path: hashed.append(Path(path).name) or sha256_file(path)
    )
    study = make_study()
    for _ in range(50):
        settings.downstream(study, DATA_ID)
        settings.embeddings(study, DATA_ID)
    assert len(hashed) == len(set(hashed)) == 10
    (here / "data/a.jsonl").write_text("{} \n")
    settings.downstream(study, DATA_ID)
    assert hashed.count("a.jsonl") == 2 and len(hashed) == 11


def test_pairs_count_and_their_layout_does_not(here):
    def embeddings(**changes) -> dict:
        spec = {"name": "pairs", "file": "pairs.tsv", "columns": (0, 1, 2), **changes}
        return settings.embeddings(make_study({"word_similarity": [spec]}), DATA_ID)

    before = embeddings()
    assert before.keys() == {
        "leading_space",
        "isotropy",
        "tokenizer",
        "word_similarity",
        "head",
        "metrics",
    }
    (here / "words/pairs.tsv").write_text("\n" + PAIRS.replace("\t", "  "))
    assert embeddings() == before
    assert embeddings(columns=(0, 1, 3)) != before
    assert embeddings(strip_pos=True) != before
    assert embeddings(name="others") != before
    (here / "words/pairs.tsv").write_text(PAIRS.replace("4", "5"))
    assert embeddings() != before
    (here / "words/pairs.tsv").write_text(PAIRS.splitlines()[0])
    assert embeddings() != before
    with pytest.raises(ValueError, match=r"pairs.*nowhere\.tsv does not exist"):
        embeddings(file="nowhere.tsv")


def test_generated_sets_are_told_by_their_data_before_there_are_any(
    tmp_path, monkeypatch, tiny_study
):
    monkeypatch.chdir(tmp_path)
    study = parse_study(tiny_study())
    assert settings.downstream(study, DATA_ID)["tasks"] == {"generated": DATA_ID}
    assert settings.embeddings(study, DATA_ID)["word_similarity"] == {"generated": DATA_ID}
    assert settings.downstream(study, "e-0123456789") != settings.downstream(study, DATA_ID)
    assert settings.test_loss(study, DATA_ID) == {
        "split": "test",
        "windows": "all",
        "precision": "fp32",
    }
