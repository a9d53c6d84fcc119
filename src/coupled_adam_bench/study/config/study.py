"""The study as a whole."""

import math
from collections.abc import Iterator
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, model_validator

from coupled_adam_bench.study.catalog.metrics import METRICS, Metric
from coupled_adam_bench.study.catalog.stages import STAGES, Stage
from coupled_adam_bench.study.catalog.tables import Table
from coupled_adam_bench.study.config.base import (
    MAX_COUNT,
    NAME_LENGTH,
    Line,
    Settings,
    UserPath,
    duplicates,
)
from coupled_adam_bench.study.config.data import CONTINUATION_WORDS, Data, Paths
from coupled_adam_bench.study.config.errors import validate
from coupled_adam_bench.study.config.evaluation import EvaluationSettings
from coupled_adam_bench.study.config.execution import Budget, Execution, StatisticsSettings
from coupled_adam_bench.study.config.grid import (
    GridBlock,
    TableName,
    TableSettings,
    all_tables,
    table_errors,
)
from coupled_adam_bench.study.config.protocols import (
    PROTOCOLS,
    Protocol,
    as_yaml,
    departing_settings,
    preset,
    with_defaults,
)
from coupled_adam_bench.study.config.reading import read_study_file
from coupled_adam_bench.study.config.training import ModelOrPreset, Training
from coupled_adam_bench.study.presets import MODEL_PRESETS

STUDY_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._\-]*$"
# results/ holds these beside the studies.
RESERVED_STUDY_NAMES = ("data", "runs", "trunks", "mlflow.db", "mlflow-artifacts")


def _not_reserved(name: str) -> str:
    if name in RESERVED_STUDY_NAMES:
        raise ValueError(f"{name} is taken; results/ also holds {', '.join(RESERVED_STUDY_NAMES)}")
    return name


StudyName = Annotated[
    str, Field(pattern=STUDY_PATTERN, max_length=NAME_LENGTH), AfterValidator(_not_reserved)
]


class Study(Settings):
    """A study, which is one YAML file."""

    study: StudyName
    """Name of the study; its results go to ``results/<study>/``."""
    title: Line = ""
    protocol: Protocol = "corrected"
    """Preset for the settings on which the authors' code (``official``), the paper's text
    (``paper``) and correct practice (``corrected``) disagree; settings given in the study take
    precedence (docs/protocols.md)."""
    paths: Paths = Paths()
    data: Data
    models: tuple[ModelOrPreset, ...] = Field(min_length=1)
    """Names of model presets, or models with their sizes."""
    training: Training = Training()
    grid: tuple[GridBlock, ...] = Field(min_length=1)
    tables: dict[TableName, TableSettings] = Field({})
    """Tables of the study's own by name, which blocks of the grid then name; see also
    ``TableSettings``."""
    evaluation: EvaluationSettings = EvaluationSettings()
    execution: Execution = Execution()
    budget: Budget = Budget()
    stated: UserPath | None = None
    """A file that states the study's hypotheses and seeds before its first run; see
    ``study/preregistration.py``. It changes no run, and its SHA-256 goes into the manifest."""
    statistics: StatisticsSettings = StatisticsSettings()

    @property
    def name(self) -> str:
        """The name of the study."""
        return self.study

    @property
    def protocol_label(self) -> str:
        """The protocol and each setting that differs from it: ``corrected;
        training.embedding_weight_decay = 0.1``."""
        different = departing_settings(self, self.protocol)
        return "; ".join(
            [self.protocol, *(f"{field} = {as_yaml(value)}" for field, value in different.items())]
        )

    @property
    def largest_tokens(self) -> int:
        """The number of tokens on which the largest run of the grid trains."""
        batch_tokens = self.training.batch_sequences * self.training.seq_len
        return (
            max(steps for block in self.grid for steps in block.steps(batch_tokens)) * batch_tokens
        )

    @property
    def stages(self) -> list[Stage]:
        """The stages of evaluation that the study runs, in the order of the catalogue."""
        return [
            stage
            for stage in STAGES.values()
            if not stage.optional or getattr(self.evaluation, stage.name) is not None
        ]

    @property
    def metrics(self) -> dict[str, Metric]:
        """The metrics that the study measures in every cell, by name: what a table can have as
        columns."""
        stages = {stage.name for stage in self.stages}
        own = [metric.declared() for metric in self.evaluation.metrics]
        return {
            metric.name: metric for metric in (*METRICS.values(), *own) if metric.stage in stages
        }

    @property
    def tables_of_blocks(self) -> dict[str, Table]:
        """The tables that blocks of the grid name, those of the paper first."""
        named = {block.table for block in self.grid}
        return {
            name: table
            for name, table in all_tables(self.tables, self.metrics).items()
            if name in named
        }

    @model_validator(mode="before")
    @classmethod
    def _fill_protocol(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        protocol = values.get("protocol", cls.model_fields["protocol"].default)
        filled = with_defaults(values, preset(protocol)) if protocol in PROTOCOLS else values
        return _without_downstream(filled) if _has_only_contexts(values) else filled

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        of_tables, of_grid = list(self._table_errors()), []
        if not of_tables:  # without which no block can be looked at
            of_grid = list(self._grid_errors())
        if not of_tables and not of_grid:
            of_grid = [*self._tuning_errors(), *self._cap_errors(), *self._key_errors()]
        if problems := [
            *of_tables,
            *of_grid,
            *self._source_errors(),
            *self._contexts_errors(),
            *self._pairs_errors(),
        ]:
            raise ValueError("\n".join(problems))
        return self

    def _table_errors(self) -> Iterator[str]:
        yield from table_errors(
            self.tables, self.metrics, {block.table for block in self.grid if block.table}
        )
        if unknown := [name for name in self.statistics.margins if name not in self.metrics]:
            yield (
                f"statistics.margins: {', '.join(unknown)} is nothing that this study measures;"
                f" there are {', '.join(self.metrics)}"
            )
        if self.statistics.target_sd is not None and self.statistics.target_loss is None:
            yield (
                "statistics.target_sd: there is no target that losses are compared with; give"
                " target_loss too"
            )
        if self.statistics.target_loss is not None and self.execution.eval_every is None:
            yield (
                f"statistics.target_loss: {self.statistics.target_loss} is compared with the"
                " validation loss, which is not measured; give execution.eval_every a number of"
                " steps, or leave out the target"
            )

    def _grid_errors(self) -> Iterator[str]:
        names = [model.name for model in self.models]
        if twice := duplicates(names):
            yield f"models: {', '.join(twice)} defined more than once"
        # A protocol has entries for presets that the study may not use.
        known = {
            *names,
            *MODEL_PRESETS,
        }
        if unknown := sorted(set(self.evaluation.test_loss.batch_sequences_of) - known):
            yield (
                f"evaluation.test_loss.batch_sequences_of: {', '.join(unknown)} is not among the"
                f" study's models {', '.join(names)}"
            )
        batch_tokens = self.training.batch_sequences * self.training.seq_len
        for index, block in enumerate(self.grid):
            for message in block.errors(batch_tokens, names, all_tables(self.tables, self.metrics)):
                yield f"grid.{index}.{message}"
            one = [
                model
                for model in self.models
                if model.name in block.models and not model.has_own_head
            ]
            for key in block.keys_of_own_heads if one else ():
                remedy = (
                    ", or set `tied: false`"
                    if all(model.family.has_layers for model in one)
                    else ""
                )
                yield (
                    f"grid.{index}.optimizers: {key} is for models whose head has a matrix of its"
                    f" own, and that of {', '.join(model.name for model in one)} is the embedding;"
                    f" give one optimizer{remedy}"
                )
            for position, count in enumerate(block.steps(batch_tokens)):
                problem = self._run_error(count) if count else None
                if problem:
                    yield f"grid.{index}.tokens.{position}: {problem}"
        if self.training.batch_sequences % self.execution.processes:
            yield (
                f"execution.train_processes: {self.execution.processes} (or gpus) does not divide "
                f"training.batch_sequences {self.training.batch_sequences}"
            )

    def _run_error(self, steps: int) -> str | None:
        """Return what is wrong with a run of ``steps`` under the study's training settings, or
        None."""
        training = self.training
        if (n_tokens := steps * training.batch_sequences * training.seq_len) > MAX_COUNT:
            return (
                f"{steps:,} steps are {n_tokens:.1e} tokens, more than {MAX_COUNT:.0e}; lower them"
            )
        warmup, decay = training.warmup(steps), training.decay(steps)
        field = "warmup_steps" if training.warmup_fraction is None else "warmup_fraction"
        # A warmup that takes all steps stands first, since a shorter decay would not help there, as
        # the next message says.
        if warmup >= steps:
            return (
                f"the warmup of {warmup} steps (training.{field}) takes all {steps} steps of the"
                " run, which never reaches its learning rate; lower it, or train for longer"
            )
        if warmup + decay > steps:
            return (
                f"the warmup of {warmup} steps (training.{field}) and the decay of {decay}"
                f" (training.decay_fraction) are more than the {steps} steps of the run; lower one,"
                " or train for longer"
            )
        if decay == 1:
            return (
                f"a decay of 1 of the {steps} steps of the run (training.decay_fraction) never"
                " lowers the learning rate, since a decay begins at the peak; raise it, or train"
                " for longer"
            )
        return None

    def _tuning_errors(self) -> Iterator[str]:
        batch_tokens = self.training.batch_sequences * self.training.seq_len
        used = {seed for block in self.grid for seed in block.seeds}
        for index, block in enumerate(self.grid):
            if (tune := block.tune) is None:
                continue
            place = f"grid.{index}.tune"
            models = {model.name: model for model in self.models}
            for message in tune.errors(
                block.optimizers, models, batch_tokens, min(block.steps(batch_tokens))
            ):
                yield f"{place}.{message}"
            if shared := sorted(used & set(tune.seeds)):
                yield (
                    f"{place}.seeds: {', '.join(map(str, shared))} is a seed of the grid too; what"
                    " is compared must not have been trained to choose: take other seeds"
                )
            # Candidates of another length than the cells have a warmup and a decay of their own.
            steps = tune.steps(batch_tokens)
            problem = self._run_error(steps) if steps else None
            if problem:
                yield f"{place}.tokens: {problem}"
            if self.evaluation.test_loss.split == "val":
                yield (
                    f"{place}: chooses by the split val, on which evaluation.test_loss.split"
                    " measures the loss of the chosen too; set evaluation.test_loss.split: test"
                )

    def _cap_errors(self) -> Iterator[str]:
        cap, split = self.data.max_tokens, self.data.split
        if cap is None or self.training.data_order == "pairs":
            return
        largest = self.largest_tokens
        fraction = 1 - Fraction(str(split.val_fraction)) - Fraction(str(split.test_fraction))
        if cap * fraction < largest:
            yield (
                f"data.max_tokens: {cap:,} leaves {int(cap * fraction):,} tokens to train on"
                " without the splits val and test, but the largest run of the grid trains on"
                f" {largest:,}; set at least {math.ceil(largest / fraction):,}, or leave it out"
            )

    def _key_errors(self) -> Iterator[str]:
        settings: dict[tuple[str, str], Any] = {}
        for index, block in enumerate(self.grid):
            for model, (optimizer, row) in product(
                block.models, zip(block.optimizers, block.rows, strict=True)
            ):
                trial = block.tune and block.tune.trial_of(optimizer)
                if settings.setdefault((model, row.key), (optimizer, trial)) != (optimizer, trial):
                    yield (
                        f"grid.{index}.optimizers: {row.key} stands for two different settings, and"
                        " results tell optimizers apart by it; make them the same, or use two"
                        " studies"
                    )

    def _source_errors(self) -> Iterator[str]:
        downstream = self.evaluation.downstream
        generated = downstream is not None and downstream.tasks == "synthetic"
        if generated and self.training.seq_len < CONTINUATION_WORDS:
            yield (
                f"training.seq_len: {self.training.seq_len}, but the answers of the generated tasks"
                f" have {CONTINUATION_WORDS} words; raise it, or name other"
                " evaluation.downstream.tasks, [] for none"
            )
        if self.data.source.kind == "files" and not self.paths.text:
            yield "paths.text: missing; the source 'files' needs folders, files or globs"
        if self.data.source.kind == "bins" and len(self.paths.text) != 1:
            yield "paths.text: the source 'bins' needs one folder, in which its files lie"
        if self.data.tokenizer == "file" and self.paths.tokenizer is None:
            yield "paths.tokenizer: missing; data.tokenizer 'file' needs a tokenizer.json"
        if self.data.source.kind != "synthetic" and (
            generated or self.evaluation.word_similarity == "synthetic"
        ):
            yield "evaluation: 'synthetic' sets exist for the data source 'synthetic' only"

    def _contexts_errors(self) -> Iterator[str]:
        """Yield what does not go with models without layers."""
        for index, model in enumerate(self.models):
            if model.n_contexts is None:
                continue
            if model.n_contexts > self.data.vocab_size:
                yield (
                    f"models.{index}.n_contexts: {model.n_contexts} previous tokens, but"
                    f" data.vocab_size is {self.data.vocab_size}; lower it"
                )
            if self.training.core_optimizer != "adamw":
                yield (
                    f"training.core_optimizer: muon is for matrices of layers, and {model.name} has"
                    " none; use adamw"
                )
            if self.execution.parallel == "fsdp":
                yield f"execution.parallel: fsdp shards layers, and {model.name} has none; use ddp"

    def _pairs_errors(self) -> Iterator[str]:
        """Yield what does not go with a training text that is a source of pairs."""
        if self.training.data_order != "pairs":
            return
        if others := [model.name for model in self.models if model.n_contexts is None]:
            yield (
                "training.data_order: 'pairs' draws a token with the one before it alone, and"
                f" {', '.join(others)} reads more of the text; use models of the architecture"
                " contexts, or another order"
            )
        if self.evaluation.test_loss.windows == "random":
            yield (
                "evaluation.test_loss.windows: 'random', but with training.data_order 'pairs' the"
                " loss is the exact mean over all pairs of the source; set windows: all"
            )


def _has_only_contexts(values: dict[str, Any]) -> bool:
    models = values.get("models")
    return (
        isinstance(models, list | tuple)
        and bool(models)
        and all(
            isinstance(model, dict) and model.get("architecture") == "contexts" for model in models
        )
        and "downstream" not in (values.get("evaluation") or {})
    )


def _without_downstream(values: dict[str, Any]) -> dict[str, Any]:
    return values | {"evaluation": values.get("evaluation", {}) | {"downstream": None}}


def parse_study(values: Any, origin: str = "study") -> Study:
    """Validate a study given as a mapping.

    Raises a ``ValueError`` that lists every wrong field, its value and what is allowed.
    """
    return validate(Study, values, origin)


def load_study(path: Path) -> Study:
    """Read and validate a study's YAML or JSON file."""
    return parse_study(read_study_file(path), str(path))
