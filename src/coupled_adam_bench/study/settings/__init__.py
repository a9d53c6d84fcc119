"""The study: every setting of an experiment with its type, its default and its source.

Marks in the docstrings give the source of a value: [P] is stated in the paper, [C] was read in the
authors' code, [I] was inferred; unmarked values are ours. Settings in ``paths``, ``execution`` and
``budget`` never change a number, those in ``statistics`` none of a run.
"""

from coupled_adam_bench.study.settings.base import Settings, Steps
from coupled_adam_bench.study.settings.composite import Composite, load_any_study, parse_any_study
from coupled_adam_bench.study.settings.data import (
    BinsSource,
    Data,
    FilesSource,
    HubSource,
    Paths,
    Split,
    SyntheticSource,
)
from coupled_adam_bench.study.settings.evaluation import (
    Downstream,
    EvaluationSettings,
    OwnMetric,
    TestLoss,
    WordSimilaritySet,
)
from coupled_adam_bench.study.settings.execution import Budget, Execution, StatisticsSettings
from coupled_adam_bench.study.settings.grid import GridBlock
from coupled_adam_bench.study.settings.model import Model
from coupled_adam_bench.study.settings.optimizers import (
    AdamWSettings,
    CoupledAdamSettings,
    CustomSettings,
    EmberSettings,
    SgdSettings,
    SingleOptimizer,
    rate_factor,
)
from coupled_adam_bench.study.settings.per_matrix import Optimizer, PerMatrixSettings
from coupled_adam_bench.study.settings.study import Study, load_study, parse_study
from coupled_adam_bench.study.settings.training import Training
from coupled_adam_bench.study.settings.tune import Tune

__all__ = [
    "AdamWSettings",
    "BinsSource",
    "Budget",
    "Composite",
    "CoupledAdamSettings",
    "CustomSettings",
    "Data",
    "Downstream",
    "EmberSettings",
    "EvaluationSettings",
    "Execution",
    "FilesSource",
    "GridBlock",
    "HubSource",
    "Model",
    "Optimizer",
    "OwnMetric",
    "Paths",
    "PerMatrixSettings",
    "Settings",
    "SgdSettings",
    "SingleOptimizer",
    "Split",
    "StatisticsSettings",
    "Steps",
    "Study",
    "SyntheticSource",
    "TestLoss",
    "Training",
    "Tune",
    "WordSimilaritySet",
    "load_any_study",
    "load_study",
    "parse_any_study",
    "parse_study",
    "rate_factor",
]
