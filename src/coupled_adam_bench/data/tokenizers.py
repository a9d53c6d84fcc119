"""Tokenizers: they encode text for the bins and are saved in Hugging Face's format for the
evaluation."""

import json
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from coupled_adam_bench.data.patience import BY_FETCH, patiently
from coupled_adam_bench.store.files import digest, read_json, write_json, write_text
from coupled_adam_bench.study.plan.inputs import (
    EOT_NAMES,
    TOKENIZER_CONFIG,
    configured_eos,
    special_ends,
    tokenizer_file,
)
from coupled_adam_bench.study.settings import Study
from embedding_geometry.json_file import read_object
from embedding_geometry.tokenizer import read_tokenizer
from embedding_geometry.transport import CacheError

EOT = EOT_NAMES[0]
_TOKENIZER = "tokenizer.json"
_SHOWN = 16
"""Number of characters that are shown on both sides of a change."""
_UNKNOWN = "\u9f98"
"""A rare Chinese character, which only byte-level vocabularies can encode."""

GPT2_REPOSITORY = "openai-community/gpt2"
GPT2_REVISION = "607a30d783dfa663caf39e06633721c8d4cfcd7e"
GPT2_BYTES = 4 * 10**6
"""More than its ``tokenizer.json`` has."""
# SHA-256 of vocabulary and merges as JSON values, because the format of tokenizer.json differs
# between versions of the libraries. It was computed from OpenAI's encoder.json and vocab.bpe, whose
# SHA-256 are 196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783 and
# 1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5; transformers' GPT-2 has the same
# digest.
GPT2_DIGEST = "0ced44b5acc4db20aa9a7f1624fe94d1837d4d9065b8eb8a65a84efc09fae5e0"

TokenIds = npt.NDArray[np.uint32]
Merges = list[tuple[str, str]]
"""Pairs of tokens in the order in which a BPE merges them, in GPT-2's printable characters for
bytes."""


def load_saved(folder: Path) -> tuple[Tokenizer, int]:
    """Return a tokenizer saved by :func:`save_tokenizer` and the id of its end-of-text token.

    It encodes as transformers' ``AutoTokenizer`` does, whose import takes a second.
    """
    tokenizer = Tokenizer.from_file(str(folder / _TOKENIZER))
    eot_id = tokenizer.token_to_id(read_json(folder / TOKENIZER_CONFIG)["eos_token"])
    assert eot_id is not None
    return tokenizer, eot_id


class Encoder:
    """Encodes text with a saved tokenizer; special tokens that stand in a text are encoded as plain
    text."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer, self.eot_id = load_saved(folder)
        self._tokenizer.encode_special_tokens = True
        self.eot = str(self._tokenizer.id_to_token(self.eot_id))
        self.n_vocab = max(self._tokenizer.get_vocab(with_added_tokens=True).values()) + 1

    def encode(self, text: str) -> TokenIds:
        """Return the token ids of a text, without end-of-text, shape (n_tokens,).

        A vocabulary of words or pieces may have the name of end-of-text as one of them; it is then
        unknown text.
        """
        # encode_batch_fast skips character offsets, so it is faster than encode even for one text.
        ids = np.array(
            self._tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids,
            dtype=np.uint32,
        )
        is_end = ids == self.eot_id
        if is_end.any() and self._unknown_id is not None:
            ids[is_end] = self._unknown_id
        return ids

    def change_of(self, text: str) -> str:
        """Return in words where a text differs that is turned into tokens and back; empty if it
        comes back as it is."""
        back = self._tokenizer.decode(self.encode(text).tolist(), skip_special_tokens=False)
        if back == text:
            return ""
        is_alike = [one == other for one, other in zip(text, back, strict=False)]
        alike = (*is_alike, False).index(False)
        start, end = max(0, alike - _SHOWN), alike + _SHOWN
        return f"{text[start:end]!r} comes back as {back[start:end]!r}"

    @cached_property
    def _unknown_id(self) -> int | None:
        """The token for unknown text, if there is one; the model Unigram shows it only in its
        JSON."""
        model = json.loads(self._tokenizer.to_str())["model"]
        name = model.get("unk_token")
        found: int | None = (
            model.get("unk_id") if name is None else self._tokenizer.token_to_id(name)
        )
        return found


@lru_cache(maxsize=1)
def load_encoder(folder: Path) -> Encoder:
    """Return the encoder of a tokenizer saved by :func:`save_tokenizer`, cached in this process."""
    return Encoder(folder)


def save_tokenizer(
    study: Study, words: list[str] | None, folder: Path, merges: Merges | None = None
) -> list[Path]:
    """Write the study's tokenizer to ``folder``, for :func:`load_encoder` and transformers'
    ``AutoTokenizer``.

    ``words`` is the vocabulary of a generated language, and ``merges`` is what was learned for
    ``bpe``, in its order. Returns the paths of the files. Raises ``ValueError`` if the tokenizer is
    missing or invalid, has no end-of-text token, or has more tokens than ``data.vocab_size``.
    """
    if study.data.tokenizer == "word":
        assert words is not None
        _save(_word_tokenizer(words), EOT, folder)
    elif study.data.tokenizer == "gpt2":
        _save(_gpt2_tokenizer(study), EOT, folder)
    elif study.data.tokenizer == "bpe":
        assert merges is not None
        tokens = [
            *sorted(pre_tokenizers.ByteLevel.alphabet()),
            *(first + second for first, second in merges),
            EOT,
        ]
        _save(
            _byte_level_bpe({token: index for index, token in enumerate(tokens)}, merges),
            EOT,
            folder,
        )
    else:
        assert study.paths.tokenizer is not None
        file = tokenizer_file(study.paths.tokenizer)
        tokenizer = read_tokenizer(file)
        _check_unknown(file, tokenizer)
        eot = _end_of_text(file, tokenizer)
        # This token is found in no text.
        tokenizer.add_special_tokens([AddedToken(eot, special=True, normalized=False)])
        _save(tokenizer, eot, folder)
    load_encoder.cache_clear()
    encoder = load_encoder(folder)
    n_vocab = encoder.n_vocab
    # A usual name stands in no text by accident, also where it is one of the words.
    if encoder.eot not in EOT_NAMES and encoder.eot_id in encoder.encode(encoder.eot):
        raise ValueError(
            f"paths.tokenizer: {study.paths.tokenizer}: the end-of-text token {encoder.eot!r} is"
            " also a word of texts, which would end documents; name another token as eos_token in"
            f" {TOKENIZER_CONFIG} beside it"
        )
    if n_vocab > study.data.vocab_size:
        raise ValueError(
            f"data.vocab_size: {study.data.vocab_size}, but the tokenizer has {n_vocab} tokens;"
            " raise it"
        )
    return [folder / _TOKENIZER, folder / TOKENIZER_CONFIG]


def _save(tokenizer: Tokenizer, eot: str, folder: Path) -> None:
    write_text(folder / _TOKENIZER, tokenizer.to_str(pretty=True))
    # The generic class uses tokenizer.json unchanged, while the classes of single models rebuild
    # some of it.
    write_json(
        folder / TOKENIZER_CONFIG,
        {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": eot, "eos_token": eot},
    )


def _word_tokenizer(words: list[str]) -> Tokenizer:
    """Return a tokenizer of whitespace-separated words; end-of-text has the last id."""
    tokenizer = Tokenizer(
        models.WordLevel({word: index for index, word in enumerate([*words, EOT])})
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens([AddedToken(EOT, special=True, normalized=False)])
    return tokenizer


def mirrored_gpt2(mirror: str) -> Path:
    """Return where GPT-2's tokenizer lies in the folder ``paths.hub_mirror``."""
    return Path(mirror) / GPT2_REPOSITORY / _TOKENIZER


def _gpt2_tokenizer(study: Study) -> Tokenizer:
    if study.paths.tokenizer is not None:
        file = tokenizer_file(study.paths.tokenizer)
    elif study.paths.hub_mirror is not None and mirrored_gpt2(study.paths.hub_mirror).is_file():
        file = mirrored_gpt2(study.paths.hub_mirror)
    else:
        file = download_gpt2(study.execution.hub_minutes)
    return read_gpt2(file)


def read_gpt2(file: Path) -> Tokenizer:
    """Return GPT-2's tokenizer from its ``tokenizer.json``; ``ValueError`` for another one."""
    try:
        model = read_object(file)["model"]
        vocab = model["vocab"]
        merges = []
        for merge in model["merges"]:
            # Older files have the two parts of a merge as one text, newer ones as a list.
            parts = merge.split(" ") if isinstance(merge, str) else merge
            merges.append(tuple(parts))
        own_digest = digest({"vocab": vocab, "merges": merges}, 64)
    except (KeyError, TypeError, ValueError):
        vocab, merges, own_digest = {}, [], "none"
    if own_digest != GPT2_DIGEST:
        raise ValueError(
            f"{file}: not GPT-2's tokenizer (digest of vocabulary and merges {own_digest}, expected"
            f" {GPT2_DIGEST}); for another tokenizer set data.tokenizer to 'file'"
        )
    return _byte_level_bpe(vocab, merges)


def _byte_level_bpe(vocab: dict[str, int], merges: Merges) -> Tokenizer:
    """Return a BPE with GPT-2's pattern and its characters for bytes; ``vocab`` has the end-of-text
    token."""
    tokenizer = Tokenizer(models.BPE(vocab, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(EOT, special=True, normalized=False)])
    return tokenizer


def download_gpt2(minutes: float, folder: Path | None = None) -> Path:
    """Return GPT-2's ``tokenizer.json`` of the Hugging Face hub, in ``folder`` or in the cache of
    the hub's library."""
    from huggingface_hub import hf_hub_download

    def get() -> str:
        return hf_hub_download(
            GPT2_REPOSITORY, _TOKENIZER, revision=GPT2_REVISION, local_dir=folder
        )

    try:
        return Path(patiently("GPT-2's tokenizer", minutes, get, GPT2_BYTES))
    except CacheError:
        raise
    except (
        OSError,
        ValueError,
    ) as error:  # huggingface_hub's errors without a network, and its HTTP errors
        raise ValueError(
            "data.tokenizer: could not download GPT-2's tokenizer.json from the Hugging Face hub"
            f" ({error}); connect this machine,{BY_FETCH} or set paths.tokenizer to a folder with"
            " the file"
        ) from None


def _check_unknown(file: Path, tokenizer: Tokenizer) -> None:
    """Raise ``ValueError`` if the tokenizer fails on text that its vocabulary lacks, or drops such
    text."""
    advice = "give model.unk_token a token of model.vocab, or take a byte-level tokenizer"
    try:
        ids = tokenizer.encode(_UNKNOWN, add_special_tokens=False).ids
    except Exception as error:  # the library raises no other type
        raise ValueError(
            f"{file}: cannot encode text with a word that is not in its vocabulary; {advice}:"
            f" {error}"
        ) from None
    if ids:
        return
    if (part := _removes_unknown(tokenizer)) is not None:
        raise ValueError(
            f"{file}: its {part} removes characters such as {_UNKNOWN!r} before they are encoded;"
            f" take that step out of {part} in this file, or set {part} to null if it has no other"
        )
    raise ValueError(
        f"{file}: drops characters that are not in its vocabulary, such as {_UNKNOWN!r}; {advice}"
    )


def _removes_unknown(tokenizer: Tokenizer) -> str | None:
    """Return the part of a tokenizer that removes text before its model sees it, None if none
    does."""
    normalizer, pre_tokenizer = tokenizer.normalizer, tokenizer.pre_tokenizer
    normalized = _UNKNOWN if normalizer is None else normalizer.normalize_str(_UNKNOWN)
    if not normalized:
        return "normalizer"
    if pre_tokenizer is not None and not pre_tokenizer.pre_tokenize_str(normalized):
        return "pre_tokenizer"
    return None


def _end_of_text(file: Path, tokenizer: Tokenizer) -> str:
    """Return the end-of-text token: ``eos_token`` of the configuration next to ``file``, or else a
    common name."""
    eos = configured_eos(file)
    names = special_ends(read_object(file)) if eos is None else [eos]
    for name in names:
        if tokenizer.token_to_id(name) is not None:
            return str(name)
    raise ValueError(
        f"{file}: no end-of-text token: {TOKENIZER_CONFIG} beside it "
        + (
            "has no eos_token"
            if eos is None
            else f"says {eos!r}, which the tokenizer does not have"
        )
        + f"; name it there, or add a special token {' or '.join(EOT_NAMES)}"
    )
