"""Measurements along training that a study brings: its own classes, which must change nothing of a
run."""

import math
from abc import ABC
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from coupled_adam_bench.study.plan.plug_ins import Contract, failing
from coupled_adam_bench.study.settings import Execution, Study
from coupled_adam_bench.study.settings.plug_ins import PlugIn
from coupled_adam_bench.training.measurement import AtGeometrySteps, Measurement
from coupled_adam_bench.training.trainer import Trainer


class MeasurementPlugIn(AtGeometrySteps, Contract, ABC):
    """A measurement of a study's own; it is called with the trainer, and with the arguments that
    the study gives.

    By default it is due at the steps of ``execution.geometry_per_decade``, and after the last one.
    """

    @staticmethod
    def is_wanted(execution: Execution) -> bool:  # noqa: ARG004 - as of the others
        """Tell that a measurement that a study names is wanted."""
        return True


class Guarded(Measurement):
    """A plug-in within a run: what it finds has its name before it, and what it draws at random
    changes no later number.

    ``ValueError`` names the field if it fails, or changes weights, gradients or moments in place.
    """

    def __init__(self, trainer: Trainer, index: int, entry: PlugIn) -> None:
        super().__init__(trainer)
        self._place, self._entry = f"execution.measurements.{index}", entry
        with self._unchanged():
            self._own = MeasurementPlugIn.made(self._place, entry, trainer)
        if not hasattr(self._own, "trainer"):
            raise ValueError(
                f"{self._place}.path: {entry.path} has no `trainer`; let its `__init__` begin with"
                " `super().__init__(trainer)`"
            )

    @staticmethod
    def is_wanted(execution: Execution) -> bool:  # noqa: ARG004 - as of the others
        """Tell that it is wanted: the study names it."""
        return True

    def is_due(self, step: int, last: bool) -> bool:
        """Tell whether the plug-in measures after ``step``."""
        with failing(f"{self._place}.path: is_due() of {self._entry.path} fails"):
            return self._own.is_due(step, last)

    def before(self) -> None:
        """Let the plug-in look at the weights before the step."""
        with self._guard():
            self._own.before()

    def between(self) -> None:
        """Let the plug-in look at the gradients."""
        with self._guard():
            self._own.between()

    def after(self, step: int) -> dict[str, float]:
        """Return what the plug-in found as ``NAME.its own name``; what is not finite is left
        out."""
        with self._guard():
            given = self._own.after(step)
        if not isinstance(given, Mapping):
            raise ValueError(
                f"{self._place}.path: after() of {self._entry.path} must return numbers by name,"
                f' such as {{"norm": 1.5}} or {{}}, not {given!r}'
            )
        with self._guard():
            found = {name: float(value) for name, value in given.items()}
        return {
            f"{self._entry.name}.{name}": value
            for name, value in found.items()
            if math.isfinite(value)
        }

    @contextmanager
    def _guard(self) -> Iterator[None]:
        """Let the plug-in do something, which may fail and must change nothing."""
        with self._unchanged(), failing(f"{self._place}.path: {self._entry.path} fails"):
            yield

    @contextmanager
    def _unchanged(self) -> Iterator[None]:
        device = self.trainer.device
        before = self._versions()
        with torch.no_grad(), torch.random.fork_rng([device] if device.type == "cuda" else []):
            yield
        if self._versions() != before:
            raise ValueError(
                f"{self._place}.path: {self._entry.path} changes weights, gradients or the state"
                " of an optimizer in place, and so the run; let it work on copies (`clone()`)"
            )

    def _versions(self) -> list[int]:
        """Return how often each tensor of the run was changed in place, as torch counts it."""
        tensors: list[Tensor] = list(self.trainer.names)
        tensors += [weight.grad for weight in self.trainer.names if weight.grad is not None]
        for optimizer in self.trainer.optimizers.by_name().values():
            for state in optimizer.state.values():
                tensors += [value for value in state.values() if isinstance(value, Tensor)]
        return [tensor._version for tensor in tensors]


def own_measurements(trainer: Trainer) -> list[Measurement]:
    """Return the measurements that the study of a run brings, in its order."""
    return [
        Guarded(trainer, index, entry) for index, entry in enumerate(trainer.execution.measurements)
    ]


def try_measurements(study: Study) -> None:
    """Import a study's own measurements; ``ValueError`` names the field of one that breaks the
    contract."""
    for index, entry in enumerate(study.execution.measurements):
        MeasurementPlugIn.imported(f"execution.measurements.{index}", entry, None)
