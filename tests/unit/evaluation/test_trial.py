"""Downstream tasks that cannot be scored are found before anything is trained."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from planned import Planned

from coupled_adam_bench.cli import main
from coupled_adam_bench.evaluation import downstream, settings
from coupled_adam_bench.evaluation.downstream import try_tasks
from coupled_adam_bench.store import paths
from coupled_adam_bench.store.files import read_json, write_sealed
from coupled_adam_bench.study.settings import parse_study

WORD = "baba"  # in the vocabulary of the generated language, whose tokenizer gives one token a word


def items(*lengths: tuple[int, int]) -> list[dict]:
    """One item for each length of context and of its two continuations."""
    return [
        {"context": " ".join([WORD] * context), "choices": [" ".join([WORD] * n), WORD], "label": 0}
        for context, n in lengths
    ]


def own_task(part: Planned, rows: list[dict], **changes) -> Planned:
    """The part with one task of the user, ``own``, of these items."""
    folder = Path("own")
    folder.mkdir(exist_ok=True)
    (folder / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = {
        "task": "own",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": "own/own.jsonl"}},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{context}}",
        "doc_to_choice": "choices",
        "doc_to_target": "label",
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
    }
    (folder / "own.yaml").write_text(yaml.safe_dump(task | changes))
    return chosen(part, {"tasks": ["own"]})


def chosen(part: Planned, evaluated: dict) -> Planned:
    values = part.study.model_dump(mode="json")
    values["paths"]["tasks"] = "own"
    values["evaluation"]["downstream"] = evaluated
    study = parse_study(values)
    return Planned(study, part.data_id)


def tried(part: Planned) -> dict:
    return try_tasks(part.plan())


def test_the_command_writes_how_many_items_the_tasks_have(part):
    write_sealed(Path("plan.json"), part.plan().to_json())
    assert main(["try-tasks", "--plan", "plan.json", "--out", "results/tiny/tasks.json"]) == 0
    assert read_json(Path("results/tiny/tasks.json")) == {
        "tiny": {"synthetic_grammar": 20, "synthetic_topic": 20}
    }


def test_only_the_items_that_are_scored_are_tried(part):
    own_task(part, items((3, 2), (39, 2), (3, 41)))  # 41 tokens fit, since the last one is no input
    assert tried(chosen(part, {"tasks": ["own"], "limit": 2})) == {"tiny": {"own": 2}}
    with pytest.raises(ValueError, match="item 2"):
        tried(chosen(part, {"tasks": ["own"]}))


LONG = (
    r"downstream task 'own', item 2 \(from 0\): its continuation has 43 tokens, training\.seq_len"
    r" is 40; raise "
    r"training\.seq_len to 43, or leave the task out of evaluation\.downstream\.tasks"
)


@pytest.mark.fault(
    "evaluation",
    "a downstream task has continuations longer than a sequence, which lm-eval meets with an empty"
    " AssertionError",
    "it is refused before training, with task, item, lengths and the settings to change; the"
    " evaluation says the same",
)
def test_continuations_that_do_not_fit(part):
    changed = own_task(part, items((3, 40), (4, 41), (5, 43)))
    with pytest.raises(ValueError, match=LONG):
        tried(changed)
    with (
        downstream.open_evaluator(changed.study, changed.data_id, "cpu") as evaluate,
        pytest.raises(ValueError, match=LONG),
    ):
        cell = next(iter(part.cells.values()))
        evaluate(cell, paths.run_dir(cell.id) / "model")


EMPTY = [
    ({"context": "  ", "choices": [WORD, WORD], "label": 0}, "its context has no tokens"),
    ({"context": WORD, "choices": [WORD, "  "], "label": 0}, "its continuation has no tokens"),
]


@pytest.mark.fault(
    "evaluation",
    "an item of a downstream task has nothing to read or nothing to score",
    "it is refused before training, with task and item",
)
@pytest.mark.parametrize(("row", "message"), EMPTY)
def test_items_without_tokens(part, row, message):
    changed = own_task(part, [*items((3, 2)), row])
    with pytest.raises(ValueError, match=rf"downstream task 'own', item 1 \(from 0\): {message}"):
        tried(changed)


def test_a_group_that_aggregates_nothing_is_told_what_to_write(part):
    own_task(part, items((3, 2), (3, 3)))
    file = Path("own/all.yaml")
    file.write_text("group: all\ntask: [own]\n")
    changed = chosen(part, {"tasks": ["all"]})
    with pytest.raises(
        ValueError, match="all: a group for which lm-eval reports nothing"
    ) as raised:
        tried(changed)
    line = re.search("write `(.*)` into its file", str(raised.value))
    file.write_text(f"{file.read_text()}{line[1]}\n")
    assert tried(changed) == {"tiny": {"own": 2}} or tried(changed) == {"tiny": {"all": 2}}


@pytest.mark.fault(
    "evaluation",
    "HF_HOME names a folder that cannot be made",
    "tasks of files of this machine, as the generated ones are, need none",
)
def test_generated_tasks_need_no_cache_of_the_hub(part, monkeypatch):
    nowhere = Path("/proc/nothing")
    for name in ("HF_DATASETS_CACHE", "HF_MODULES_CACHE", "DOWNLOADED_DATASETS_PATH"):
        monkeypatch.setattr(f"datasets.config.{name}", nowhere)
    assert tried(part) == {"tiny": {"synthetic_grammar": 20, "synthetic_topic": 20}}


@pytest.mark.fault(
    "evaluation",
    "a downstream task cannot be loaded, has no items or reports no accuracy",
    "it is refused before training, with the name of the task",
)
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"test_split": "nowhere"}, r"'own' cannot be (loaded|scored): .*nowhere"),
        (
            {"process_docs": "NOTHING"},
            r"'own' cannot be loaded: IndexError",
        ),
        (
            {"doc_to_text": "{{question}}"},
            r"'own' cannot be (loaded|scored): UndefinedError: 'question'",
        ),
        (
            {
                "metric_list": [
                    {"metric": "acc_norm", "aggregation": "mean", "higher_is_better": True}
                ]
            },
            (
                r"downstream\.tasks: own: lm-eval reports no acc, only acc_norm, acc_norm_stderr;"
                r" Acc is the mean of acc"
            ),
        ),
        (
            {"output_type": "generate_until", "doc_to_choice": None},
            r"'own', item 0 .*: asks for generated text",
        ),
        (
            {"output_type": "loglikelihood_rolling", "doc_to_choice": None},
            r"'own', item 0 .*: asks for whole texts",
        ),
    ],
)
def test_tasks_that_give_no_accuracy(part, changes, message):
    changed = own_task(part, items((3, 2), (3, 3)), **changes)
    if "process_docs" in changes:
        Path("own/code.py").write_text("def nothing(rows):\n    return rows.select([])\n")
        path = Path("own/own.yaml")
        path.write_text(
            path.read_text().replace(
                "process_docs: NOTHING", "process_docs: !function code.nothing"
            )
        )
    with pytest.raises(ValueError, match=message):
        tried(changed)


@pytest.mark.fault(
    "evaluation",
    "the right answer of an item is a text that lm-eval reads as a list",
    "it is refused before training, with the setting that keeps it a text",
)
def test_an_answer_that_looks_like_a_list(part):
    rows = [{"context": WORD, "answer": f" {WORD}"}, {"context": WORD, "answer": "[1, 2]"}]
    log_likelihood = {"output_type": "loglikelihood", "doc_to_choice": None}
    as_template = own_task(part, rows, **log_likelihood, doc_to_target="{{answer}}")
    message = r"'own', item 1 \(from 0\): lm-eval reads its right answer as \[1, 2\], .* column"
    with pytest.raises(ValueError, match=message):
        tried(as_template)
    by_name = own_task(part, rows, **log_likelihood, doc_to_target="answer")
    with pytest.raises(Exception, match="UNK"):  # a text, for which this tokenizer has no words
        tried(by_name)


def test_studies_with_the_same_tasks_are_tried_once(part, monkeypatch):
    tried_studies = []
    monkeypatch.setattr(
        downstream, "_try_study", lambda study, _: tried_studies.append(study.study) or {"t": 1}
    )
    monkeypatch.setattr(
        settings, "downstream", lambda study, _: {"limit": study.evaluation.downstream.limit}
    )
    studies = [
        chosen(part, {"tasks": "synthetic", "limit": limit}).study for limit in (None, None, 3)
    ]
    studies = {
        name: study.model_copy(update={"study": name})
        for name, study in zip("abc", studies, strict=True)
    }
    plan = SimpleNamespace(studies=studies, data_id=lambda _: part.data_id)
    assert try_tasks(plan) == {name: {"t": 1} for name in "abc"}
    assert tried_studies == ["a", "c"]
