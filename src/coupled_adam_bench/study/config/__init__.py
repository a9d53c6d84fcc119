"""The study: every setting of an experiment with its type, its default and its source.

Marks in the docstrings give the source of a value: [P] is stated in the paper, [C] was read in the
authors' code, [I] was inferred; unmarked values are ours. Settings in ``paths``, ``execution`` and
``budget`` never change a number, those in ``statistics`` none of a run.
"""

from coupled_adam_bench.study.config.base import Settings as Settings
from coupled_adam_bench.study.config.base import Steps as Steps
from coupled_adam_bench.study.config.composite import Composite as Composite
from coupled_adam_bench.study.config.composite import load_any_study as load_any_study
from coupled_adam_bench.study.config.composite import parse_any_study as parse_any_study
from coupled_adam_bench.study.config.data import BinsSource as BinsSource
from coupled_adam_bench.study.config.data import Data as Data
from coupled_adam_bench.study.config.data import FilesSource as FilesSource
from coupled_adam_bench.study.config.data import HubSource as HubSource
from coupled_adam_bench.study.config.data import Paths as Paths
from coupled_adam_bench.study.config.data import Split as Split
from coupled_adam_bench.study.config.data import SyntheticSource as SyntheticSource
from coupled_adam_bench.study.config.evaluation import Downstream as Downstream
from coupled_adam_bench.study.config.evaluation import EvaluationSettings as EvaluationSettings
from coupled_adam_bench.study.config.evaluation import OwnMetric as OwnMetric
from coupled_adam_bench.study.config.evaluation import TestLoss as TestLoss
from coupled_adam_bench.study.config.evaluation import WordSimilaritySet as WordSimilaritySet
from coupled_adam_bench.study.config.execution import Budget as Budget
from coupled_adam_bench.study.config.execution import Execution as Execution
from coupled_adam_bench.study.config.execution import StatisticsSettings as StatisticsSettings
from coupled_adam_bench.study.config.grid import GridBlock as GridBlock
from coupled_adam_bench.study.config.optimizers import AdamWSettings as AdamWSettings
from coupled_adam_bench.study.config.optimizers import CoupledAdamSettings as CoupledAdamSettings
from coupled_adam_bench.study.config.optimizers import CustomSettings as CustomSettings
from coupled_adam_bench.study.config.optimizers import EmberSettings as EmberSettings
from coupled_adam_bench.study.config.optimizers import SgdSettings as SgdSettings
from coupled_adam_bench.study.config.optimizers import SingleOptimizer as SingleOptimizer
from coupled_adam_bench.study.config.optimizers import rate_factor as rate_factor
from coupled_adam_bench.study.config.per_matrix import Optimizer as Optimizer
from coupled_adam_bench.study.config.per_matrix import PerMatrixSettings as PerMatrixSettings
from coupled_adam_bench.study.config.study import Study as Study
from coupled_adam_bench.study.config.study import load_study as load_study
from coupled_adam_bench.study.config.study import parse_study as parse_study
from coupled_adam_bench.study.config.training import Model as Model
from coupled_adam_bench.study.config.training import Training as Training
from coupled_adam_bench.study.config.tune import Tune as Tune
