"""The stage ``test_loss``: cross-entropy on held-out tokens, by default each token but the first
exactly once.

B: sequences of a batch    T: tokens of a window    N: windows    G: held-out documents
"""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from coupled_adam_bench.data.bins import Meta, document_ends, load_meta, open_tokens
from coupled_adam_bench.evaluation.loss_detail import LossDetail, open_vocabulary
from coupled_adam_bench.machine.device import pick_device
from coupled_adam_bench.machine.progress import say
from coupled_adam_bench.records.stored import Evaluation, Evaluator, row
from coupled_adam_bench.store import paths
from coupled_adam_bench.study.catalogue.stages import VALIDATION_LOSS
from coupled_adam_bench.study.plan.cells import Cell
from coupled_adam_bench.study.settings import Study, TestLoss

if TYPE_CHECKING:
    from coupled_adam_bench.models.base import LanguageModel
    from coupled_adam_bench.models.cross_entropy import LogitObserver

TokenIds = NDArray[np.integer[Any]]
Batch = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Inputs and targets, each of shape (B, T)."""
Observer = Callable[[Batch, NDArray[np.float64]], None]
"""A function that is given a batch and the losses of its targets, shape (B, T)."""


def random_offsets(
    n_tokens: int, seq_len: int, test_loss: TestLoss, seed: int
) -> NDArray[np.int64]:
    """Return where random windows start, shape (N,) with N = ``n_batches`` x ``batch_sequences``,
    with replacement.

    The draws are those of nanoGPT's ``get_batch``, one batch after the other, from a generator with
    this ``seed``. The authors' generator had drawn the initial weights before, so their exact
    offsets are not reproduced.
    """
    import torch

    generator = torch.Generator().manual_seed(seed % 2**64)
    size = (test_loss.batch_sequences,)
    draws = [
        torch.randint(n_tokens - seq_len, size, generator=generator)
        for _ in range(test_loss.n_batches)
    ]
    return torch.cat(draws).numpy()


def all_starts(n_tokens: int, seq_len: int) -> NDArray[np.int64]:
    """Return where the windows that cut tokens t_0 .. t_n without overlap start, shape (N,).

    Window i reads t[i T : i T + T] and predicts t[i T + 1 : i T + T + 1], so each of t_1 .. t_n is
    a target once, with between 1 and T tokens of context. The last window may be shorter. As in
    training, windows cross the ends of documents.
    """
    return np.arange(0, n_tokens - 1, seq_len)


def window_starts(n_tokens: int, seq_len: int, test_loss: TestLoss, seed: int) -> NDArray[np.int64]:
    """Return where the windows that ``test_loss`` chooses for a cell's ``seed`` start, shape (N,).

    ``ValueError`` if the tokens are too few for one window.
    """
    needed = 2 if test_loss.windows == "all" else seq_len + 1
    if n_tokens < needed:
        raise ValueError(
            f"evaluation.test_loss.split: {test_loss.split} has {n_tokens} token(s), windows"
            f" {test_loss.windows!r} need at least {needed}; raise"
            f" data.split.{test_loss.split}_fraction"
        )
    if test_loss.windows == "all":
        return all_starts(n_tokens, seq_len)
    return random_offsets(n_tokens, seq_len, test_loss, seed)


def windows_at(
    tokens: TokenIds, starts_N: NDArray[np.int64], seq_len: int, batch_sequences: int
) -> Iterator[Batch]:
    """Yield (inputs, targets) of shape (B, T) of the windows that start at ``starts_N``, targets
    one further.

    A window that the end of the tokens makes shorter is a batch of its own.
    """
    n_full = np.count_nonzero(starts_N + seq_len < len(tokens))
    for first in range(0, n_full, batch_sequences):
        starts_B = starts_N[first : min(first + batch_sequences, n_full)]
        chunk = tokens[starts_B[:, None] + np.arange(seq_len + 1)].astype(np.int64)
        yield chunk[:, :-1], chunk[:, 1:]
    for start in starts_N[n_full:]:
        rest = tokens[start:].astype(np.int64)
        yield rest[None, :-1], rest[None, 1:]


def mean_loss(
    model: "LanguageModel",
    found: Iterable[Batch],
    device: str,
    bf16: bool,
    observe: Observer | None = None,
    observe_logits: "LogitObserver | None" = None,
) -> tuple[float, int]:
    """Return the mean cross-entropy in nats per predicted token, summed in float64, and the number
    of those tokens.

    Windows of one length weigh the same, so it is also the mean over batches of random windows.
    With ``bf16``, a GPU computes under autocast. ``observe`` is given each batch and the losses of
    its targets, float64 of shape (B, T), and ``observe_logits`` the logits behind them, chunk by
    chunk.
    """
    import torch

    autocast = (
        torch.autocast("cuda", torch.bfloat16)
        if bf16 and device.startswith("cuda")
        else nullcontext()
    )
    sums, n_predicted = [], 0
    with torch.inference_mode(), autocast:
        for inputs_BT, targets_BT in found:
            batch = (torch.from_numpy(array).to(device) for array in (inputs_BT, targets_BT))
            losses_BT = model(*batch, reduction="none", observe=observe_logits).double()
            sums.append(losses_BT.sum().item())
            n_predicted += targets_BT.size
            if observe is not None:
                observe((inputs_BT, targets_BT), losses_BT.cpu().numpy())
    return math.fsum(sums) / n_predicted, n_predicted


def _ends_of_documents(tokens: TokenIds, meta: Meta, split: str) -> NDArray[np.int64]:
    """Return where the documents of a split end, shape (G,); none, so that it is one document, if
    that is not known."""
    ends_G, n_documents = document_ends(tokens, meta.eot_id), meta.splits[split].n_documents
    if len(ends_G) == n_documents:
        return ends_G
    say(
        f"test_loss: the split {split} has {len(ends_G):,} end-of-text tokens in {n_documents:,}"
        " documents, so where these end is not known; it counts as one document, without an"
        " interval over documents; give the tokenizer an unk_token other than its eos_token"
    )
    return ends_G[:0]


@contextmanager
def open_evaluator(study: Study, data_id: str, device: str) -> Iterator[Evaluator]:
    """Yield the evaluator, with the held-out tokens opened once."""
    from coupled_adam_bench.models.export import load_model

    device = pick_device(device)
    test_loss, folder = study.evaluation.test_loss, paths.data_dir(data_id)
    split = study.training.held_out(test_loss.split)
    vocabulary = open_vocabulary(folder, split, test_loss.windows)
    tokens = open_tokens(folder, split)
    if study.training.data_order == "pairs":
        # The loss is that of the whole source, which is no sample of documents.
        ends_G = np.zeros(0, np.int64)
    else:
        ends_G = _ends_of_documents(tokens, load_meta(folder), split)
    batch_sequences = study.execution.evaluation_batch_sequences
    bf16 = study.training.precision == "bf16"

    def evaluate(cell: Cell, model: Path) -> Evaluation:
        # The windows depend on the cell, whose seed may draw them; all else is the same for all.
        seq_len = cell.training.seq_len
        starts_N = window_starts(
            len(tokens), seq_len, test_loss.for_model(cell.model.name), cell.seed
        )
        found = windows_at(tokens, starts_N, seq_len, batch_sequences)
        detail = LossDetail(vocabulary, starts_N, ends_G)
        model_on_device = load_model(model, device)
        loss, n_tokens = mean_loss(
            model_on_device, found, device, bf16, detail.add, detail.logits.add
        )
        return detail.evaluation(loss, n_tokens, device)

    yield evaluate


@contextmanager
def open_validation(study: Study, data_id: str, device: str) -> Iterator[Evaluator]:
    """Yield the evaluator of the loss by which a tuning chooses: of each token of val, in the same
    windows for all.

    ``ValueError`` for a split that has nothing to predict.
    """
    from coupled_adam_bench.models.export import load_model

    device = pick_device(device)
    tokens = open_tokens(paths.data_dir(data_id), study.training.held_out("val"))
    if len(tokens) < 2:
        raise ValueError(
            f"data.split.val_fraction: the split val has {len(tokens)} token(s), too few; raise it"
        )
    batch_sequences = study.execution.evaluation_batch_sequences
    ((task, metric, unit),) = VALIDATION_LOSS.columns

    def evaluate(cell: Cell, model: Path) -> Evaluation:
        # All windows of the split, so that candidates are compared on the same tokens.
        seq_len = cell.training.seq_len
        found = windows_at(tokens, all_starts(len(tokens), seq_len), seq_len, batch_sequences)
        loss, n_tokens = mean_loss(
            load_model(model, device), found, device, study.training.precision == "bf16"
        )
        finite = math.isfinite(loss)
        undefined = [] if finite else [f"validation loss of this model is {loss}"]
        rows = [row(task, metric, loss if finite else math.nan, unit)]
        return Evaluation(rows, undefined, {"n_predicted_tokens": n_tokens, "device": device})

    yield evaluate
