"""How often a table of two or three equal optimizers says that one is better: in at most 5 % of tables."""

import math
from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from coupled_adam_bench.statistics import tests as statistics
from coupled_adam_bench.study.catalogue.tables import TABLES

N_TABLES = 80
METRICS = ("loss", "acc", "isotropy", "kappa")
Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


def continuous(rng: np.random.Generator, size: tuple[int, ...]) -> np.ndarray:
    return rng.normal(size=size)


def counts(items: int) -> Draw:
    return lambda rng, size: rng.binomial(items, 0.3, size) / items


def share_that_says_something(draw: Draw, n_seeds: int, n_optimizers: int, apart: float) -> float:
    """Return the share of tables with a better or a worse; the first optimizer is ``apart`` better."""
    rng = np.random.default_rng([n_seeds, n_optimizers])
    values = draw(rng, (N_TABLES, len(METRICS), n_optimizers, n_seeds))
    values[:, :, 0] += apart
    names = ["table", "metric", "optimizer", "seed"]
    index = pd.MultiIndex.from_product([range(n) for n in values.shape], names=names)
    frame = pd.Series(values.ravel(), index, name="value").reset_index()
    frame["cell"] = [f"{row.table}-{row.optimizer}-{row.seed}" for row in frame.itertuples()]
    frame["metric"] = frame["metric"].map(lambda number: METRICS[number])
    frame = frame.assign(n_tokens=1, n_params=1, model="m", data="d")
    tables = dict.fromkeys(range(N_TABLES), TABLES["table7"])
    tests = statistics.tests_of(frame, tables)
    return float(tests["outcome"].isin(["better", "worse"]).groupby(tests["table"]).any().mean())


@pytest.mark.parametrize("n_seeds", [2, 3, 5])
@pytest.mark.parametrize("draw", [continuous, counts(24), counts(60), counts(1000)])
def test_at_most_one_table_of_twenty_is_wrong(draw: Draw, n_seeds: int) -> None:
    bound = 0.05 + 3 * math.sqrt(0.05 * 0.95 / N_TABLES)
    assert share_that_says_something(draw, n_seeds, 2, 0.0) <= bound


def test_three_equal_optimizers_and_one_that_is_better() -> None:
    bound = 0.05 + 3 * math.sqrt(0.05 * 0.95 / N_TABLES)
    assert share_that_says_something(continuous, 3, 3, 0.0) <= bound
    assert share_that_says_something(continuous, 5, 2, 6.0) > 0.9
