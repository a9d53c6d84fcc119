"""The order of the data: a pure function, for any processes; nanoGPT's own offsets."""

import numpy as np
import pytest
import torch

from coupled_adam_bench.study.training import Training
from coupled_adam_bench.training.order import Batches, Order
from coupled_adam_bench.training.processes import Group

TOKENS = np.arange(1000, dtype=np.uint16)


def training(order: str, batch_sequences: int = 8) -> Training:
    return Training(seq_len=16, batch_sequences=batch_sequences, data_order=order)


@pytest.mark.parametrize("order", ["with_replacement", "per_rank"])
@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_processes_share_the_batch_of_one(order: str, size: int) -> None:
    whole = Batches(TOKENS, training(order), 3, Group(torch.device("cpu")))
    parts = [
        Batches(TOKENS, training(order), 3, Group(torch.device("cpu"), rank, size))
        for rank in range(size)
    ]
    for step in (0, 1, 2, 7, 3):  # in turn, skipped and gone back, as after a resume
        inputs, targets = (
            torch.cat(both) for both in zip(*(part.get(step) for part in parts), strict=True)
        )
        assert torch.equal(inputs, whole.get(step)[0])
        # The token is its place here: each target is the one after its input.
        assert torch.equal(targets, inputs + 1)
        assert torch.equal(inputs[:, 1:], inputs[:, :-1] + 1)


def test_per_rank_has_the_offsets_of_nanogpt() -> None:
    # Its ranks seed torch with 1337 + rank, and draw torch.randint(len(data) - block_size, ...).
    order = Order(len(TOKENS), training("per_rank"), 1337)
    found = [order.starts(step) for step in range(5)]
    for rank in range(4):
        torch.manual_seed(1337 + rank)
        for step in range(5):
            expected = torch.randint(len(TOKENS) - 16, (2,))
            assert found[step][2 * rank : 2 * rank + 2].tolist() == expected.tolist()


def test_seeds_and_steps_draw_other_windows_and_reach_all_places() -> None:
    drawn = {
        (seed, step): tuple(Order(1000, training("with_replacement"), seed).starts(step))
        for seed in range(20)
        for step in range(20)
    }
    assert len(set(drawn.values())) == 400
    places = np.concatenate([*drawn.values()])
    assert (places.min(), places.max()) == (0, 983)


def test_a_batch_that_processes_cannot_share_is_refused() -> None:
    with pytest.raises(ValueError, match=r"training\.batch_sequences: 8"):
        Batches(TOKENS, training("with_replacement"), 1, Group(torch.device("cpu"), 0, 3))
