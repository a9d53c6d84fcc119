"""SGD with momentum."""

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from coupled_adam_bench.study.config.optimizers.base import MomentumSettings, Rule

if TYPE_CHECKING:
    from coupled_adam_bench.study.config.training import Training


class SgdSettings(MomentumSettings):
    """SGD for the embedding at ``lr_factor`` times the learning rate (Alg. 2) [C]."""

    title: ClassVar[str] = "SGD"
    implementation: ClassVar[str] = "torch.optim:SGD"
    examples: ClassVar[tuple[Any, ...]] = (
        {"name": "sgd", "lr_factor": 1},
        {"name": "sgd", "lr_factor": 1, "momentum": 0},
    )

    name: Literal["sgd"]

    def rule(self, training: "Training") -> Rule:  # noqa: ARG002 - as of the others
        """Return the sum of gradients times the learning rate."""
        return Rule(self.momentum, 1.0, False, "coupled_adam_bench.optim.factors:rate")
