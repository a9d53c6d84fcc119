"""SGD with steps of one size."""

from typing import Any, ClassVar, Literal

from pydantic import Field

from coupled_adam_bench.study.settings.optimizers.base import BuiltInSettings, FactorSettings


class NormalizedSgdSettings(FactorSettings):
    """SGD for the embedding, with a root mean square of 1 in each row or column of a step (SCALE,
    arXiv 2506.16659)."""

    title: ClassVar[str] = "Normalized SGD"
    implementation: ClassVar[str] = "coupled_adam_bench.optim.normalized_sgd:NormalizedSGD"
    examples: ClassVar[tuple[Any, ...]] = (
        {"name": "normalized_sgd", "by": "column"},
        {"name": "normalized_sgd", "by": "row", "momentum": 0.9},
    )
    named: ClassVar[dict[str, tuple[str, str]]] = {
        "by": ("_{}", ", by {}"),
        "lr_factor": FactorSettings.named["lr_factor"],
        "momentum": ("_m{:g}", ", m = {:g}"),
        **BuiltInSettings.named,
    }

    name: Literal["normalized_sgd"]
    by: Literal["row", "column"]
    """What has a root mean square of 1. SCALE has columns of the embedding and rows of the head
    [C]."""
    momentum: float = Field(0.0, ge=0, lt=1)
    """Decay rate of the average of gradients that is normalized. SCALE has 0.9 for the head alone
    [C]."""

    def n_states(self, rows: int, width: int) -> int:
        """Return the size of the average, if there is any."""
        return rows * width if self.momentum else 0

    def keywords(self, betas: tuple[float, float], eps: float) -> dict[str, Any]:  # noqa: ARG002 - those of all
        """Return what is normalized, and the decay rate."""
        return {"by": self.by, "momentum": self.momentum}
