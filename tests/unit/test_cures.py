"""The advice of a refusal works: each case is refused, its advice is obeyed, and it passes.

A new refusal that gives advice gets a line in ``CURES``.
"""

import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from coupled_adam_bench.evaluation.task_yaml import read_task
from pydantic import BaseModel
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
)
from transformers import GPT2Config, GPT2LMHeadModel

from coupled_adam_bench.data.prepare import prepare
from coupled_adam_bench.data.sources import Corpus
from coupled_adam_bench.data.tokenizers import save_tokenizer
from coupled_adam_bench.evaluation.task_files import find_tasks
from coupled_adam_bench.store.files import read_json, sha256_file
from coupled_adam_bench.study.plan.cells import data_digest, data_id
from coupled_adam_bench.study.plan.inputs import fingerprints, text_files, tokenizer_identity
from coupled_adam_bench.study.plan.preregistration import StatedPlan
from coupled_adam_bench.study.settings import CustomSettings, Study, Training, parse_study
from coupled_adam_bench.study.settings.base import _COUNT_PATTERN
from coupled_adam_bench.study.settings.composite import Composite
from coupled_adam_bench.study.settings.errors import _IN_WORDS
from coupled_adam_bench.training.trial import try_optimizer
from coupled_adam_registry.form import Bundle
from embedding_geometry.model import measure_model
from embedding_geometry.word_lists import WordLists, read_word_lists

TEXTS = [f"the {i} worst of {i * i} times, the best" for i in range(300)]
POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 548105171\n"


@dataclass(frozen=True)
class Cure:
    """What is refused, a pattern of what is said then, and what the advice tells to do.

    All are called in a new folder, ``obey`` with the message, since some advice has numbers.
    """

    begin: Callable[[], Any]
    attempt: Callable[[], Any]
    says: str
    obey: Callable[[str], Any]


def study(**changes: Any) -> Study:
    values: dict[str, Any] = {
        "study": "files",
        "paths": {"text": "text", "tokenizer": "tokenizer"},
        "data": {
            "name": "files",
            "source": {"kind": "files"},
            "tokenizer": "file",
            "vocab_size": 512,
            "split": {"val_fraction": 0.2, "test_fraction": 0.2},
        }
        | changes.pop("data", {}),
        "models": ["gpt2-2x32"],
        "training": {"seq_len": 8, "batch_sequences": 2, "warmup_steps": 5},
        "grid": [{"models": ["gpt2-2x32"], "tokens": [{"steps": 10}], "optimizers": ["adamw"]}],
    }
    return parse_study(values | changes)


def write(name: str, content: str | bytes) -> Path:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def byte_level(normalizer: Any = None, pre_tokenizer: Any = None) -> None:
    """Write a byte-level tokenizer, and what stands before its bytes."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({letter: index for index, letter in enumerate(alphabet)}, []))
    last = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.pre_tokenizer = (
        last if pre_tokenizer is None else pre_tokenizers.Sequence([pre_tokenizer, last])
    )
    made.decoder = decoders.ByteLevel()
    if normalizer is not None:
        made.normalizer = normalizer
    made.add_special_tokens([AddedToken("</s>", special=True, normalized=False)])
    Path("tokenizer").mkdir(exist_ok=True)
    made.save("tokenizer/tokenizer.json")


def encode() -> None:
    save_tokenizer(study(), None, Path("saved"))


def without(part: str) -> None:
    """Take the first step out of a part of the tokenizer, or the part if it has no other."""
    file = Path("tokenizer/tokenizer.json")
    values = json.loads(file.read_text())
    steps = values[part].get("pretokenizers")
    values[part] = None if steps is None else steps[-1]
    file.write_text(json.dumps(values))


def read_text(**source: Any) -> list[str]:
    wanted = study(data={"source": {"kind": "files"} | source, "skip": "invalid"})
    return list(Corpus(wanted))


def parquet(column: Any, name: str = "text") -> None:
    Path("text").mkdir(exist_ok=True)
    pq.write_table(pa.table({name: column}), "text/x.parquet")


def token_file(name: str, n_tokens: int) -> None:
    header = np.zeros(256, np.int32)
    header[:3] = 20240520, 1, n_tokens
    tokens = np.arange(n_tokens, dtype=np.uint16) % 200
    write(f"text/fineweb_{name}.bin", header.tobytes() + tokens.tobytes())


def token_files(n_held_out: int) -> None:
    byte_level()
    token_file("train_000001", 1000)
    token_file("val_000000", n_held_out)
    Path("val_tokens").write_text("10000")


def make_bins() -> None:
    source = {"kind": "bins", "val_tokens": int(Path("val_tokens").read_text())}
    wanted = study(data={"source": source, "split": {}})
    prepare(wanted, data_id(wanted, data_digest(wanted)), Path("out"), workers=1)


def give_val_tokens(message: str) -> None:
    found = re.search(r"set data\.source\.val_tokens to a number from (\d+) to (\d+)", message)
    assert found
    Path("val_tokens").write_text(found[2])


def matrix() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32)


def measure() -> None:
    (name,) = map(str, Path("given").iterdir())
    measure_model(name, WordLists({}, []), [])


def give_matrix(_: str) -> None:
    """Write the embedding matrix of the loaded model with numpy.save as float32, and give that."""
    for path in Path("given").iterdir():
        path.rename(f"away-{path.name}")
    np.save("given/matrix.npy", matrix())


def given(name: str) -> Callable[[], Any]:
    return lambda: write(f"given/{name}", b"\x80\x02 of another program")


def save_bf16() -> None:
    Path("given").mkdir()
    upper_halves = matrix().view(np.uint16)[:, 1::2]  # of each float32, which is its bfloat16
    np.save("given/bf16.npy", upper_halves.copy().view("V2"))


def save_objects() -> None:
    Path("given").mkdir()
    np.save("given/rows.npy", np.array([*matrix(), None], dtype=object), allow_pickle=True)


def save_model() -> None:
    model = GPT2LMHeadModel(GPT2Config(vocab_size=40, n_embd=8, n_layer=1, n_head=2, n_positions=8))
    model.save_pretrained("given/model")


def weights_are_a_pointer() -> None:
    save_model()
    file = Path("given/model/model.safetensors")
    file.rename("fetched.safetensors")
    file.write_text(POINTER)


def pull(name: str, fetched: str = "fetched.safetensors") -> Callable[[str], Any]:
    return lambda _: Path(fetched).rename(name)


def pointer(name: str, fetched: str) -> Callable[[], Any]:
    def begin() -> None:
        write("fetched", fetched)
        write(name, POINTER)

    return begin


def tokenizer_is_a_pointer() -> None:
    byte_level()
    file = Path("tokenizer/tokenizer.json")
    file.rename("fetched")
    file.write_text(POINTER)


def two_of_a_name() -> None:
    for folder in "ab":
        write(f"tasks/{folder}/own.yaml", "task: own\n")


class RateOfItsOwn(torch.optim.SGD):
    """Keeps the rate of its constructor, until it is told to read that of its groups."""

    reads_groups = False

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, lr=lr)
        self.rate = lr

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                rate = group["lr"] if self.reads_groups else self.rate
                parameter.data.sub_(parameter.grad, alpha=rate)


class ReadsItsGroups(RateOfItsOwn):
    """Obeys the schedule."""

    reads_groups = True


def train_with_own() -> None:
    name = Path("name").read_text()
    settings = {"name": "custom", "path": f"{__name__}.{name}", "key": "own", "label": "Own"}
    training = Training(seq_len=8, batch_sequences=2, warmup_steps=5)
    try_optimizer(CustomSettings.model_validate(settings | {"weight_decay": 0}), training, 0.1)


def named(value: str, good: str, says: str, set_to: Callable[[str], dict[str, Any]]) -> Cure:
    """A name that a setting does not allow, and one that it does."""
    return Cure(
        lambda: write("value", value),
        lambda: study(**set_to(Path("value").read_text())),
        says,
        lambda _: write("value", good),
    )


def own_metric(name: str) -> dict[str, Any]:
    metric = {"name": name, "path": "own.metric", "symbol": "m", "higher_is_better": True}
    return {"evaluation": {"metrics": [metric], "word_similarity": []}}


def table_width(width: str) -> dict[str, Any]:
    table = {"title": "Mine", "comparison": "each_other", "columns": ["loss"], "width": width}
    block = {"models": ["gpt2-2x32"], "tokens": [{"steps": 10}], "table": "mine"}
    return {"tables": {"mine": table}, "grid": [block | {"optimizers": ["adamw", "coupled_adam"]}]}


CURES = {
    # ---- text and tokens ----
    "a held-out file that val takes whole": Cure(
        lambda: token_files(500),
        make_bins,
        r"data\.source: test has 0 tokens .*val_tokens = 10000, and test has the rest; set",
        give_val_tokens,
    ),
    "a held-out file that is too small": Cure(
        lambda: token_files(12),
        make_bins,
        r"data\.source: test has 0 tokens.*; let data\.source\.val match a larger file",
        lambda _: (token_file("val_000000", 500), Path("val_tokens").write_text("100")),
    ),
    "a file to train on that is too small": Cure(
        lambda: (token_files(500), token_file("train_000001", 5), write("val_tokens", "100")),
        make_bins,
        r"data\.source: train has 5 tokens.*; let data\.source\.train match a larger file",
        lambda _: token_file("train_000001", 1000),
    ),
    "a column of bytes": Cure(
        lambda: parquet(pa.array([text.encode() for text in TEXTS], pa.binary())),
        read_text,
        r"x\.parquet: the column 'text' is of the type binary, not of strings; write it again as",
        lambda _: parquet(TEXTS),
    ),
    "a column of objects": Cure(
        lambda: parquet([{"text": text} for text in TEXTS], "meta"),
        lambda: read_text(text_field="text" if Path("obeyed").exists() else "meta"),
        r"the column 'meta' is of the type struct<text: string>, not of strings; write it again",
        lambda _: (parquet(TEXTS), write("obeyed", "")),
    ),
    "a field of messages": Cure(
        lambda: write("text/x.jsonl", json.dumps({"text": [{"role": "user"}]})),
        lambda: list(Corpus(study())),
        r"field 'text' is list, not text; write it as text",
        lambda _: write("text/x.jsonl", json.dumps({"text": "user: ..."})),
    ),
    "only hidden text": Cure(
        lambda: write("text/.a.txt", "text"),
        lambda: text_files(("text",)),
        r"'text' matches no text file; .*; text/\.a\.txt is hidden, so it is not read",
        lambda _: Path("text/.a.txt").rename("text/a.txt"),
    ),
    # ---- tokenizers ----
    "a normalizer that removes letters": Cure(
        lambda: byte_level(normalizers.Replace(Regex("[^a-zA-Z .,]"), "")),
        encode,
        r"its normalizer removes characters such as .*; take that step out of normalizer in",
        lambda _: without("normalizer"),
    ),
    "a pre-tokenizer that removes letters": Cure(
        lambda: byte_level(None, pre_tokenizers.Split(Regex("[^a-zA-Z .,]"), "removed")),
        encode,
        r"its pre_tokenizer removes characters such as .*; take that step out of pre_tokenizer in",
        lambda _: without("pre_tokenizer"),
    ),
    # ---- pointers of Git LFS ----
    "a pointer for text": Cure(
        pointer("text/a.txt", "text"),
        lambda: fingerprints(text_files(("text",))),
        r"paths\.text: text/a\.txt: a pointer of Git LFS .*; type `git lfs pull`",
        pull("text/a.txt", "fetched"),
    ),
    "a pointer for a tokenizer": Cure(
        tokenizer_is_a_pointer,
        lambda: (tokenizer_identity("tokenizer"), encode()),
        r"tokenizer\.json: a pointer of Git LFS",
        pull("tokenizer/tokenizer.json", "fetched"),
    ),
    "a pointer for a word list": Cure(
        pointer("list.tsv", "sun\tmoon\t5\nsea\tlake\t7\n"),
        lambda: read_word_lists(Path("list.tsv")),
        r"list\.tsv: a pointer of Git LFS",
        pull("list.tsv", "fetched"),
    ),
    "a pointer for weights": Cure(
        weights_are_a_pointer,
        measure,
        r"model\.safetensors: a pointer of Git LFS",
        pull("given/model/model.safetensors"),
    ),
    # ---- models to measure ----
    **{
        f"{name} of another program": Cure(
            given(name),
            measure,
            rf"{re.escape(name)}: a file \.\w+, of which only \.npy",
            give_matrix,
        )
        for name in ("ckpt.pt", "model.gguf", "matrix.npz", "model_124M.bin", "model.safetensors")
    },
    "a folder of another program": Cure(
        given("nanogpt/ckpt.pt"),
        measure,
        r"config\.json cannot be used: there is none; give the folder that transformers'",
        give_matrix,
    ),
    "numbers of a type that NumPy does not know": Cure(
        save_bf16,
        measure,
        r"bf16\.npy: 2 bytes a number and no type, as NumPy writes bfloat16 and float8; write",
        give_matrix,
    ),
    "rows as objects": Cure(
        save_objects, measure, r"rows\.npy: not a whole file of numpy\.save, or not of", give_matrix
    ),
    # ---- tasks ----
    "a tag in place of a task": Cure(
        lambda: (write("tasks/a.yaml", "task: a\ntag: mine\n"), write("names", "mine")),
        lambda: find_tasks(Path("names").read_text().split(), "tasks"),
        r"'mine' is a tag, not a task; name its tasks instead: a$",
        lambda said: write("names", said.rpartition(": ")[2]),
    ),
    "two tasks of one name": Cure(
        two_of_a_name,
        lambda: find_tasks(["own"], "tasks"),
        r"own in \S*/a/own\.yaml and \S*/b/own\.yaml; remove one of the files",
        lambda _: Path("tasks/b/own.yaml").unlink(),
    ),
    "a key twice in a task": Cure(
        lambda: write("own.yaml", "task: own\noutput_type: a\noutput_type: b\n"),
        lambda: read_task(Path("own.yaml")),
        r"own\.yaml: lines 2 and 3: the key 'output_type' is given 2 times .*; keep one",
        lambda _: write("own.yaml", "task: own\noutput_type: a\n"),
    ),
    # ---- names ----
    "a metric with a capital": named(
        "topShare", "top_share", r"small letters from a to z, .*, such as top_share", own_metric
    ),
    "a width without a number": named(
        "page", "column", r"must be column, text, or a length above 0 with its unit", table_width
    ),
    "a width with a space": named("5.5 in", "5.5in", r"such as 5\.5in", table_width),
    "a study with an accent": named(
        "été", "ete", r"letters are those from A to Z", lambda name: {"study": name}
    ),
    # ---- other programs' files in the place of ours ----
    "a pipe in the place of a record": Cure(
        lambda: os.mkfifo("record.json"),
        lambda: (read_json(Path("record.json")), sha256_file(Path("record.json"))),
        r"record\.json: a pipe stands where a file belongs; remove it, or put the file there",
        lambda _: (Path("record.json").unlink(), write("record.json", "{}")),
    ),
    # ---- own code ----
    "an optimizer that ignores the schedule": Cure(
        lambda: write("name", "RateOfItsOwn"),
        train_with_own,
        r'RateOfItsOwn does the same steps with 0\.5 of the learning rate.*group\["lr"\]',
        lambda _: write("name", "ReadsItsGroups"),
    ),
}


def patterns(schema: Any) -> set[str]:
    """The patterns in a JSON schema, but for those of numbers with K, M, B or T."""
    if isinstance(schema, list):
        return set().union(*map(patterns, schema))
    if not isinstance(schema, dict):
        return set()
    own = {schema["pattern"]} if isinstance(schema.get("pattern"), str) else set()
    return own.union(*map(patterns, schema.values())) - {_COUNT_PATTERN}


@pytest.mark.parametrize("settings", [Study, Composite, StatedPlan, Bundle])
def test_each_pattern_of_a_setting_is_said_in_words(settings: type[BaseModel]) -> None:
    assert patterns(settings.model_json_schema()) <= _IN_WORDS.keys()


@pytest.mark.parametrize("name", CURES)
def test_the_advice_of_a_refusal_ends_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cure = CURES[name]
    monkeypatch.chdir(tmp_path)
    cure.begin()
    with pytest.raises(ValueError, match=cure.says) as raised:
        cure.attempt()
    cure.obey(str(raised.value))
    cure.attempt()
