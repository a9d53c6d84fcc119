# src/coupled_adam_bench/study/settings/optimizers/adagrad.py
"""Adagrad."""

from typing import Any, ClassVar, Literal

from coupled_adam_bench.study.settings.optimizers.base import FactorSettings


class AdagradSettings(FactorSettings):
    """Adagrad for the embedding at ``lr_factor`` times the learning rate."""

    title: ClassVar[str] = "Adagrad"
    implementation: ClassVar[str] = "torch.optim:Adagrad"
    examples: ClassVar[tuple[Any, ...]] = ("adagrad",)

    name: Literal["adagrad"]

    def n_states(self, rows: int, width: int) -> int:
        """Return the size of the sums of squares."""
        return rows * width

    def keywords(self, betas: tuple[float, float], eps: float) -> dict[str, Any]:  # noqa: ARG002
        """Return epsilon."""
        return {"eps": eps}
