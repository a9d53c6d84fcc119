"""The study as a whole."""

from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, model_validator

from coupled_adam_bench.study.catalogue.metrics import METRICS, Metric
from coupled_adam_bench.study.catalogue.stages import STAGES, Stage
from coupled_adam_bench.study.catalogue.tables import Table
from coupled_adam_bench.study.settings.base import (
    FILE_PATTERN,
    NAME_LENGTH,
    Line,
    Settings,
    UserPath,
)
from coupled_adam_bench.study.settings.data import Data, Paths
from coupled_adam_bench.study.settings.errors import validate
from coupled_adam_bench.study.settings.evaluation import EvaluationSettings
from coupled_adam_bench.study.settings.execution import Budget, Execution, StatisticsSettings
from coupled_adam_bench.study.settings.grid import (
    GridBlock,
    TableName,
    TableSettings,
    all_tables,
)
from coupled_adam_bench.study.settings.model import ModelOrPreset
from coupled_adam_bench.study.settings.protocols import (
    PROTOCOLS,
    Protocol,
    as_yaml,
    departing_settings,
    preset,
    with_defaults,
)
from coupled_adam_bench.study.settings.reading import read_study_file
from coupled_adam_bench.study.settings.together import problems
from coupled_adam_bench.study.settings.training import Training

# results/ holds these beside the studies.
RESERVED_STUDY_NAMES = ("data", "runs", "trunks", "mlflow.db", "mlflow-artifacts")


def _not_reserved(name: str) -> str:
    if name in RESERVED_STUDY_NAMES:
        raise ValueError(f"{name} is taken; results/ also holds {', '.join(RESERVED_STUDY_NAMES)}")
    return name


StudyName = Annotated[
    str, Field(pattern=FILE_PATTERN, max_length=NAME_LENGTH), AfterValidator(_not_reserved)
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
    ``study/plan/preregistration.py``. It changes no run, and its SHA-256 goes into the manifest."""
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
        if found := problems(self):
            raise ValueError("\n".join(found))
        return self


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
