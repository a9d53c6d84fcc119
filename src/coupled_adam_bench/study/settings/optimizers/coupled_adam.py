"""Coupled Adam."""

from typing import Any, ClassVar, Literal

from pydantic import Field

from coupled_adam_bench.study.settings.optimizers.base import BetaSettings


class CoupledAdamSettings(BetaSettings):
    """Coupled Adam for the embedding; ``scale_exponent`` n multiplies the second moment by 2^-n
    (Sec. 6.1) [C]."""

    title: ClassVar[str] = "Coupled Adam"
    implementation: ClassVar[str] = "coupled_adam:CoupledAdam"
    examples: ClassVar[tuple[Any, ...]] = ("coupled_adam",)
    named: ClassVar[dict[str, tuple[str, str]]] = {
        "scale_exponent": ("_n{}", ", n = {}"),
        **BetaSettings.named,
    }

    name: Literal["coupled_adam"]
    scale_exponent: int = Field(0, ge=-20, le=20)
    """Exponent n. The paper uses -5 to 5; beyond about 100 in either direction, float32 cannot hold
    the scaled second moments."""

    def n_states(self, rows: int, width: int) -> int:
        """Return the size of the first moment, and one row for the second."""
        return (rows + 1) * width

    def keywords(self, betas: tuple[float, float], eps: float) -> dict[str, Any]:
        """Return decay rates, epsilon and the factor of the second moment."""
        return {
            "betas": betas,
            "eps": eps,
            "scale": 2.0**-self.scale_exponent,
        }
