"""The order of the data: the tokens of the bin that each training step reads.

Shapes: B sequences of a step, T = seq_len tokens.
"""

from abc import ABC, abstractmethod

import numpy as np
import numpy.typing as npt
import torch

from coupled_adam_bench.data.bins import count_starts, philox, sample_offsets
from coupled_adam_bench.study.plan.plug_ins import Contract, failing
from coupled_adam_bench.study.settings import Own, Training

_SKIP = 2**20  # offsets drawn at once on the way to a later step: 8 MiB


class DataOrderPlugIn(Contract, ABC):
    """An order of a study's own; it is called with the number of tokens, the section ``training``,
    the seed, and the arguments that the study gives."""

    @abstractmethod
    def positions(self, step: int) -> npt.NDArray[np.int64]:
        """Return where the inputs of step ``step`` (from 0) lie in the text, shape BT; the target
        of each is the token after it.

        It depends on nothing but what the class was called with, and ``step``.
        """


def order_of(n_tokens: int, training: Training, seed: int) -> "WindowOrder | DataOrderPlugIn":
    """Return what says which tokens each step reads."""
    if isinstance(training.data_order, Own):
        given = (n_tokens, training, seed)
        return DataOrderPlugIn.made("training.data_order", training.data_order, *given)
    return WindowOrder(n_tokens, training, seed)


def checked(
    positions_BT: npt.NDArray[np.int64], n_tokens: int, training: Training
) -> npt.NDArray[np.int64]:
    """Return positions of a step; ``ValueError`` if they are not the places of tokens that have a
    next one."""
    shape = (training.batch_sequences, training.seq_len)
    given = type(positions_BT).__name__
    if isinstance(positions_BT, np.ndarray):
        given = f"{positions_BT.dtype} of the shape {positions_BT.shape}"
        if positions_BT.dtype == np.int64 and positions_BT.shape == shape:
            low, high = positions_BT.min(), positions_BT.max()
            if low >= 0 and high <= n_tokens - 2:
                return positions_BT
            given = f"{low} to {high}"
    raise ValueError(
        f"training.data_order: positions() must return int64 from 0 to {n_tokens - 2} of the shape"
        f" {shape} in a NumPy array, not {given}"
    )


def positions_of(
    order: "WindowOrder | DataOrderPlugIn", step: int, n_tokens: int, training: Training
) -> npt.NDArray[np.int64]:
    """Return the positions of a step, shape BT; ``ValueError`` if a study's own order fails, or
    gives what no text has."""
    own = training.data_order
    if not isinstance(own, Own):
        return checked(order.positions(step), n_tokens, training)
    with failing(f"training.data_order.path: {own.path} fails at step {step}"):
        positions_BT = order.positions(step)
    return checked(positions_BT, n_tokens, training)


def try_data_order(training: Training) -> None:
    """Try a study's own order on a short text; ``ValueError`` names the field if it breaks the
    contract, for example if a run that was stopped would read something else."""
    if not isinstance(training.data_order, Own):
        return
    n_tokens = 1 + 3 * training.batch_sequences * training.seq_len
    first, other = (order_of(n_tokens, training, 1) for _ in range(2))
    passed = [positions_of(first, step, n_tokens, training) for step in range(5)]
    again = positions_of(other, 4, n_tokens, training)
    if not np.array_equal(passed[-1], again):
        raise ValueError(
            f"training.data_order.path: {training.data_order.path} reads something else at a step"
            " if it did not do the steps before; let positions() depend on nothing but its step,"
            " so that a run that was stopped can go on"
        )


class WindowOrder:
    """What each step reads, a pure function of ``n_tokens``, ``training``, ``seed`` and the step.

    A window is ``seq_len`` inputs and their targets, one token further. Two caches make consecutive
    steps cheap and change no number: one permutation of ``shuffled`` (8 bytes per window) and the
    generators of ``per_rank``.

    - ``with_replacement``: :func:`~coupled_adam_bench.data.bins.sample_offsets`.
    - ``shuffled``: window i starts at i seq_len. Position p of step t is number g = t
      batch_sequences + p of the run, which is number g mod n_windows of the permutation of epoch g
      div n_windows, drawn from (seed, epoch). The tokens after the last whole window are not read.
    - ``per_rank`` [C]: positions r k to (r + 1) k of a step, k = batch_sequences / data_ranks, are
      the next k draws of a generator with the seed ``seed + r``. With 4 ranks, seeds 1 and 2 thus
      share three streams, which are three quarters of the windows of each step; seeds 1 and 3 share
      half. The authors' exact offsets differ: their generators also initialised the model, and rank
      0's also drew the evaluation's batches. There, seeds 1 and 2 should share half of the windows,
      and 1 and 3 a quarter (derived, not measured).
    - ``pairs``: a window is one input and its target, and a sequence is ``seq_len`` of these, each
      drawn as those of ``with_replacement``. Pair t of sequence b is number b T + t of the step.

    Raises ``ValueError`` if there are fewer tokens than one window has.
    """

    def __init__(self, n_tokens: int, training: Training, seed: int) -> None:
        self._n_starts = count_starts(n_tokens, training.seq_len)
        self._n_windows = (n_tokens - 1) // training.seq_len
        self._n_tokens, self._training, self._seed = n_tokens, training, seed
        self._epoch: tuple[int, npt.NDArray[np.int64]] | None = None
        self._streams: list[torch.Generator] = []
        self._streams_step = 0

    def starts(self, step: int) -> npt.NDArray[np.int64]:
        """Return the starts of the windows of step ``step`` (from 0), shape (B,); of ``pairs``
        there are B T."""
        match self._training.data_order:
            case "with_replacement":
                seq_len, batch_sequences = self._training.seq_len, self._training.batch_sequences
                return sample_offsets(self._n_tokens, seq_len, batch_sequences, self._seed, step)
            case "shuffled":
                return self._shuffled(step)
            case "per_rank":
                return self._per_rank(step)
            case "pairs":
                n_pairs = self._training.batch_sequences * self._training.seq_len
                return sample_offsets(self._n_tokens, 1, n_pairs, self._seed, step)
        raise AssertionError("an order of the study's own is no WindowOrder")

    def positions(self, step: int) -> npt.NDArray[np.int64]:
        """Return where the inputs of step ``step`` (from 0) lie in the text, shape BT.

        The target of each is the token after it.
        """
        starts, seq_len = self.starts(step), self._training.seq_len
        if self._training.data_order == "pairs":
            return starts.reshape(-1, seq_len)
        return starts[:, None] + np.arange(seq_len)

    def _shuffled(self, step: int) -> npt.NDArray[np.int64]:
        batch = self._training.batch_sequences
        epochs, indices = np.divmod(np.arange(step * batch, (step + 1) * batch), self._n_windows)
        windows = [
            self._permutation(epoch)[indices[epochs == epoch]]
            for epoch in range(epochs[0], epochs[-1] + 1)
        ]
        return np.concatenate(windows) * self._training.seq_len

    def _permutation(self, epoch: int) -> npt.NDArray[np.int64]:
        if self._epoch is None or self._epoch[0] != epoch:
            # Keys are random high bits and the window in the low bits. Generator.permutation may
            # change with NumPy's version, and argsort takes three times as long. With 9 million
            # windows the key keeps 40 random bits.
            bits = self._n_windows.bit_length()
            keys = philox(self._seed, epoch).random_raw(self._n_windows) >> bits << bits
            keys |= np.arange(self._n_windows, dtype=np.uint64)
            keys.sort()
            self._epoch = epoch, (keys & np.uint64(2**bits - 1)).astype(np.int64)
        return self._epoch[1]

    def _per_rank(self, step: int) -> npt.NDArray[np.int64]:
        ranks = self._training.data_ranks
        count = self._training.batch_sequences // ranks
        if not self._streams or step < self._streams_step:
            self._streams = [
                torch.Generator().manual_seed(self._seed + rank) for rank in range(ranks)
            ]
            self._streams_step = 0
        for stream in self._streams:
            skipped = (step - self._streams_step) * count
            for first in range(0, skipped, _SKIP):
                torch.randint(self._n_starts, (min(_SKIP, skipped - first),), generator=stream)
        self._streams_step = step + 1
        draws = [
            torch.randint(self._n_starts, (count,), generator=stream) for stream in self._streams
        ]
        return torch.cat(draws).numpy()
