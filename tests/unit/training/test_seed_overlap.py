"""How much of the text two seeds share, against counts by hand."""

import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coupled_adam_bench.data.bins import load_meta
from coupled_adam_bench.study.config import Training, parse_study
from coupled_adam_bench.study.plan import make_plan
from coupled_adam_bench.training import seed_overlap
from coupled_adam_bench.training.order import WindowOrder
from coupled_adam_bench.training.seed_overlap import Draws, draw, expected_anywhere, shared_anywhere, shared_in_step


def recipe(data_order: str, **fields: Any) -> Training:
    return Training(**{"seq_len": 8, "batch_sequences": 12, "data_order": data_order} | fields)


def draws(steps: list[int], starts: list[int]) -> Draws:
    return Draws(np.array(steps), np.array(starts))


def test_shares_by_hand() -> None:
    first, second = draws([0, 0, 1, 1], [5, 5, 7, 9]), draws([0, 0, 1, 1], [5, 9, 9, 8])
    assert shared_in_step(first, second) == shared_in_step(second, first) == 2 / 4  # one 5 in step 0, 9 in step 1
    assert shared_anywhere(first, second) == (3 / 4 + 3 / 4) / 2
    assert shared_in_step(first, first) == shared_anywhere(first, first) == 1.0
    apart = draws([0, 0, 1, 1], [1, 2, 3, 4])
    assert shared_in_step(first, apart) == shared_anywhere(first, apart) == 0.0


@pytest.mark.parametrize("data_order", ["with_replacement", "shuffled", "per_rank"])
def test_shares_are_those_of_a_count(data_order: str) -> None:
    training, steps = recipe(data_order), np.arange(40)
    runs = [
        [Counter(WindowOrder(2_000, training, seed).starts(step).tolist()) for step in range(40)] for seed in (1, 2)
    ]
    both = sum((ours & theirs).total() for ours, theirs in zip(*runs, strict=True))
    first, second = (draw(2_000, training, seed, steps) for seed in (1, 2))
    assert shared_in_step(first, second) == both / 480
    whole = [sum(run, Counter()) for run in runs]
    ways = [sum(n for start, n in a.items() if start in b) / 480 for a, b in (whole, whole[::-1])]
    assert shared_anywhere(first, second) == pytest.approx(sum(ways) / 2)


@pytest.mark.parametrize("data_order", ["with_replacement", "shuffled", "per_rank"])
def test_what_is_expected_by_chance_is_what_is_counted(data_order: str) -> None:
    training = recipe(data_order)
    first, second = (draw(40_000, training, seed, np.arange(300)) for seed in (1, 2))
    expected = expected_anywhere(shared_in_step(first, second), 40_000, training, 3600)
    assert shared_anywhere(first, second) == pytest.approx(expected, abs=0.03)


def test_a_long_run_is_sampled() -> None:
    assert seed_overlap.steps_to_read(10_000, 96).tolist() == list(range(10_000))
    sampled = seed_overlap.steps_to_read(200_000, 96)
    assert len(sampled) == len(set(sampled.tolist())) == seed_overlap.SAMPLED_STEPS
    assert (sampled[0], sampled[-1]) == (0, 199_804)


def plan_of(tiny_study: Any, **training: Any) -> Any:
    settings = tiny_study()
    settings["training"] |= training
    return make_plan(parse_study(settings))


def test_the_audit_of_a_plan(tiny_study: Any, tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(tiny_study, data_order="per_rank")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / plan.data_ids[0]).symlink_to(tiny_data)
    rows = list(seed_overlap.audit(plan, tmp_path))
    assert [(row["seed"], row["other_seed"]) for row in rows] == [(1, 2), (1, 3), (2, 3)]
    # The text is so short that a step may have a window twice, or both seeds the same one by chance.
    assert [row["shared_in_step"] for row in rows] == pytest.approx([0.75, 0.5, 0.75], abs=0.01)
    assert all(row["steps_read"] == 60 and row["streams"] == 4 for row in rows)
    monkeypatch.setattr(seed_overlap, "ALL_WINDOWS", 10)
    monkeypatch.setattr(seed_overlap, "SAMPLED_STEPS", 20)
    sampled = list(seed_overlap.audit(plan, tmp_path))
    assert [row["shared_in_step"] for row in sampled] == pytest.approx([0.75, 0.5, 0.75], abs=0.02)
    n_starts = load_meta(tiny_data).splits["train"].n_tokens - 16
    chance = 1 - (1 - 1 / n_starts) ** 240
    in_step = sampled[0]["shared_in_step"]
    assert sampled[0]["shared_anywhere"] == pytest.approx(in_step + (1 - in_step) * chance)
    assert sampled[0]["steps_read"] == 20


def test_data_that_are_not_prepared_are_missing(tiny_study: Any, tmp_path: Path) -> None:
    rows = list(seed_overlap.audit(plan_of(tiny_study), tmp_path))
    assert len(rows) == 3
    assert all(math.isnan(row["correlation"]) and row["reason"] == "not prepared" for row in rows)
