"""The sections ``paths`` and ``data`` of a study."""

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from coupled_adam_bench.study.catalogue.presets import HUB_PLACES, HUB_PRESETS, Place
from coupled_adam_bench.study.settings.base import (
    Count,
    LaterSettings,
    Name,
    Seed,
    Settings,
    Term,
    UserPath,
    as_list,
)
from coupled_adam_bench.study.settings.plug_ins import Own


class Paths(Settings):
    """Locations of files on this machine. A cell's id depends on the contents of the files, not on
    their paths.

    Each may begin with ``~`` and have variables of the environment, such as ``$SCRATCH/text``.
    """

    text: Annotated[
        tuple[UserPath, ...],
        BeforeValidator(as_list, json_schema_input_type=UserPath | tuple[UserPath, ...]),
    ] = ()
    """Folders, files or globs of text for the source ``files``: .txt, .jsonl or .parquet, plain,
    .gz, .xz or .zst. For the source ``own``, files of any kind."""
    tokenizer: UserPath | None = None
    """A ``tokenizer.json`` or its folder; by default GPT-2's, from ``hub_mirror`` or from the
    Hugging Face hub."""
    word_similarity: UserPath = "data/word_similarity"
    """Folder of the word-similarity sets."""
    hub_mirror: UserPath | None = None
    """Folder that the target ``fetch`` fills and that jobs read in place of the Hugging Face hub:
    downstream tasks as ``<org>/<dataset>/<config>/<split>.jsonl``, which must be there, the corpus,
    and GPT-2's tokenizer."""
    tasks: UserPath | None = None
    """Folder with more lm-eval task YAML files. A `!function` in such a file runs Python code when
    the task is loaded, so use only files that you trust."""


CONTINUATION_WORDS = 8
"""Number of words in an answer of the generated language's tasks; a model's context must be at
least as long."""


class SyntheticSource(Settings):
    """A generated language: Zipfian unigrams, latent word classes and topics (see
    ``data/synthetic.py``)."""

    kind: Literal["synthetic"] = "synthetic"
    seed: Seed = 0
    n_words: int = Field(1000, ge=50, le=10**6)
    """Number of different words, without the end-of-text token."""
    n_classes: int = Field(8, ge=2, le=1000)
    """Number of word classes; the grammar is a Markov chain over the classes."""
    n_topics: int = Field(10, ge=2, le=1000)
    """Number of topics; each document has one topic, and each word belongs to one."""
    zipf_exponent: float = Field(1.0, gt=0, le=10)
    n_tokens: Count = 2_000_000
    """Size of the corpus in words, over all splits."""
    document_tokens: int = Field(200, ge=20, le=10**5)
    """Mean length of a document in words."""
    n_word_pairs: int = Field(1000, ge=20, le=10**6)
    """Number of word pairs in the word-similarity gold list."""
    n_task_items: int = Field(200, ge=10, le=10**5)
    """Number of items in each multiple-choice task."""

    @model_validator(mode="after")
    def _enough_words(self) -> Self:
        if self.n_classes > self.n_words:
            raise ValueError(
                f"n_classes: {self.n_classes} exceeds n_words {self.n_words}; each class needs a"
                " word"
            )
        n_pairs = self.n_words * (self.n_words - 1) // 2
        if self.n_word_pairs > n_pairs:
            raise ValueError(
                f"n_word_pairs: {self.n_word_pairs}, but {self.n_words} words have only {n_pairs}"
                " pairs"
            )
        return self


class FilesSource(Settings):
    """Text files at ``paths.text``."""

    kind: Literal["files"]
    text_field: Term = "text"
    """Field of the .jsonl rows or column of the .parquet files."""
    txt_document: Literal["file", "line", "paragraph", "end_of_text"] = "file"
    """Unit of text in a .txt file that counts as one document. Empty lines separate paragraphs, and
    with ``end_of_text`` the text ``<|endoftext|>`` separates documents."""


class OwnSource(Own):
    """Token ids that a class of the study's own makes, from the files at ``paths.text`` if there
    are any (docs/plugins.md)."""

    kind: Literal["own"]


class HubSource(Settings):
    """A dataset of the Hugging Face hub."""

    kind: Literal["hub"]
    preset: Literal[tuple(HUB_PRESETS)] | None = None  # type: ignore[valid-type]
    """Name of a corpus whose places are known. They are tried in turn, and ``meta.json`` names the
    one that served. If another field here departs from the preset, what the fields say is the only
    place."""
    dataset: Term | None = None
    config_name: Term | None = None
    revision: Term | None = None
    """Commit or branch of the dataset. Without one, places of a preset have their own; elsewhere it
    is the newest commit, and the data, and with them the numbers, can change."""
    split: Term = "train"
    text_field: Term = "text"

    @model_validator(mode="before")
    @classmethod
    def _fill_preset(cls, values: Any) -> Any:
        preset = values.get("preset") if isinstance(values, dict) else None
        return (
            HUB_PRESETS[preset] | values
            if isinstance(preset, str) and preset in HUB_PRESETS
            else values
        )

    @model_validator(mode="after")
    def _needs_dataset(self) -> Self:
        if self.dataset is None:
            raise ValueError(
                "dataset: missing; give the name of a Hugging Face dataset, or a preset: "
                + ", ".join(HUB_PRESETS)
            )
        return self

    @property
    def places(self) -> tuple[Place, ...]:
        """The places that may have the dataset, in the order in which they are tried."""
        assert self.dataset is not None
        if self.preset is not None and self == HubSource.model_validate(
            {"kind": "hub", "preset": self.preset}
        ):
            return HUB_PLACES[self.preset]
        return (Place(self.dataset, self.revision, self.config_name, self.split, self.text_field),)


class Split(Settings):
    """Split of the documents into train, val and test by a hash of their text and ``seed``, not by
    their position."""

    val_fraction: float = Field(0.0005, gt=0, lt=0.5)
    """Fraction of the documents in val [C]."""
    test_fraction: float = Field(0.0005, gt=0, lt=0.5)
    """Fraction of the documents in test."""
    seed: Seed = 2357
    """Seed of the hash [C]."""


BYTES_AND_EOT = 257
"""Number of tokens that a byte-level BPE has without any merge: the bytes and end-of-text."""
_MOST_BPE_TOKENS = 2**20


class Data(LaterSettings):
    """Text, tokenizer and split."""

    later: ClassVar[tuple[str, ...]] = ("max_tokens", "skip")

    name: Name
    source: Annotated[
        SyntheticSource | FilesSource | OwnSource | HubSource, Field(discriminator="kind")
    ]
    tokenizer: Literal["word", "gpt2", "file", "bpe"]
    """``word``: words between spaces (synthetic only); ``gpt2``: GPT-2 BPE; ``file``:
    ``paths.tokenizer``; ``bpe``: a byte-level BPE of ``vocab_size`` tokens, learned from the split
    train when the data are prepared."""
    vocab_size: int = Field(gt=1, le=2**32)
    """Number of rows of the embedding matrix; the paper pads GPT-2's 50257 tokens to 50304 [P]."""
    split: Split = Split()
    max_tokens: Count | None = None
    """Number of tokens, over all splits and with end-of-text, after which no more documents are
    read; by default all are. The documents are the first of the source, so only these are fetched
    and tokenized."""
    skip: Literal["nothing", "empty", "invalid"] = "empty"
    """What is left out of the text, and counted. ``empty``: documents and files without text, and
    rows whose text is null; ``invalid``: also rows without valid text, such as a broken line of
    JSON, a row without the field, a number in place of text or half of a surrogate pair;
    ``nothing``: any of these stops the preparation."""

    @model_validator(mode="after")
    def _skips_text(self) -> Self:
        if self.skip != "empty" and self.source.kind not in ("files", "hub"):
            raise ValueError(
                f"skip: {self.skip!r}, but the source {self.source.kind!r} has no rows; leave"
                " it out"
            )
        return self

    @model_validator(mode="after")
    def _cap_fits(self) -> Self:
        if self.max_tokens is not None and self.source.kind == "synthetic":
            raise ValueError(
                "max_tokens: a generated language has the size data.source.n_tokens; set that"
                " instead"
            )
        if self.max_tokens is not None and self.source.kind == "own":
            raise ValueError(
                "max_tokens: a source of your own gives as many tokens as it does; give it an"
                " argument"
            )
        return self

    @model_validator(mode="after")
    def _tokenizer_fits(self) -> Self:
        if (self.tokenizer == "word") != (self.source.kind == "synthetic"):
            raise ValueError("tokenizer: 'word' goes with the source 'synthetic', and only with it")
        if self.source.kind == "own" and self.tokenizer == "bpe":
            raise ValueError(
                "tokenizer: 'bpe' is learned from text, and a source of your own gives token ids;"
                " use 'gpt2' or 'file'"
            )
        if self.source.kind == "synthetic" and self.vocab_size < self.source.n_words + 1:
            raise ValueError(
                f"vocab_size: {self.vocab_size} < {self.source.n_words + 1} (n_words and"
                " end-of-text)"
            )
        if self.tokenizer == "gpt2" and self.vocab_size < 50257:
            raise ValueError(f"vocab_size: {self.vocab_size} < 50257, the number of GPT-2 tokens")
        return self

    @model_validator(mode="after")
    def _bpe_fits(self) -> Self:
        fits = BYTES_AND_EOT <= self.vocab_size <= _MOST_BPE_TOKENS
        if self.tokenizer == "bpe" and not fits:
            raise ValueError(
                f"vocab_size: {self.vocab_size}, but a tokenizer 'bpe' has {BYTES_AND_EOT} (256"
                f" bytes and end-of-text) to {_MOST_BPE_TOKENS:,} tokens"
            )
        return self
