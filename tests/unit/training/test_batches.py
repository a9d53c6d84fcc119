import numpy as np
import pytest
import torch

from coupled_adam_bench.study.settings import Training
from coupled_adam_bench.training.batches import Batches
from coupled_adam_bench.training.distributed import WorkerGroup

CPU = torch.device("cpu")
TOKENS = np.arange(1000, dtype=np.uint16)
TRAINING = Training(seq_len=16, batch_sequences=12)


@pytest.mark.parametrize("size", [2, 3, 4, 12])
def test_the_parts_of_all_processes_are_the_batch_of_one(size):
    whole = Batches(TOKENS, TRAINING, 1, WorkerGroup(CPU)).get(5)
    parts = [
        Batches(TOKENS, TRAINING, 1, WorkerGroup(CPU, rank, size)).get(5) for rank in range(size)
    ]
    for index in (0, 1):
        assert torch.equal(torch.cat([part[index] for part in parts]), whole[index])


def test_processes_that_do_not_divide_the_batch_are_refused():
    with pytest.raises(ValueError, match="12 cannot be divided among 5 processes"):
        Batches(TOKENS, TRAINING, 1, WorkerGroup(CPU, 0, 5))
