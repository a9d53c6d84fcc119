"""The catalogue declares what the package embedding-geometry measures, with bounds that its numbers
keep."""

import numpy as np
import pytest

from coupled_adam_bench.study.catalogue.metrics import METRICS
from embedding_geometry import metrics

DECLARED = {name: metric for name, metric in METRICS.items() if metric.task == "embeddings"}


def test_every_metric_is_declared_in_the_order_in_which_it_is_measured():
    assert list(DECLARED) == list(metrics.METRICS)


NORMAL = np.random.default_rng(0).normal(size=(40, 6))
MATRICES = {
    "normal": NORMAL,
    "shifted": NORMAL + 3.0,
    "one direction": np.outer(np.arange(1.0, 41.0), np.ones(6)),
    "opposite rows": np.concatenate([NORMAL, -NORMAL]),
    "more columns than rows": NORMAL[:4],
}


@pytest.mark.parametrize("name", MATRICES)
def test_no_number_lies_outside_its_bounds(name):
    matrix = MATRICES[name]
    found = metrics.embedding_metrics(matrix, np.arange(1, len(matrix) + 1), "both_signs")
    assert found.keys() == DECLARED.keys()
    for metric, value in found.items():
        assert np.isnan(value) or DECLARED[metric].low <= value <= DECLARED[metric].high
