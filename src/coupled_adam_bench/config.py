"""The study: every setting of an experiment, typed, with its default and its source, and nothing else.

Marks in the docstrings: [P] stated by the paper, [C] read in the authors' code, ours otherwise. Settings that can
change a number live in ``data``, ``models``, ``training`` and ``optimizers``; ``paths`` and ``execution`` never do.
"""

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    model_validator,
)

from coupled_adam_bench.config_errors import describe_errors
from coupled_adam_bench.presets import HUB_PRESETS, MODEL_PRESETS, PAPER_TASKS, PAPER_WORD_SIMILARITY

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9.\-]*$"  # without '_', which separates the parts of a cell's id
Name = Annotated[str, Field(pattern=NAME_PATTERN, description="Letters, digits, '.' and '-'; becomes part of a path.")]
STUDY_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._\-]*$"
# What else lies in results/.
RESERVED_STUDY_NAMES = ("data", "runs", "mlflow.db", "mlflow-artifacts")
_COUNT_PATTERN = r"^([0-9]+(?:\.[0-9]+)?) ?([KMBT]?)$"
_SUFFIX = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


def parse_count(value: Any) -> Any:
    """Turn ``"1.5M"`` or ``"20B"`` into an integer and pass everything but text through for pydantic to judge."""
    if not isinstance(value, str):
        return value
    match = re.fullmatch(_COUNT_PATTERN, value.strip())
    count = Decimal(match[1]) * _SUFFIX[match[2]] if match else Decimal("nan")
    if count % 1 != 0:  # also of "nan"
        raise ValueError("must be a whole number, or one with K, M, B or T, such as 1.5M")
    return int(count)


_CountText = Annotated[str, Field(pattern=_COUNT_PATTERN)]
Count = Annotated[
    int,
    Field(gt=0),
    BeforeValidator(parse_count, json_schema_input_type=Annotated[int, Field(gt=0)] | _CountText),
    Field(description="A number, or one with K, M, B or T."),
]


Seed = Annotated[int, Field(ge=0)]


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _duplicates(values: Iterable[Any]) -> list[str]:
    return [str(value) for value, count in Counter(values).items() if count > 1]


class Settings(BaseModel):
    """Base of all sections: immutable, and an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)


class Paths(Settings):
    """Where things lie on this machine; no path is part of a cell's identity, the contents behind it are."""

    text: Annotated[tuple[str, ...], BeforeValidator(_as_list, json_schema_input_type=str | tuple[str, ...])] = ()
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


class Model(Settings):
    """A GPT-2 of one size: pre-norm, exact GELU, learned positions, no biases, tied embeddings [P][C]."""

    name: Name
    label: str | None = None
    """How tables print it, e.g. ``125M``; without one the parameter count is printed."""
    n_layer: int = Field(gt=0)
    n_head: int = Field(gt=0)
    d_model: int = Field(gt=0)
    learning_rate: float = Field(gt=0)
    """Peak learning rate."""

    @model_validator(mode="after")
    def _heads_divide_width(self) -> Self:
        if self.d_model % self.n_head:
            raise ValueError(f"n_head: {self.n_head} does not divide d_model {self.d_model}")
        return self

    def n_params(self, vocab_size: int, seq_len: int) -> int:
        """Return the number of parameters, the tied embedding counted once and positions included."""
        per_layer = 12 * self.d_model**2 + 2 * self.d_model
        return (vocab_size + seq_len) * self.d_model + self.n_layer * per_layer + self.d_model


def _model_from_preset(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if value not in MODEL_PRESETS:
        raise ValueError(f"no such preset; there are {', '.join(MODEL_PRESETS)}; or give name, n_layer, n_head, ...")
    return MODEL_PRESETS[value]


ModelOrPreset = Annotated[
    Model, BeforeValidator(_model_from_preset, json_schema_input_type=Literal[tuple(MODEL_PRESETS)] | Model)
]


class AdamW(Settings):
    """AdamW for the embedding, as for all other parameters: the paper's "Adam"."""

    name: Literal["adamw"]

    @property
    def key(self) -> str:
        """Name in results, ids and tables' keys."""
        return "adamw"

    @property
    def label(self) -> str:
        """Name in tables."""
        return "Adam"


class CoupledAdam(Settings):
    """Coupled Adam for the embedding; ``scale_exponent`` n multiplies the second moment by 2^-n (Sec. 6.1) [C]."""

    name: Literal["coupled_adam"]
    scale_exponent: int = 0

    @property
    def key(self) -> str:
        """Name in results, ids and tables' keys."""
        return "coupled_adam" if self.scale_exponent == 0 else f"coupled_adam_n{self.scale_exponent}"

    @property
    def label(self) -> str:
        """Name in tables."""
        return "Coupled Adam" if self.scale_exponent == 0 else f"Coupled Adam, n = {self.scale_exponent}"


class Sgd(Settings):
    """SGD for the embedding at ``lr_factor`` times the learning rate (Alg. 2) [C]."""

    name: Literal["sgd"]
    lr_factor: float = Field(gt=0)
    momentum: float = Field(0.9, ge=0, lt=1)

    @property
    def key(self) -> str:
        """Name in results, ids and tables' keys."""
        momentum = "" if self.momentum == 0.9 else f"_m{self.momentum:g}"
        return f"sgd_f{self.lr_factor:g}{momentum}"

    @property
    def label(self) -> str:
        """Name in tables."""
        momentum = "" if self.momentum == 0.9 else f", m = {self.momentum:g}"
        return f"SGD, f = {self.lr_factor:g}{momentum}"


def _optimizer_from_name(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


_AnyOptimizer = Annotated[AdamW | CoupledAdam | Sgd, Field(discriminator="name")]
Optimizer = Annotated[
    _AnyOptimizer,
    BeforeValidator(_optimizer_from_name, json_schema_input_type=Literal["adamw", "coupled_adam"] | _AnyOptimizer),
]


class Training(Settings):
    """The recipe that all cells of a study share."""

    seq_len: int = Field(1024, gt=1)
    """[P]"""
    batch_sequences: int = Field(96, gt=0)
    """Sequences of the global batch [P]: 96 x 1024 = 98,304 tokens."""
    beta1: float = Field(0.9, ge=0, lt=1)
    """[P]"""
    beta2: float = Field(0.95, ge=0, lt=1)
    """[P]"""
    eps: float = Field(1e-8, gt=0)
    """[P]"""
    weight_decay: float = Field(0.1, ge=0)
    """[P] Of the matrices; norms and the embedding have their own."""
    embedding_weight_decay: float = Field(0.0, ge=0)
    """[C] 0 for the tied embedding; the text of the paper says 0.1."""
    grad_clip: float = Field(1.0, gt=0)
    """[P] Global 2-norm of the gradient of all parameters."""
    warmup_steps: int = Field(100, ge=0)
    """[P] Learning rate peak * (t + 1) / (warmup_steps + 1) in step t < warmup_steps."""
    min_lr_ratio: float = Field(0.1, ge=0, le=1)
    """[C] Cosine decay ends at this fraction of the peak."""
    init_std: float = Field(0.02, gt=0)
    """[C] Residual output projections: init_std / sqrt(2 n_layer)."""
    precision: Literal["fp32", "bf16"] = "bf16"
    """``bf16``: autocast over fp32 weights [P][C]."""


Column = Annotated[int, Field(ge=0)]


class WordSimilaritySet(Settings):
    """A list of word pairs with human ratings: a file of ``paths.word_similarity``, columns counted from 0."""

    name: Name
    file: str
    columns: tuple[Column, Column, Column] = (0, 1, 2)
    """First word, second word, rating."""
    strip_pos: bool = False
    """Cut a part-of-speech suffix such as ``-n`` from the words."""


class Downstream(Settings):
    """Tasks of the lm-evaluation-harness."""

    tasks: tuple[str, ...] | Literal["synthetic"] = PAPER_TASKS
    """Names known to lm-eval or defined in ``paths.tasks``; ``synthetic``: those of the generated language."""
    num_fewshot: int = Field(0, ge=0)
    """[C] zero-shot"""
    limit: int | None = Field(None, gt=0)
    """Items of each task, the first ones; all without it."""


class Evaluation(Settings):
    """What is measured on a trained model."""

    word_similarity: tuple[WordSimilaritySet, ...] | Literal["synthetic"] = tuple(
        WordSimilaritySet(**fields) for fields in PAPER_WORD_SIMILARITY
    )
    downstream: Downstream = Downstream()


class Tokens(Settings):
    """Training tokens of a cell, as steps of the global batch."""

    steps: int = Field(gt=0)
    label: str | None = None
    """How tables print it, e.g. ``20B``."""


StepsOrCount = Annotated[
    Annotated[Tokens, Tag("in_steps")] | Annotated[Count, Tag("in_tokens")],
    Discriminator(lambda value: "in_steps" if isinstance(value, dict | Tokens) else "in_tokens"),
]


class Block(Settings):
    """A Cartesian product of cells, and the table that shows them."""

    table: Literal["table1", "table2", "table7"] | None = None
    models: tuple[Name, ...] = Field(min_length=1)
    tokens: tuple[StepsOrCount, ...] = Field(min_length=1)
    """Numbers such as ``20B`` are rounded down to whole steps."""
    optimizers: tuple[Optimizer, ...] = Field(min_length=1)
    seeds: tuple[Seed, ...] = Field((1, 2, 3), min_length=1)
    """[P] 1, 2, 3"""

    def errors(self, batch_tokens: int, models: Iterable[str]) -> Iterator[str]:
        """Yield what is wrong with this block as ``field: message``, given the tokens of one batch and the models."""
        if unknown := sorted(set(self.models) - set(models)):
            yield f"models: {', '.join(unknown)} is not among the study's models {', '.join(models)}"
        for value in self.tokens:
            if isinstance(value, int) and value < batch_tokens:
                yield (
                    f"tokens: {value} is smaller than one batch of {batch_tokens} tokens "
                    "(training.batch_sequences x training.seq_len)"
                )
        steps = [value // batch_tokens if isinstance(value, int) else value.steps for value in self.tokens]
        for field, values in (
            ("models", self.models),
            ("tokens", [f"{count} steps" for count in steps]),
            ("optimizers", [optimizer.key for optimizer in self.optimizers]),
            ("seeds", self.seeds),
        ):
            if twice := _duplicates(values):
                yield f"{field}: {', '.join(twice)} given more than once"
        if self.table == "table1" and len(self.optimizers) != 2:
            yield f"optimizers: table1 compares exactly 2, not {len(self.optimizers)}; more go into table7"
        if self.table in ("table2", "table7") and len(self.optimizers) < 2:
            yield f"optimizers: {self.table} compares at least 2, not {len(self.optimizers)}"
        if self.table in ("table1", "table7") and len(self.seeds) < 2:
            yield f"seeds: {self.table} rests on a t-test and needs at least 2 seeds"


class Execution(Settings):
    """How the work is done: nothing here changes a number beyond float error or is part of a cell's id."""

    train_threads: int = Field(1, gt=0)
    evaluation_threads: int = Field(1, gt=0)
    data_threads: int = Field(2, gt=0)
    gpus: int = Field(0, ge=0)
    """GPUs of a training or evaluation job; training on more than one is not supported yet."""
    micro_batch_sequences: int | None = Field(None, gt=0)
    """Sequences per forward pass; the whole batch without it."""
    evaluation_batch_sequences: int = Field(16, gt=0)
    train_cells_per_job: int = Field(1, gt=0)
    """Cells that one training job takes in turn: more for tiny models, which train as fast as torch starts."""
    evaluation_cells_per_job: int = Field(1, gt=0)
    """Cells that one evaluation job takes: more for tiny models, whose evaluation is shorter than lm-eval's start."""
    log_every: int = Field(10, gt=0)
    """Steps between lines of ``history.jsonl``."""
    checkpoint_every: int = Field(1000, gt=0)
    """Steps between checkpoints."""
    train_mem_mb: int = Field(4000, gt=0)
    train_minutes: int = Field(1440, gt=0)
    evaluation_mem_mb: int = Field(8000, gt=0)
    """lm-eval holds the logits of a batch twice: 8 bytes x evaluation_batch_sequences x seq_len x vocab_size."""
    evaluation_minutes: int = Field(240, gt=0)


class Study(Settings):
    """A study: one YAML file."""

    study: Annotated[str, Field(pattern=STUDY_PATTERN)]
    """Its name; results go to ``results/<study>/``."""
    title: str = ""
    protocol: Name = "corrected"
    """Name of the rules of measurement, printed with every result; see paper.md's ledger of the three protocols."""
    paths: Paths = Paths()
    data: Data
    models: tuple[ModelOrPreset, ...] = Field(min_length=1)
    """Presets by name, or sizes."""
    training: Training = Training()
    grid: tuple[Block, ...] = Field(min_length=1)
    evaluation: Evaluation = Evaluation()
    execution: Execution = Execution()

    @model_validator(mode="after")
    def _grid_fits(self) -> Self:
        names = [model.name for model in self.models]
        if twice := _duplicates(names):
            raise ValueError(f"models: {', '.join(twice)} defined more than once")
        batch_tokens = self.training.batch_sequences * self.training.seq_len
        for index, block in enumerate(self.grid):
            for message in block.errors(batch_tokens, names):
                raise ValueError(f"grid.{index}.{message}")
        return self

    @model_validator(mode="after")
    def _results_tell_cells_apart(self) -> Self:
        sizes = {m.name: m.n_params(self.data.vocab_size, self.training.seq_len) for m in self.models}
        owners: dict[tuple[int, str], tuple[str, Optimizer]] = {}
        for index, block in enumerate(self.grid):
            for pair in itertools.product(block.models, block.optimizers):
                key = (sizes[pair[0]], pair[1].key)
                if owners.setdefault(key, pair) != pair:
                    raise ValueError(
                        f"grid.{index}: {pair[0]} and {owners[key][0]} with {pair[1].key} have the same n_params, "
                        "by which results are told apart; put them into two studies"
                    )
        return self

    @model_validator(mode="after")
    def _sources_fit(self) -> Self:
        if self.study in RESERVED_STUDY_NAMES:
            raise ValueError(f"study: {self.study} is taken; results/ also holds {', '.join(RESERVED_STUDY_NAMES)}")
        if self.data.source.kind == "files" and not self.paths.text:
            raise ValueError("paths.text: missing; the source 'files' needs folders, files or globs")
        if self.data.tokenizer == "file" and self.paths.tokenizer is None:
            raise ValueError("paths.tokenizer: missing; data.tokenizer 'file' needs a tokenizer.json")
        if self.data.source.kind != "synthetic" and "synthetic" in (
            self.evaluation.word_similarity,
            self.evaluation.downstream.tasks,
        ):
            raise ValueError("evaluation: 'synthetic' sets exist for the data source 'synthetic' only")
        return self


def parse_study(values: Any, origin: str = "study") -> Study:
    """Validate a study given as a mapping.

    Raises ``ValueError`` that lists every wrong field: its place, its value and what is allowed.
    """
    try:
        return Study.model_validate(values)
    except ValidationError as error:
        lines = describe_errors(error, Study, values)
        raise ValueError("\n  ".join([f"{origin}: {len(lines)} invalid setting(s)", *lines])) from None


def load_study(path: Path) -> Study:
    """Read and validate a study's YAML or JSON file."""
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{path}: no such study file") from None
    except yaml.YAMLError as error:
        raise ValueError(f"{path}: not valid YAML: {error}") from None
    return parse_study(values, str(path))
