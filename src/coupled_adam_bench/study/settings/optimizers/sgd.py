"""SGD with momentum."""

from typing import Any, ClassVar, Literal

from coupled_adam_bench.study.settings.optimizers.base import MomentumSettings


class SgdSettings(MomentumSettings):
    """SGD for the embedding at ``lr_factor`` times the learning rate (Alg. 2) [C]."""

    title: ClassVar[str] = "SGD"
    implementation: ClassVar[str] = "torch.optim:SGD"
    examples: ClassVar[tuple[Any, ...]] = (
        {"name": "sgd", "lr_factor": 1},
        {"name": "sgd", "lr_factor": 1, "momentum": 0},
    )

    name: Literal["sgd"]
