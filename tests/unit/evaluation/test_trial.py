"""Downstream tasks that cannot be scored are found before anything is trained."""

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from planned import Planned

from coupled_adam_bench.cli import main
from coupled_adam_bench.evaluation import downstream, settings
from coupled_adam_bench.evaluation.harness_model import Lengths, Request, RequestError, check_requests
from coupled_adam_bench.evaluation.trial import try_study_tasks, try_tasks
from coupled_adam_bench.store import paths
from coupled_adam_bench.store.files import digest, read_sealed, write_sealed
from coupled_adam_bench.study.config import parse_study

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
    return try_study_tasks(part.study, part.data_id)


def test_the_command_writes_what_the_tasks_are_made_of(part):
    write_sealed(Path("plan.json"), part.plan().to_json())
    downstream._quiet()
    import lm_eval.evaluator
    import lm_eval.models.huggingface  # noqa: F401 - not counted below

    start = time.process_time()
    assert main(["try-tasks", "--plan", "plan.json", "--out", "results/tiny/tasks.json"]) == 0
    assert time.process_time() - start < 5
    (found,) = read_sealed(Path("results/tiny/tasks.json"))["studies"]
    lengths = {"longest_context": 24, "longest_continuation": 8, "truncated_contexts": 0}
    assert found == {
        "study": "tiny",
        "data_id": part.data_id,
        "seq_len": 40,
        "settings_hash": digest(settings.downstream(part.study, part.data_id)),
        "tasks": {name: {"items": 20, "requests": 80, **lengths} for name in ("synthetic_grammar", "synthetic_topic")},
    }


def test_only_the_items_that_are_scored_are_tried(part):
    limited = chosen(part, {"tasks": "synthetic", "limit": 3})
    assert {task["items"] for task in tried(limited).values()} == {3}
    longer = own_task(part, items((3, 2), (3, 41)))
    with pytest.raises(ValueError, match="item 1"):
        tried(longer)
    assert tried(chosen(part, {"tasks": ["own"], "limit": 1}))["own"]["longest_continuation"] == 2


def test_lengths_by_hand(part):
    found = tried(own_task(part, items((3, 2), (40, 1), (39, 2), (41, 1), (30, 40))))
    # The last token is no input, so 41 tokens fit: 40 + 1 and 39 + 2 do, 41 + 1 does not, nor 30 + 40.
    assert found == {
        "own": {"items": 5, "requests": 10, "longest_context": 41, "longest_continuation": 40, "truncated_contexts": 3}
    }


LONG = (
    r"downstream task 'own', item 2 \(from 0\): its continuation has 43 tokens \(its context 5\), the longest of "
    r"2 item\(s\) whose continuations have more than training\.seq_len 40; raise training\.seq_len to 43, or leave the "
    r"task out of evaluation\.downstream\.tasks"
)


@pytest.mark.fault(
    "evaluation",
    "a downstream task has continuations longer than a sequence, which lm-eval meets with an empty AssertionError",
    "it is refused before training, with task, item, lengths and the settings to change; the evaluation says the same",
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
    ({"context": "", "choices": ["", WORD], "label": 0}, "its continuation has no tokens"),
    ({"context": WORD, "choices": ["unheard-of", WORD], "label": 0}, "the study's tokenizer cannot read it: .*UNK"),
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
            r"'own' cannot be loaded: .*; has the split that is evaluated no items\?$",
        ),
        (
            {"doc_to_text": "{{question}}"},
            r"'own' cannot be (loaded|scored): UndefinedError: 'question'",
        ),
        (
            {"metric_list": [{"metric": "acc_norm", "aggregation": "mean", "higher_is_better": True}]},
            r"downstream\.tasks: own: lm-eval reports no acc, only acc_norm, acc_norm_stderr; Acc is the mean of acc",
        ),
        ({"output_type": "generate_until", "doc_to_choice": None}, r"'own': asks for up to 256 generated tokens"),
    ],
)
def test_tasks_that_give_no_accuracy(part, changes, message):
    changed = own_task(part, items((3, 2), (3, 3)), **changes)
    if "process_docs" in changes:
        Path("own/code.py").write_text("def nothing(rows):\n    return rows.select([])\n")
        path = Path("own/own.yaml")
        path.write_text(path.read_text().replace("process_docs: NOTHING", "process_docs: !function code.nothing"))
    with pytest.raises(ValueError, match=message):
        tried(changed)


def test_studies_with_the_same_tasks_have_one_hash(part, monkeypatch):
    from coupled_adam_bench.evaluation import trial

    calls = []
    monkeypatch.setattr(trial, "try_study_tasks", lambda study, data_id: calls.append(study.study) or {"t": 1})
    other = replace(part, study=part.study.model_copy(update={"study": "other"}))
    third = chosen(part, {"tasks": "synthetic", "limit": 3})
    third = replace(third, study=third.study.model_copy(update={"study": "third"}))
    found = [one for study in (part, other, third) for one in try_tasks(study.plan())["studies"]]
    assert [one["study"] for one in found] == ["tiny", "other", "third"]
    assert found[0]["settings_hash"] == found[1]["settings_hash"] != found[2]["settings_hash"]


def test_data_must_be_prepared(part):
    absent = Planned(part.study, "d-9876543210")
    with pytest.raises(ValueError, match="d-9876543210"):
        tried(absent)


def test_requests_are_checked_by_hand():
    check_requests([Request("a", 0, 9, 1), Request("a", 1, 1, 8)], 8)
    with pytest.raises(RequestError, match=r"'a', item 1 .* its context and its continuation has no tokens"):
        check_requests([Request("a", 0, 9, 1), Request("a", 1, 0, 0)], 8)
    with pytest.raises(RequestError, match=r"'b', item 0 .* 10 tokens .* the longest of 2 item"):
        check_requests([Request("a", 0, 9, 9), Request("b", 0, 9, 10), Request("b", 0, 9, 9)], 8)
    lengths = Lengths()
    for pair in ((8, 1), (8, 2)):
        lengths.add(*pair, 8)
    assert lengths == Lengths(2, 8, 2, 1)
