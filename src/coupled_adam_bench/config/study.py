"""The study: evaluation, grid and execution, and all sections together."""

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from coupled_adam_bench.config.base import Count, Name, Seed, Settings
from coupled_adam_bench.config.data import Data, Paths
from coupled_adam_bench.config.errors import validate
from coupled_adam_bench.config.execution import Execution
from coupled_adam_bench.config.optimizers import Optimizer
from coupled_adam_bench.config.protocols import PROTOCOLS, Protocol, as_yaml, departures, fill, preset
from coupled_adam_bench.config.training import ModelOrPreset, Training
from coupled_adam_bench.presets import PAPER_TASKS, PAPER_WORD_SIMILARITY

STUDY_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._\-]*$"
# What else lies in results/.
RESERVED_STUDY_NAMES = ("data", "runs", "trunks", "mlflow.db", "mlflow-artifacts")


def _not_reserved(name: str) -> str:
    if name in RESERVED_STUDY_NAMES:
        raise ValueError(f"{name} is taken; results/ also holds {', '.join(RESERVED_STUDY_NAMES)}")
    return name


StudyName = Annotated[str, Field(pattern=STUDY_PATTERN), AfterValidator(_not_reserved)]


def _duplicates(values: Iterable[Any]) -> list[str]:
    return [str(value) for value, count in Counter(values).items() if count > 1]


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


class TestLoss(Settings):
    """How the loss on held-out tokens is measured."""

    split: Literal["test", "val"] = "test"
    windows: Literal["all", "random"] = "all"
    """``all``: one pass over windows without overlap; ``random``: offsets that depend on the cell's seed [C]."""
    n_batches: int = Field(2000, gt=0)
    """Of ``random`` [C]: 2000 batches."""
    batch_sequences: int = Field(12, gt=0)
    """Of ``random`` [C]: 12 windows each."""

    def in_effect(self) -> dict[str, Any]:
        """Return the settings that can change the loss: those of ``random`` only with it."""
        return self.model_dump(exclude=set() if self.windows == "random" else {"n_batches", "batch_sequences"})


class Theory(Settings):
    """Checks of the paper's theory in each cell: gradients at the trained model, and a replay of its training."""

    n_batches: int = Field(64, gt=0)
    """Global batches over which squared gradients at the trained model are averaged."""
    record_every: int = Field(10, gt=0)
    """Steps between the records of the mean embedding's drift; the last step is always one."""
    replay_tolerance: float = Field(1e-3, gt=0)
    """A replay whose losses differ relatively by more from the run's own is an error; on a CPU they are the same."""

    def in_effect(self) -> dict[str, Any]:
        """Return the settings that can change a number."""
        return self.model_dump(exclude={"replay_tolerance"})


class Evaluation(Settings):
    """What is measured on a trained model."""

    test_loss: TestLoss = TestLoss()
    isotropy: Literal["both_signs", "eig_float32"] = "both_signs"
    """``both_signs``: float64, both signs of each eigenvector; ``eig_float32``: float32 general eigenvectors with the
    signs they come with, rounded to 4 decimals [C]."""
    leading_space: bool = True
    """Words of the similarity sets are tokenized behind a space, as in running text; the authors' were not [C]."""
    word_similarity: tuple[WordSimilaritySet, ...] | Literal["synthetic"] = tuple(
        WordSimilaritySet(**fields) for fields in PAPER_WORD_SIMILARITY
    )
    downstream: Downstream = Downstream()
    theory: Theory | None = None
    """Run the stage ``theory`` too, which takes about as long as training; not run without it."""

    def protocol_settings(self) -> dict[str, dict[str, Any]]:
        """Return by stage of evaluation what its numbers depend on beside model, data and paths: a key for each stage.

        Of ``embeddings`` and ``lm_eval`` only the settings of a protocol.
        """
        embeddings = {"leading_space": self.leading_space, "isotropy": self.isotropy}
        stages = {"test_loss": self.test_loss.in_effect(), "embeddings": embeddings, "lm_eval": {}}
        return stages if self.theory is None else stages | {"theory": self.theory.in_effect()}


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


class Study(Settings):
    """A study: one YAML file."""

    study: StudyName
    """Its name; results go to ``results/<study>/``."""
    title: str = ""
    protocol: Protocol = "corrected"
    """Preset of the settings at which the authors' code (``official``), the text (``paper``) and what is right part;
    settings given in the study win (docs/protocols.md)."""
    paths: Paths = Paths()
    data: Data
    models: tuple[ModelOrPreset, ...] = Field(min_length=1)
    """Presets by name, or sizes."""
    training: Training = Training()
    grid: tuple[Block, ...] = Field(min_length=1)
    evaluation: Evaluation = Evaluation()
    execution: Execution = Execution()

    @property
    def protocol_label(self) -> str:
        """The protocol and every setting that departs from it: ``corrected; training.embedding_weight_decay = 0.1``."""
        found = departures(self, self.protocol)
        return "; ".join([self.protocol, *(f"{field} = {as_yaml(value)}" for field, value in found.items())])

    @model_validator(mode="before")
    @classmethod
    def _fill_protocol(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        protocol = values.get("protocol", cls.model_fields["protocol"].default)
        return fill(values, preset(protocol)) if protocol in PROTOCOLS else values

    @model_validator(mode="after")
    def _grid_fits(self) -> Self:
        names = [model.name for model in self.models]
        if twice := _duplicates(names):
            raise ValueError(f"models: {', '.join(twice)} defined more than once")
        batch_tokens = self.training.batch_sequences * self.training.seq_len
        for index, block in enumerate(self.grid):
            for message in block.errors(batch_tokens, names):
                raise ValueError(f"grid.{index}.{message}")
        if self.training.batch_sequences % self.execution.processes:
            raise ValueError(
                f"execution.train_processes: {self.execution.processes} (or gpus) does not divide "
                f"training.batch_sequences {self.training.batch_sequences}"
            )
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
    return validate(Study, values, origin)


def read_study_file(path: Path) -> Any:
    """Read a study's YAML or JSON file, without validation."""
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{path}: no such study file") from None
    except yaml.YAMLError as error:
        raise ValueError(f"{path}: not valid YAML: {error}") from None


def load_study(path: Path) -> Study:
    """Read and validate a study's YAML or JSON file."""
    return parse_study(read_study_file(path), str(path))
