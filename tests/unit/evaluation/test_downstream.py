import json
import math
import os
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
import yaml
from planned import Planned, study_and_data
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from coupled_adam_bench.evaluation import downstream, harness_model, settings
from coupled_adam_bench.models.export import load_model
from coupled_adam_bench.store import paths
from coupled_adam_bench.store.files import write_json
from coupled_adam_bench.study.catalogue.presets import PAPER_TASKS
from coupled_adam_bench.study.settings import parse_study

DATA_ID = "bytes-0123456789"
SEQ_LEN = 192

# Two or three rows of each dataset in its own shape, made up for this test.
HELLASWAG = [
    {
        "ind": i,
        "activity_label": "Cooking",
        "ctx_a": "A man peels a potato.",
        "ctx_b": "he",
        "ctx": "A man peels a potato. he",
        "endings": [
            "cuts it.",
            "flies [title] away from home.",
            "sings loudly.",
            "[step] reads two books.",
        ],
        "source_id": "x",
        "split": "val",
        "label": label,
    }
    for i, label in enumerate("3120")
]
WINOGRANDE = [
    {
        "sentence": "The cup fell off the table because _ was unstable.",
        "option1": "cup",
        "option2": "table",
        "answer": "2",
    },
    {
        "sentence": "Ann thanked Sue as _ had received help.",
        "option1": "Ann",
        "option2": "Sue",
        "answer": "1",
    },
    {
        "sentence": "Ann thanked Sue as _ had helped.",
        "option1": "Ann",
        "option2": "Sue",
        "answer": "2",
    },
]
ARC = [
    {
        "id": str(i),
        "question": question,
        "choices": {"text": texts, "label": list("ABCD")},
        "answerKey": key,
    }
    for i, (question, texts, key) in enumerate(
        [
            (
                "What is wet?",
                ["water", "a stone in the desert", "sand", "an empty and forgotten box"],
                "A",
            ),
            ("What can fly?", ["a stone", "a very small bird", "sand", "a table"], "B"),
            ("What is cold?", ["fire", "the sun", "ice", "tea"], "C"),
            ("What is hot?", ["ice", "snow", "rain", "fire in a big oven"], "D"),
            ("What is red?", ["blood", "the sky on a day without clouds", "grass", "snow"], "A"),
        ]
    )
]
TRUTHFULQA = [
    {
        "question": question,
        **{f"mc{n}_targets": {"choices": choices, "labels": labels} for n in (1, 2)},
    }
    for question, choices, labels in [
        ("Is the moon made of cheese?", ["No.", "It is rock.", "Yes, it is."], [1, 1, 0]),
        ("Do fish fly?", ["Some glide.", "They all do.", "On Sundays they do."], [1, 0, 0]),
    ]
]
LAMBADA = [
    {"text": "She opened the old door and saw the garden"},
    {"text": "He went to bed because he was tired"},
]
RACE = [
    {
        "article": "Tom has a dog. The dog likes bones.",
        "problems": str(
            [
                {
                    "question": "What does the dog like?",
                    "answer": "B",
                    "options": ["tea", "bones", "cats", "rain"],
                }
            ]
        ),
    },
    {
        "article": "It was a dark night.",
        "problems": str(
            [
                {
                    "question": "The night was  _  .",
                    "answer": "D",
                    "options": ["red", "long", "short", "dark"],
                }
            ]
        ),
    },
]
MIRROR = {
    "Rowan/hellaswag/default/validation": HELLASWAG,
    "allenai/winogrande/winogrande_xl/validation": WINOGRANDE,
    "allenai/ai2_arc/ARC-Easy/test": ARC,
    "allenai/ai2_arc/ARC-Easy/train": ARC[:2],
    "allenai/ai2_arc/ARC-Challenge/test": ARC[::-1],
    "truthfulqa/truthful_qa/multiple_choice/validation": TRUTHFULQA,
    "EleutherAI/lambada_openai/default/test": LAMBADA,
    "EleutherAI/race/high/test": RACE,
}


def byte_tokenizer(folder: Path) -> None:
    """A tokenizer of any text: one token per byte, and end-of-text."""
    symbols = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({symbol: index for index, symbol in enumerate(symbols)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|endoftext|>", special=True, normalized=False)])
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}
    write_json(
        folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **names}
    )


def make_part(names, evaluated: dict | None = None, **where) -> Planned:
    study = parse_study(
        {
            "study": "bytes",
            "paths": {"text": ".", "tokenizer": "tokenizer.json", **where},
            "data": {
                "name": "bytes",
                "source": {"kind": "files"},
                "tokenizer": "file",
                "vocab_size": 260,
            },
            "models": [
                {"name": "m", "n_layer": 1, "n_head": 2, "d_model": 8, "learning_rate": 1e-3}
            ],
            "training": {
                "seq_len": SEQ_LEN,
                "batch_sequences": 1,
                "warmup_steps": 0,
                "precision": "fp32",
            },
            "grid": [
                {
                    "models": ["m"],
                    "tokens": [{"steps": 1}],
                    "optimizers": ["adamw"],
                    "seeds": [1, 2],
                }
            ],
            "evaluation": {
                "word_similarity": [],
                "downstream": {"tasks": names} | (evaluated or {}),
            },
            "execution": {"evaluation_batch_sequences": 3},
        }
    )
    return Planned(study, DATA_ID)


@pytest.fixture
def mirror(tmp_path, monkeypatch, save_cell) -> str:
    """A mirror with all seven tasks, in a working directory with two untrained cells."""
    monkeypatch.chdir(tmp_path)
    for name, rows in MIRROR.items():
        path = Path("mirror") / f"{name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    byte_tokenizer(paths.data_dir(DATA_ID) / "tokenizer")
    part = make_part(["race"])
    for seed, cell in enumerate(part.cells.values()):
        save_cell(part, cell, seed, eot_id=256)
    return "mirror"


def evaluate(part: Planned, n_cells: int = 1) -> list[dict]:
    found = []
    with downstream.open_evaluator(part.study, part.data_id, "cpu") as evaluator:
        for cell in list(part.cells.values())[:n_cells]:
            evaluation = evaluator(cell, paths.run_dir(cell.id) / "model")
            rows = {(row["task"], row["metric"]): row["value"] for row in evaluation.results}
            assert len(rows) == len(evaluation.results)
            found.append({"rows": rows, "undefined": evaluation.undefined, **evaluation.detail})
    return found


class Scorer:
    """Log-probabilities by the definition, one text at a time."""

    def __init__(self, folder: Path) -> None:
        self.model = load_model(folder).double()
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def __call__(self, context: str, continuation: str) -> tuple[float, bool]:
        """Return the log-probability of the continuation and whether it is the likeliest at each
        token."""
        target = self.tokenizer.encode(continuation).ids
        tokens = (self.tokenizer.encode(context).ids + target)[-(SEQ_LEN + 1) :]
        with torch.no_grad():
            logits = self.model.logits(torch.tensor([tokens[:-1]]))[0, -len(target) :]
        log_p = torch.log_softmax(logits, dim=-1)
        total = sum(float(log_p[position, token]) for position, token in enumerate(target))
        return total, logits.argmax(dim=-1).tolist() == target


TELESCOPE = (  # the end of the prompt, more than fits into the context
    "How does a telescope work?\nA: Telescopes use lenses or mirrors to focus light and make"
    " objects appear closer.\n\nQ: Where were the 1992 Olympics held?\nA: The 1992 Olympics were"
    " held in Barcelona, Spain."
)


def items_by_hand() -> dict[str, list[tuple[list[tuple[str, str]], list[str], int]]]:
    """Task -> items: (context, continuation) of each choice, the choices themselves, and which is
    right."""
    hellaswag = [
        "cuts it.",
        "flies. away from home.",
        "sings loudly.",
        " reads two books.",
    ]
    arc = [
        (
            [
                (f"Question: {row['question']}\nAnswer:", f" {choice}")
                for choice in row["choices"]["text"]
            ],
            row["choices"]["text"],
            "ABCD".index(row["answerKey"]),
        )
        for row in ARC
    ]
    return {
        "hellaswag": [
            (
                [("Cooking: A man peels a potato. He", f" {ending}") for ending in hellaswag],
                hellaswag,
                int(row["label"]),
            )
            for row in HELLASWAG
        ],
        "winogrande": [
            (
                [
                    (row["sentence"].split("_")[0] + row[o], row["sentence"].split("_")[1])
                    for o in ("option1", "option2")
                ],
                ["", ""],
                int(row["answer"]) - 1,
            )
            for row in WINOGRANDE
        ],
        "arc_easy": arc,
        "arc_challenge": arc[::-1],
        "race": [
            (
                [(f"Article: {article}\n\n{question}", f" {option}") for option in options],
                options,
                right,
            )
            for article, question, options, right in [
                (
                    RACE[0]["article"],
                    "What does the dog like?",
                    ["tea", "bones", "cats", "rain"],
                    1,
                ),
                (RACE[1]["article"], "The night was  _  .", ["red", "long", "short", "dark"], 3),
            ]
        ],
    }


def expected_by_hand(score: Scorer) -> dict[str, list[float]]:
    """Accuracy of every item by task, and ``acc_norm`` of the tasks that have it."""
    expected: dict[str, list[float]] = {}
    for task, items in items_by_hand().items():
        log_p = [[score(*pair)[0] for pair in pairs] for pairs, _, _ in items]
        expected[task] = [
            float(np.argmax(x) == right) for x, (_, _, right) in zip(log_p, items, strict=True)
        ]
        if task.startswith(("hellaswag", "arc")):
            per_letter = [
                np.array(x) / [len(c) for c in choices]
                for x, (_, choices, _) in zip(log_p, items, strict=True)
            ]
            expected[f"{task}/norm"] = [
                float(np.argmax(x) == right)
                for x, (_, _, right) in zip(per_letter, items, strict=True)
            ]
    expected["truthfulqa_mc2"] = []
    for row in TRUTHFULQA:
        context = f"{TELESCOPE}\n\nQ: {row['question']}\nA:"
        p = [math.exp(score(context, f" {choice}")[0]) for choice in row["mc2_targets"]["choices"]]
        true = sum(x for x, label in zip(p, row["mc2_targets"]["labels"], strict=True) if label)
        expected["truthfulqa_mc2"].append(true / sum(p))
    splits = [row["text"].rsplit(" ", 1) for row in LAMBADA]
    expected["lambada_openai"] = [float(score(context, f" {word}")[1]) for context, word in splits]
    return expected


def test_the_seven_tasks_of_the_paper_by_hand(mirror):
    part = make_part(PAPER_TASKS, hub_mirror=mirror)
    first, second = evaluate(part, n_cells=2)
    stderrs = []
    for cell_id, found in zip(part.cells, (first, second), strict=True):
        expected = expected_by_hand(Scorer(paths.run_dir(cell_id) / "model"))
        rows = found["rows"]
        for task in PAPER_TASKS:
            assert rows[task, "acc"] == pytest.approx(np.mean(expected[task]), abs=1e-4), task
            stderr = np.std(expected[task], ddof=1) / math.sqrt(len(expected[task]))
            assert rows[task, "acc_stderr"] == pytest.approx(stderr, abs=1e-4), task
            if f"{task}/norm" in expected:
                assert rows[task, "acc_norm"] == np.mean(expected[f"{task}/norm"]), task
            stderrs.append(stderr)
        assert rows["average", "acc"] == pytest.approx(
            np.mean([rows[task, "acc"] for task in PAPER_TASKS]), rel=1e-12
        )
        assert rows["average", "acc_stderr"] == pytest.approx(
            math.sqrt(sum(s**2 for s in stderrs)) / 7, abs=1e-4
        )
        stderrs.clear()
        assert ("lambada_openai", "perplexity") in rows and (
            "lambada_openai",
            "perplexity_stderr",
        ) not in rows
        assert found["undefined"] == []
    assert first["tasks"]["arc_easy"] == {
        "version": 1.0,
        "num_fewshot": 0,
        "original": 5,
        "effective": 5,
    }
    assert first["rows"] != second["rows"]
    assert evaluate(part, n_cells=2) == [first, second]  # the same again, from tasks loaded anew


def test_every_document_has_the_scores_of_lm_eval(mirror):
    from lm_eval.models.huggingface import HFLM

    part = make_part(PAPER_TASKS, hub_mirror=mirror)
    folder = paths.run_dir(next(iter(part.cells))) / "model"
    hf = HFLM(
        pretrained=str(folder), dtype="float32", device="cpu", batch_size=3, max_length=SEQ_LEN
    )
    with downstream.load_tasks(part.study, part.data_id) as loaded:
        theirs = downstream.run_tasks(loaded, hf, limit=None).documents
        ours = downstream.run_tasks(
            loaded, harness_model.HarnessModel(folder, part.study), limit=None
        ).documents
    assert Counter(document.task for document in ours) == {
        "hellaswag": 4,
        "winogrande": 3,
        "arc_easy": 5,
        "arc_challenge": 5,
        "truthfulqa_mc2": 2,
        "lambada_openai": 2,
        "race": 2,
    }
    for one, other in zip(ours, theirs, strict=True):
        assert one.loglikelihoods == pytest.approx(other.loglikelihoods, rel=0, abs=1e-4)
        assert one.metrics == pytest.approx(other.metrics, rel=0, abs=1e-4)
        assert replace(one, loglikelihoods=[], metrics={}) == replace(
            other, loglikelihoods=[], metrics={}
        )


RACE_OF_THREE = {
    "article": "Ann likes tea.",
    "problems": str(
        [
            {
                "question": "Ann likes  _  .",
                "answer": "C",
                "options": ["milk", "rain", "tea", "snow"],
            },
            {"question": "Who likes tea?", "answer": "A", "options": ["Ann", "Bob", "Cid", "Dan"]},
            {
                "question": "What is tea?",
                "answer": "D",
                "options": ["a song", "a car", "a cat", "a drink"],
            },
        ]
    ),
}
UNSORTED = {
    "question": "Is tea hot?",
    **{
        f"mc{n}_targets": {"choices": ["Often.", "Never.", "Now and then."], "labels": [1, 0, 1]}
        for n in (1, 2)
    },
}


@pytest.mark.fault(
    "evaluation",
    "the installed lm-eval asks RACE and reads TruthfulQA otherwise than the authors' version did",
    "under the protocol official our task files ask and read as theirs, and the results say"
    " version 2.0",
)
def test_prompts_and_scores_of_the_authors_lm_eval(mirror):
    Path("mirror/EleutherAI/race/high/test.jsonl").write_text(json.dumps(RACE_OF_THREE) + "\n")
    Path("mirror/truthfulqa/truthful_qa/multiple_choice/validation.jsonl").write_text(
        json.dumps(UNSORTED) + "\n"
    )
    names = ["race", "truthfulqa_mc2", "arc_easy"]
    part = make_part(names, {"task_versions": "0.4.3"}, hub_mirror=mirror)
    (found,) = evaluate(part)
    assert {name: task["version"] for name, task in found["tasks"].items()} == {
        "race": 2.0,
        "truthfulqa_mc2": 2.0,
        "arc_easy": 1.0,
    }
    score = Scorer(paths.run_dir(next(iter(part.cells))) / "model")
    context = f"{TELESCOPE}\n\nQ: Is tea hot?\nA:"
    p = [math.exp(score(context, f" {choice}")[0]) for choice in UNSORTED["mc2_targets"]["choices"]]
    assert found["rows"]["truthfulqa_mc2", "acc"] == pytest.approx(p[0] / sum(p), abs=1e-4)
    prompt = (
        "Article: Ann likes tea.\n\n _  .tea\nQuestion: Who likes tea?\nAnswer: Ann\nWhat is tea?"
    )
    log_p = [score(prompt, f" {option}")[0] for option in ("a song", "a car", "a cat", "a drink")]
    assert found["rows"]["race", "acc"] == (np.argmax(log_p) == 3)

    (installed,) = evaluate(make_part(names, hub_mirror=mirror))
    assert installed["rows"]["truthfulqa_mc2", "acc"] == pytest.approx(
        (p[0] + p[2]) / sum(p), abs=1e-4
    )
    assert installed["tasks"]["race"]["version"] != 2.0


@pytest.mark.parametrize(
    ("precision", "device", "expected"),
    [
        ("fp32", "cuda:1", False),
        ("bf16", "cuda:1", True),
        ("bf16", "cpu", False),
        ("fp32", "cpu", False),
    ],
)
def test_precision_is_a_setting_and_bf16_is_for_gpus(precision, device, expected):
    study = make_part(["race"], {"precision": precision}).study
    assert harness_model.computes_in_bf16(study, device) == expected


def test_limit_and_examples(mirror):
    part = make_part(["arc_easy", "truthfulqa_mc2"], {"limit": 2}, hub_mirror=mirror)
    (limited,) = evaluate(part)
    assert {name: task["effective"] for name, task in limited["tasks"].items()} == {
        "arc_easy": 2,
        "truthfulqa_mc2": 2,
    }
    assert limited["tasks"]["arc_easy"]["original"] == 5

    part = make_part(["arc_easy", "truthfulqa_mc2"], {"num_fewshot": 1}, hub_mirror=mirror)
    (shots,) = evaluate(part)
    # TruthfulQA has its examples in the prompt and says so, which lm-eval does not overrule.
    assert {name: task["num_fewshot"] for name, task in shots["tasks"].items()} == {
        "arc_easy": 1,
        "truthfulqa_mc2": 0,
    }
    assert evaluate(part) == [shots]


def test_one_item_has_no_standard_error(mirror):
    (found,) = evaluate(make_part(["arc_easy"], {"limit": 1}, hub_mirror=mirror))
    assert found["rows"]["arc_easy", "acc"] in (0.0, 1.0)
    assert math.isnan(found["rows"]["arc_easy", "acc_stderr"])
    assert math.isnan(found["rows"]["average", "acc_stderr"])
    assert found["undefined"] == [
        f"arc_easy: lm-eval reports {metric}_stderr as 'N/A', as of one item"
        for metric in ("acc", "acc_norm")
    ]


OWN_TASK = {
    "dataset_path": "json",
    "dataset_kwargs": {"data_files": {"test": "mirror/allenai/ai2_arc/ARC-Easy/test.jsonl"}},
    "test_split": "test",
    "output_type": "multiple_choice",
    "doc_to_text": "{{question}}",
    "doc_to_choice": "{{choices.text}}",
    "doc_to_target": "{{choices.label.index(answerKey)}}",
}


def write_own_tasks(folder: Path) -> None:
    folder.mkdir()
    mean = {"aggregation": "mean", "higher_is_better": True}
    for name, metric in (("own_a", "acc"), ("own_b", "acc"), ("own_norm", "acc_norm")):
        task = {"task": name, **OWN_TASK, "metric_list": [{"metric": metric, **mean}]}
        if name == "own_b":
            task["doc_to_text"] = "Say: {{question}}"
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(task))
    group = {
        "group": "own",
        "task": ["own_a", "own_b"],
        "aggregate_metric_list": [{"metric": "acc"}],
    }
    (folder / "own.yaml").write_text(yaml.safe_dump(group))


def test_own_tasks_beside_mirrored_ones(mirror):
    write_own_tasks(Path("tasks"))
    (found,) = evaluate(
        make_part(["own_a", "arc_easy", "own_norm"], hub_mirror=mirror, tasks="tasks")
    )
    rows = found["rows"]
    assert 0 <= rows["own_a", "acc"] <= 1
    assert math.isnan(rows["own_norm", "acc"]) and 0 <= rows["own_norm", "acc_norm"] <= 1
    assert math.isnan(rows["average", "acc"]) and math.isnan(rows["average", "acc_stderr"])
    assert found["undefined"] == [
        "own_norm: lm-eval reports no acc, only acc_norm, acc_norm_stderr"
    ]


@pytest.mark.fault(
    "evaluation",
    "the data or the Python code of the user's own task are replaced by others of the same size and"
    " time of change",
    "the scores are those of what is there now, and never of what a library had kept of the files"
    " before",
)
@pytest.mark.parametrize("name", ["own_a", "own"])
def test_own_tasks_are_read_from_what_is_there_now(name, mirror, tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    write_own_tasks(Path("tasks"))
    rows = json.dumps(ARC[0]) + "\n" + json.dumps(ARC[1]) + "\n"
    data = Path("mirror/allenai/ai2_arc/ARC-Easy/test.jsonl")
    code = Path("tasks/code.py")
    own = yaml.safe_load(Path("tasks/own_a.yaml").read_text())
    Path("tasks/own_a.yaml").write_text(yaml.safe_dump(own) + "process_docs: !function code.rows\n")

    def items() -> list[str]:
        for path in (data, code):
            os.utime(path, (10**9, 10**9))
        with downstream.load_tasks(make_part([name], tasks="tasks").study, DATA_ID) as loaded:
            sys.modules.pop(str(code.resolve().with_suffix("")))  # each job is a process of its own
            return [row["question"] for row in loaded[name]["tasks"]["own_a"].test_docs()]

    data.write_text(rows)
    code.write_text("def rows(found):\n    return found.select([0])\n")
    assert items() == ["What is wet?"]
    data.write_text(rows.replace("wet", "dry"))
    assert items() == ["What is dry?"]
    code.write_text("def rows(found):\n    return found.select([1])\n")
    assert items() == ["What can fly?"]
    assert not (tmp_path / "cache").exists()


def test_a_task_s_own_number_of_examples(mirror):
    Path("tasks").mkdir()
    files = {
        "test": "mirror/allenai/ai2_arc/ARC-Easy/test.jsonl",
        "train": "mirror/allenai/ai2_arc/ARC-Easy/train.jsonl",
    }
    task = OWN_TASK | {
        "task": "own",
        "dataset_kwargs": {"data_files": files},
        "training_split": "train",
    }
    for name, own in (("none", {}), ("zero", {"num_fewshot": 0}), ("two", {"num_fewshot": 2})):
        Path(f"tasks/{name}.yaml").write_text(yaml.safe_dump(task | {"task": name, **own}))
    Path("tasks/all.yaml").write_text(yaml.safe_dump({"group": "all", "task": ["none", "two"]}))

    def shots(*names: str, **evaluated: int) -> tuple[dict[str, int], object]:
        study = make_part(list(names), evaluated, tasks="tasks").study
        with downstream.load_tasks(study, DATA_ID) as loaded:
            members = {name: task for one in loaded.values() for name, task in one["tasks"].items()}
        found = {name: member.get_config("num_fewshot") for name, member in members.items()}
        return found, settings.downstream(study, DATA_ID)["num_fewshot"]

    assert shots("none", "zero", "two") == ({"none": 0, "zero": 0, "two": 2}, {"two": 2})
    assert shots("none", "zero", "two", num_fewshot=1) == ({"none": 1, "zero": 0, "two": 1}, 1)
    assert shots("none", "two", num_fewshot=0) == ({"none": 0, "two": 0}, 0)
    assert shots("none", "zero")[1] == 0  # as before tasks had numbers of their own
    assert shots("all") == ({"none": 0, "two": 2}, {"all": "its own"})
    Path("tasks/two.yaml").write_text(yaml.safe_dump(task | {"task": "two", "num_fewshot": "two"}))
    with pytest.raises(ValueError, match=r"two\.yaml: num_fewshot: 'two' must be a whole number"):
        settings.check_evaluation(make_part(["two"], tasks="tasks").study)


def test_a_group_counts_as_one_task(mirror):
    write_own_tasks(Path("tasks"))
    (group,) = evaluate(make_part(["own", "own_norm"], tasks="tasks"))
    (members,) = evaluate(make_part(["own_a", "own_b"], tasks="tasks"))
    assert group["rows"]["own", "acc"] == members["rows"]["average", "acc"]  # members of equal size
    assert 0 < group["rows"]["own", "acc_stderr"] < 1
    assert ("own_a", "acc") not in group["rows"]


def test_task_rows_by_hand():
    results = {
        "a": {"name": "a", "alias": "a", "sample_len": 9, "acc,none": 0.5, "acc_stderr,none": 0.3},
        "b": {
            "acc,none": 0.25,
            "acc_stderr,none": 0.4,
            "f1,strict": np.float64(9.5),
            "f1_stderr,strict": 0.7,
        },
    }
    rows, reasons = downstream.task_rows(["a", "b"], results, {})
    assert {(row["task"], row["metric"]): row["value"] for row in rows} == {
        ("a", "acc"): 0.5,
        ("a", "acc_stderr"): 0.3,
        ("b", "acc"): 0.25,
        ("b", "acc_stderr"): 0.4,
        ("b", "f1@strict"): 9.5,
        ("average", "acc"): 0.375,
        ("average", "acc_stderr"): 0.25,
    }
    assert reasons == []


@pytest.mark.fault(
    "evaluation",
    "lm-eval reports an accuracy outside of 0 to 1, or a number that is NaN or infinite",
    "it is an error of that cell, which names task, metric and value",
)
@pytest.mark.parametrize(
    ("metric", "value", "message"),
    [
        ("acc", 7.0, r"'b': lm-eval reports acc@strict = 7.0, which is no number from 0 to 1"),
        ("acc_stderr", math.nan, r"acc_stderr@strict = nan, which is no number from 0 to 1"),
        ("acc_norm", np.float64(-0.1), r"acc_norm@strict = -0.1"),
        ("perplexity", math.inf, r"perplexity@strict = inf, which is no finite number"),
    ],
)
def test_impossible_numbers_are_refused(metric, value, message):
    good = {"acc,none": 0.5, "acc_stderr,none": 0.1}
    with pytest.raises(ValueError, match=message):
        downstream.task_rows(["a", "b"], {"a": good, "b": {**good, f"{metric},strict": value}}, {})


FAILING = """
def fails(item, results):
    assert item["id"] != "1"
    return {"acc": 1.0}
"""


@pytest.mark.fault(
    "evaluation",
    "an assertion without a message fails deep in a task's code while a cell is scored",
    "a sentence names task, cell and line; the traceback is in the log",
)
def test_an_exception_while_scoring_names_task_and_cell(mirror, capsys):
    write_own_tasks(Path("tasks"))
    Path("tasks/code.py").write_text(FAILING)
    text = Path("tasks/own_b.yaml").read_text()
    Path("tasks/own_b.yaml").write_text(text + "process_results: !function code.fails\n")
    part = make_part(["own_a", "own_b"], tasks="tasks")
    cell = next(iter(part.cells.values()))
    with (
        downstream.open_evaluator(part.study, part.data_id, "cpu") as evaluator,
        pytest.raises(ValueError) as error,
    ):
        evaluator(cell, paths.run_dir(cell.id) / "model")
    assert str(error.value) == (
        f"downstream task 'own_b' of cell {cell.id} cannot be scored: "
        """AssertionError: in code.py, line 3: assert item["id"] != "1\""""
    )
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.nightly  # lm-eval reads its 14,000 files
def test_a_member_of_lm_eval_s_is_found(mirror):
    write_own_tasks(Path("tasks"))
    Path("tasks/mixed.yaml").write_text(
        yaml.safe_dump({"group": "mixed", "task": ["own_a", "arc_easy"]})
    )
    study = make_part(["mixed"], tasks="tasks").study
    with (
        pytest.raises(ValueError, match=r"(?s)'mixed' cannot be loaded: .*allenai/ai2_arc"),
        downstream.load_tasks(study, DATA_ID),
    ):
        pass


def test_unreachable_hub_says_what_to_do(mirror):
    with (
        pytest.raises(
            ValueError, match=r"(?s)'arc_easy' cannot be loaded: .*set paths\.hub_mirror"
        ),
        downstream.open_evaluator(*study_and_data(make_part(["arc_easy"])), "cpu"),
    ):
        pass
