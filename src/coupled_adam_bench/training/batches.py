"""The batches of a process, which are read ahead while the device computes.

Shapes: B sequences of this process, T = seq_len tokens.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coupled_adam_bench.study.settings import Training
from coupled_adam_bench.training.distributed import WorkerGroup
from coupled_adam_bench.training.order import order_of, positions_of


class Batches:
    """This process's share of each global batch, a pure function of seed, step and position.

    Raises ``ValueError`` if the number of processes does not divide the batch.
    """

    def __init__(
        self,
        tokens: NDArray[np.unsignedinteger[Any]],
        training: Training,
        seed: int,
        group: WorkerGroup,
    ) -> None:
        self._tokens, self._device = tokens, group.device
        self._order, self._training = order_of(len(tokens), training, seed), training
        if training.batch_sequences % group.size:
            raise ValueError(
                f"training.batch_sequences: {training.batch_sequences} cannot be divided among"
                f" {group.size} processes; start a number of them that divides it"
            )
        sequences = training.batch_sequences // group.size
        self._own_rows = slice(group.rank * sequences, (group.rank + 1) * sequences)
        self._reader = ThreadPoolExecutor(1, initializer=self._start_reader)
        self._ahead: tuple[int, Future[Tensor]] | None = None

    def _start_reader(self) -> None:
        if self._device.type == "cuda":
            # Pinned memory belongs to the device of the thread that asks for it.
            torch.cuda.set_device(self._device)

    def _read(self, step: int) -> Tensor:
        all_BT = positions_of(self._order, step, len(self._tokens), self._training)
        positions_BT = all_BT[self._own_rows]
        inputs_and_targets = np.stack([self._tokens[positions_BT], self._tokens[positions_BT + 1]])
        batch = torch.from_numpy(inputs_and_targets.astype(np.int64))
        return batch.pin_memory() if self._device.type == "cuda" else batch

    def get(self, step: int) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of ``step`` (shapes BT) and begin to read those of the next
        step."""
        ahead, self._ahead = self._ahead, None
        if ahead is None or ahead[0] != step:
            ahead = step, self._reader.submit(self._read, step)
        batch = ahead[1].result()
        self._ahead = (step + 1, self._reader.submit(self._read, step + 1))
        inputs_BT, targets_BT = batch.to(self._device, non_blocking=True)
        return inputs_BT, targets_BT

    def close(self) -> None:
        """End the thread that reads ahead."""
        self._reader.shutdown(wait=False, cancel_futures=True)
