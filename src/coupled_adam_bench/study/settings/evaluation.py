"""Section of a study: what is measured on a trained model."""

import html
from dataclasses import asdict
from math import inf
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from coupled_adam_bench.store.markup import latex_escape
from coupled_adam_bench.study.catalogue.metrics import METRICS, Metric
from coupled_adam_bench.study.catalogue.presets import PAPER_TASKS
from coupled_adam_bench.study.catalogue.stages import OWN_METRICS_STAGE
from coupled_adam_bench.study.settings.base import (
    OWN_NAME_PATTERN,
    DottedPath,
    Label,
    Line,
    Name,
    PathBelow,
    Settings,
    Term,
    duplicates,
    not_bool,
)
from embedding_geometry.word_lists import PAPER_LISTS

Column = Annotated[int, Field(ge=0, le=1000), BeforeValidator(not_bool)]


class OwnMetric(Settings):
    """A metric of the embedding matrix that the study brings itself: a function and what tables
    need (docs/howto.md).

    The function is called with the matrix, a float64 array of shape (vocabulary, width), and
    returns a number. If it has a parameter ``unigram_counts``, it is given how often each token is
    in the training text.
    """

    name: Annotated[str, Field(pattern=OWN_NAME_PATTERN)]
    """Name in results, and in the columns of tables."""
    path: DottedPath
    """Module and function, of an installed package or of a file in the folder in which the study is
    started."""
    symbol: Label
    """What the head of a table's column prints."""
    higher_is_better: bool | None = None
    """Direction of the test, of the arrow in the table's head and of the bold type; or give
    ``best_at``."""
    best_at: Annotated[float, Field(allow_inf_nan=False), BeforeValidator(not_bool)] | None = None
    """The value at which the metric is best, in place of a direction: the distances from it are
    compared."""
    digits: int = Field(2, ge=0, le=6)
    """Decimals in tables."""
    unit: Line = "1"
    description: Line = ""
    """What it measures, in a few words."""

    @model_validator(mode="after")
    def _has_one_direction(self) -> Self:
        if (self.higher_is_better is None) == (self.best_at is None):
            raise ValueError(
                f"higher_is_better, best_at: {self.name} needs one of the two; give a direction or"
                " a value"
            )
        return self

    def declared(self) -> Metric:
        """Return the metric as the catalogue declares its own."""
        return Metric(
            name=self.name,
            task="embeddings",
            stage=OWN_METRICS_STAGE,
            latex=latex_escape(self.symbol),
            html=html.escape(self.symbol),
            unit=self.unit,
            higher_is_better=self.higher_is_better,
            best_at=self.best_at,
            digits=self.digits,
            description=self.description or self.name,
            low=-inf,
        )


class WordSimilaritySet(Settings):
    """A list of word pairs with human ratings, in a file of the folder
    ``paths.word_similarity``."""

    name: Name
    file: PathBelow
    columns: tuple[Column, Column, Column] | None = None
    """Columns of the first word, the second word and the rating, counted from 0; by default they
    are found in the file, and one with several columns that could be the rating is refused."""
    strip_pos: bool | None = None
    """Whether to cut a part-of-speech suffix such as ``-n`` from the words; by default it is cut if
    each word has one."""

    @model_validator(mode="after")
    def _three_columns(self) -> Self:
        if self.columns is not None and len(set(self.columns)) < 3:
            raise ValueError(
                f"columns: {', '.join(map(str, self.columns))} must be three different ones"
            )
        return self


class Downstream(Settings):
    """Tasks of the lm-evaluation-harness."""

    tasks: tuple[Term, ...] | Literal["synthetic"] = PAPER_TASKS
    """Names of tasks of lm-eval or in ``paths.tasks``; ``synthetic``: the tasks of the generated
    language; ``[]``: none, and the stage does not run."""
    task_versions: Literal["installed", "0.4.3"] = "installed"
    """``installed``: prompts and scores of the installed lm-eval; ``0.4.3``: those of the authors'
    lm-eval [C] for race and truthfulqa_mc2, the two of the paper's tasks that have changed since. A
    task in ``paths.tasks`` comes first."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Precision of evaluation: ``fp32`` [C]; ``bf16``: autocast on a GPU. A CPU always computes in
    fp32."""
    num_fewshot: int | None = Field(None, ge=0, le=10_000)
    """Number of examples in each prompt; by default that of the task's own file, which is 0 for all
    tasks of the paper, as the authors evaluate [C]. A task that names 0 itself has its examples in
    the prompt and keeps them."""
    limit: int | None = Field(None, gt=0, le=10**9)
    """Number of items that are scored in each task, from the first on; by default all."""


class TestLoss(Settings):
    """How the loss on held-out tokens is measured."""

    split: Literal["test", "val"] = "test"
    windows: Literal["all", "random"] = "all"
    """``all``: one pass over windows without overlap; ``random``: offsets that depend on the cell's
    seed [C]."""
    n_batches: int = Field(2000, gt=0, le=10**6)
    """Number of batches of ``random`` windows [C]."""
    batch_sequences: int = Field(12, gt=0, le=10**4)
    """Number of ``random`` windows in a batch [C]."""
    batch_sequences_of: dict[Name, Annotated[int, Field(gt=0, le=10**4)]] = Field({})
    """Exceptions to ``batch_sequences`` by the name of the model; the authors' 760M models have 6
    [C]."""

    def in_effect(self) -> dict[str, Any]:
        """Return the settings that can change the loss; some of them matter only for ``random``
        windows."""
        only_random = {"n_batches", "batch_sequences", "batch_sequences_of"}
        return self.model_dump(exclude=set() if self.windows == "random" else only_random)

    def for_model(self, name: str) -> Self:
        """Return the settings of one model, with its exception from ``batch_sequences_of``."""
        return self.model_copy(
            update={"batch_sequences": self.batch_sequences_of.get(name, self.batch_sequences)}
        )


class EvaluationSettings(Settings):
    """What is measured on a trained model."""

    test_loss: TestLoss = TestLoss()
    isotropy: Literal["both_signs", "eig_float32"] = "both_signs"
    """``both_signs``: float64, both signs of each eigenvector; ``eig_float32``: float32, each
    general eigenvector with the sign that the solver gives it, rounded to 4 decimals [C]."""
    leading_space: bool = True
    """Whether words of the similarity sets are tokenized after a space, as in running text; the
    authors' were not [C]."""
    word_similarity: tuple[WordSimilaritySet, ...] | Literal["synthetic"] = tuple(
        WordSimilaritySet(**asdict(spec)) for spec in PAPER_LISTS
    )
    metrics: tuple[OwnMetric, ...] = ()
    """Embedding metrics that the study brings, in addition to those that every study has."""
    downstream: Downstream | None = Downstream()
    """Settings of the stage ``downstream``; ``null``, or no tasks: it does not run, as is the
    default of ``contexts``, whose answers would be those of a bigram."""

    @field_validator("downstream")
    @classmethod
    def _without_tasks_there_is_no_stage(cls, downstream: Downstream | None) -> Downstream | None:
        return downstream if downstream and downstream.tasks else None

    @property
    def downstream_of_files(self) -> Downstream | None:
        """The downstream tasks, None if there are none or they are those of the generated
        language."""
        return (
            None
            if self.downstream is None or self.downstream.tasks == "synthetic"
            else self.downstream
        )

    @model_validator(mode="after")
    def _metrics_have_names_of_their_own(self) -> Self:
        names = [metric.name for metric in self.metrics]
        for index, name in enumerate(names):
            if name in METRICS:
                raise ValueError(
                    f"metrics.{index}.name: {name!r} is a metric of every study; give it another"
                    " name"
                )
        if twice := duplicates(names):
            raise ValueError(f"metrics: {', '.join(map(repr, twice))} is declared more than once")
        return self
