"""Which evaluation is whose: settings, files of the user's own, and the weights of the model."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tiny import changed, tiny_study

from coupled_adam_bench.evaluation.identity import OLDER_TASKS, task_folders
from coupled_adam_bench.evaluation.stage import evaluate, measurements
from coupled_adam_bench.store.runs import run_of
from coupled_adam_bench.study.plan import Plan, read_plan
from coupled_adam_bench.study.study import Study, parse_study

LIST = {"name": "own", "file": "own.csv", "separator": ","}


def study_of(**changes: Any) -> Study:
    """A study with a word list, tasks and a folder of the user's own, in the folder of the test."""
    study = tiny_study(paths={"tasks": "tasks", "word_similarity": "words"})
    study["evaluation"] = {"word_similarity": [LIST], "downstream": {"tasks": ["own"]}}
    for place, value in changes.items():
        study = changed(study, place.replace("__", "."), value)
    return parse_study(study)


def settings(study: Study) -> dict[str, str]:
    return {name: json.dumps(each.settings) for name, each in measurements(study).items()}


def different(one: dict[str, str], other: dict[str, str]) -> set[str]:
    return {name for name in one if one[name] != other[name]}


@pytest.fixture
def own(home: Path) -> Path:
    for name in ("tasks/own.yaml", "tasks/data/own.jsonl", "tasks/own.py", "words/own.csv"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text("a,b,1\n")
    return home


@pytest.mark.parametrize(
    ("file", "stages"),
    [
        ("tasks/own.yaml", {"downstream"}),
        ("tasks/data/own.jsonl", {"downstream"}),
        ("tasks/own.py", {"downstream"}),
        ("words/own.csv", {"embeddings"}),
    ],
)
def test_a_file_of_ones_own_counts_by_its_contents(own: Path, file: str, stages: set[str]) -> None:
    before = settings(study_of())
    (own / file).write_text("a,b,2\n")
    assert different(before, settings(study_of())) == stages
    (own / file).unlink()  # the word lists may come later, by `fetch`
    assert different(before, settings(study_of())) == stages
    (own / file).write_text("a,b,1\n")
    (own / "tasks/__pycache__").mkdir()
    (own / "tasks/__pycache__/own.pyc").write_text("code")
    for name in ("tasks", "words"):
        shutil.move(own / name, own / f"{name}_elsewhere")
    moved = study_of(
        paths__tasks=str(own / "tasks_elsewhere"), paths__word_similarity="words_elsewhere"
    )
    assert settings(moved) == before


@pytest.mark.parametrize(
    ("place", "value", "stages"),
    [
        ("evaluation__downstream__limit", 3, {"downstream"}),
        ("evaluation__downstream__num_fewshot", 1, {"downstream"}),
        ("evaluation__downstream__precision", "bf16", {"downstream"}),
        ("evaluation__downstream__task_versions", "0.4.3", {"downstream"}),
        ("evaluation__isotropy", "eig_float32", {"embeddings"}),
        ("evaluation__leading_space", False, {"embeddings"}),
        ("evaluation__test_loss", {"split": "val"}, {"test_loss"}),
        ("evaluation__test_loss", {"windows": "random"}, {"test_loss"}),
        ("title", "Another title", set()),
        ("execution__evaluation_batch_sequences", 2, set()),
    ],
)
def test_a_setting_changes_the_stages_whose_numbers_it_changes(
    own: Path, place: str, value: Any, stages: set[str]
) -> None:
    assert different(settings(study_of()), settings(study_of(**{place: value}))) == stages


def test_own_tasks_go_before_those_of_0_4_3(own: Path) -> None:
    assert task_folders(study_of()) == [Path("tasks")]
    older = study_of(evaluation__downstream__task_versions="0.4.3")
    assert task_folders(older) == [OLDER_TASKS, Path("tasks")]


def plan_and_cells(folder: Path) -> tuple[Plan, list[Any]]:
    plan = read_plan(folder / "results/tiny/plan.json")
    return plan, list(plan.cells.values())


def test_only_what_is_missing_is_measured(copy: Path) -> None:
    plan, cells = plan_and_cells(copy)
    chosen = measurements(plan.study)
    measured = [cell for cell in cells if run_of(cell.id).read()["status"] == "completed"]
    diverged = [cell for cell in cells if cell not in measured]
    assert diverged
    files = {
        (cell.id, name): each.path(cell.id) for cell in measured for name, each in chosen.items()
    }
    before = {place: (file.read_bytes(), file.stat().st_mtime_ns) for place, file in files.items()}
    gone = [
        (measured[0].id, "test_loss"),
        (measured[0].id, "downstream"),
        (measured[1].id, "embeddings"),
    ]
    for place in gone:
        files[place].unlink()
    evaluate(plan, cells)
    for place, file in files.items():
        content, time = before[place]
        assert file.read_bytes() == content
        assert (file.stat().st_mtime_ns == time) == (place not in gone)
    for cell in diverged:
        assert not (run_of(cell.id).folder / "evaluations").exists()
        assert all(each.is_done(cell.id) and each.read(cell.id) == [] for each in chosen.values())


def test_other_weights_have_other_evaluations_and_damaged_ones_none(copy: Path) -> None:
    plan, cells = plan_and_cells(copy)
    one = cells[0]
    run, embeddings = run_of(one.id), measurements(plan.study)["embeddings"]
    path = embeddings.path(one.id)
    weights = run.model / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    path.unlink()
    with pytest.raises(ValueError, match=str(weights)):
        evaluate(plan, [one])
    run.write({key: value for key, value in run.read().items() if key != "sha256"})
    assert embeddings.path(one.id) != path
    evaluate(plan, [one])
    assert embeddings.is_done(one.id)


def test_a_cell_has_at_most_fifty_rows(finished: Path) -> None:
    plan, (one, *_) = plan_and_cells(finished)
    chosen = measurements(plan.study)
    scores = {(row["task"], row["metric"]) for row in chosen["downstream"].read(one.id)}
    tasks = ("synthetic_grammar", "synthetic_topic")
    each_task = {(task, metric) for task in tasks for metric in ("acc", "n_items")}
    assert scores == each_task | {("average", "acc")}
    rows = [row for each in chosen.values() for row in each.read(one.id)]
    # The paper's study has five tasks and four word lists more than this one; three of its tasks
    # have acc_norm, one a perplexity, and RACE's prompts are cut.
    assert len(rows) + 5 * 2 + 4 * 2 + 3 + 1 + 2 <= 50
    assert len({(row["task"], row["metric"]) for row in rows}) == len(rows)
