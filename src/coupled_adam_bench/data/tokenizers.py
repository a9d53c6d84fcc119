"""Tokenizers: text to token ids for the bins, and the same tokenizer in Hugging Face's form for the evaluation.

GPT-2's BPE is encoded with tiktoken, which gave the same ids as the library ``tokenizers`` on every Unicode character
and is several times faster (``benchmarks/tokenizer_speed.py``). Special tokens that stand in a text are text.
"""

import json
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from coupled_adam_bench.cells import tokenizer_file
from coupled_adam_bench.config import Study
from coupled_adam_bench.files import digest, read_json, write_json, write_text

EOT = "<|endoftext|>"
_CONFIG = "tokenizer_config.json"
_EOT_NAMES = (EOT, "</s>", "<eos>")

GPT2_REPOSITORY = "openai-community/gpt2"
GPT2_REVISION = "607a30d783dfa663caf39e06633721c8d4cfcd7e"
# SHA-256 of vocabulary and merges as JSON values, because the tokenizer.json that carries them differs in format
# between versions of the libraries. Computed from OpenAI's encoder.json and vocab.bpe, the files that tiktoken pins as
# 196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783 and
# 1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5; transformers' GPT-2 has the same.
GPT2_DIGEST = "0ced44b5acc4db20aa9a7f1624fe94d1837d4d9065b8eb8a65a84efc09fae5e0"
# The pattern that splits text before merging, from OpenAI's GPT-2 (encoder.py), in tiktoken's equivalent faster form.
_GPT2_PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""

Tokens = npt.NDArray[np.uint32]


class Encoder(Protocol):
    """What preparation needs of a tokenizer."""

    n_vocab: int
    """Token ids are below this."""
    eot_id: int

    def encode(self, text: str) -> Tokens:
        """Return the token ids of a text, without end-of-text, shape (n_tokens,)."""


class TokenizersEncoder:
    """Any ``tokenizer.json``, through the library ``tokenizers``."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.encode_special_tokens = True
        self.n_vocab = max(self._tokenizer.get_vocab(with_added_tokens=True).values()) + 1
        eot_id = self._tokenizer.token_to_id(read_json(folder / _CONFIG)["eos_token"])
        assert eot_id is not None
        self.eot_id = eot_id

    def encode(self, text: str) -> Tokens:
        """Return the token ids of a text, without end-of-text, shape (n_tokens,)."""
        # The batch form computes no offsets of characters and is faster for it, also for one text.
        return np.array(self._tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids, dtype=np.uint32)


class Gpt2Encoder:
    """GPT-2's BPE through tiktoken."""

    def __init__(self, folder: Path) -> None:
        import tiktoken

        vocab = read_json(folder / "tokenizer.json")["model"]["vocab"]
        byte_of = {symbol: byte for byte, symbol in _gpt2_byte_symbols().items()}
        # Each merge has made the next token id, so ids are also the ranks of the merges.
        ranks = {bytes(byte_of[c] for c in token): index for token, index in vocab.items() if token != EOT}
        self._encoding = tiktoken.Encoding("gpt2", pat_str=_GPT2_PATTERN, mergeable_ranks=ranks, special_tokens={})
        self.n_vocab = len(vocab)
        self.eot_id = vocab[EOT]

    def encode(self, text: str) -> Tokens:
        """Return the token ids of a text, without end-of-text, shape (n_tokens,)."""
        return self._encoding.encode_to_numpy(text, disallowed_special=())


def _gpt2_byte_symbols() -> dict[int, str]:
    """Return the printable character that stands for each byte in GPT-2's vocabulary."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + n) for n, byte in enumerate(others)}


@lru_cache(maxsize=1)
def load_encoder(kind: str, folder: Path) -> Encoder:
    """Return the encoder of a tokenizer saved by :func:`save_tokenizer`, loaded once in a process."""
    return Gpt2Encoder(folder) if kind == "gpt2" else TokenizersEncoder(folder)


def save_tokenizer(study: Study, words: list[str] | None, folder: Path) -> None:
    """Write the study's tokenizer to ``folder``, for :func:`load_encoder` and transformers' ``AutoTokenizer``.

    ``words`` is the vocabulary of a generated language. Raises ``ValueError`` if the tokenizer cannot be found, is not
    what it should be, has no end-of-text token, or has more tokens than ``data.vocab_size``.
    """
    if study.data.tokenizer == "word":
        assert words is not None
        _save(_word_tokenizer(words), EOT, folder)
    elif study.data.tokenizer == "gpt2":
        _save(_gpt2_tokenizer(study.paths.tokenizer), EOT, folder)
    else:
        assert study.paths.tokenizer is not None
        file = tokenizer_file(study.paths.tokenizer)
        tokenizer = _parse(file)
        _save(tokenizer, _end_of_text(file, tokenizer), folder)
    load_encoder.cache_clear()
    n_vocab = load_encoder(study.data.tokenizer, folder).n_vocab
    if n_vocab > study.data.vocab_size:
        raise ValueError(f"data.vocab_size: {study.data.vocab_size}, but the tokenizer has {n_vocab} tokens; raise it")


def _save(tokenizer: Tokenizer, eot: str, folder: Path) -> None:
    write_text(folder / "tokenizer.json", tokenizer.to_str(pretty=True))
    # The generic class: it takes tokenizer.json as it is, where special classes rebuild parts of it.
    write_json(folder / _CONFIG, {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": eot, "eos_token": eot})


def _word_tokenizer(words: list[str]) -> Tokenizer:
    """Return a tokenizer of whitespace-separated words; end-of-text has the last id."""
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate([*words, EOT])}))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens([AddedToken(EOT, special=True, normalized=False)])
    return tokenizer


def _gpt2_tokenizer(path: str | None) -> Tokenizer:
    file = tokenizer_file(path) if path is not None else _download_gpt2()
    model = _read_tokenizer_json(file)["model"]
    try:
        vocab = model["vocab"]
        merges = [tuple(merge.split(" ") if isinstance(merge, str) else merge) for merge in model["merges"]]
    except (KeyError, TypeError):
        vocab, merges = {}, []
    if (found := digest({"vocab": vocab, "merges": merges}, 64)) != GPT2_DIGEST:
        raise ValueError(
            f"{file}: not GPT-2's tokenizer (digest of vocabulary and merges {found}, expected {GPT2_DIGEST}); "
            "for another tokenizer set data.tokenizer to 'file'"
        )
    tokenizer = Tokenizer(models.BPE(vocab, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(EOT, special=True, normalized=False)])
    return tokenizer


def _download_gpt2() -> Path:
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(GPT2_REPOSITORY, "tokenizer.json", revision=GPT2_REVISION))
    except (OSError, ValueError) as error:  # what huggingface_hub raises without a network, and its errors of HTTP
        raise ValueError(
            f"data.tokenizer: could not download GPT-2's tokenizer.json from the Hugging Face hub ({error}); "
            "connect this machine, or set paths.tokenizer to a folder with the file"
        ) from None


def _read_tokenizer_json(file: Path) -> dict[str, Any]:
    values = read_json(file)
    if not isinstance(values, dict) or not isinstance(values.get("model"), dict):
        raise ValueError(f"{file}: not a tokenizer.json of the library 'tokenizers': it has no 'model'")
    return values


def _parse(file: Path) -> Tokenizer:
    """Read a ``tokenizer.json`` without what would change whole documents: truncation, padding and added tokens."""
    values = _read_tokenizer_json(file)
    try:
        return Tokenizer.from_str(json.dumps(values | {"truncation": None, "padding": None, "post_processor": None}))
    except Exception as error:  # the library raises nothing more precise
        raise ValueError(f"{file}: the library 'tokenizers' cannot read it: {error}") from None


def _end_of_text(file: Path, tokenizer: Tokenizer) -> str:
    """Return the end-of-text token: ``eos_token`` of the configuration beside ``file``, or a usual name."""
    config_file = file.with_name(_CONFIG)
    eos = read_json(config_file).get("eos_token") if config_file.is_file() else None
    if isinstance(eos, dict):
        eos = eos["content"]
    special = {token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special}
    names = [eos] if eos is not None else [name for name in _EOT_NAMES if name in special]
    for name in names:
        if tokenizer.token_to_id(name) is not None:
            return str(name)
    raise ValueError(
        f"{file}: no end-of-text token: {config_file.name} beside it "
        + ("has no eos_token" if eos is None else f"says {eos!r}, which the tokenizer does not have")
        + f"; name it there, or add a special token {' or '.join(_EOT_NAMES)}"
    )
