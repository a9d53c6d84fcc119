"""The bytes of tokens, against the bytes of the texts that were encoded."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

from coupled_adam_bench.data.token_bytes import UNKNOWN, token_bytes
from coupled_adam_bench.data.tokenizers import EOT, Encoder, _save, _word_tokenizer

TEXT = [
    "the cat sat on the mat",
    "a naïve café, 1234 times",
    "日本語 and ελληνικά",
    "  two  spaces\n\ttab",
    "ßẞ 🙂🙂 end ",
]
CHARACTERS = st.characters(exclude_categories=["Cs"], exclude_characters="\u2581")


def trained(model, pre_tokenizer, decoder, normalizer=None, **options) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizer, decoder
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    kind = trainers.UnigramTrainer if isinstance(model, models.Unigram) else trainers.BpeTrainer
    tokenizer.train_from_iterator(TEXT * 20, kind(show_progress=False, **options))
    return tokenizer


def byte_level(add_prefix_space: bool = False) -> Tokenizer:
    return trained(
        models.BPE(),
        pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space),
        decoders.ByteLevel(),
        vocab_size=300,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )


def split_bytes() -> Tokenizer:
    """As in Llama 3: a pattern, then bytes."""
    tokenizer = byte_level()
    parts = [
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False),
    ]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(parts)
    return tokenizer


BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def metaspace(scheme: str) -> Tokenizer:
    """As in SentencePiece: what is not in the vocabulary is written in bytes."""
    model = models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>")
    decoder = decoders.Sequence(
        [decoders.ByteFallback(), decoders.Metaspace(prepend_scheme=scheme), decoders.Fuse()]
    )
    tokenizer = trained(
        model,
        pre_tokenizers.Metaspace(prepend_scheme=scheme),
        decoder,
        vocab_size=340,
        limit_alphabet=40,
        special_tokens=["<unk>", *BYTES],
    )
    state = json.loads(tokenizer.to_str())
    state["added_tokens"] = [
        token for token in state["added_tokens"] if token["content"] not in BYTES
    ]
    return Tokenizer.from_str(json.dumps(state))


def llama_2() -> Tokenizer:
    """Spaces by a normalizer, and no pre-tokenizer."""
    tokenizer = metaspace("first")
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    tokenizer.pre_tokenizer = None
    parts = [
        decoders.Replace("\u2581", " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
        decoders.Strip(" ", 1, 0),
    ]
    tokenizer.decoder = decoders.Sequence(parts)
    return tokenizer


FAMILIES = {
    "byte level": byte_level,
    "byte level after digits": split_bytes,
    "byte level, with a space before": lambda: byte_level(add_prefix_space=True),
    "metaspace, never before": lambda: metaspace("never"),
    "metaspace, always before": lambda: metaspace("always"),
    "llama 2": llama_2,
}


@pytest.fixture(scope="module", params=FAMILIES)
def encoder(request, tmp_path_factory) -> tuple[str, Encoder, Path]:
    tokenizer = FAMILIES[request.param]()
    tokenizer.add_special_tokens([AddedToken(EOT, special=True, normalized=False)])
    folder = tmp_path_factory.mktemp("tokenizer")
    _save(tokenizer, EOT, folder)
    return request.param, Encoder(folder), folder


def counted(encoder, folder: Path, texts: list[str]) -> tuple[int, np.ndarray]:
    """Return the bytes of all tokens but the first of documents, as the data stage joins them, and
    the tokens."""
    ids = np.concatenate(
        [[encoder.eot_id], *([*encoder.encode(text), encoder.eot_id] for text in texts)]
    ).astype(int)
    table = token_bytes(folder, encoder.n_vocab + 5, encoder.eot_id)
    found = table.of(ids[1:], ids[:-1])
    assert (found != UNKNOWN).all()
    return int(found.sum()), ids


@settings(max_examples=40)
@given(st.lists(st.text(CHARACTERS, max_size=12), max_size=4))
def test_they_are_those_of_the_encoded_texts(encoder, texts):
    name, encode, folder = encoder
    if "before" in name or name == "llama 2":
        # A space that the tokenizer adds cannot be told from one with which a document begins.
        texts = [text.lstrip() for text in texts]
    texts = [*TEXT[:3], *texts]
    found, ids = counted(encode, folder, texts)
    assert found == sum(len(text.encode()) for text in texts)
    if (
        name == "byte level"
    ):  # a character may be cut in two, so single tokens have no text of their own
        table = token_bytes(folder, encode.n_vocab, encode.eot_id)
        whole = encode._tokenizer.decode(ids.tolist(), skip_special_tokens=True).encode()
        assert table.inside[ids].sum() == len(whole)


def test_words_stand_for_themselves_and_the_space_before_them(tmp_path):
    _save(_word_tokenizer(["be", "ähm", "or"]), EOT, tmp_path)
    encoder = Encoder(tmp_path)
    found, _ = counted(encoder, tmp_path, ["be or be", "ähm", "or or ähm"])
    assert found == len(b"be or be") + len("ähm".encode()) + len("or or ähm".encode())
    table = token_bytes(tmp_path, 6, encoder.eot_id)
    assert table.inside.tolist() == [3, 5, 3, 0, UNKNOWN, UNKNOWN]
    assert table.first.tolist() == [2, 4, 2, 0, UNKNOWN, UNKNOWN]


def test_unknown_words_and_special_tokens_stand_for_what_nobody_knows(tmp_path):
    tokenizer = Tokenizer(
        models.WordLevel({"a": 0, "<unk>": 1, "<pad>": 2, EOT: 3}, unk_token="<unk>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in ("<pad>", EOT)])
    tokenizer.add_tokens([AddedToken("<|ö|>", special=False)])
    _save(tokenizer, EOT, tmp_path)
    assert token_bytes(tmp_path, 5, 3).inside.tolist() == [
        2,
        UNKNOWN,
        UNKNOWN,
        0,
        len("<|ö|>".encode()),
    ]


def test_a_tokenizer_that_does_not_say_it_is_refused(tmp_path):
    tokenizer = Tokenizer(
        models.WordPiece({"a": 0, "##b": 1, "[UNK]": 2, EOT: 3}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer, tokenizer.decoder = (
        pre_tokenizers.BertPreTokenizer(),
        decoders.WordPiece(),
    )
    _save(tokenizer, EOT, tmp_path)
    with pytest.raises(
        ValueError, match=r"tokenizer\.json: its pre-tokenizer \['BertPreTokenizer'\] and decoder"
    ):
        token_bytes(tmp_path, 4, 3)


@pytest.mark.skipif(
    "CAB_REAL_DATA" not in os.environ, reason="needs the real tokenizer: set CAB_REAL_DATA"
)
def test_gpt2_s_own_tokenizer(tmp_path):
    from coupled_adam_bench.data.tokenizers import read_gpt2

    _save(
        read_gpt2(Path(os.environ["CAB_REAL_DATA"]) / "tokenizer/hf_gpt2/tokenizer.json"),
        EOT,
        tmp_path,
    )
    found, _ = counted(Encoder(tmp_path), tmp_path, TEXT)
    assert found == sum(len(text.encode()) for text in TEXT)
