"""The sensitivity to the learning rate, by hand and against published losses."""

import csv
import math
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coupled_adam_bench.statistics.candidates import learning_rate_sensitivity

PUBLISHED_LOSSES = Path(__file__).parents[2] / "golden" / "published_oec.csv"
# Stollenwerk et al. 2026, in the order Adam, z-loss, mu-loss, mu-centering.
PUBLISHED = {
    "16M": (0.306, 0.054, 0.031, 0.028),
    "29M": (0.391, 0.033, 0.027, 0.029),
    "57M": (0.508, 0.235, 0.031, 0.041),
    "109M": (0.344, 0.118, 0.046, 0.051),
    "221M": (0.412, 0.109, 0.056, 0.061),
}


def test_by_hand():
    # Means 4, 3 and, with 10 for what diverged and for what is worse than guessing, 10: mean 17/3,
    # least 3.
    losses = {1e-3: [3.9, 4.1], 1e-2: [3.0, 3.0], 1e-1: [math.nan, 12.0]}
    assert learning_rate_sensitivity(losses, 10.0) == pytest.approx(17 / 3 - 3)


def test_one_rate_has_no_sensitivity_and_equal_losses_have_none():
    assert math.isnan(learning_rate_sensitivity({1e-3: [3.0]}, 10.0))
    assert learning_rate_sensitivity({1e-3: [3.0], 1e-2: [3.0]}, 10.0) == 0.0
    assert learning_rate_sensitivity({1e-3: [math.nan], 1e-2: [math.inf]}, 10.0) == 0.0


@given(st.lists(st.floats(0, 9), min_size=2, max_size=8), st.floats(0, 9))
def test_it_lies_between_zero_and_the_largest_distance(values, shift):
    losses = {float(rate): [loss] for rate, loss in enumerate(values)}
    found = learning_rate_sensitivity(losses, 100.0)
    assert -1e-9 <= found <= max(values) - min(values) + 1e-9
    shifted = {rate: [loss + shift] for rate, (loss,) in losses.items()}
    assert learning_rate_sensitivity(shifted, 100.0) == pytest.approx(found, abs=1e-9)


def test_all_published_sensitivities_follow_from_the_published_losses():
    """The authors divide by one less than the number of rates; their values have three decimals."""
    losses: dict[tuple[str, str, str], dict[float, list[float]]] = defaultdict(dict)
    with PUBLISHED_LOSSES.open() as file:
        for row in csv.DictReader(file):
            of_rates = losses[row["model_label"], row["method"], row["weight"]]
            of_rates[float(row["learning_rate"])] = [float(row["loss"])]
    assert len(losses) == 25 and all(len(of_rates) == 7 for of_rates in losses.values())
    methods = (("adamw", ""), ("z-loss", "0.0001"), ("mu-loss", "0.0001"), ("mu-centering", ""))
    for size, values in PUBLISHED.items():
        for method, published in zip(methods, values, strict=True):
            of_rates = losses[size, *method]
            best = min(loss for (loss,) in of_rates.values())
            assert sum(loss - best for (loss,) in of_rates.values()) / 6 == pytest.approx(
                published, abs=5.1e-4
            )
            assert 7 / 6 * learning_rate_sensitivity(of_rates, math.log(50304)) == pytest.approx(
                published, abs=5.1e-4
            )
