"""The loss by which a tuning chooses: that of each token of the split val, in the same windows for all candidates."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coupled_adam_bench.data.bins import open_tokens
from coupled_adam_bench.evaluation.test_loss import mean_loss, windows
from coupled_adam_bench.machine.device import pick_device
from coupled_adam_bench.store import paths
from coupled_adam_bench.store.record import Evaluation, Evaluator, row
from coupled_adam_bench.study.catalog.stages import VALIDATION_LOSS
from coupled_adam_bench.study.cells import Cell
from coupled_adam_bench.study.config import Study


@contextmanager
def open_evaluator(study: Study, data_id: str, device: str) -> Iterator[Evaluator]:
    """Yield the evaluator, with the tokens opened once; ``ValueError`` for a split that has nothing to predict."""
    from coupled_adam_bench.models.export import load_model

    device = pick_device(device)
    tokens = open_tokens(paths.data_dir(data_id), "val")
    if len(tokens) < 2:
        raise ValueError(f"data.split.val_fraction: the split val has {len(tokens)} token(s), too few; raise it")
    batch_sequences = study.execution.evaluation_batch_sequences
    ((task, metric, unit),) = VALIDATION_LOSS.columns

    def evaluate(cell: Cell, model: Path) -> Evaluation:
        batches = windows(tokens, cell.training.seq_len, batch_sequences)
        loss, n_tokens = mean_loss(load_model(model, device), batches, device, study.training.precision == "bf16")
        finite = math.isfinite(loss)
        undefined = [] if finite else [f"validation loss of this model is {loss}"]
        rows = [row(task, metric, loss if finite else math.nan, unit)]
        return Evaluation(rows, undefined, {"n_predicted_tokens": n_tokens, "device": device})

    yield evaluate
