"""Adam-mini."""

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from coupled_adam_bench.study.config.optimizers.base import BetaSettings

if TYPE_CHECKING:
    from coupled_adam_bench.study.config.training import Training


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

    def keywords(self, training: "Training") -> dict[str, Any]:
        """Return decay rates, epsilon, and that coupling is over the columns of a row, which is
        Adam-mini's rule."""
        return {"betas": training.betas(self), "eps": training.eps, "coupled_dim": 1}
