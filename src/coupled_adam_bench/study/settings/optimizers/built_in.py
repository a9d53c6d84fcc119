"""All built-in optimizers, each a file of this folder."""

from collections.abc import Mapping
from typing import get_args

from coupled_adam_bench.study.settings.optimizers.adam_mini import AdamMiniSettings
from coupled_adam_bench.study.settings.optimizers.adamw import AdamWSettings
from coupled_adam_bench.study.settings.optimizers.base import BuiltInSettings
from coupled_adam_bench.study.settings.optimizers.coupled_adam import CoupledAdamSettings
from coupled_adam_bench.study.settings.optimizers.ember import EmberSettings
from coupled_adam_bench.study.settings.optimizers.normalized_sgd import NormalizedSgdSettings
from coupled_adam_bench.study.settings.optimizers.oblique_sgd import ObliqueSgdSettings
from coupled_adam_bench.study.settings.optimizers.sgd import SgdSettings

BuiltIn = (
    AdamWSettings
    | CoupledAdamSettings
    | AdamMiniSettings
    | EmberSettings
    | NormalizedSgdSettings
    | ObliqueSgdSettings
    | SgdSettings
)
BY_NAME: Mapping[str, type[BuiltInSettings]] = {
    get_args(kind.model_fields["name"].annotation)[0]: kind for kind in get_args(BuiltIn)
}
