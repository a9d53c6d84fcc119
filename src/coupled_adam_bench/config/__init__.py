"""The study: every setting of an experiment, typed, with its default and its source, and nothing else.

Marks in the docstrings: [P] stated by the paper, [C] read in the authors' code, ours otherwise. Settings that can
change a number live in ``data``, ``models``, ``training`` and ``optimizers``; ``paths`` and ``execution`` never do.
"""

from coupled_adam_bench.config.base import Settings
from coupled_adam_bench.config.composite import Composite, load_any_study, parse_any_study
from coupled_adam_bench.config.data import Data, FilesSource, HubSource, Paths, Split, SyntheticSource
from coupled_adam_bench.config.execution import Execution
from coupled_adam_bench.config.optimizers import AdamW, CoupledAdam, Custom, Optimizer, Sgd
from coupled_adam_bench.config.study import (
    Block,
    Downstream,
    Evaluation,
    Study,
    TestLoss,
    Theory,
    Tokens,
    WordSimilaritySet,
    load_study,
    parse_study,
)
from coupled_adam_bench.config.training import Model, Training

__all__ = [
    "AdamW",
    "Block",
    "Composite",
    "CoupledAdam",
    "Custom",
    "Data",
    "Downstream",
    "Evaluation",
    "Execution",
    "FilesSource",
    "HubSource",
    "Model",
    "Optimizer",
    "Paths",
    "Settings",
    "Sgd",
    "Split",
    "Study",
    "SyntheticSource",
    "TestLoss",
    "Theory",
    "Tokens",
    "Training",
    "WordSimilaritySet",
    "load_any_study",
    "load_study",
    "parse_any_study",
    "parse_study",
]
