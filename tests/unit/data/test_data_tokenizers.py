import json
import os
import shutil
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from coupled_adam_bench.data import tokenizers
from coupled_adam_bench.data.tokenizers import load_encoder, load_saved, save_tokenizer
from coupled_adam_bench.store.files import digest
from coupled_adam_bench.study.settings import Study

MakeStudy = Callable[..., Study]
real_data = pytest.mark.skipif("CAB_REAL_DATA" not in os.environ, reason="CAB_REAL_DATA is not set")


def edit_json(source: Path, target: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    values = json.loads(source.read_text())
    change(values)
    target.mkdir(parents=True, exist_ok=True)
    (target / "tokenizer.json").write_text(json.dumps(values))
    return target


@pytest.fixture
def pinned(small_gpt2: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The small tokenizer, saved once as transformers does and pinned in the place of GPT-2's."""

    def move_end_of_text(values: dict[str, Any]) -> None:
        values["model"]["vocab"]["<|endoftext|>"] = len(values["model"]["vocab"])

    folder = edit_json(small_gpt2 / "tokenizer.json", small_gpt2 / "pinned", move_end_of_text)
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    monkeypatch.setattr(
        tokenizers, "GPT2_DIGEST", digest({"vocab": model["vocab"], "merges": model["merges"]}, 64)
    )
    return folder


@pytest.fixture
def save(files_study: MakeStudy, tmp_path: Path) -> Callable[..., Path]:
    """The function that saves a tokenizer of somebody's as preparation does, and returns where."""

    def save(source: Path, **data: Any) -> Path:
        save_tokenizer(files_study("t.txt", source, **data), None, tmp_path / "out")
        return tmp_path / "out"

    return save


def gpt2_study(files_study: MakeStudy, path: Path | None) -> Study:
    study = files_study("t.txt", tokenizer="gpt2")
    paths = study.paths.model_copy(update={"tokenizer": None if path is None else str(path)})
    return study.model_copy(update={"paths": paths})


def test_any_text_comes_back(pinned, files_study, tmp_path, sample):
    save_tokenizer(gpt2_study(files_study, pinned), None, tmp_path)
    encoder = load_encoder(tmp_path)
    assert encoder.eot_id == encoder.n_vocab - 1
    decoder = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))

    @given(
        st.text() | st.text(alphabet="ab '\n\t1é漢\u00a0<|endoftext|>").map(lambda text: text * 3)
    )
    @example(sample)
    @example("a<|endoftext|>b")
    @example("")
    def check(text: str) -> None:
        ids = encoder.encode(text)
        assert ids.dtype == np.uint32
        assert decoder.decode(ids.tolist(), skip_special_tokens=False) == text
        assert encoder.eot_id not in ids  # special tokens that stand in a text are text

    check()


def test_the_format_of_the_file_does_not_matter(pinned, files_study, tmp_path):
    def older_format(values: dict[str, Any]) -> None:
        values["model"]["merges"] = [" ".join(merge) for merge in values["model"]["merges"]]
        values["truncation"] = {
            "direction": "Right",
            "max_length": 2,
            "strategy": "LongestFirst",
            "stride": 0,
        }

    older = edit_json(pinned / "tokenizer.json", tmp_path / "older", older_format)
    for name, path in (("a", pinned), ("b", older), ("c", older / "tokenizer.json")):
        save_tokenizer(gpt2_study(files_study, path), None, tmp_path / name)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        a, b, c = ((tmp_path / name / file).read_bytes() for name in "abc")
        assert a == b == c


def test_another_tokenizer_is_not_gpt2(small_gpt2, files_study, tmp_path):
    with pytest.raises(
        ValueError, match=r"tokenizer\.json: not GPT-2's tokenizer .*set data\.tokenizer to 'file'"
    ):
        save_tokenizer(gpt2_study(files_study, small_gpt2), None, tmp_path)


def test_gpt2_without_a_network(files_study, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "empty"))
    with pytest.raises(
        ValueError, match=r"data\.tokenizer: could not download GPT-2's.*set paths\.tokenizer"
    ):
        save_tokenizer(gpt2_study(files_study, None), None, tmp_path)


def test_more_tokens_than_rows(small_gpt2, save):
    n_vocab = Tokenizer.from_file(str(small_gpt2 / "tokenizer.json")).get_vocab_size()
    with pytest.raises(
        ValueError, match=rf"data\.vocab_size: 300, but the tokenizer has {n_vocab} tokens"
    ):
        save(small_gpt2, vocab_size=300)


@pytest.mark.parametrize(
    ("config", "special", "found"),
    [
        (None, "<|endoftext|>", "<|endoftext|>"),
        (None, "</s>", "</s>"),
        (None, "<eos>", "<eos>"),
        ({"eos_token": "the"}, "</s>", "the"),
        ({"eos_token": {"content": "</s>", "lstrip": False}}, "</s>", "</s>"),
        ({"model_max_length": 5}, "</s>", "</s>"),
    ],
)
def test_end_of_text_of_any_tokenizer(config, special, found, save, tmp_path):
    tokenizer = Tokenizer(models.WordLevel({"the": 0, "of": 1, "?": 2}, unk_token="?"))
    tokenizer.add_special_tokens([special])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    if config is not None:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    encoder = load_encoder(save(tmp_path))
    assert encoder.eot_id == {"the": 0, special: 3}[found]
    assert encoder.n_vocab == 4


@pytest.mark.fault(
    "text and data",
    "`tokenizer_config.json` is no object, or its `eos_token` no text",
    "it is refused with file and field",
)
@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("[]", "a JSON object is expected, not a list"),
        ("{", "not valid JSON"),
        (
            '{"eos_token": 3}',
            "eos_token: must be text, or an object with the text as 'content', not 3",
        ),
        ('{"eos_token": {"content": 3}}', "eos_token: must be text"),
        ("{}", "beside it has no eos_token"),
        ('{"eos_token": "<e>"}', "says '<e>', which the tokenizer does not have"),
    ],
)
def test_odd_configurations(config, message, save, tmp_path):
    Tokenizer(models.WordLevel({"the": 0}, unk_token="the")).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(config)
    with pytest.raises(ValueError, match=rf"tokenizer_config\.json.*{message}"):
        save(tmp_path)


@pytest.mark.fault(
    "text and data",
    "a tokenizer has no token for what its vocabulary lacks",
    "it is refused before any text is read, also where the library would drop it without a word",
)
@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            models.WordLevel({"the": 0}, unk_token="[UNK]"),
            r"cannot encode .* model\.unk_token .*Missing \[UNK\]",
        ),
        (
            models.WordPiece({"the": 0}, unk_token="[UNK]"),
            r"cannot encode .* model\.unk_token .*Missing \[UNK\]",
        ),
        (models.Unigram([("a", 0.0)], None, False), "cannot encode .* `unk_id` is missing"),
        (
            models.BPE({"a": 0}, [], unk_token="<unk>"),
            "cannot encode .* Unk token `<unk>` not found",
        ),
        (
            models.BPE({"a": 0}, []),
            "drops characters that are not in its vocabulary, such as '\u9f98'",
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_no_token_for_the_unknown(model, message, save, tmp_path):
    tokenizer = Tokenizer(model)
    tokenizer.add_special_tokens(["</s>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ValueError, match=rf"tokenizer\.json: {message}"):
        save(tmp_path)


@pytest.mark.fault(
    "text and data",
    "a `tokenizer.json` is damaged in one field",
    "it is refused with the file and what is wrong in it",
)
@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("model", "vocab", "the"), -1, "cannot read it: invalid value: integer `-1`"),
        (("model", "vocab"), None, "cannot read it"),
        (("model", "type"), "Other", "cannot read it"),
        (("pre_tokenizer",), {"type": "Split"}, "cannot read it"),
        (("added_tokens",), [], "no end-of-text token"),
    ],
)
def test_damaged_tokenizers(place, value, message, save, tmp_path):
    tokenizer = Tokenizer(models.WordLevel({"the": 0, "?": 1}, unk_token="?"))
    tokenizer.add_special_tokens(["</s>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))

    def damage(values: dict[str, Any]) -> None:
        for key in place[:-1]:
            values = values[key]
        values[place[-1]] = value

    edit_json(tmp_path / "tokenizer.json", tmp_path, damage)
    with pytest.raises(ValueError, match=rf"tokenizer\.json: .*{message}"):
        save(tmp_path)


@pytest.mark.parametrize(
    "content", ["", "[" * 10**5, "\xff", "{}", "[]", '{"model": {"type": "WordLevel"}}', "{"]
)
@pytest.mark.parametrize("kind", ["file", "gpt2"])
def test_a_file_that_is_no_tokenizer(content, kind, save, tmp_path):
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ValueError, match=r"tokenizer\.json: "):
        save(tmp_path, tokenizer=kind)


def test_a_file_that_truncates_pads_and_draws(small_gpt2, save, tmp_path, sample):
    plain = Tokenizer.from_file(str(small_gpt2 / "tokenizer.json"))
    expected = plain.encode(sample).ids
    plain.enable_truncation(4)
    plain.enable_padding(length=8)
    (tmp_path / "in").mkdir()
    plain.save(str(tmp_path / "in" / "tokenizer.json"))

    def draw(values: dict[str, Any]) -> None:
        values["model"]["dropout"] = 0.5

    drawing = edit_json(tmp_path / "in" / "tokenizer.json", tmp_path / "drawing", draw)
    assert load_encoder(save(drawing)).encode(sample).tolist() == expected


@pytest.mark.fault(
    "text and data",
    "the end-of-text token of somebody's tokenizer is not marked special, or is a word or piece of"
    " its vocabulary",
    "its name in a text is text like any other, so no document has an end within it",
)
@pytest.mark.parametrize("kind", ["added", "word", "piece"])
def test_end_of_text_is_in_no_document(kind, save, tmp_path, small_gpt2):
    if kind == "added":
        tokenizer = Tokenizer.from_file(str(small_gpt2 / "tokenizer.json"))
        tokenizer.add_tokens(["<end>"])
    elif kind == "word":
        tokenizer = Tokenizer(models.WordLevel({"a": 0, "<unk>": 1, "<end>": 2}, unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    else:
        tokenizer = Tokenizer(
            models.Unigram([("<unk>", 0.0), ("<end>", 0.0), ("a", -1.0), (" ", -1.0)], unk_id=0)
        )
    (tmp_path / "own").mkdir()
    tokenizer.save(str(tmp_path / "own" / "tokenizer.json"))
    (tmp_path / "own" / "tokenizer_config.json").write_text('{"eos_token": "<end>"}')
    encoder = load_encoder(save(tmp_path / "own"))
    assert encoder.eot_id == tokenizer.token_to_id("<end>")
    ids = encoder.encode("a <end> a").tolist()
    assert len(ids) > 2 and encoder.eot_id not in ids


def test_an_end_of_text_that_stands_in_texts(save, tmp_path, small_gpt2):
    own = tmp_path / "own"
    own.mkdir()
    shutil.copy(small_gpt2 / "tokenizer.json", own)
    config = own / "tokenizer_config.json"
    config.write_text('{"eos_token": "e"}')
    with pytest.raises(
        ValueError, match=r"'e' is also a word of texts.*name another token as eos_"
    ):
        save(own)
    config.write_text('{"eos_token": "<|endoftext|>"}')
    assert load_encoder(save(own)).eot == "<|endoftext|>"


def test_transformers_loads_what_is_saved(pinned, files_study, tmp_path, sample):
    from transformers import AutoTokenizer

    save_tokenizer(gpt2_study(files_study, pinned), None, tmp_path / "gpt2")
    save_tokenizer(files_study("t.txt", pinned), None, tmp_path / "file")
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the")]
    save_tokenizer(
        files_study("t.txt", tokenizer="bpe", vocab_size=260), None, tmp_path / "bpe", merges
    )
    for kind in ("gpt2", "file", "bpe"):
        encoder = load_encoder(tmp_path / kind)
        loaded = AutoTokenizer.from_pretrained(tmp_path / kind)
        assert loaded(sample)["input_ids"] == encoder.encode(sample).tolist()
        assert loaded.eos_token_id == encoder.eot_id
        assert len(loaded) == encoder.n_vocab
        assert loaded.decode(loaded(sample)["input_ids"]) == sample
        # What scores tasks takes the name of a token for the token, as transformers does.
        named = f" {sample}{loaded.eos_token} {sample}"
        assert load_saved(tmp_path / kind)[0].encode(named).ids == loaded(named)["input_ids"]


def test_words_through_transformers(tiny_study, tmp_path):
    from transformers import AutoTokenizer

    from coupled_adam_bench.study.settings import parse_study

    words = ["mina", "bobe", "tuta"]
    save_tokenizer(parse_study(tiny_study()), words, tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded("mina tuta\n bobe")["input_ids"] == [0, 2, 1]
    assert loaded.eos_token_id == load_encoder(tmp_path).eot_id == 3
    assert loaded.decode([2, 0]) == "tuta mina"
    # Multiple choice: context, a space and the continuation are tokenized together and apart.
    context, continuation = "mina bobe", "tuta tuta"
    together = loaded(f"{context} {continuation}", add_special_tokens=False)["input_ids"]
    assert (
        together
        == loaded(context)["input_ids"] + loaded(f" {continuation}")["input_ids"]
        == [0, 1, 2, 2]
    )


@real_data
def test_gpt2_on_real_text(files_study, tmp_path):
    """The ids of the sentence are those that tiktoken gives with OpenAI's own files."""
    data = Path(os.environ["CAB_REAL_DATA"])
    save_tokenizer(gpt2_study(files_study, data / "tokenizer" / "hf_gpt2"), None, tmp_path)
    encoder = load_encoder(tmp_path)
    assert (encoder.n_vocab, encoder.eot_id) == (50257, 50256)
    assert encoder.encode("Hello world, it's 1984.\n\n  end").tolist() == [
        15496,
        995,
        11,
        340,
        338,
        12844,
        13,
        628,
        220,
        886,
    ]
    decoder = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    # Every assigned character of Unicode, in places where the pattern treats it differently.
    characters = [
        c
        for c in map(chr, range(sys.maxunicode + 1))
        if unicodedata.category(c) not in ("Cn", "Co", "Cs")
    ]
    for first in range(0, len(characters), 1000):
        text = "".join(f"a{c}1{c} {c}{c}b" for c in characters[first : first + 1000])
        assert decoder.decode(encoder.encode(text).tolist(), skip_special_tokens=False) == text
