"""The stages of evaluation, declared once: what a job runs, which version of its mathematics, and
on what device."""

from dataclasses import dataclass

from coupled_adam_bench.study.catalogue.metrics import HELD_OUT_SIZES, columns_of


@dataclass(frozen=True)
class Stage:
    """A kind of evaluation of a trained cell.

    ``version`` is that of its mathematics: it changes when, and only when, the numbers that the
    stage writes can change. ``opener`` names, as ``module:function`` of this package, the function
    that loads once what all cells of a job share; only a job imports it. ``settings`` names in the
    same way the light function that returns, given the study and the id of its data, everything but
    the model that can change the numbers. ``optional`` says whether only a study with a section of
    this name in ``evaluation`` runs it, ``gpu`` whether it uses one. ``columns`` are task, metric
    and unit of what it always measures beside the metrics of the catalogue that name it.
    """

    name: str
    version: int
    opener: str
    settings: str
    summary: str
    optional: bool = False
    gpu: bool = True
    columns: tuple[tuple[str, str, str], ...] = ()

    @property
    def command(self) -> str:
        """The name of the command that runs it."""
        return self.name.replace("_", "-")

    @property
    def measures(self) -> tuple[tuple[str, str, str], ...]:
        """Task, metric and unit of all that it always measures: the metrics of the catalogue, and
        its columns."""
        return columns_of(self.name) + self.columns


_SIZE_COLUMNS = tuple(("test", name, "1") for name in HELD_OUT_SIZES)
STAGES = {
    stage.name: stage
    for stage in (
        Stage(
            name="test_loss",
            version=3,
            opener="evaluation.held_out_loss:open_evaluator",
            settings="evaluation.settings:test_loss",
            summary="measure loss, calibration and logits of trained cells on the test split",
            columns=_SIZE_COLUMNS,
        ),
        Stage(
            name="embeddings",
            version=2,
            opener="evaluation.embedding_geometry:open_evaluator",
            settings="evaluation.settings:embeddings",
            summary="measure the embeddings of trained cells, word similarity included",
            gpu=False,
        ),
        Stage(
            name="downstream",
            version=4,
            opener="evaluation.downstream:open_evaluator",
            settings="evaluation.settings:downstream",
            summary="run the downstream tasks of lm-evaluation-harness on trained cells",
            optional=True,
        ),
    )
}
OWN_METRICS_STAGE = "embeddings"
"""The stage that measures a study's own metrics."""
VALIDATION_LOSS = Stage(
    name="validation_loss",
    version=1,
    opener="evaluation.held_out_loss:open_validation",
    settings="evaluation.settings:validation_loss",
    summary="measure the loss of the candidates of a tuning on the split val",
    columns=(("val", "loss", "nat/token"),),
)
"""What a tuning chooses by; the version is also that of the rule of the choice. No cell of a grid
has this stage, so it is none of ``STAGES``."""
