"""The second moment by range of B p, on moments that are powers of the probability."""

import numpy as np
import pytest

from coupled_adam_bench.training.moment import OCCUPANCY_EDGES, moment_by_occupancy, occupancy_names


def test_exponents_of_each_range_are_found():
    counts = np.unique(np.geomspace(1, 10**6, 300).astype(np.int64))
    batch = 10_000
    occupancy = batch * counts / counts.sum()
    rare = occupancy < OCCUPANCY_EDGES[0]
    moment = np.where(rare, occupancy**2, occupancy)
    found = moment_by_occupancy(np.append(moment, 0.0), np.append(counts, 0), batch)
    assert found["moment_exponent_below_0.05"] == pytest.approx(2)
    for name in occupancy_names()[1:]:
        assert found[f"moment_exponent_{name}"] == pytest.approx(1)
        assert found[f"moment_slope_{name}"] == pytest.approx(batch)
        assert found[f"moment_r_squared_{name}"] == pytest.approx(1)
    assert found["moment_occupancy_below_0.05"] == pytest.approx(
        np.exp(np.log(occupancy[rare]).mean())
    )


def test_a_range_of_few_tokens_and_one_without_a_line_are_left_out():
    assert moment_by_occupancy(np.ones(4), np.array([1, 1, 1, 10**6]), 10) == {
        "moment_slope": 0.0,
        "moment_exponent": 0.0,
        "moment_occupancy_below_0.05": pytest.approx(10 / (10**6 + 3)),
    }


@pytest.mark.parametrize("n_moved", [0, 2])
def test_few_rows_that_moved_have_no_line(n_moved):
    moment = np.zeros(5)
    moment[:n_moved] = 1.0
    assert moment_by_occupancy(moment, np.array([5, 4, 3, 2, 1]), 10) == {}


def test_the_line_of_all_tokens_is_that_of_the_paper():
    counts = np.array([500, 300, 150, 40, 10])
    moment = 3.0 * counts / counts.sum() + 0.1
    found = moment_by_occupancy(np.append(moment, 0.0), np.append(counts, 0), 10_000)
    assert found["moment_slope"] == pytest.approx(3)
    assert found["moment_r_squared"] == pytest.approx(1)
    assert 0 < found["moment_exponent"] < 1
