"""The section ``statistics`` of a study: what decides on bold figures, and which differences count as none."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from coupled_adam_bench.study.config.base import Settings, Term, not_bool

BoldRule = Literal["paper", "paired", "holm"]


class StatisticsSettings(Settings):
    """How optimizers are compared. No setting here changes a run or what is measured in it.

    All studies of a results folder have the same ``bold`` and ``target_loss``.
    """

    bold: BoldRule = "paper"
    """What decides whether a value is bold in tables with a test. ``paper``: Student's t-test with pooled variance, p <
    0.05 [P]; ``paired``: the t-test of the differences between runs of the same seed; ``holm``: the paper's test,
    two-sided, after Holm's correction for all pairs of optimizers of the table."""
    margins: dict[Term, Annotated[float, Field(gt=0), BeforeValidator(not_bool)]] = Field({})
    """By metric, in its unit, the difference that does not matter, such as ``loss: 0.01``. Two optimizers are then
    tested for being equivalent: for a difference within it. Metrics that are not named are not tested so."""
    target_loss: Annotated[float, Field(gt=0), BeforeValidator(not_bool)] | None = None
    """A validation loss in nats per token. The report then says after how many tokens each run reached it, and tests
    whether the runs of an optimizer end below it, as speedruns accept a record. It needs ``execution.eval_every``."""
