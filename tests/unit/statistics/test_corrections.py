import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import false_discovery_control
from statsmodels.stats.multitest import multipletests

from coupled_adam_bench.statistics.corrections import benjamini_hochberg, holm


def test_by_hand() -> None:
    # Sorted: 0.005 * 4, 0.01 * 3, 0.03 * 2, 0.04 * 1 = 0.04 < 0.06, so the larger one stands.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []


def test_nan_is_no_test() -> None:
    adjusted = holm([0.02, math.nan, 0.6])
    assert (adjusted[0], adjusted[2]) == (0.04, 0.6)
    assert math.isnan(adjusted[1])


@given(p_values=st.lists(st.floats(0, 1), max_size=8), level=st.floats(0.001, 0.5))
def test_rejects_what_the_step_down_procedure_rejects(p_values: list[float], level: float) -> None:
    """Holm 1979: going up from the smallest p, reject while (tests left) * p <= level."""
    rejected = set()
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda index: p_values[index])):
        if (len(p_values) - rank) * p_values[index] > level:
            break
        rejected.add(index)
    assert {index for index, p in enumerate(holm(p_values)) if p <= level} == rejected


def test_both_are_the_bits_of_statsmodels() -> None:
    draw = random.Random(0)
    for n_tests in (1, 2, 3, 8):
        p_values = [draw.choice((0.0, 0.01, draw.random() ** 4, 1.0)) for _ in range(n_tests)]
        assert holm(p_values) == multipletests(p_values, method="holm")[1].tolist()
        assert benjamini_hochberg(p_values) == multipletests(p_values, method="fdr_bh")[1].tolist()


def test_benjamini_hochberg_by_hand() -> None:
    # From the largest: 0.04 * 4/4, min(0.04, 0.03 * 4/3) = 0.04, min(0.04, 0.01 * 4/2) = 0.02, min(0.02, 0.005 * 4).
    assert benjamini_hochberg([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.02, 0.04, 0.04, 0.02])
    assert benjamini_hochberg([]) == []
    assert math.isnan(benjamini_hochberg([math.nan])[0])


@given(p_values=st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_benjamini_hochberg_agrees_with_scipy_and_never_exceeds_holm(p_values: list[float]) -> None:
    found = benjamini_hochberg([*p_values, math.nan])
    assert found[:-1] == pytest.approx(false_discovery_control(p_values).tolist(), rel=1e-12, abs=1e-300)
    assert all(bh <= h * (1 + 1e-12) for bh, h in zip(found[:-1], holm(p_values), strict=True))
