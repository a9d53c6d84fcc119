"""What a measurement along training is: a class that says when it is due, and what it finds."""

import math
from abc import ABC, abstractmethod

from coupled_adam_bench.study.settings import Execution
from coupled_adam_bench.training.trainer import Trainer


class Measurement(ABC):
    """Something that is measured along training, at the steps at which it is due.

    All processes call ``before``, ``between`` and ``after`` of such a step.
    """

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer

    @staticmethod
    @abstractmethod
    def is_wanted(execution: Execution) -> bool:
        """Tell whether a study asks for it at all."""

    @abstractmethod
    def is_due(self, step: int, last: bool) -> bool:
        """Tell whether it is measured after ``step`` (from 1), which may be the ``last`` of the
        run."""

    def before(self) -> None:  # noqa: B027 - few measurements need it
        """Keep what it compares with, before the step."""

    def between(self) -> None:  # noqa: B027 - few measurements need it
        """Look at the gradients, after the backward pass and before they are clipped."""

    @abstractmethod
    def after(self, step: int) -> dict[str, float]:
        """Return what was measured by its name in the history, in the first process at least."""


class AtGeometrySteps(Measurement):
    """What is measured at the steps of ``execution.geometry_per_decade``."""

    @staticmethod
    def is_wanted(execution: Execution) -> bool:
        """Tell whether there are such steps."""
        return execution.geometry_per_decade > 0

    def is_due(self, step: int, last: bool) -> bool:
        """Tell whether ``step`` is one of them, or the last."""
        return last or is_geometry_step(step, self.trainer.execution.geometry_per_decade)


def is_geometry_step(step: int, per_decade: int) -> bool:
    """Tell whether ``step`` (from 1) is one of ``per_decade`` in each tenfold: 10^(k / per_decade),
    rounded.

    The steps do not depend on the length of the run, so that cells that share a trunk have the same
    ones.
    """
    if per_decade == 0:
        return False
    below = math.floor(per_decade * math.log10(step))
    # If a power rounds to this step, then one of the powers next to the step does.
    return any(round(10 ** (k / per_decade)) == step for k in (below, below + 1))
