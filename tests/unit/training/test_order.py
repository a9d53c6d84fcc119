from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy import stats

from coupled_adam_bench.study.settings import Training
from coupled_adam_bench.training.order import WindowOrder

ORDERS = ("with_replacement", "shuffled", "per_rank")
OPENWEBTEXT = 9_035_582_198  # more than 2^32: a draw takes two words of the generator


def recipe(data_order: str, **fields: Any) -> Training:
    return Training(**{"seq_len": 8, "batch_sequences": 12, "data_order": data_order} | fields)


def draw(n_tokens: int, training: Training, seed: int, steps: range) -> npt.NDArray[np.int64]:
    order = WindowOrder(n_tokens, training, seed)
    return np.array([order.starts(step) for step in steps])


@pytest.mark.parametrize("n_tokens", [200, 5_000, OPENWEBTEXT])
@pytest.mark.parametrize("data_order", ORDERS)
def test_starts_are_a_function_of_seed_and_step(data_order, n_tokens):
    if data_order == "shuffled" and n_tokens == OPENWEBTEXT:
        n_tokens = 10**6
    training = recipe(data_order)
    whole = draw(n_tokens, training, 3, range(50))
    assert whole.dtype == np.int64
    assert whole.shape == (50, 12)
    assert whole.min() >= 0
    assert whole.max() + training.seq_len + 1 <= n_tokens
    order = WindowOrder(n_tokens, training, 3)
    for step in (49, 0, 7, 7, 8, 30, 1):  # a resume, a repetition, a step back
        assert order.starts(step).tolist() == whole[step].tolist()
    assert len({draw(n_tokens, training, seed, range(3)).tobytes() for seed in (1, 2, 3, 4)}) == 4


@pytest.mark.parametrize("data_order", ORDERS)
def test_too_few_tokens_for_a_window(data_order):
    with pytest.raises(
        ValueError, match=r"training\.seq_len: 8, but a window needs 9 tokens and there are 8"
    ):
        WindowOrder(8, recipe(data_order), 1)
    assert set(WindowOrder(9, recipe(data_order), 1).starts(5).tolist()) == {0}


@pytest.mark.parametrize("n_tokens", [201, 208, 209])
def test_shuffled_reads_every_window_once_an_epoch(n_tokens):
    n_windows = 26 if n_tokens == 209 else 25  # of 8 inputs and a last target
    run = draw(n_tokens, recipe("shuffled"), 1, range(n_windows)).ravel()
    epochs = run.reshape(12, n_windows)  # batches of 12 cross from one to the next without a gap
    for epoch in epochs:
        assert sorted(epoch) == list(range(0, 8 * n_windows, 8))
    assert len({epoch.tobytes() for epoch in epochs}) == 12
    assert (
        draw(n_tokens, recipe("shuffled", batch_sequences=5), 1, range(60)).ravel().tolist()
        == run[:300].tolist()
    )


def test_shuffles_are_uniform_and_independent():
    # Of 4 windows there are 24 orders; each epoch and each seed draws one of them.
    orders = [
        tuple(epoch)
        for seed in range(20)
        for epoch in draw(33, recipe("shuffled", batch_sequences=4), seed, range(120))
    ]
    counts = np.unique(np.array(orders), axis=0, return_counts=True)[1]
    assert len(counts) == 24
    assert stats.chisquare(counts).pvalue > 1e-3
    # Long ones have no correlation with the text, the next epoch or the next seed.
    n_windows = 20_000
    training = recipe("shuffled", batch_sequences=n_windows)
    first, second = draw(8 * n_windows + 1, training, 1, range(2))
    other = WindowOrder(8 * n_windows + 1, training, 2).starts(0)
    for a, b in (
        (first, np.arange(n_windows)),
        (first, second),
        (first, other),
        (first[1:], first[:-1]),
    ):
        assert stats.pearsonr(a, b).pvalue > 1e-3


@pytest.mark.parametrize("n_tokens", [500, 2**32 + 8, OPENWEBTEXT])
def test_per_rank_draws_what_four_processes_draw_in_micro_batches(n_tokens):
    training = recipe("per_rank", batch_sequences=24)
    expected = np.empty((6, 24), dtype=np.int64)
    for rank in range(4):
        generator = torch.Generator().manual_seed(7 + rank)
        for step in range(6):
            for first in (0, 2, 4):  # three micro-batches of two
                draws = torch.randint(n_tokens - 8, (2,), generator=generator)
                expected[step, 6 * rank + first : 6 * rank + first + 2] = draws
    assert draw(n_tokens, training, 7, range(6)).tolist() == expected.tolist()


def shared(run: npt.NDArray[np.int64], other: npt.NDArray[np.int64]) -> float:
    """Return which part of the windows of a step occur in the same step of another run, the mean
    over steps."""
    return float(np.mean([np.isin(a, b).mean() for a, b in zip(run, other, strict=True)]))


def test_neighbouring_seeds_of_per_rank_share_rank_streams():
    runs = {
        seed: draw(OPENWEBTEXT, recipe("per_rank", batch_sequences=96), seed, range(50))
        for seed in (1, 2, 3, 9)
    }
    assert shared(runs[1], runs[2]) == shared(runs[2], runs[3]) == 0.75
    assert shared(runs[1], runs[3]) == 0.5
    assert shared(runs[1], runs[9]) == 0.0
    assert (
        runs[1][:, 24:].tolist() == runs[2][:, :72].tolist()
    )  # rank 1 of seed 1 is rank 0 of seed 2
    # The share derived for the authors' runs leaves out rank 0, whose stream the evaluation moves.
    assert shared(runs[1][:, 24:], runs[2][:, 24:]) * 72 / 96 == pytest.approx(0.5)
    assert shared(runs[1][:, 24:], runs[3][:, 24:]) * 72 / 96 == pytest.approx(0.25)


@pytest.mark.parametrize("data_order", ["with_replacement", "shuffled"])
def test_seeds_of_the_other_orders_share_nothing(data_order):
    runs = [draw(8 * 10**5, recipe(data_order), seed, range(50)) for seed in (1, 2)]
    assert shared(*runs) < 0.01


def test_data_ranks_act():
    two, four = (
        draw(OPENWEBTEXT, recipe("per_rank", data_ranks=ranks), 1, range(2)) for ranks in (2, 4)
    )
    assert two[0, :3].tolist() == four[0, :3].tolist()
    assert two[0, 3:6].tolist() == four[1, :3].tolist()
    with pytest.raises(ValueError, match="data_ranks: 5 does not divide batch_sequences 12"):
        recipe("per_rank", data_ranks=5)


def test_per_rank_skips_in_pieces(monkeypatch):
    expected = draw(OPENWEBTEXT, recipe("per_rank"), 1, range(40))[39]
    monkeypatch.setattr("coupled_adam_bench.training.order._SKIP", 10)
    assert WindowOrder(OPENWEBTEXT, recipe("per_rank"), 1).starts(39).tolist() == expected.tolist()
