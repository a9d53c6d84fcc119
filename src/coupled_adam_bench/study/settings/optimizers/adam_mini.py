"""Adam-mini."""

from typing import Any, ClassVar, Literal

from coupled_adam_bench.study.settings.optimizers.base import BetaSettings


class AdamMiniSettings(BetaSettings):
    """Adam-mini for the embedding: one second moment for each row (Zhang et al. 2024, arXiv
    2406.16793) [C]."""

    title: ClassVar[str] = "Adam-mini"
    implementation: ClassVar[str] = "coupled_adam:CoupledAdam"
    examples: ClassVar[tuple[Any, ...]] = ("adam_mini",)

    name: Literal["adam_mini"]

    def n_states(self, rows: int, width: int) -> int:
        """Return the size of the first moment, and one number of the second for each row."""
        return rows * width + rows

    def keywords(self, betas: tuple[float, float], eps: float) -> dict[str, Any]:
        """Return decay rates, epsilon, and that coupling is over the columns of a row, which is
        Adam-mini's rule."""
        return {"betas": betas, "eps": eps, "coupled_dim": 1}
