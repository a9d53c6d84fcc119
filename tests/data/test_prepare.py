"""The bins: the tokens of each document, the same after stops and for two at once."""

import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

import numpy as np
import pytest
import yaml
from own_text import make_texts, write_jsonl
from tiny import changed, tiny_study
from tokenizers import ByteLevelBPETokenizer, Tokenizer
from transformers import AutoTokenizer

from coupled_adam_bench.data import documents, prepare
from coupled_adam_bench.data.bins import load_counts, load_meta, open_tokens
from coupled_adam_bench.study.data import SPLITS
from coupled_adam_bench.study.plan import make_plan
from coupled_adam_bench.study.study import Study, parse_study

Files = Callable[..., Study]
BINS = [f"{split}.bin" for split in SPLITS]


def prepared(study: Study, out: Path) -> Path:
    prepare.prepare(study, "x-1", out)
    return out


def expected(
    texts: list[str], encode: Callable[[str], list[int]], eot: int
) -> dict[str, list[int]]:
    """The tokens of each split, of val 0.1 and test 0.2, by the definition of the hash."""
    found: dict[str, list[int]] = {split: [] for split in SPLITS}
    for text in texts:
        hashed = blake2b(text.encode(), digest_size=8, key=(2357).to_bytes(8, "little"))
        u = int.from_bytes(hashed.digest(), "little") / 2**64
        found["val" if u < 0.1 else "test" if u >= 0.8 else "train"] += [*encode(text), eot]
    return found


def test_bins_hold_the_tokens_of_each_document_and_its_end(
    jsonl: Path, texts: list[str], bpe: Path, files_study: Files, tmp_path: Path
) -> None:
    out = prepared(files_study(jsonl), tmp_path / "out")
    # As tiktoken's encode_ordinary, which the authors call: a special token in a text is text.
    ordinary = Tokenizer.from_file(str(bpe))
    eot = ordinary.token_to_id("<|endoftext|>")
    ordinary.encode_special_tokens = True
    in_order = [text for number in range(3) for text in texts[number::3]]
    wanted = expected(in_order, lambda text: ordinary.encode(text).ids, eot)
    meta = load_meta(out)
    for split in SPLITS:
        tokens = open_tokens(out, split)
        assert tokens.tolist() == wanted[split]
        assert meta.splits[split].n_documents == wanted[split].count(eot)
    assert load_counts(out).tolist() == np.bincount(wanted["train"], minlength=512).tolist()
    # What the evaluation reads, by transformers: the same tokens.
    loaded = AutoTokenizer.from_pretrained(out / "tokenizer")
    assert loaded.eos_token_id == meta.eot_id == eot
    for text in texts[:50]:
        assert loaded.encode(text, split_special_tokens=True) == ordinary.encode(text).ids


@pytest.mark.parametrize("seed", range(4))
def test_stops_change_no_byte(
    seed: int, jsonl: Path, files_study: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = files_study(jsonl, max_tokens=5000) if seed == 3 else files_study(jsonl)
    whole = prepared(study, tmp_path / "whole")
    rng = np.random.default_rng(seed)
    monkeypatch.setattr(prepare, "BATCH", int(rng.integers(1, 30)))
    monkeypatch.setattr(prepare, "SAVED", int(rng.integers(1, 4)))
    (tmp_path / "stopped/tokenizer").mkdir(parents=True)  # a stop before anything is written
    left, split_of = 0, prepare.split_of

    def stops(*arguments: object) -> str:
        nonlocal left
        left -= 1
        if left < 0:
            raise KeyboardInterrupt
        return split_of(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(prepare, "split_of", stops)
    for _ in range(6):
        left = int(rng.integers(0, 30))
        with suppress(KeyboardInterrupt):
            prepared(study, tmp_path / "stopped")
    assert left < 0
    left = 10**9
    stopped = prepared(study, tmp_path / "stopped")
    for file in (*BINS, "meta.json", "unigram.npy"):
        assert (stopped / file).read_bytes() == (whole / file).read_bytes()
    if seed == 3:
        tokens = [load_meta(whole).splits[split].n_tokens for split in SPLITS]
        assert 5000 <= sum(tokens) < 5100


def test_two_preparations_at_once_and_one_more(jsonl: Path, files_study: Files, home: Path) -> None:
    plan = make_plan(files_study(jsonl))
    plan.write(home / "plan.json")
    command = [sys.executable, "-m", "coupled_adam_bench", "prepare", "--plan", "plan.json"]
    both = [subprocess.Popen(command) for _ in range(2)]
    assert [process.wait() for process in both] == [0, 0]
    out = home / "results/data" / plan.data_id
    alone = prepared(plan.study, home / "alone")
    for file in BINS:
        assert (out / file).read_bytes() == (alone / file).read_bytes()
    (out / "meta.json").write_bytes(b"what is whole is kept")
    prepared(plan.study, out)
    assert (out / "meta.json").read_bytes() == b"what is whole is kept"


def test_generated_text_is_the_same_as_files_of_it(files_study: Files, tmp_path: Path) -> None:
    study = parse_study(
        changed(tiny_study(), "data.split", {"val_fraction": 0.1, "test_fraction": 0.2})
    )
    out = prepared(study, tmp_path / "generated")
    texts = [row["text"] for row in documents.documents_of(study)]
    assert sum(len(text.split()) for text in texts) == 60_000
    ids = Tokenizer.from_file(str(out / "tokenizer/tokenizer.json")).get_vocab()
    wanted = expected(texts, lambda text: [ids[word] for word in text.split(" ")], 100)
    for split in SPLITS:
        assert open_tokens(out, split).tolist() == wanted[split]
    for task in ("topic", "grammar"):
        values = yaml.safe_load((out / f"tasks/synthetic_{task}.yaml").read_text())
        assert values["task"] == f"synthetic_{task}"


def test_a_bpe_is_what_the_library_learns_from_train(
    jsonl: Path, texts: list[str], files_study: Files, tmp_path: Path
) -> None:
    split = files_study(jsonl).data.split
    train = [text for text in texts if documents.split_of(text, split) == "train"]
    learned = ByteLevelBPETokenizer()
    learned.train_from_iterator(train, vocab_size=5000, show_progress=False)
    n_tokens = learned.get_vocab_size() + 1  # all that the text supports
    study = files_study(jsonl, tokenizer="bpe", vocab_size=n_tokens)
    out = prepared(study, tmp_path / "out")
    saved = Tokenizer.from_file(str(out / "tokenizer/tokenizer.json"))
    assert saved.token_to_id("<|endoftext|>") == saved.get_vocab_size() - 1 == n_tokens - 1
    for text in (*texts, *make_texts(1, 50)):
        assert saved.encode(text).tokens == learned.encode(text).tokens or "<|" in text
        saved.encode_special_tokens = True
        assert saved.decode(saved.encode(text).ids, skip_special_tokens=False) == text
        saved.encode_special_tokens = False


@pytest.mark.parametrize(
    ("data", "named"),
    [
        ({"tokenizer": "bpe", "vocab_size": 5000}, r"data\.vocab_size"),
        ({"vocab_size": 399}, "data.vocab_size"),
        ({"split": {"val_fraction": 1e-9, "test_fraction": 0.2}}, "data.split: val"),
    ],
)
def test_what_does_not_fit_names_its_setting(
    data: dict[str, object], named: str, tmp_path: Path, texts: list[str], files_study: Files
) -> None:
    study = files_study(write_jsonl(tmp_path / "a.jsonl", texts), **data)
    with pytest.raises(ValueError, match=named):
        prepared(study, tmp_path / "out")


def test_a_tokenizer_without_end_of_text_is_refused(
    tmp_path: Path, texts: list[str], files_study: Files
) -> None:
    learned = ByteLevelBPETokenizer()
    learned.train_from_iterator(texts, vocab_size=300, show_progress=False)
    learned.save(str(tmp_path / "tokenizer.json"))
    study = files_study(write_jsonl(tmp_path / "a.jsonl", texts))
    paths = study.paths.model_copy(update={"tokenizer": str(tmp_path / "tokenizer.json")})
    study = study.model_copy(update={"paths": paths})
    with pytest.raises(ValueError, match=r"paths\.tokenizer"):
        prepared(study, tmp_path / "out")
    learned.add_special_tokens(["</s>"])
    learned.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": {"content": "</s>"}}')
    assert load_meta(prepared(study, tmp_path / "out")).eot_id == 300
