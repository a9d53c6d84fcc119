"""Studies drawn at random: each is refused with the name of its field, or runs through to its
tables.

All draws share one working folder, as studies of one user do.
"""

import itertools
import json
import random
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from finished import draws

from coupled_adam_bench.cli import main
from coupled_adam_bench.evaluation.settings import check_evaluation
from coupled_adam_bench.machine.device import check_threads
from coupled_adam_bench.results.groups import layout_of
from coupled_adam_bench.store import paths
from coupled_adam_bench.store.files import write_sealed
from coupled_adam_bench.study.plan import Plan, make_plan
from coupled_adam_bench.study.settings import parse_study
from coupled_adam_bench.training.checks import check_optimizers

TEMPLATES = str(Path(__file__).parents[2] / "templates")

HOSTILE = (
    None,
    "",
    "x",
    [],
    {},
    -1,
    0,
    10**30,
    1e300,
    float("nan"),
    float("inf"),
    True,
    "1e-8",
    [1],
    {"a": 1},
)

# By place of a setting: values that may be right, alone or with others. To each the hostile ones
# are added.
SETTINGS: dict[str, tuple[Any, ...]] = {
    "protocol": ("official", "paper", "corrected"),
    "title": ("", "A <b> & 100 %", r"$\frac{$", "\u00fc\u4e2d"),
    "data.name": ("tiny", "another", "a_b"),
    "data.vocab_size": (61, 64, 128, 60),
    "data.source.n_words": (50, 60, 63, 64, 1000),
    "data.source.n_classes": (2, 4, 50, 60, 61),
    "data.source.n_topics": (2, 4, 50, 60, 61),
    "data.source.n_tokens": (200, 2000, "40K", "0.1M"),
    "data.source.n_word_pairs": (20, 40, 1500, 10**6),
    "data.split.val_fraction": (0.02, 0.3, 1e-6, 0.4999),
    "models.0.name": ("nano", "other", "a b"),
    "models.0.label": (None, "1M", "$x_y$", r"$\frac{$", r"\end{tabular}", "<script>", "l" * 300),
    "models.0.architecture": ("gpt2", "stablelm", "bert", {"path": "no.such.thing"}),
    "models.0.n_head": (1, 2, 3, 8),
    "models.0.d_model": (4, 8, 12),
    "models.0.ffn_dim": (None, 1, 16),
    "models.0.qk_norm": (False, "shared"),
    "models.0.rope_fraction": (0.5, 1.0),
    "models.0.tied": (True, False),
    "models.0.learning_rate": (1e-9, 0.01, 1.0, 1e6, 1e30),
    "training.init": (
        "normal",
        {"path": "research.plugins.xavier.XavierLinear"},
        {"path": "research.plugins.modded_nanogpt.ZeroProjections"},
        {"path": "no.such.thing"},
    ),
    "training.seq_len": (2, 8, 16, 24, 500),
    "training.batch_sequences": (1, 4, 6),
    "training.core_optimizer": ("adamw", "muon", {"path": "torch.optim.Muon"}),
    "training.beta2": (0.0, 0.95, 0.9999),
    "training.embedding_weight_decay": (0.0, 0.1),
    "training.schedule": ("cosine", "linear", "constant", "wsd"),
    "training.warmup_steps": (0, 5, 19, 20, 1000),
    "training.warmup_fraction": (None, 0.01, 0.5, 0.99),
    "training.warmup_from": ("zero", "first_step"),
    "training.min_learning_rate": (None, 0.0, 1e-5),
    "training.decay_fraction": (0.01, 0.2, 1.0),
    "training.data_order": (
        "with_replacement",
        "shuffled",
        "per_rank",
        {"path": "research.plugins.modded_nanogpt.Sequential"},
    ),
    "training.data_ranks": (1, 2, 4, 5),
    "training.precision": ("fp32", "bf16"),
    "grid.0.table": ("table1", "table2", "table7", None),
    "grid.0.tokens": (
        ["1K"],
        [{"steps": 6, "label": r"$\frac{$"}],
        [{"steps": 20}],
        [{"steps": 6}, {"steps": 12, "label": "a"}],
        [2],
        [{"steps": 1}],
    ),
    "grid.0.optimizers": (
        ["adamw", "coupled_adam"],
        ["adamw", {"name": "coupled_adam", "scale_exponent": 5}],
        ["adamw", {"name": "coupled_adam", "scale_exponent": -1024}],
        [
            "adamw",
            {"name": "sgd", "lr_factor": 100},
            {"name": "sgd", "lr_factor": 100, "momentum": 0.5},
        ],
        [{"name": "adamw", "weight_decay": 0.1}, "adamw"],
        [
            "adamw",
            {"name": "custom", "path": "torch.optim.Adagrad", "key": "adagrad", "label": "Adagrad"},
        ],
        ["adamw", {"name": "custom", "path": "no.such.thing", "key": "a", "label": "b"}],
        ["adamw", {"name": "custom", "path": "torch.optim.Adagrad", "key": "a", "label": "Adam"}],
        ["ember", {"name": "adamw", "amsgrad": True, "beta2": 0.999, "mu_centering": True}],
        ["adamw", {"name": "coupled_adam", "mu_loss": 0.1, "z_loss": 1e-4, "soft_cap": 30}],
        ["adamw"],
        ["adamw", "adamw"],
    ),
    "grid.0.seeds": ([1, 2], [1], [0, 2**63], [3, 3], [2**64]),
    "grid.0.models": (["nano"], ["nano", "nano"], ["nobody"]),
    "statistics.target_loss": (None, 1.0),
    "statistics.files": (
        [],
        [{"name": "target", "path": "research.plugins.target.Target", "arguments": {"loss": 1}}],
        [{"name": "target", "path": "research"}],
    ),
    "statistics.margins": ({}, {"loss": 0.01}, {"isotropy": 1e300}, {"loss": -1}, {"nothing": 1}),
    "evaluation.test_loss.split": ("val", "test", "train"),
    "evaluation.test_loss.windows": ("all", "random"),
    "evaluation.test_loss.batch_sequences": (1, 12),
    "evaluation.test_loss.batch_sequences_of": ({}, {"nano": 3}, {"nobody": 3}),
    "evaluation.isotropy": ("both_signs", "eig_float32"),
    "evaluation.leading_space": (True, False),
    "tables": (
        {},
        {"table1": {"title": "First", "columns": ["loss"]}},
        {"mine": {"title": "Mine", "comparison": "each_other", "columns": ["loss"]}},
    ),
    "evaluation.metrics": (
        [],
        [{"name": "own", "path": "numpy.median", "symbol": "m", "higher_is_better": True}],
        [{"name": "isotropy", "path": "numpy.median", "symbol": "m", "higher_is_better": True}],
    ),
    "evaluation.word_similarity": ("synthetic", []),
    "evaluation.downstream.limit": (None, 1, 5, 10**6),
    "evaluation.downstream.num_fewshot": (0, 1),
    "evaluation.downstream.task_versions": ("installed", "0.4.3"),
    "execution.train_threads": (1, 2, 10**6),
    "execution.micro_batch_sequences": (None, 1, 3, 100, "auto"),
    "execution.eval_every": (None, 1, 7, 0),
    "execution.geometry_per_decade": (0, 4, 1000, -1),
    "execution.deterministic": (True, False),
    "execution.train_processes": (1, 2, 3),
    "execution.parallel": ("ddp", "fsdp"),
    "execution.gpus": (0, 3),
    "execution.train_cells_per_job": (1, 3),
    "paths.hub_mirror": (None, "nowhere"),
}
# Of studies on the text, with the tokenizer, the word list and the task of :func:`workspace`.
OWN = {
    "data.source": (
        {"kind": "files"},
        {"kind": "files", "txt_document": "line"},
        {"kind": "hub"},
        {"kind": "synthetic"},
    ),
    "data.source.text_field": ("text", "title", "number", "missing"),
    "data.source.txt_document": ("file", "line", "paragraph", "end_of_text"),
    "data.tokenizer": ("file", "word", "gpt2", "bpe"),
    "data.vocab_size": (400, 300, 10, 50_304),
    "data.max_tokens": (None, 10**6, 1000, 1),
    "paths.text": (
        "text",
        ["text/*.jsonl"],
        ["text", "text/../text"],
        "nowhere",
        [],
        ["text", "text/b.txt"],
    ),
    "paths.tokenizer": ("tokenizer.json", "text", None, "nowhere"),
    "paths.word_similarity": ("sets", "nowhere", "text"),
    "paths.tasks": ("tasks", None, "nowhere", "text"),
    "evaluation.word_similarity": (
        [],
        [{"name": "w", "file": "w.txt"}],
        [{"name": "w", "file": "w.txt", "columns": [1, 0, 2]}],
        [{"name": "w", "file": "w.txt", "columns": [0, 2, 1]}],
        [{"name": "w", "file": "w.txt"}, {"name": "w", "file": "w.txt"}],
        [{"name": "w", "file": "../text/b.txt", "strip_pos": True}],
        "synthetic",
    ),
    "evaluation.downstream.tasks": (
        ["own"],
        ["own", "own"],
        ["nobody"],
        [],
        "synthetic",
        ["arc_easy"],
    ),
}


def change(settings: dict[str, Any], place: str, value: Any) -> None:
    *sections, name = place.split(".")
    section: Any = settings
    for key in sections:
        section = section[int(key)] if isinstance(section, list) else section.setdefault(key, {})
        if not isinstance(section, dict | list):
            return  # another change has made a hostile value of it
    section[name] = value


def drawn(
    rng: random.Random, bases: tuple[dict[str, Any], dict[str, Any]]
) -> tuple[dict[str, Any], list[str]]:
    """Return settings with one to five changes, and the places of these."""
    generated, own = bases
    is_own = rng.random() < 0.25
    settings = deepcopy(own if is_own else generated)
    settings["study"] = f"drawn{rng.randrange(10**9)}"
    of_both = {
        place: values for place, values in SETTINGS.items() if not place.startswith("data.source")
    }
    domain = of_both | OWN if is_own else SETTINGS
    places = rng.sample(sorted(domain), rng.randint(1, 5))
    for place in sorted(places):
        values = HOSTILE if rng.random() < 0.08 else domain[place]
        change(settings, place, deepcopy(rng.choice(values)))
    return settings, places


def check(settings: dict[str, Any]) -> Plan:
    """Return the plan; ``ValueError`` as the workflow says it before its first job."""
    plan = make_plan(parse_study(settings))
    layout_of(plan)
    for study in plan.studies.values():
        check_evaluation(study)
        check_optimizers(study)
        check_threads("execution.train_threads", study.execution.training_threads)
        check_threads("execution.evaluation_threads", study.execution.evaluation_threads)
    return plan


WHOLE = ["--svg-only"]
"""What a report is told that shall be whole, but for files that it does not show."""


def run_through(settings: dict[str, Any], everything: bool, said: Callable[[], str]) -> str | None:
    """Call what the rules call; return None if that ends with the tables, else the sentence that
    refused the study.

    ``everything``: the figures, the manifest and the report too.
    """
    try:
        plan = check(settings)
    except ValueError as error:
        return str(error)
    folder = paths.study_dir(plan.name)
    given = ["--plan", str(folder / "plan.json")]
    write_sealed(folder / "plan.json", plan.to_json())
    before = [["try-code"], ["prepare"]]
    study = next(iter(plan.studies.values()))
    if study.evaluation.downstream.tasks != "synthetic":
        before.append(["try-tasks", "--out", str(folder / "training" / "tasks.json")])
    for stage, *options in before:
        said()
        if main([stage, *given, *options]) != 0:
            return said()
    cells = ["--cells", *plan.cells]
    commands = [["train", *cells, "--device", "cpu"]]
    for stage in study.stages:
        done = str(folder / "evaluation" / f"{stage.name}.done")
        commands.append([stage.name.replace("_", "-"), *cells, "--done", done, "--device", "cpu"])
    commands.append(
        ["report", "--templates", TEMPLATES, *(WHOLE if everything else ["--only", "tables"])]
    )
    for stage, *options in commands:
        said()
        assert main([stage, *given, *options]) == 0, f"{stage}:\n{said()[-3000:]}"
    return None


@pytest.fixture(scope="module")
def bases(tiny_study) -> tuple[dict[str, Any], dict[str, Any]]:
    """The studies that are changed, of a generated language and of one's own text: a cell trains in
    a blink."""
    generated: dict[str, Any] = tiny_study()
    generated["grid"][0] |= {"tokens": [{"steps": 6}], "seeds": [1, 2]}
    generated["training"]["warmup_steps"] = 2
    own = deepcopy(generated)
    own["data"] |= {"source": {"kind": "files"}, "tokenizer": "file", "vocab_size": 400}
    own["paths"] = {
        "text": "text",
        "tokenizer": "tokenizer.json",
        "word_similarity": "sets",
        "tasks": "tasks",
    }
    own["evaluation"] = {
        "word_similarity": [{"name": "w", "file": "w.txt"}],
        "downstream": {"tasks": ["own"]},
    }
    return generated, own


WORDS = [
    first + second for first in ("ba", "ko", "li", "nu", "se") for second in ("t", "m", "ra", "n")
]
TASK = {
    "task": "own",
    "dataset_path": "json",
    "dataset_kwargs": {"data_files": {"test": "tasks/own.jsonl"}},
    "test_split": "test",
    "output_type": "multiple_choice",
    "doc_to_text": "{{context}}",
    "doc_to_choice": "choices",
    "doc_to_target": "label",
    "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
}


@pytest.fixture(scope="module")
def workspace(tmp_path_factory) -> Path:
    """The working folder of all draws, with text, a tokenizer, a word list and a task."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    folder: Path = tmp_path_factory.mktemp("drawn")
    rng = random.Random(0)

    def text(length: int) -> str:
        return " ".join(rng.choices(WORDS, k=length))

    for name in ("text", "sets", "tasks"):
        (folder / name).mkdir()
    rows = [{"text": text(30), "title": text(3), "number": number} for number in range(800)]
    write_lines(folder / "text" / "a.jsonl", map(json.dumps, rows))
    write_lines(folder / "text" / "b.txt", (text(20) for _ in range(50)))
    write_lines(
        folder / "sets" / "w.txt",
        (f"{a}\t{b}\t{rng.random():.2f}" for a, b in itertools.pairwise(WORDS)),
    )
    items = [
        {"context": text(4), "choices": [text(2), text(2)], "label": rng.randrange(2)}
        for _ in range(8)
    ]
    write_lines(folder / "tasks" / "own.jsonl", map(json.dumps, items))
    (folder / "tasks" / "own.yaml").write_text(yaml.safe_dump(TASK))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=sorted(tokenizer.pre_tokenizer.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator((row["text"] for row in rows), trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def write_lines(path: Path, lines: Iterable[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines))


@pytest.mark.fault(
    "settings",
    "A study is drawn at random: one to five settings with likely, odd, impossible and"
    " contradictory values.",
    "It is refused before any training with the name of a setting that was drawn, or it runs"
    " through to its tables.",
)
@pytest.mark.parametrize(
    "draw", draws("CAB_STUDY_DRAWS", by_night=25, by_day=5)
)  # `make attack` draws 2,000
def test_a_drawn_study_runs_through_or_is_refused_by_name(
    draw, bases, workspace, monkeypatch, capfd
):
    monkeypatch.chdir(workspace)
    settings, places = drawn(random.Random(draw), bases)
    refusal = run_through(settings, everything=draw % 4 == 0, said=lambda: capfd.readouterr().err)
    print(f"{places}: {settings}")
    if refusal is not None:
        names = {place.rpartition(".")[2] for place in places} | {
            place.split(".")[0] for place in places
        }
        assert "Traceback" not in refusal
        assert any(re.search(rf"\b{re.escape(name)}\b", refusal) for name in names), refusal


def test_draws_are_neither_all_right_nor_all_wrong(bases, workspace, monkeypatch):
    monkeypatch.chdir(workspace)
    right = 0
    for draw in range(100):
        settings, _ = drawn(random.Random(draw), bases)
        with suppress(ValueError):
            check(settings)
            right += 1
    assert 25 < right < 90
