"""AdamW, which the paper calls Adam."""

from typing import Any, ClassVar, Literal

from coupled_adam_bench.study.settings.optimizers.base import BetaSettings


class AdamWSettings(BetaSettings):
    """AdamW for the embedding, as for all other parameters: the paper's "Adam"."""

    later: ClassVar[tuple[str, ...]] = (*BetaSettings.later, "amsgrad")
    title: ClassVar[str] = "Adam"
    implementation: ClassVar[str] = "torch.optim:AdamW"
    examples: ClassVar[tuple[Any, ...]] = ("adamw", {"name": "adamw", "amsgrad": True})
    named: ClassVar[dict[str, tuple[str, str]]] = {
        "amsgrad": ("_amsgrad", ", AMSGrad"),
        **BetaSettings.named,
    }

    name: Literal["adamw"]
    amsgrad: bool = False
    """Whether the denominator has the largest second moment so far (Reddi et al. 2018, arXiv
    1904.09237)."""

    def n_states(self, rows: int, width: int) -> int:
        """Return the size of both moments, and of the largest second one."""
        return (3 if self.amsgrad else 2) * rows * width

    def keywords(self, betas: tuple[float, float], eps: float) -> dict[str, Any]:
        """Return decay rates, epsilon and the variant; the fused kernel reads each tensor once."""
        return {
            "betas": betas,
            "eps": eps,
            "amsgrad": self.amsgrad,
            "fused": True,
        }
