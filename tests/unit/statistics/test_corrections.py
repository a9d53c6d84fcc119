import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coupled_adam_bench.statistics.corrections import holm


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
