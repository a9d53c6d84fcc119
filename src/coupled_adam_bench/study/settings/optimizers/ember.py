"""Ember."""

from typing import Any, ClassVar, Literal

from pydantic import Field

from coupled_adam_bench.study.settings.optimizers.base import BuiltInSettings, FactorSettings


class EmberSettings(FactorSettings):
    """Ember for the embedding: no first moment, a second moment for each row and each column (Shah
    2026, arXiv 2607.01455)."""

    title: ClassVar[str] = "Ember"
    implementation: ClassVar[str] = "coupled_adam_bench.optim.ember:Ember"
    examples: ClassVar[tuple[Any, ...]] = ("ember",)
    named: ClassVar[dict[str, tuple[str, str]]] = {
        "lr_factor": FactorSettings.named["lr_factor"],
        "beta2": ("_b2-{:g}", ", beta2 = {:g}"),
        "eps": ("_eps{:g}", ", eps = {:g}"),
        **BuiltInSettings.named,
    }

    name: Literal["ember"]
    beta2: float = Field(0.999, ge=0, lt=1)
    """Decay rate of the second moments (arXiv 2607.01455)."""
    eps: float = Field(1e-8, ge=1e-30, le=1)
    """Term that is added to the denominator of the update (arXiv 2607.01455)."""

    def n_states(self, rows: int, width: int) -> int:
        """Return one number for each row and each column."""
        return rows + width

    def keywords(self, betas: tuple[float, float], eps: float) -> dict[str, Any]:  # noqa: ARG002 - those of all
        """Return its own decay rate and epsilon."""
        return {"beta2": self.beta2, "eps": self.eps}
