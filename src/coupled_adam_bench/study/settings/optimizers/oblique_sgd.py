"""SGD on rows of length 1."""

from typing import Any, ClassVar, Literal

from coupled_adam_bench.study.settings.optimizers.base import MomentumSettings


class ObliqueSgdSettings(MomentumSettings):
    """SGD for an embedding whose rows have length 1, as in NVIDIA's Emerging-Optimizers."""

    title: ClassVar[str] = "Oblique SGD"
    implementation: ClassVar[str] = "coupled_adam_bench.optim.normalized_sgd:ObliqueSGD"
    examples: ClassVar[tuple[Any, ...]] = (
        {"name": "oblique_sgd", "lr_factor": 1},
        {"name": "oblique_sgd", "lr_factor": 1, "momentum": 0},
    )

    name: Literal["oblique_sgd"]
