"""The study: every setting of an experiment with its type, its default and its source.

Marks in the docstrings give the source of a value: [P] is stated in the paper, [C] was read in the authors' code, [I]
was inferred; unmarked values are ours. Settings in ``paths``, ``execution`` and ``budget`` never change a number, those
in ``statistics`` none of a run.
"""

from coupled_adam_bench.study.config.base import Settings, Steps
from coupled_adam_bench.study.config.budget import Budget
from coupled_adam_bench.study.config.composite import Composite, load_any_study, parse_any_study
from coupled_adam_bench.study.config.data import Data, FilesSource, HubSource, Paths, Split, SyntheticSource
from coupled_adam_bench.study.config.evaluation import (
    Downstream,
    EvaluationSettings,
    TestLoss,
    Theory,
    WordSimilaritySet,
)
from coupled_adam_bench.study.config.execution import Execution
from coupled_adam_bench.study.config.grid import GridBlock
from coupled_adam_bench.study.config.metrics import OwnMetric
from coupled_adam_bench.study.config.optimizers import (
    AdamWSettings,
    CoupledAdamSettings,
    CustomSettings,
    EmberSettings,
    Optimizer,
    SgdSettings,
)
from coupled_adam_bench.study.config.statistics import StatisticsSettings
from coupled_adam_bench.study.config.study import Study, load_study, parse_study
from coupled_adam_bench.study.config.training import Model, Training
from coupled_adam_bench.study.config.tune import Tune

__all__ = [
    "AdamWSettings",
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
    "Settings",
    "SgdSettings",
    "Split",
    "StatisticsSettings",
    "Steps",
    "Study",
    "SyntheticSource",
    "TestLoss",
    "Theory",
    "Training",
    "Tune",
    "WordSimilaritySet",
    "load_any_study",
    "load_study",
    "parse_any_study",
    "parse_study",
]
