"""Sections of a study: where things lie, and the data."""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from coupled_adam_bench.config.base import Count, Name, Seed, Settings, as_list
from coupled_adam_bench.presets import HUB_PRESETS


class Paths(Settings):
    """Where things lie on this machine; no path is part of a cell's identity, the contents behind it are."""

    text: Annotated[tuple[str, ...], BeforeValidator(as_list, json_schema_input_type=str | tuple[str, ...])] = ()
    """Folders, files or globs of text for the source ``files`` (.txt, .jsonl, .parquet; plain, .gz, .xz or .zst)."""
    tokenizer: str | None = None
    """A ``tokenizer.json`` or its folder; without it GPT-2's is downloaded from the Hugging Face hub."""
    word_similarity: str = "data/word_similarity"
    """Folder of the word-similarity sets."""
    hub_mirror: str | None = None
    """Folder ``<org>/<dataset>/<config>/<split>.jsonl`` used instead of the Hugging Face hub for downstream tasks."""
    tasks: str | None = None
    """Folder with further lm-eval task YAML files."""


class SyntheticSource(Settings):
    """A generated language: Zipfian unigrams, latent word classes and topics (see ``data/synthetic.py``)."""

    kind: Literal["synthetic"] = "synthetic"
    seed: Seed = 0
    n_words: int = Field(1000, ge=50)
    """Word types, without the end-of-text token."""
    n_classes: int = Field(8, ge=2)
    """Word classes: the grammar is a Markov chain over them."""
    n_topics: int = Field(10, ge=2)
    """Topics: each document has one, each word belongs to one."""
    zipf_exponent: float = Field(1.0, gt=0)
    n_tokens: Count = 2_000_000
    """Size of the corpus in words, over all splits."""
    document_tokens: int = Field(200, ge=20)
    """Mean length of a document in words."""
    n_word_pairs: int = Field(1000, ge=20)
    """Pairs of the word-similarity gold list."""
    n_task_items: int = Field(200, ge=10)
    """Items of each multiple-choice task."""


class FilesSource(Settings):
    """Text files at ``paths.text``."""

    kind: Literal["files"]
    text_field: str = "text"
    """Field of the .jsonl rows or column of the .parquet files."""
    txt_document: Literal["file", "line", "paragraph"] = "file"
    """What is one document in a .txt file; paragraphs are separated by empty lines."""


class HubSource(Settings):
    """A dataset of the Hugging Face hub, streamed."""

    kind: Literal["hub"]
    preset: Literal["openwebtext", "slimpajama"] | None = None
    dataset: str | None = None
    config_name: str | None = None
    revision: str | None = None
    """Commit of the dataset: pin it, or the numbers can change under you."""
    split: str = "train"
    text_field: str = "text"

    @model_validator(mode="before")
    @classmethod
    def _fill_preset(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("preset") in HUB_PRESETS:
            return HUB_PRESETS[values["preset"]] | values
        return values

    @model_validator(mode="after")
    def _needs_dataset(self) -> Self:
        if self.dataset is None:
            raise ValueError(
                "dataset: missing; give the name of a Hugging Face dataset, or a preset: " + ", ".join(HUB_PRESETS)
            )
        return self


class Split(Settings):
    """Documents go to train, val or test by a hash of their text and ``seed``, wherever they stand."""

    val_fraction: float = Field(0.0005, gt=0, lt=0.5)
    """[C] 0.0005 of the documents."""
    test_fraction: float = Field(0.0005, gt=0, lt=0.5)
    seed: Seed = 2357
    """[C]"""


class Data(Settings):
    """Text, tokenizer and split."""

    name: Name
    source: Annotated[SyntheticSource | FilesSource | HubSource, Field(discriminator="kind")]
    tokenizer: Literal["word", "gpt2", "file"]
    """``word``: whitespace-separated (synthetic only); ``gpt2``: GPT-2 BPE; ``file``: ``paths.tokenizer``."""
    vocab_size: int = Field(gt=1, le=2**32)
    """Rows of the embedding matrix; the paper pads GPT-2's 50257 tokens to 50304 [P]."""
    split: Split = Split()

    @model_validator(mode="after")
    def _tokenizer_fits(self) -> Self:
        if (self.tokenizer == "word") != (self.source.kind == "synthetic"):
            raise ValueError("tokenizer: 'word' goes with the source 'synthetic', and only with it")
        if self.source.kind == "synthetic" and self.vocab_size < self.source.n_words + 1:
            raise ValueError(f"vocab_size: {self.vocab_size} < {self.source.n_words + 1} (n_words and end-of-text)")
        if self.tokenizer == "gpt2" and self.vocab_size < 50257:
            raise ValueError(f"vocab_size: {self.vocab_size} < 50257, the number of GPT-2 tokens")
        return self
