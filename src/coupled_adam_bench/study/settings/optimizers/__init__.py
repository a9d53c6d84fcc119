"""Optimizers of the embedding: the built-in ones, a file each, and any other class by its dotted
path."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from coupled_adam_bench.study.settings.optimizers.adam_mini import (
    AdamMiniSettings as AdamMiniSettings,
)
from coupled_adam_bench.study.settings.optimizers.adamw import AdamWSettings as AdamWSettings
from coupled_adam_bench.study.settings.optimizers.base import BetaSettings as BetaSettings
from coupled_adam_bench.study.settings.optimizers.base import BuiltInSettings
from coupled_adam_bench.study.settings.optimizers.base import HeadSettings as HeadSettings
from coupled_adam_bench.study.settings.optimizers.base import Named as Named
from coupled_adam_bench.study.settings.optimizers.base import WidthScale as WidthScale
from coupled_adam_bench.study.settings.optimizers.built_in import BY_NAME
from coupled_adam_bench.study.settings.optimizers.built_in import BuiltIn as BuiltIn
from coupled_adam_bench.study.settings.optimizers.coupled_adam import (
    CoupledAdamSettings as CoupledAdamSettings,
)
from coupled_adam_bench.study.settings.optimizers.custom import CustomSettings as CustomSettings
from coupled_adam_bench.study.settings.optimizers.ember import EmberSettings as EmberSettings
from coupled_adam_bench.study.settings.optimizers.normalized_sgd import (
    NormalizedSgdSettings as NormalizedSgdSettings,
)
from coupled_adam_bench.study.settings.optimizers.oblique_sgd import (
    ObliqueSgdSettings as ObliqueSgdSettings,
)
from coupled_adam_bench.study.settings.optimizers.sgd import SgdSettings as SgdSettings


def optimizer_from_name(value: Any) -> Any:
    """Return the settings of an optimizer that may be given by its name, without settings."""
    return {"name": value} if isinstance(value, str) else value


def _needs_settings(kind: type[BuiltInSettings]) -> bool:
    fields = kind.model_fields.items()
    return any(field.is_required() for setting, field in fields if setting != "name")


PLAIN = tuple(name for name, kind in BY_NAME.items() if not _needs_settings(kind))
"""Names of the built-in optimizers that need no settings: a study may give them as plain text."""
_AnySingle = Annotated[BuiltIn | CustomSettings, Field(discriminator="name")]
SingleOptimizer = Annotated[
    _AnySingle,
    BeforeValidator(optimizer_from_name, json_schema_input_type=Literal[PLAIN] | _AnySingle),
]


def rate_factor(optimizer: SingleOptimizer, width: int) -> float:
    """Return the factor that multiplies the learning rate of a model of this width for an
    optimizer's matrices."""
    scale = None if isinstance(optimizer, CustomSettings) else optimizer.width_scale
    return optimizer.lr_factor * (
        1.0 if scale is None else (width / scale.reference) ** scale.power
    )
