"""Tasks against lm-eval's own model of transformers, and what is shown or refused before training."""

import csv
import json
import random
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import yaml
from lm_eval.evaluator import simple_evaluate
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from tiny import tiny_study
from tokenizers import Tokenizer, models, pre_tokenizers

from coupled_adam_bench.data.bins import TOKENIZER
from coupled_adam_bench.data.tokenizers import EOT, load_tokenizer, save_tokenizer
from coupled_adam_bench.evaluation.downstream import (
    Encoder,
    accuracies,
    check_items,
    load_tasks,
    prompts_of,
    try_tasks,
)
from coupled_adam_bench.evaluation.identity import OLDER_TASKS
from coupled_adam_bench.evaluation.scoring import Scorer
from coupled_adam_bench.geometry.words import try_lists
from coupled_adam_bench.models.build import build_model
from coupled_adam_bench.models.export import load_model, save_model
from coupled_adam_bench.store.runs import data_dir
from coupled_adam_bench.study.model import Model as ModelSettings
from coupled_adam_bench.study.plan import read_plan
from coupled_adam_bench.study.study import parse_study

WINDOW = 32
WORDS = [f"w{number}" for number in range(61)]


def text(rng: random.Random, low: int, high: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(low, high)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a tokenizer of words, in the form of transformers."""
    folder = tmp_path_factory.mktemp("model")
    tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate([*WORDS, EOT])}))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens([EOT])
    save_tokenizer(tokenizer, EOT, folder / "tokenizer")
    settings = ModelSettings(name="small", n_layer=2, n_head=2, d_model=16, learning_rate=0.1)
    model = build_model(settings, 64, WINDOW)
    model.init_weights(0, 0.6)
    save_model(model, model.state_dict(), folder / "model", folder / "tokenizer", len(WORDS))
    return folder


def ours(folder: Path, tasks: dict[str, Any], limit: int | None = None) -> dict[Any, Any]:
    encoder = Encoder(*load_tokenizer(folder / "tokenizer"))
    asked = {name: prompts_of(task, encoder, WINDOW, limit) for name, task in tasks.items()}
    rows = accuracies(asked, Scorer(load_model(folder / "model"), 5 * WINDOW))
    return {(row["task"], row["metric"]): row["value"] for row in rows}


TASK = {
    "task": "own",
    "dataset_path": "json",
    "dataset_kwargs": {"data_files": {"test": "own.jsonl", "shots": "shots.jsonl"}},
    "test_split": "test",
    "output_type": "multiple_choice",
    "doc_to_text": "{{q}}",
    "doc_to_choice": "{{c}}",
    "doc_to_target": "a",
    "metric_list": [{"metric": name} | {"aggregation": "mean", "higher_is_better": True} for name in ("acc", "acc_norm")],
}  # fmt: skip


def write_task(folder: Path, rows: list[dict[str, Any]] | None = None, **changes: Any) -> None:
    """Write a task with its items, whose contexts may be longer than the window."""
    rng = random.Random(2)
    if rows is None:
        choices = [[text(rng, 1, 6) for _ in range(rng.randint(2, 5))] for _ in range(30)]
        rows = [{"q": text(rng, 1, 40), "c": own, "a": rng.randrange(len(own))} for own in choices]
    folder.mkdir(exist_ok=True)
    for name, some in (("own", rows), ("shots", rows[-5:])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in some))
    (folder / "own.yaml").write_text(yaml.safe_dump(TASK | changes))


def write_second_task(folder: Path) -> None:
    """Write a task in CSV whose answers are texts, with an empty context among its items."""
    rng = random.Random(3)
    with (folder / "second.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["question", "yes", "no", "right"])
        for number in range(30):
            pair = [f"{text(rng, 1, 4)} w{end}" for end in (1, 2)]
            rows.writerow([text(rng, 3, 9) if number else "", *pair, rng.choice(pair)])
    second = TASK | {
        "task": "second",
        "dataset_path": "csv",
        "dataset_kwargs": {"data_files": {"test": "second.csv"}},
        "doc_to_text": "{{question if question else ''}}",
        "doc_to_choice": "{{[yes, no]}}",
        "doc_to_target": "{{right}}",
    }
    (folder / "second.yaml").write_text(yaml.safe_dump(second))


@pytest.mark.filterwarnings("ignore")  # of lm-eval and transformers, which run here as they are
@pytest.mark.parametrize("num_fewshot", [None, 2])
def test_accuracies_are_lm_evals_own(folder: Path, tmp_path: Path, num_fewshot: int | None) -> None:
    write_task(tmp_path, fewshot_split="shots")
    write_second_task(tmp_path)
    names = ["own", "second"] if num_fewshot is None else ["own"]
    tasks = load_tasks(names, [tmp_path], None, num_fewshot)
    found = ours(folder, tasks)
    assert ours(folder, tasks) == found  # the next job has the same examples
    # lm-eval itself takes paths from the folder of the process, so it is given whole ones.
    for file in tmp_path.glob("*.yaml"):
        task = yaml.safe_load(file.read_text())
        task["dataset_kwargs"]["data_dir"] = str(tmp_path)
        file.write_text(yaml.safe_dump(task))
    theirs = simple_evaluate(
        HFLM(pretrained=str(folder / "model"), dtype="float32", max_length=WINDOW, device="cpu"),
        tasks=names,
        num_fewshot=num_fewshot,
        task_manager=TaskManager(include_path=str(tmp_path), include_defaults=False),
        bootstrap_iters=2,
    )["results"]
    for name in names:
        for metric in ("acc", "acc_norm"):
            assert found[name, metric] == theirs[name][f"{metric},none"]
        assert found[name, "n_items"] == 30
        assert (name, "n_items_of") not in found
    mean = np.mean([theirs[name]["acc,none"] for name in names])
    assert found["average", "acc"] == pytest.approx(mean, rel=1e-12)


def test_cut_prompts_and_items_that_a_limit_leaves_are_counted(
    folder: Path, tmp_path: Path
) -> None:
    write_task(tmp_path)
    found = ours(folder, load_tasks(["own"], [tmp_path], None), limit=20)
    rows = [json.loads(line) for line in (tmp_path / "own.jsonl").read_text().splitlines()][:20]
    # A window of T inputs has T + 1 tokens with the last target.
    lengths = [len(f"{row['q']} {choice}".split()) for row in rows for choice in row["c"]]
    assert found["own", "n_cut"] == sum(length > WINDOW + 1 for length in lengths) > 0
    assert found["own", "n_prompts"] == len(lengths)
    assert (found["own", "n_items"], found["own", "n_items_of"]) == (20, 30)


def test_a_mirror_stands_in_for_the_hub_and_nothing_is_cached(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, temporary = tmp_path / "cache", tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", cache)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    write_task(tmp_path / "files")
    mirrored = tmp_path / "mirror/org/set/default"
    mirrored.mkdir(parents=True)
    (tmp_path / "files/own.jsonl").rename(mirrored / "validation.jsonl")
    of_hub = {"dataset_path": "org/set", "test_split": None, "validation_split": "validation"}
    write_task(tmp_path / "hub", **of_hub, training_split="train", dataset_kwargs=None)
    (tmp_path / "hub/own.jsonl").unlink()
    write_task(tmp_path / "files")
    for name in ("hub", "files"):  # a function that changes the items keeps no copy, either
        with (tmp_path / name / "own.yaml").open("a") as file:
            file.write("process_docs: !function own.turned\n")
        code = "def turned(items):\n    return items.map(lambda item: {'q': item['q'] + ' w1'})\n"
        (tmp_path / name / "own.py").write_text(code)
    tasks = load_tasks(["own"], [tmp_path / "hub"], str(tmp_path / "mirror"))
    assert ours(folder, tasks) == ours(folder, load_tasks(["own"], [tmp_path / "files"], None))
    assert not cache.exists()
    assert not list(temporary.rglob("*.arrow"))


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ({"a": 2}, "none of the choices"),
        ({"a": -1}, "none of the choices"),  # as where the answers of a split are hidden
        ({"a": "w9"}, "none of the choices"),
        ({"c": ["w3", "w3"]}, "equal"),
        ({"a": 1}, None),
        ({"a": "w4"}, None),
    ],
)
def test_items_that_no_model_can_answer_are_refused(
    tmp_path: Path, row: dict[str, Any], named: str | None
) -> None:
    good = {"q": "w1", "c": ["w3", "w4"], "a": 0}
    mixed = isinstance(row.get("a"), str)
    rows = [good | {"a": "w3"}] * 3 if mixed else [good] * 3
    write_task(tmp_path, [*rows, good | row])
    (task,) = load_tasks(["own"], [tmp_path], None).values()
    items = list(task.eval_docs)
    check_items("own", task, items[:3])
    if named is None:
        check_items("own", task, items)
        return
    with pytest.raises(ValueError, match=f"own, item 3: .*{named}"):
        check_items("own", task, items)


@pytest.mark.parametrize(
    "changes",
    [
        {"metric_list": [{"metric": "acc_norm"}]},
        {"output_type": "generate_until", "metric_list": [{"metric": "exact_match"}]},
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_tasks_without_an_accuracy_are_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    write_task(tmp_path, **changes)
    with pytest.raises(ValueError, match=r"tasks: own: .*acc"):
        load_tasks(["own"], [tmp_path], None)


def test_an_answer_longer_than_the_window_is_refused(folder: Path, tmp_path: Path) -> None:
    write_task(tmp_path, [{"q": "w1", "c": [" ".join(["w2"] * (WINDOW + 1)), "w3"], "a": 0}])
    with pytest.raises(ValueError, match=r"own, item 0: .*33 tokens"):
        ours(folder, load_tasks(["own"], [tmp_path], None))


RACE = {
    "article": "A fox.",
    "problems": str([
        {"question": "The fox is  _  .", "answer": "B", "options": ["a", "red", "c", "d"]},
        {"question": "Who?", "answer": "D", "options": ["a", "b", "c", "the fox"]},
        {"question": "It is  _", "answer": "A", "options": ["x", "y", "z", "w", "v"]},
    ]),
}  # fmt: skip
TRUTHFUL = {
    "question": "Why?",
    "mc2_targets": {"choices": ["a", "b", "c"], "labels": [1, 0, 1]},
}


def test_the_prompts_and_scores_of_0_4_3(tmp_path: Path) -> None:
    for place, row in (
        ("EleutherAI/race/high/test", RACE),
        ("truthfulqa/truthful_qa/multiple_choice/validation", TRUTHFUL),
    ):
        file = tmp_path / f"{place}.jsonl"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps(row) + "\n")
    found = load_tasks(["race", "truthfulqa_mc2"], [OLDER_TASKS], str(tmp_path))
    race, truthful = found["race"], found["truthfulqa_mc2"]
    write_task(tmp_path / "own", task="race")
    (own,) = load_tasks(["race"], [OLDER_TASKS, tmp_path / "own"], str(tmp_path)).values()
    assert own.config.doc_to_text == "{{q}}"  # the user's own goes before
    asked = "Article: A fox.\n\n _  .red\nQuestion: Who?\nAnswer: the fox\nIt is  _"
    assert race.doc_to_text(RACE) == asked
    assert race.doc_to_choice(RACE) == ["x", "y", "z", "w"]
    assert race.doc_to_target(RACE) == 0
    # Only the true answers before the first false one count.
    log_p = np.array([-1.0, -2.0, -3.0])
    score = truthful.process_results(TRUTHFUL, [(value, False) for value in log_p])
    assert score["acc"] == pytest.approx(np.exp(-1) / np.exp(log_p).sum())
    assert truthful.doc_to_text(TRUTHFUL).endswith("Barcelona, Spain.\n\nQ: Why?\nA:")


def test_the_trial_shows_the_first_item(finished: Path) -> None:
    found = try_tasks(read_plan(finished / "results/tiny/plan.json"))
    assert [each["task"] for each in found] == ["synthetic_grammar", "synthetic_topic"]
    for each in found:
        (file,) = finished.glob(f"results/data/*/tasks/{each['task']}.jsonl")
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        assert each["text"] == rows[0]["context"]
        assert each["choices"] == rows[0]["choices"]
        assert each["answer"] == rows[0]["label"]
        assert each["n_items"] == len(rows)
        assert each["n_prompts"] == sum(len(row["choices"]) for row in rows)
        assert each["share_cut"] == 0
    json.dumps(found)


def test_the_trial_reads_ones_own_tasks_and_lists(finished: Path, tmp_path: Path) -> None:
    plan = read_plan(finished / "results/tiny/plan.json")
    tokenizer, _ = load_tokenizer(data_dir(plan.data_id) / TOKENIZER)
    one, two, three = [tokenizer.id_to_token(token) for token in (3, 4, 5)]
    item = {"q": f"{one} {two}", "c": [three, one], "a": 1}
    write_task(tmp_path, [item, item | {"q": " ".join([two] * 40)}, item])
    (tmp_path / "own.csv").write_text(f"first;second;rating\n{one};{two};1\n{one};absent;2\n")
    settings = {
        "word_similarity": [{"name": "own", "file": "own.csv", "separator": ";"}],
        "downstream": {"tasks": ["own"], "limit": 2},
    }
    paths = {"tasks": str(tmp_path), "word_similarity": str(tmp_path)}
    study = parse_study(tiny_study(evaluation=settings, paths=paths))
    own = replace(plan, study=study)
    shown = {"text": item["q"], "choices": item["c"], "answer": 1}
    counts = {"n_items": 2, "n_items_of": 3, "n_prompts": 4, "share_cut": 0.5}
    assert try_tasks(own) == [{"task": "own", **shown, **counts}]
    (read,) = try_lists(own)
    assert "few" in read.pop("warning")  # one pair has no correlation
    assert read == {"list": "own", "first": (one, two, 1.0), "pairs": 2, "kept": 1}
