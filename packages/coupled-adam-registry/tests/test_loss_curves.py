"""Tokens for the same loss, and which Adam is the reference, against formulas of their own."""

import math
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter
from scipy import stats

from coupled_adam_bench.statistics.student import NO_INTERVAL
from coupled_adam_bench.study.settings import Optimizer
from coupled_adam_registry.loss_curves import (
    BEYOND,
    Curve,
    is_adam,
    needed_tokens,
    reference_of,
)

GRID = (100, 200, 400)
NOISE = {tokens: 0.01 * np.random.default_rng(tokens).normal(size=3) for tokens in (*GRID, 800, 0)}


def law(tokens: float) -> float:
    return 2.5 + 4 * tokens**-0.3


def by_seed(values: Any) -> dict[int, float]:
    return dict(enumerate(map(float, values), 1))


def reference(*grid: int, noise: float = 1.0) -> dict[int, dict[int, float]]:
    return {tokens: by_seed(law(tokens) + noise * NOISE[tokens]) for tokens in grid}


@pytest.mark.parametrize("grid", [GRID, (*GRID, 800), (100, 400, 1600)])
@pytest.mark.parametrize("true", [100, 130, 250, 390])
def test_a_power_law_is_inverted_exactly(grid, true):
    curve = {tokens: by_seed([law(tokens)] * 3) for tokens in grid}
    found = needed_tokens(by_seed([law(true)] * 3), curve)
    assert found.tokens == pytest.approx(true, rel=1e-4)
    ends = [end for end in (found.low, found.high) if math.isfinite(end)]
    assert (ends, found.reason) == ([], NO_INTERVAL)  # without noise there is no spread


def test_the_reference_itself_needs_its_own_tokens_whatever_its_curve():
    curve = reference(*GRID) | {200: by_seed(law(130) + NOISE[200])}  # no power law
    for tokens in GRID:
        assert needed_tokens(curve[tokens], curve).tokens == pytest.approx(tokens, rel=1e-12)


def test_two_numbers_of_tokens_are_joined_by_a_line_in_log_tokens_without_an_interval():
    curve, own = reference(100, 400), by_seed(law(200) + NOISE[0])
    first, last, loss = (np.mean(list(values.values())) for values in (curve[100], curve[400], own))
    found = needed_tokens(own, curve)
    assert found.tokens == pytest.approx(100 * 4 ** ((first - loss) / (first - last)), rel=1e-3)
    assert math.isnan(found.low) and math.isnan(found.high)
    assert found.reason == "an interval needs 3 numbers of tokens of the reference"


@pytest.mark.parametrize("shift", np.linspace(-0.03, 0.03, 13))
def test_the_interval_holds_the_tokens_that_a_paired_t_test_does_not_tell_apart(
    shift,
):
    """The test compares the runs themselves where the reference was trained, and its curve at other
    tokens."""
    curve, own = reference(*GRID), by_seed(law(200) + shift + NOISE[0])
    found = needed_tokens(own, curve)
    p_value = stats.ttest_rel(list(own.values()), list(curve[200].values())).pvalue
    assert (p_value > 0.05) == (not (found.low > 200 or found.high < 200))
    for end, beside in ((found.low, (100, 200)), (found.high, (200, 400))):
        if math.isfinite(end) and beside[0] < end < beside[1]:
            means = {tokens: np.mean(list(curve[tokens].values())) for tokens in GRID}
            c = math.log(
                (means[100] - means[200]) / (means[200] - means[400]), 2
            )  # of three points, in closed form
            b = (means[100] - means[200]) / (100**-c - 200**-c)
            level = means[200] + b * (end**-c - 200**-c)
            weight = (means[beside[0]] - level) / (means[beside[0]] - means[beside[1]])
            others = [
                (1 - weight) * (curve[beside[0]][s] - means[beside[0]])
                + weight * (curve[beside[1]][s] - means[beside[1]])
                + level
                for s in own
            ]
            assert stats.ttest_rel(list(own.values()), others).pvalue == pytest.approx(
                0.05, rel=1e-2
            )


@pytest.mark.parametrize(
    ("own", "changes", "reason"),
    [
        ([2.9] * 3, {}, "the reference does not reach this loss with its most tokens"),
        ([4.0] * 3, {}, "the reference is below this loss with its fewest tokens"),
        ([3.2, math.nan, 3.2], {}, "a loss is missing"),
        ([3.2] * 3, {200: by_seed([math.nan] * 3)}, "a loss is missing"),
        (
            [3.2] * 3,
            {400: by_seed([3.4] * 3)},
            "the loss of the reference does not fall with each number of tokens",
        ),
        ([3.2] * 4, {}, "the reference has these seeds at 0 numbers of tokens, it needs 2"),
    ],
)
def test_what_the_curve_does_not_hold_is_refused(own, changes, reason):
    found = needed_tokens(by_seed(own), reference(*GRID) | changes)
    assert all(map(math.isnan, (found.tokens, found.low, found.high)))
    assert found.reason == reason


def test_an_interval_that_reaches_beyond_the_curve_has_no_end_there():
    found = needed_tokens(by_seed(law(390) + NOISE[0]), reference(*GRID))
    assert found.low < found.tokens < 400
    assert (math.isnan(found.high), found.reason) == (True, BEYOND)
    assert (
        needed_tokens({1: law(200)}, reference(*GRID, noise=0)).reason
        == "1 seed, an interval needs 2"
    )


def curve(key: str, loss: float, is_tuned: bool = False) -> Curve:
    label = key + " (tuned)" * is_tuned
    losses = {100: by_seed([loss + 1] * 2), 200: by_seed([loss] * 2)}
    return Curve(key, label, is_tuned, key.startswith("adamw"), losses)


def test_the_reference_is_the_strongest_adam_of_the_same_tokens():
    weak, strong, other = curve("adamw", 3.2), curve("adamw_f3", 3.1), curve("sgd", 2.0)
    longer = Curve(
        "adamw_f9", "f9", False, True, {tokens: by_seed([2.0] * 2) for tokens in (400, 800, 1600)}
    )
    assert reference_of([weak, strong, other, longer], 200, is_tuned=False) == (strong, "")
    assert reference_of([weak, other], 200, is_tuned=False) == (weak, "")
    assert reference_of([other], 200, is_tuned=False) == (
        None,
        "no Adam was trained with these tokens",
    )
    assert reference_of([weak], 300, is_tuned=False) == (
        None,
        "no Adam was trained with these tokens",
    )
    lost = Curve("adamw", "x", False, True, {200: by_seed([1.0, math.nan])})
    assert reference_of([lost, weak], 200, is_tuned=False) == (weak, "")


def test_what_is_tuned_stands_beside_what_is_tuned():
    plain, tuned = curve("adamw", 3.2), curve("adamw", 3.1, is_tuned=True)
    assert reference_of([plain, tuned], 200, is_tuned=True) == (tuned, "")
    reason = "this is not tuned, and the strongest Adam, adamw (tuned), is tuned"
    assert reference_of([plain, tuned], 200, is_tuned=False) == (None, reason)
    reason = "this is tuned, and the strongest Adam, adamw, is not tuned"
    assert reference_of([curve("adamw", 3.0), tuned], 200, is_tuned=True) == (None, reason)


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ("adamw", True),
        ({"name": "adamw", "lr_factor": 3, "beta2": 0.999}, True),
        ({"name": "adamw", "amsgrad": True, "weight_decay": 0.1}, True),
        ({"name": "adamw", "width_scale": {"power": 1, "reference": 8}}, True),
        ({"embedding": {"name": "adamw", "lr_factor": 3}, "head": "adamw"}, True),
        ({"embedding": "adamw", "head": "coupled_adam"}, False),
        ({"name": "adamw", "mu_centering": True}, False),
        ({"name": "adamw", "z_loss": 1e-4}, False),
        ("coupled_adam", False),
        ("adam_mini", False),
    ],
    ids=str,
)
def test_every_adam_may_be_the_reference(entry, expected):
    """Those with a longer memory, AMSGrad and a weight decay of their own were left out, and one of
    them is the strongest."""
    assert is_adam(TypeAdapter(Optimizer).validate_python(entry)) == expected
