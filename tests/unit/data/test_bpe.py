import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planned import only, study_and_data
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from coupled_adam_bench.data import bpe
from coupled_adam_bench.data import prepare as prepare_module
from coupled_adam_bench.data.bins import SPLITS, load_meta, open_tokens
from coupled_adam_bench.data.bpe import cut, learn_bpe
from coupled_adam_bench.data.prepare import prepare
from coupled_adam_bench.data.shards import split_of
from coupled_adam_bench.data.token_bytes import token_bytes
from coupled_adam_bench.data.tokenizers import EOT, Encoder
from coupled_adam_bench.store.files import read_json, sha256_file
from coupled_adam_bench.study.plan import make_plan
from coupled_adam_bench.study.plan.cells import data_digest
from coupled_adam_bench.study.settings import Study
from coupled_adam_bench.study.settings.data import BYTES_AND_EOT

MakeStudy = Callable[..., Study]
VOCAB_SIZE = 330
WORDS = (
    "the",
    " worst",
    " of times,",
    "\n\n\tbest  ",
    "Köln ",
    "漢字かな",
    " 12,345",
    "\x00",
    EOT,
    "wasn't ",
)


def write_texts(path: Path, texts: list[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def some_texts(n_texts: int) -> list[str]:
    rng = np.random.default_rng(0)
    return [
        "".join(WORDS[word] for word in rng.integers(0, len(WORDS), 30)) + str(i)
        for i in range(n_texts)
    ]


def split(text: str, study: Study) -> str:
    return SPLITS[split_of(text.encode(), study.data.split)]


def bpe_study(
    files_study: MakeStudy, text: Path, vocab_size: int = VOCAB_SIZE, **data: Any
) -> Study:
    return files_study(text, tokenizer="bpe", vocab_size=vocab_size, **data)


@pytest.fixture
def study(files_study: MakeStudy, tmp_path: Path) -> Study:
    return bpe_study(files_study, write_texts(tmp_path / "text" / "x.jsonl", some_texts(200)))


def prepared(study: Study, out: Path, workers: int = 1) -> Path:
    prepare(*study_and_data(only(make_plan(study))), out, workers)
    return out


def directly(texts: list[str], vocab_size: int) -> list[list[str]]:
    """The merges that the library learns from texts as they are."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=vocab_size - 1,
            min_frequency=2,
            initial_alphabet=alphabet,
            show_progress=False,
        ),
    )
    return [list(merge) for merge in json.loads(tokenizer.to_str())["model"]["merges"]]


def test_it_is_what_the_library_learns_from_train(study: Study, tmp_path: Path) -> None:
    out = prepared(study, tmp_path / "out")
    texts = some_texts(200)
    train = [text for text in texts if split(text, study) == "train"]
    model = read_json(out / "tokenizer" / "tokenizer.json")["model"]
    merges = [list(merge) for merge in model["merges"]]
    assert merges == directly(train, VOCAB_SIZE)
    assert merges != directly(texts, VOCAB_SIZE), (
        "the text of val and test would make a difference here"
    )
    assert len(model["vocab"]) == VOCAB_SIZE
    assert model["vocab"][EOT] == VOCAB_SIZE - 1
    meta = load_meta(out)
    assert (meta.n_vocab, meta.vocab_size, meta.eot_id, meta.tokenizer) == (
        VOCAB_SIZE,
        VOCAB_SIZE,
        329,
        "bpe",
    )
    facts = meta.source["bpe"]
    assert (facts["n_documents"], facts["n_characters"]) == (len(train), sum(map(len, train)))
    assert (out / "tokenizer" / "tokenizer.json").stat().st_size > 0
    checksums = read_json(out / "meta.json")["files"]
    assert checksums["tokenizer/tokenizer.json"]["sha256"] == sha256_file(
        out / "tokenizer" / "tokenizer.json"
    )
    tokenizer = Tokenizer.from_file(str(out / "tokenizer" / "tokenizer.json"))
    tokenizer.encode_special_tokens = True
    expected = [token for text in train for token in [*tokenizer.encode(text).ids, VOCAB_SIZE - 1]]
    assert open_tokens(out, "train").tolist() == expected


def test_text_of_val_and_test_changes_nothing(
    study: Study, files_study: MakeStudy, tmp_path: Path
) -> None:
    kept = [text for text in some_texts(200) if split(text, study) == "train"]
    others = [
        text for text in (f"{'zqzq ' * 40}{i}" for i in range(99)) if split(text, study) != "train"
    ]
    write_texts(tmp_path / "other" / "x.jsonl", kept + others)
    other = bpe_study(files_study, tmp_path / "other")
    merges = learn_bpe(study, "a", tmp_path / "a", 1).merges
    assert learn_bpe(other, "b", tmp_path / "b", 1).merges == merges


def test_neither_threads_nor_pieces_change_the_merges(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    merges = learn_bpe(study, "data", tmp_path / "one", 1).merges
    code = (  # the library starts its threads once per process
        "import sys; from pathlib import Path; from coupled_adam_bench.study.settings import"
        " load_study\nfrom coupled_adam_bench.data.bpe import"
        " learn_bpe\nlearn_bpe(load_study(Path(sys.argv[1])), 'data', Path(sys.argv[2]), 3)"
    )
    (tmp_path / "study.json").write_text(study.model_dump_json())
    subprocess.run(
        [sys.executable, "-c", code, tmp_path / "study.json", tmp_path / "three"], check=True
    )
    one, three = (tmp_path / name / "shards" / "bpe.json" for name in ("one", "three"))
    assert one.read_bytes() == three.read_bytes()
    monkeypatch.setattr(bpe, "_PIECE_CHARACTERS", 7)
    assert learn_bpe(study, "data", tmp_path / "pieces", 1).merges == merges


def test_any_text_comes_back(study: Study, tmp_path: Path) -> None:
    folder = prepared(study, tmp_path / "out") / "tokenizer"
    encoder, decoder = Encoder(folder), Tokenizer.from_file(str(folder / "tokenizer.json"))
    n_bytes = token_bytes(folder, VOCAB_SIZE, encoder.eot_id).inside

    @given(st.text() | st.lists(st.sampled_from([*WORDS, *"ab '\n\t1é漢\x00🙂"])).map("".join))
    def check(text: str) -> None:
        ids = encoder.encode(text).tolist()
        assert decoder.decode(ids, skip_special_tokens=False) == text
        assert n_bytes[ids].sum() == len(text.encode())
        assert encoder.eot_id not in ids

    check()


@given(
    st.lists(st.sampled_from([*WORDS, "a", " ", "\n", "\x1c", "!", "_", "\u0301"]), max_size=40),
    st.integers(1, 9),
)
def test_pieces_have_the_words_of_the_whole(words: list[str], piece: int) -> None:
    text, pattern = "".join(words), pre_tokenizers.ByteLevel(add_prefix_space=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bpe, "_PIECE_CHARACTERS", piece)
        pieces = list(cut(text))
    assert "".join(pieces) == text
    found = [word for part in pieces for word, _ in pattern.pre_tokenize_str(part)]
    assert found == [word for word, _ in pattern.pre_tokenize_str(text)]


def test_a_long_document_is_cut() -> None:
    pieces = list(cut("word! " * 50_000))
    assert max(map(len, pieces)) < 2**16 + 10
    assert len(pieces) == 5


@pytest.mark.parametrize("run", ["x", "\x00", "漢", " ", "\n", "\t ", "!\x1c", "a1"])
def test_a_long_run_is_cut(run: str) -> None:
    text = f"It was {run * 3000} the end."
    pieces, pattern = list(cut(text)), pre_tokenizers.ByteLevel(add_prefix_space=False)
    assert "".join(pieces) == text
    words = [b - a for piece in pieces for _, (a, b) in pattern.pre_tokenize_str(piece)]
    assert max(words) <= 1001, "a run and the space before it"
    kept = f"It was {run * (990 // len(run))} the end."
    assert list(cut(kept)) == [kept]


@pytest.mark.fault(
    "text and data",
    "a killed preparation has learned its tokenizer, or was killed while it did",
    "the tokenizer is taken over only if its record is whole and of these data; the bins are the"
    " same",
)
def test_it_goes_on_with_what_was_learned(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = prepared(study, tmp_path / "whole")

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(prepare_module, "_assemble", killed)
        prepared(study, tmp_path / "out")
    with monkeypatch.context() as patch:
        patch.setattr(bpe, "_merges", killed)
        prepared(study, tmp_path / "out")
    for file in ("meta.json", "train.bin", "tokenizer/tokenizer.json"):
        assert (tmp_path / "out" / file).read_bytes() == (whole / file).read_bytes()
    assert not (whole / "shards").exists()

    learned = learn_bpe(study, "data", tmp_path / "again", 1)
    record = tmp_path / "again" / "shards" / "bpe.json"
    for damage in (record.read_text()[:-9], record.read_text().replace("Ġ", "x"), "{}"):
        record.write_text(damage)
        assert learn_bpe(study, "data", tmp_path / "again", 1) == learned
    assert (
        learn_bpe(replace_vocab(study, 300), "other", tmp_path / "again", 1).merges
        == learned.merges[:43]
    )


def replace_vocab(study: Study, vocab_size: int) -> Study:
    return study.model_copy(
        update={"data": study.data.model_copy(update={"vocab_size": vocab_size})}
    )


@pytest.mark.fault(
    "text and data",
    "the text has too few different pieces for `data.vocab_size` tokens of a BPE",
    "it is refused with the number that the text supports, which is then accepted",
)
@pytest.mark.parametrize(
    "text",
    ["a", "ab " * 50, "\x00" * 100, "é", "x" * 100_000],
    ids=["one", "word", "NUL", "é", "run"],
)
def test_too_little_text(text: str, files_study: MakeStudy, tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text(text)
    seed = next(
        seed
        for seed in range(99)
        if split(text, replace_seed(bpe_study(files_study, path), seed)) == "train"
    )
    study = replace_seed(bpe_study(files_study, path, 3000), seed)
    supported = BYTES_AND_EOT + len(directly(list(cut(text)), 3000))
    message = (
        rf"vocab_size: 3000, .*supports a BPE of {supported} tokens \(1 docu.*set it to at most"
        rf" {supported},"
    )
    with pytest.raises(ValueError, match=message):
        learn_bpe(study, "data", tmp_path / "out", 1)
    learned = learn_bpe(replace_vocab(study, supported), "data", tmp_path / "out", 1)
    assert len(learned.merges) == supported - BYTES_AND_EOT


def replace_seed(study: Study, seed: int) -> Study:
    changed = study.data.split.model_copy(update={"seed": seed})
    return study.model_copy(update={"data": study.data.model_copy(update={"split": changed})})


@pytest.mark.parametrize("text", ["", " \n\n"])
def test_no_text(text: str, files_study: MakeStudy, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(text)
    with pytest.raises(ValueError, match=r"text\.txt: no documents in it"):
        learn_bpe(bpe_study(files_study, tmp_path / "text.txt"), "data", tmp_path / "out", 1)


def test_a_number_of_characters(files_study: MakeStudy, study: Study, tmp_path: Path) -> None:
    train = [text for text in some_texts(200) if split(text, study) == "train"]
    first = sum(map(len, train[:50]))
    for settings in (
        {"bpe_characters": first},
        {"bpe_characters": first - 1},
        {"max_tokens": first},
    ):
        part = bpe_study(files_study, tmp_path / "text", **settings)
        learned = learn_bpe(part, "data", tmp_path / json.dumps(settings), 1)
        assert (learned.n_documents, learned.n_characters) == (50, first)
        assert [list(merge) for merge in learned.merges] == directly(train[:50], VOCAB_SIZE)
    larger = bpe_study(files_study, tmp_path / "text", bpe_characters=first + 1)
    assert learn_bpe(larger, "data", tmp_path / "larger", 1).n_documents == 51


def test_identity(study: Study, files_study: MakeStudy, tmp_path: Path) -> None:
    texts = some_texts(200)
    write_texts(tmp_path / "other" / "x.jsonl", [*texts[:-1], texts[-1].replace("t", "z")])
    changed = (
        replace_vocab(study, 331),
        replace_seed(study, 1),
        bpe_study(files_study, tmp_path / "text", bpe_characters=5000),
        bpe_study(files_study, tmp_path / "other"),
    )
    digests = {data_digest(each) for each in (study, *changed)}
    assert len(digests) == 5
    explicit = bpe_study(files_study, tmp_path / "text", bpe_characters=2_000_000_000)
    assert data_digest(explicit) == data_digest(study)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"tokenizer": "bpe", "vocab_size": 256},
            r"vocab_size: 256, but a tokenizer 'bpe' has 257 .*1,048,576 tokens",
        ),
        ({"tokenizer": "bpe", "vocab_size": 2**21}, "vocab_size: 2097152, but a tokenizer 'bpe'"),
        (
            {"bpe_characters": 10},
            "bpe_characters: 10, but the tokenizer is 'gpt2'; leave it out, or set",
        ),
    ],
)
def test_settings_that_do_not_fit(
    settings: dict[str, Any], message: str, files_study: MakeStudy
) -> None:
    with pytest.raises(ValueError, match=message):
        files_study("t.txt", **settings)


def test_it_is_said_if_the_text_is_read_more_than_once(
    study: Study, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = replace_vocab(study, BYTES_AND_EOT)
    prepared(study, tmp_path / "few")
    assert "times the text" not in capsys.readouterr().err
    n_train = load_meta(tmp_path / "few").splits["train"].n_tokens
    training = study.training.model_copy(update={"batch_sequences": n_train})
    prepared(study.model_copy(update={"training": training}), tmp_path / "many")
    said = (
        f"train has {n_train:,} tokens, and the largest run of the grid reads {80 * n_train:,}: 80"
        " times the text"
    )
    assert said in capsys.readouterr().err
