from pathlib import Path

import pytest
import yaml
from text_study import text_settings

from coupled_adam_bench.evaluation.settings import EvaluationError, check_evaluation
from coupled_adam_bench.evaluation.task_data import mirrored_task
from coupled_adam_bench.evaluation.task_digests import reads_files, task_contents
from coupled_adam_bench.evaluation.task_files import (
    PAPER_TASK_FILES,
    TaskFile,
    find_tasks,
    harness_tasks,
    is_found_without_index,
)
from coupled_adam_bench.evaluation.task_yaml import LOCAL_READERS, MAX_INCLUDES, read_task
from coupled_adam_bench.study.catalogue.presets import PAPER_TASKS
from coupled_adam_bench.study.settings import parse_study


def write_task(folder: Path, name: str, **values) -> TaskFile:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump({"task": name, **values}))
    return TaskFile(name, path)


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
    found = [is_found_without_index(task, None) for task in (piqa, mmlu)]
    assert found == [True, False]
    assert piqa.path.is_relative_to(harness_tasks())


@pytest.mark.parametrize(
    ("members", "expected"),
    [("[first, second]", True), ("[first, piqa]", False), ("[first, {task: second}]", False)],
)
def test_a_group_of_own_tasks_needs_no_other_file(members, expected, tmp_path):
    for name in ("first", "second"):
        write_task(tmp_path, name, dataset_path="json")
    (tmp_path / "all.yaml").write_text(f"group: all\ntask: {members}\n")
    task, group = find_tasks(["first", "all"], str(tmp_path))
    assert is_found_without_index(task, str(tmp_path))
    assert is_found_without_index(group, str(tmp_path)) == expected


def test_own_tasks_come_first(tmp_path):
    own = write_task(tmp_path / "below", "race", dataset_path="json")
    (tmp_path / "group.yaml").write_text('group: "mine"\ntask:\n  - race\n')
    found = find_tasks(["race", "mine", "hellaswag"], str(tmp_path))
    assert found[0] == own
    assert found[1] == TaskFile("mine", tmp_path / "group.yaml", True)
    with pytest.raises(ValueError, match=r"paths\.tasks: .*nowhere is not a folder"):
        find_tasks(["race"], str(tmp_path / "nowhere"))


def test_hidden_copies_of_own_tasks_are_not_found(tmp_path):
    """A notebook's copy sorts before the task that it was made of."""
    own = write_task(tmp_path, "mine")
    before = task_contents(own, None, str(tmp_path))
    write_task(tmp_path / ".ipynb_checkpoints", "mine", dataset_path="csv")
    (tmp_path / "._mine.yaml").write_bytes(b"\0\5\26\7task: mine\n")
    assert find_tasks(["mine"], str(tmp_path)) == [own]
    group = tmp_path / "group.yaml"
    group.write_text("group: all\ntask: [mine]\n")
    assert [task.path for task in find_tasks(["all"], str(tmp_path))] == [group]
    group.unlink()
    assert task_contents(own, None, str(tmp_path)) == before


@pytest.mark.fault(
    "evaluation",
    "two files of own tasks have the same name, or a hidden copy that lm-eval would take for a"
    " member of a group",
    "the start refuses them, and names both",
)
def test_two_own_tasks_of_one_name(tmp_path):
    first, second = (write_task(tmp_path / name, "mine").path for name in "ab")
    other = write_task(tmp_path, "other")
    with pytest.raises(
        ValueError, match=f"one name in several files: mine in {first} and {second}"
    ):
        find_tasks(["other"], str(tmp_path))
    second.write_text("task: another\n")
    assert find_tasks(["other"], str(tmp_path)) == [other]
    hidden = write_task(tmp_path / ".old", "mine").path
    assert len(find_tasks(["mine", "another"], str(tmp_path))) == 2
    (tmp_path / "group.yaml").write_text("group: all\ntask: [mine]\n")
    with pytest.raises(ValueError, match=f"mine in {hidden} and {first}"):
        find_tasks(["all"], str(tmp_path))
    hidden.unlink()
    assert len(find_tasks(["all"], str(tmp_path))) == 1


@pytest.mark.fault(
    "evaluation",
    "the YAML of a task has a key twice, of which the last would win",
    "the task is refused, with the lines",
)
def test_a_key_twice_in_a_task(tmp_path):
    path = tmp_path / "own.yaml"
    path.write_text("task: own\nmetadata:\n  version: 1\ntask: other\n")
    with pytest.raises(
        ValueError, match=r"own\.yaml: lines 1 and 4: the key 'task' is given 2 times"
    ):
        read_task(path)
    path.write_text("task: own\nbase: &base {version: 1}\nmetadata: {<<: *base, version: 2}\n")
    assert read_task(path)["metadata"] == {"version": 2}


@pytest.mark.fault(
    "evaluation",
    "a task names no data files, or the folder of the study, so that all results would be its data",
    "the start refuses it, and says how data files are named",
)
@pytest.mark.parametrize(
    "values",
    [
        {"dataset_path": "json"},
        {"dataset_path": "csv", "dataset_kwargs": {"data_dir": ".."}},
        {"dataset_path": "."},
    ],
)
def test_data_of_a_task_that_hold_the_study(values, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    touch(tmp_path / "data" / "items.jsonl")
    with pytest.raises(ValueError, match=r"mine reads all files of /.*mine\.yaml.*name its data"):
        task_contents(write_task(tmp_path, "mine", **values), None, str(tmp_path))
    files = {"data_files": {"test": "data/items.jsonl"}}
    for options in (files, {"data_dir": "data"}):
        task = write_task(tmp_path, "mine", dataset_path="json", dataset_kwargs=options)
        assert reads_files(task_contents(task, None, str(tmp_path)))


def test_pointers_of_git_lfs_are_no_data_of_a_task(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n"
    files = {"data_files": {"test": "own.jsonl"}}
    task = write_task(tmp_path, "own", dataset_path="json", dataset_kwargs=files)
    (tmp_path / "own.jsonl").write_text(pointer)
    with pytest.raises(ValueError, match=r"own\.jsonl: a pointer of Git LFS .*git lfs pull"):
        task_contents(task, None, str(tmp_path))
    (tmp_path / "own.jsonl").write_text("{}\n")
    task_contents(task, None, str(tmp_path))


def test_includes_are_merged_and_functions_left_alone(tmp_path):
    (tmp_path / "base.yaml").write_text(
        "task: base\ntest_split: test\nprocess_docs: !function utils.f\n"
    )
    (tmp_path / "child.yaml").write_text(
        "include: base.yaml\ntask: child\nmetadata: {version: 2}\n"
    )
    child = {
        "task": "child",
        "test_split": "test",
        "process_docs": "utils.f",
        "metadata": {"version": 2},
    }
    assert read_task(tmp_path / "child.yaml") == child
    (tmp_path / "broken.yaml").write_text("task: [\n")
    with pytest.raises(ValueError, match=r"broken\.yaml: not valid YAML"):
        read_task(tmp_path / "broken.yaml")


def write_chain(folder: Path, n_files: int) -> None:
    for number in range(n_files):
        (folder / f"{number}.yaml").write_text(f"task: t\ninclude: {number + 1}.yaml\n")
    (folder / f"{n_files}.yaml").write_text("task: t\n")


@pytest.mark.fault(
    "evaluation",
    "a task file includes itself, stands in a ring or a chain of 3,000 files, or is nested 3,000"
    " deep",
    "one sentence names the file and what is wrong with it, before the first job",
)
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("task: t\ninclude: t.yaml\n", r"t\.yaml: `include` leads to .*t\.yaml twice"),
        ("task: t\ninclude: ring.yaml\n", r"t\.yaml: `include` leads to .*t\.yaml twice"),
        ("task: t\ninclude: [a.yaml, a.yaml]\n", r"t\.yaml: `include` leads to .*a\.yaml twice"),
        ("task: t\ninclude: 0.yaml\n", r"t\.yaml: `include` leads through more than 50 files"),
        ("task: t\ninclude: 5\n", r"t\.yaml: include: the path of a task file is expected, not 5"),
        ("task: t\ninclude: !function a.b\n", r"a\.b: no such task file"),
        (
            "task: t\ninclude: arc/arc_easy.yaml\n",
            r"arc_easy\.yaml: no such task file, which .*/t\.yaml includes; give a path from the",
        ),
        (
            f"task: t\nx: {'[' * 3000}{']' * 3000}\n",
            r"t\.yaml: not a task: its YAML is nested too deeply",
        ),
        (
            f"task: t\nx: {'{a: ' * 3000}{'}' * 3000}\n",
            r"t\.yaml: not a task: its YAML is nested too deeply",
        ),
        (
            "task: t\ndataset_kwargs: !function a.b\n",
            r"t\.yaml: dataset_kwargs: a mapping is expected, not 'a\.b'",
        ),
        (
            "task: t\nprocess_docs: !function {a: b}\n",
            r"t\.yaml: not valid YAML: !function must be followed by",
        ),
        (
            "task: t\nprocess_docs: !function\n",
            r"t\.yaml: not valid YAML: !function must be followed by",
        ),
    ],
)
def test_task_files_without_end(text, problem, tmp_path):
    (tmp_path / "t.yaml").write_text(text)
    (tmp_path / "a.yaml").write_text("task: a\n")
    (tmp_path / "ring.yaml").write_text("include: t.yaml\n")
    write_chain(tmp_path, 3000 if "0.yaml" in text else 0)
    with pytest.raises(ValueError, match=problem) as error:
        task_contents(TaskFile("t", tmp_path / "t.yaml"), None, str(tmp_path))
    assert str(error.value).count("\n") <= 3  # YAML shows the place


def test_a_chain_of_includes_is_read(tmp_path):
    write_chain(tmp_path, MAX_INCLUDES)
    assert read_task(tmp_path / "0.yaml") == {"task": "t"}


def test_all_formats_of_files_are_known():
    from datasets.packaged_modules import _PACKAGED_DATASETS_MODULES

    assert set(LOCAL_READERS) >= set(_PACKAGED_DATASETS_MODULES)


SPLITS = {"training_split": "train", "validation_split": "validation", "test_split": "test"}


def test_mirrored_task(tmp_path):
    task = write_task(tmp_path, "t", dataset_path="org/set", dataset_name="hard", **SPLITS)
    folder = tmp_path / "mirror" / "org" / "set" / "hard"
    touch(folder / "test.jsonl", folder / "validation.jsonl")
    assert mirrored_task(task, tmp_path / "mirror", num_fewshot=0) == {
        "include": str(task.path),
        "task": "t",
        "dataset_path": "json",
        "dataset_name": None,
        "dataset_kwargs": {
            "data_files": {
                split: str(folder / f"{split}.jsonl") for split in ("validation", "test")
            }
        },
        "training_split": None,
    }


def test_splits_that_are_needed_are_never_replaced_by_others(tmp_path):
    task = write_task(tmp_path, "t", dataset_path="org/set", **SPLITS)
    folder = tmp_path / "mirror" / "org" / "set" / "default"
    touch(folder / "validation.jsonl", folder / "train.jsonl")
    for num_fewshot, missing in ((0, "test"), (2, "train")):
        with pytest.raises(
            ValueError,
            match=(
                rf"paths\.hub_mirror: t needs .*default/{missing}\.jsonl; the target `fetch`"
                r" downloads it$"
            ),
        ):
            mirrored_task(task, tmp_path / "mirror", num_fewshot)
        (folder / "train.jsonl").unlink(missing_ok=True)
        touch(folder / "test.jsonl")
    assert mirrored_task(task, tmp_path / "mirror", 0) is not None


def test_local_tasks_do_not_need_the_mirror(tmp_path):
    assert (
        mirrored_task(
            write_task(tmp_path, "t", dataset_path="json", test_split="test"), tmp_path, 0
        )
        is None
    )
    with pytest.raises(ValueError, match="group of tasks"):
        mirrored_task(TaskFile("g", tmp_path / "g.yaml", True), tmp_path, 0)


def test_all_problems_at_once(tmp_path):
    (tmp_path / "broken.tsv").write_text("sun\tmoon\t5\nsun\tmoon\tvery\n")
    sets = [
        {"name": "a", "file": "nowhere.tsv"},
        {"name": "b", "file": "broken.tsv"},
        {"name": "b", "file": "broken.tsv"},
    ]
    paths = {"word_similarity": str(tmp_path), "hub_mirror": str(tmp_path / "mirror")}
    downstream = {"tasks": ["hellaswag", "race", "race"]}
    evaluation = {"word_similarity": sets, "downstream": downstream}
    with pytest.raises(ValueError) as error:
        check_evaluation(parse_study(text_settings(paths=paths, evaluation=evaluation)))
    message = str(error.value)
    for part in (
        "evaluation: something is missing or wrong\n  evaluation.word_similarity: 'b'",
        "without tasks, downstream: {tasks: []}",
        "evaluation.word_similarity: 'b' is named more than once",
        "nowhere.tsv does not exist",
        "broken.tsv:2: rating 'very'",
        "evaluation.downstream.tasks: 'race' is named more than once",
        f"hellaswag needs {tmp_path}/mirror/Rowan/hellaswag/default/validation.jsonl",
        f"race needs {tmp_path}/mirror/EleutherAI/race/high/test.jsonl",
    ):
        assert part in message


@pytest.mark.parametrize(
    ("problems", "said"),
    [
        (["a is missing"], "evaluation: a is missing"),
        (
            ["a is missing", "b is"],
            "evaluation: 2 things are missing or wrong, such as a is missing",
        ),
    ],
)
def test_what_an_evaluation_lacks_is_one_line_where_it_is_not_needed_yet(problems, said):
    error = EvaluationError(problems)
    assert error.in_short == said
    assert all(f"\n  {problem}" in str(error) for problem in problems)
