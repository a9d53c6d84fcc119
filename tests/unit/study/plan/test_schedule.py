import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from coupled_adam_bench.study.plan.schedule import learning_rate_factor
from coupled_adam_bench.study.settings import Training

STEPS = 1000
SCHEDULES = ("cosine", "linear", "constant", "wsd")


def recipe(schedule: str, **fields: Any) -> Training:
    return Training(**{"schedule": schedule, "warmup_steps": 0} | fields)


def curve(training: Training, steps: int = STEPS) -> np.ndarray:
    return np.array([learning_rate_factor(step, steps, training, 1.0) for step in range(steps)])


@pytest.mark.parametrize("low", [0.0, 0.1, 0.3])
def test_closed_forms_without_warmup(low):
    time = np.arange(STEPS) / STEPS
    shapes = {
        "cosine": np.cos(math.pi / 2 * time) ** 2,
        "linear": 1 - time,
        "constant": np.ones(STEPS),
        "wsd": np.where(time < 0.75, 1, (1 - time) / 0.25),
    }
    for schedule, shape in shapes.items():
        factors = curve(recipe(schedule, min_lr_ratio=low, decay_fraction=0.25))
        np.testing.assert_allclose(
            factors, 1 - (1 - low) * (1 - shape), rtol=0, atol=1e-12, err_msg=schedule
        )


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_both_warmups(schedule):
    first, zero = (
        curve(recipe(schedule, warmup_steps=100, warmup_from=name))
        for name in ("first_step", "zero")
    )
    assert first[:100].tolist() == [(step + 1) / 101 for step in range(100)]
    assert zero[:100].tolist() == [step / 100 for step in range(100)]
    assert first[100:].tolist() == zero[100:].tolist()
    assert first[100] == 1.0


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_fraction_for_the_warmup_is_rounded_up(schedule):
    if schedule == "wsd":
        with pytest.raises(ValueError, match="warmup_fraction: schedule 'wsd' shares one start"):
            Training(schedule="wsd", warmup_fraction=0.01)
        return
    for steps, warmup in (
        (1000, 10),
        (1001, 11),
        (700, 7),
    ):  # 0.01 x 700 is 7.000000000000001 in floats
        fraction, fixed = (
            Training(schedule=schedule, warmup_fraction=0.01),
            recipe(schedule, warmup_steps=warmup),
        )
        assert curve(fraction, steps).tolist() == curve(fixed, steps).tolist()


@pytest.mark.parametrize("warmup_from", ["zero", "first_step"])
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    ("steps", "warmup"), [(1000, 100), (1000, 0), (1000, 900), (1000, 999), (97, 13)]
)
def test_rises_to_the_peak_and_falls_without_a_jump(schedule, warmup_from, steps, warmup):
    training = recipe(schedule, warmup_steps=warmup, warmup_from=warmup_from)
    factors = curve(training, steps)
    assert factors.max() == factors[warmup] == 1.0
    assert factors.min() >= (0.0 if warmup_from == "zero" else min(0.1, 1 / (warmup + 1)))
    assert all(a < b for a, b in pairwise(factors[: warmup + 1]))
    assert all(a >= b for a, b in pairwise(factors[warmup:]))
    # No step is longer than the steepest line of its part: the warmup's, or pi / 2 of the decay's
    # mean slope.
    decay = steps - warmup if schedule != "wsd" else min(steps - warmup, math.ceil(0.2 * steps))
    assert np.abs(np.diff(factors[: warmup + 1])).max(initial=0) <= 1 / max(warmup, 1) + 1e-12
    assert np.abs(np.diff(factors[warmup:])).max(initial=0) <= 0.9 * math.pi / 2 / decay + 1e-12
    if schedule != "constant":
        assert learning_rate_factor(steps, steps, training, 1.0) == pytest.approx(0.1)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_warmup_longer_than_the_run_is_all_there_is(schedule):
    training = recipe(schedule, warmup_steps=10)
    assert curve(training, 7).tolist() == [(step + 1) / 11 for step in range(7)]
    assert curve(training, 10).tolist() == [(step + 1) / 11 for step in range(10)]
    assert training.decay_start(7) == 7
    assert training.decay_start(10) == 10


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_one_step(schedule):
    assert learning_rate_factor(0, 1, recipe(schedule), 1.0) == 1.0
    assert learning_rate_factor(0, 1, recipe(schedule, warmup_steps=1), 1.0) == 0.5
    assert (
        learning_rate_factor(0, 1, recipe(schedule, warmup_steps=1, warmup_from="zero"), 1.0) == 0.0
    )
    assert recipe(schedule).decay_start(1) == 1


def test_wsd_over_the_whole_run_is_linear():
    for warmup in (0, 10):
        wsd = recipe("wsd", warmup_steps=warmup, decay_fraction=1)
        assert curve(wsd, 50).tolist() == curve(recipe("linear", warmup_steps=warmup), 50).tolist()


@pytest.mark.parametrize("fraction", [0.001, 0.07, 0.2, 0.5, 1.0])
@pytest.mark.parametrize("warmup", [0, 5, 60])
@pytest.mark.parametrize("steps", [1, 2, 50, 100])
def test_decay_start_is_the_first_step_below_the_peak(fraction, warmup, steps):
    training = recipe("wsd", warmup_steps=warmup, decay_fraction=fraction)
    below = [
        step
        for step in range(warmup, steps)
        if learning_rate_factor(step, steps, training, 1.0) < 1
    ]
    assert training.decay_start(steps) == (below[0] if below else steps)


def test_decay_takes_the_fraction_of_the_steps_rounded_up():
    for steps, fraction, decay in ((100, 0.2, 20), (101, 0.2, 21), (100, 0.07, 7), (3, 0.001, 1)):
        training = recipe("wsd", decay_fraction=fraction)
        assert (curve(training, steps) < 1).sum() == decay - 1  # it starts from the peak
        assert training.decay_start(steps) == steps - decay + 1


def test_wsd_runs_of_any_length_share_their_start():
    training = recipe("wsd", warmup_steps=20)
    longest = curve(training, 400)
    for steps in (25, 100, 200, 399):
        shared = training.decay_start(steps)
        assert curve(training, steps)[:shared].tolist() == longest[:shared].tolist()
