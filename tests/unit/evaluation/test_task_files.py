import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import yaml

from coupled_adam_bench.evaluation.settings import check_evaluation
from coupled_adam_bench.evaluation.task_files import (
    PAPER_TASK_FILES,
    TaskFile,
    find_tasks,
    generated_tasks,
    harness_tasks,
    mirrored_task,
    read_task,
)
from coupled_adam_bench.study.config import parse_study
from coupled_adam_bench.study.presets import PAPER_TASKS


def study(**changes):
    values = {
        "study": "s",
        "paths": {"text": ".", **changes.pop("paths", {})},
        "data": {"name": "d", "source": {"kind": "files"}, "tokenizer": "gpt2", "vocab_size": 50304},
        "models": ["gpt2-125m"],
        "grid": [{"models": ["gpt2-125m"], "tokens": ["5B"], "optimizers": ["adamw"]}],
        "evaluation": {"word_similarity": [], **changes},
    }
    return parse_study(values)


def write_task(folder: Path, name: str, **values) -> TaskFile:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump({"task": name, **values}))
    return TaskFile(name, path, False)


def touch(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}\n")


def test_paper_tasks_are_where_lm_eval_has_them():
    assert set(PAPER_TASK_FILES) == set(PAPER_TASKS)
    for task in find_tasks(PAPER_TASKS, None):
        assert read_task(task.path)["task"] == task.name


def test_unknown_names_are_listed_with_near_matches():
    with pytest.raises(ValueError) as error:
        find_tasks(["hellaswag", "hellaswagg", "qqqqqqqqqqq", "race"], None)
    message = str(error.value)
    assert "no task 'hellaswagg'; did you mean hellaswag" in message
    assert "no task 'qqqqqqqqqqq'" in message
    assert "'race'" not in message


def test_other_tasks_and_groups_of_lm_eval():
    piqa, mmlu = find_tasks(["piqa", "mmlu"], None)
    assert (piqa.is_group, mmlu.is_group) == (False, True)
    assert piqa.path.is_relative_to(harness_tasks())


def test_own_tasks_come_first(tmp_path):
    own = write_task(tmp_path / "below", "race", dataset_path="json")
    (tmp_path / "group.yaml").write_text('group: "mine"\ntask:\n  - race\n')
    found = find_tasks(["race", "mine", "hellaswag"], tmp_path)
    assert found[0] == own
    assert found[1] == TaskFile("mine", tmp_path / "group.yaml", True)
    with pytest.raises(ValueError, match=r"paths\.tasks: .*nowhere is not a folder"):
        find_tasks(["race"], tmp_path / "nowhere")


def test_includes_are_merged_and_functions_left_alone(tmp_path):
    (tmp_path / "base.yaml").write_text("task: base\ntest_split: test\nprocess_docs: !function utils.f\n")
    (tmp_path / "child.yaml").write_text("include: base.yaml\ntask: child\nmetadata: {version: 2}\n")
    child = {"task": "child", "test_split": "test", "process_docs": "utils.f", "metadata": {"version": 2}}
    assert read_task(tmp_path / "child.yaml") == child
    (tmp_path / "broken.yaml").write_text("task: [\n")
    with pytest.raises(ValueError, match=r"broken\.yaml: not valid YAML"):
        read_task(tmp_path / "broken.yaml")


SPLITS = {"training_split": "train", "validation_split": "validation", "test_split": "test"}


HOSTILE = {
    "depth": ("task: " + 5000 * "[" + 5000 * "]", r"a\.yaml: nested too deeply"),
    "include": ("include: {a: b}", r"a\.yaml: include: \{'a': 'b'\} must be the name of a file"),
    "number": (f"task: {'9' * 5000}", r"a\.yaml: Exceeds the limit"),
    "object": (
        "task: !!python/object/apply:os.system [ls]",
        r"a\.yaml: not valid YAML: could not determine a constructor",
    ),
}


@pytest.mark.fault(
    "evaluation",
    "a task's YAML file has an object of Python, or includes files without end",
    "it is refused with a sentence that names it",
)
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_task_files(name, tmp_path):
    text, message = HOSTILE[name]
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_task(tmp_path / "a.yaml")


def test_includes_without_end(tmp_path):
    for number in range(20):
        (tmp_path / f"{number}.yaml").write_text(f"include: [{number + 1}.yaml, {number + 1}.yaml]\n")
    with pytest.raises(ValueError, match=r"8\.yaml: 8 files lead to it by `include`, which is the most; include less"):
        read_task(tmp_path / "0.yaml")


def test_mirrored_task(tmp_path):
    task = write_task(tmp_path, "t", dataset_path="org/set", dataset_name="hard", **SPLITS)
    folder = tmp_path / "mirror" / "org" / "set" / "hard"
    touch(folder / "test.jsonl", folder / "validation.jsonl")
    assert mirrored_task(task, tmp_path / "mirror", num_fewshot=0) == {
        "include": str(task.path),
        "task": "t",
        "dataset_path": "json",
        "dataset_name": None,
        "dataset_kwargs": {"data_files": {split: str(folder / f"{split}.jsonl") for split in ("validation", "test")}},
        "training_split": None,
    }


def test_the_evaluated_split_is_never_replaced_by_another(tmp_path):
    task = write_task(tmp_path, "t", dataset_path="org/set", **SPLITS)
    folder = tmp_path / "mirror" / "org" / "set" / "default"
    touch(folder / "validation.jsonl", folder / "train.jsonl")
    with pytest.raises(
        ValueError, match=r"paths\.hub_mirror: t needs .*default/test\.jsonl; the target `fetch` downloads it$"
    ):
        mirrored_task(task, tmp_path / "mirror", num_fewshot=0)


def test_examples_need_their_split(tmp_path):
    task = write_task(tmp_path, "t", dataset_path="org/set", **SPLITS)
    folder = tmp_path / "mirror" / "org" / "set" / "default"
    touch(folder / "test.jsonl")
    assert mirrored_task(task, tmp_path / "mirror", num_fewshot=0) is not None
    with pytest.raises(ValueError, match=r"t needs .*default/train\.jsonl; the target `fetch`"):
        mirrored_task(task, tmp_path / "mirror", num_fewshot=2)


def test_local_tasks_do_not_need_the_mirror(tmp_path):
    assert mirrored_task(write_task(tmp_path, "t", dataset_path="json", test_split="test"), tmp_path, 0) is None
    with pytest.raises(ValueError, match="group of tasks"):
        mirrored_task(TaskFile("g", tmp_path / "g.yaml", True), tmp_path, 0)


def test_generated_tasks_find_the_files_beside_them(tmp_path, monkeypatch):
    write_task(tmp_path / "tasks", "b", dataset_path="json", dataset_kwargs={"data_files": {"test": "b.jsonl"}})
    write_task(tmp_path / "tasks", "a", dataset_path="json", dataset_kwargs={"data_files": {"test": "a.jsonl"}})
    monkeypatch.chdir(tmp_path)
    found = generated_tasks(Path("tasks"))
    assert [task.name for task, _ in found] == ["a", "b"]
    for task, stand_in in found:
        assert stand_in["include"] == str(tmp_path / "tasks" / f"{task.name}.yaml")
        assert stand_in["dataset_kwargs"] == {"data_files": {"test": str(tmp_path / "tasks" / f"{task.name}.jsonl")}}
    with pytest.raises(ValueError, match="no tasks; run the data stage"):
        generated_tasks(tmp_path)


def test_a_sound_study_passes(tmp_path):
    (tmp_path / "pairs.tsv").write_text("sun\tmoon\t3\n")
    sets = [{"name": "pairs", "file": "pairs.tsv"}]
    check_evaluation(study(paths={"word_similarity": str(tmp_path)}, word_similarity=sets))


def test_all_problems_at_once(tmp_path):
    (tmp_path / "broken.tsv").write_text("sun\tmoon\tvery\n")
    sets = [
        {"name": "a", "file": "nowhere.tsv"},
        {"name": "b", "file": "broken.tsv"},
        {"name": "b", "file": "broken.tsv"},
    ]
    paths = {"word_similarity": str(tmp_path), "hub_mirror": str(tmp_path / "mirror")}
    with pytest.raises(ValueError) as error:
        check_evaluation(study(paths=paths, word_similarity=sets, downstream={"tasks": ["hellaswag", "race", "race"]}))
    message = str(error.value)
    for part in (
        "evaluation: 7 problem(s)",
        "evaluation.word_similarity: 'b' is named 2 times",
        "nowhere.tsv does not exist",
        "broken.tsv:1: rating 'very'",
        "evaluation.downstream.tasks: 'race' is named 2 times",
        f"hellaswag needs {tmp_path}/mirror/Rowan/hellaswag/default/validation.jsonl",
        f"race needs {tmp_path}/mirror/EleutherAI/race/high/test.jsonl",
    ):
        assert part in message


def test_checks_are_light():
    """They run whenever the workflow is parsed."""
    code = """
        import sys, time
        import coupled_adam_bench.evaluation.settings
        from coupled_adam_bench.evaluation.task_files import find_tasks
        from coupled_adam_bench.study.presets import PAPER_TASKS
        start = time.perf_counter()
        find_tasks(PAPER_TASKS, None)
        assert time.perf_counter() - start < 0.05
        heavy = {"torch", "numpy", "lm_eval", "transformers", "datasets"} & set(sys.modules)
        assert not heavy, heavy
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)


@pytest.mark.fault(
    "settings",
    "a study has no downstream task, and its mean accuracy would divide by zero after all training",
    "it is refused with the name of the field",
)
@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ([], r"evaluation\.downstream\.tasks: must have at least one entry"),
        ([""], r"evaluation\.downstream\.tasks\.0: .*at least 1 character"),
        ("race", r"evaluation\.downstream\.tasks: must be a list, or must be 'synthetic' \(got 'race'\)"),
    ],
)
def test_studies_without_tasks_are_refused(tasks, message):
    with pytest.raises(ValueError, match=message):
        study(downstream={"tasks": tasks})
