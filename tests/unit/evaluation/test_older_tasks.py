"""Our task files of lm-eval 0.4.3 against its own prompts, whose hashes are kept here, and by
hand."""

import hashlib
import importlib.util
import json
import os
from pathlib import Path
from types import ModuleType

import jinja2
import pytest
from coupled_adam_bench.evaluation.task_yaml import read_task

from coupled_adam_bench.evaluation.task_files import OLDER_TASKS, find_tasks, harness_tasks
from coupled_adam_bench.study.catalogue.presets import PAPER_TASKS

FOLDER = OLDER_TASKS["0.4.3"]
# SHA-256 of the prompts (of race with choices and answers) that lm-eval 0.4.3 itself makes of all
# items, as JSON.
RACE_OF_0_4_3 = "88e65f8e4ce794242a7209eb880d4642ec61b15d143625ff289472a6f010ff70"
TRUTHFULQA_OF_0_4_3 = "43bba54c47e743d7da473a6449cf9a51ddc528ab90852fa7dffcd0faede9fec4"
REAL = pytest.mark.skipif("CAB_REAL_DATA" not in os.environ, reason="needs CAB_REAL_DATA")


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


older = load(FOLDER / "older.py")


def rows(name: str) -> list[dict]:
    path = Path(os.environ["CAB_REAL_DATA"]) / "hub" / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def sha256(value: list) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


def test_the_older_files_stand_in_for_two_of_the_papers_tasks():
    assert [path.stem for path in sorted(FOLDER.glob("*.yaml"))] == ["race", "truthfulqa_mc2"]
    installed = {task.name: task.path for task in find_tasks(PAPER_TASKS, None)}
    found = {task.name: task.path for task in find_tasks(PAPER_TASKS, None, "0.4.3")}
    assert list(found) == list(PAPER_TASKS)
    assert {name for name in found if found[name] != installed[name]} == {"race", "truthfulqa_mc2"}
    for name in ("race", "truthfulqa_mc2"):
        ours, theirs = read_task(found[name]), read_task(installed[name])
        assert ours["metadata"] == {"version": 2.0}
        for key in ("task", "dataset_path", "dataset_name", "output_type", "metric_list"):
            assert ours[key] == theirs[key]
        for key in ("test_split", "validation_split", "training_split"):
            assert ours.get(key) == theirs.get(key)


def test_a_task_of_the_user_comes_first(tmp_path):
    (tmp_path / "mine.yaml").write_text("task: race\n")
    (mine,) = find_tasks(["race"], str(tmp_path), "0.4.3")
    assert mine.path == tmp_path / "mine.yaml"


def test_race_by_hand():
    item = {
        "article": "A fox.",
        "problems": str(
            [
                {"question": "The fox is  _  .", "answer": "B", "options": ["a", "red", "c", "d"]},
                {"question": "Who?", "answer": "D", "options": ["a", "b", "c", "the fox"]},
                {"question": "It is  _", "answer": "A", "options": ["x", "y", "z", "w", "v"]},
            ]
        ),
    }
    assert (
        older.race_prompt(item)
        == "Article: A fox.\n\n _  .red\nQuestion: Who?\nAnswer: the fox\nIt is  _"
    )
    assert older.race_choices(item) == ["x", "y", "z", "w"]
    assert older.race_answer(item) == 0
    alone = {
        "article": "A fox.",
        "problems": str([{"question": "Who?", "answer": "C", "options": ["a", "b", "c", "d"]}]),
    }
    assert older.race_prompt(alone) == "Article: A fox.\n\nWho?"


def test_truthfulqa_by_hand():
    item = {"mc2_targets": {"labels": [1, 0, 1]}}
    results = [(-1.0, False), (-2.0, True), (-3.0, False)]
    p = [2.718281828459045**score for score, _ in results]
    assert older.truthfulqa_mc2_score(item, results) == {"acc": pytest.approx(p[0] / sum(p))}


@REAL
def test_every_prompt_of_race_is_that_of_0_4_3():
    items = rows("EleutherAI/race/high/test")
    ours = [
        [older.race_prompt(item), older.race_choices(item), older.race_answer(item)]
        for item in items
    ]
    assert sha256(ours) == RACE_OF_0_4_3
    installed = load(harness_tasks() / "race" / "preprocess_race.py")
    assert (
        len(items),
        sum(installed.doc_to_text(item) != older.race_prompt(item) for item in items),
    ) == (1045, 623)


@REAL
def test_every_prompt_of_truthfulqa_is_that_of_0_4_3():
    items = rows("truthfulqa/truthful_qa/multiple_choice/validation")
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, keep_trailing_newline=True, autoescape=False
    )
    (task,) = find_tasks(["truthfulqa_mc2"], None, "0.4.3")
    prompt = environment.from_string(read_task(task.path)["doc_to_text"])
    assert sha256([prompt.render(**item) for item in items]) == TRUTHFULQA_OF_0_4_3
    installed = load(harness_tasks() / "truthfulqa" / "utils.py")
    differing = 0
    for item in items:
        results = [(-0.1 * index, False) for index in range(len(item["mc2_targets"]["labels"]))]
        ours = older.truthfulqa_mc2_score(item, results)["acc"]
        differing += installed.process_results_mc2(item, results)["acc"] != pytest.approx(
            ours, rel=1e-9
        )
    assert (len(items), differing) == (817, 2)
