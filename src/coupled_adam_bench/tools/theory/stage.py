"""The stage ``theory``: it measures in a cell what the paper derives about the embedding's
gradients."""

import copy
import math
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from coupled_adam_bench.data.bins import UNIGRAM, verified_file
from coupled_adam_bench.evaluation import settings as settings_of
from coupled_adam_bench.machine.device import pick_device
from coupled_adam_bench.models.export import load_model
from coupled_adam_bench.optim.factors import second_moment
from coupled_adam_bench.records.stored import Evaluation, Evaluator, row
from coupled_adam_bench.store import paths
from coupled_adam_bench.study.catalog.metrics import THEORY_METRICS
from coupled_adam_bench.study.catalog.names import EMBEDDING, HEAD
from coupled_adam_bench.study.cells import Cell
from coupled_adam_bench.study.config import AdamWSettings, Study
from coupled_adam_bench.tools.theory.gradients import (
    against_probability,
    mean_square,
    relative_sum,
    side_gradients,
    whole_gradients,
)
from coupled_adam_bench.tools.theory.records import largest_after_warmup
from coupled_adam_bench.tools.theory.replay import Replay, relative_loss_difference
from coupled_adam_bench.training.distributed import WorkerGroup
from coupled_adam_bench.training.trainer import Trainer


@contextmanager
def open_evaluator(study: Study, data_id: str, device: str) -> Iterator[Evaluator]:
    """Yield the evaluator; a replay is one process on ``device``, whatever number of processes
    trained the cell."""
    theory, execution = settings_of.theory_of(study), study.execution
    name = pick_device(device)
    group = WorkerGroup(torch.device(name, 0) if name == "cuda" else torch.device(name))
    data_dir = paths.data_dir(data_id)
    unigram_counts = np.load(verified_file(data_dir, UNIGRAM))

    def evaluate(cell: Cell, model: Path) -> Evaluation:
        # Use the per-process batch of the original training.
        sequences = (
            execution.micro_batch_sequences or cell.training.batch_sequences // execution.processes
        )
        here = execution.model_copy(update={"micro_batch_sequences": sequences})
        run_dir = paths.run_dir(cell.id)
        with closing(Trainer(cell, here, data_dir, run_dir, group)) as trainer:
            replay = Replay(trainer, theory.record_every)
            replay.run()
            difference = relative_loss_difference(replay.losses, run_dir)
            if not difference <= theory.replay_tolerance:
                raise ValueError(
                    f"{run_dir}: the losses of a replay differ from its history by up to"
                    f" {difference:.2g} of their size, more than evaluation.theory.replay_tolerance"
                    f" {theory.replay_tolerance:g}; raise it if float errors grow so far in this"
                    " run, else train the cell again"
                )
            detail = {
                **_at_the_end(trainer, model, theory.n_batches, unigram_counts),
                "second_moment_adam": _adam_moment(replay, unigram_counts),
                "drift": {matrix: drift.to_json() for matrix, drift in replay.drifts.items()},
                "replay_max_relative_loss_difference": difference,
                "device": name,
            }
        rows, undefined = _summary(cell, detail)
        return Evaluation(rows, undefined, detail)

    yield evaluate


def _at_the_end(
    trainer: Trainer, folder: Path, n_batches: int, unigram_counts: Any
) -> dict[str, Any]:
    """Measure gradients at the trained weights, on the batches that training would have read
    next."""
    cell, device, micro_batch = trainer.cell, trainer.device, trainer.micro_batch_sequences
    model = load_model(folder, device)
    first = trainer.batches.get(cell.steps)
    by_precision = {
        "float32": side_gradients(model, first, micro_batch),
        "float64": side_gradients(copy.deepcopy(model).double(), first, micro_batch),
    }
    batches = (trainer.batches.get(cell.steps + index) for index in range(n_batches))
    squares = mean_square(
        whole_gradients(model, batches, micro_batch, cell.training.precision == "bf16")
    )
    return {
        "gradient_sum": {
            side: {name: relative_sum(getattr(sides, side)) for name, sides in by_precision.items()}
            for side in ("output", "input")
        },
        "second_moment": against_probability(squares, unigram_counts) | {"n_batches": n_batches},
    }


def _adam_moment(replay: Replay, unigram_counts: Any) -> dict[str, Any] | None:
    """Return AdamW's own second moment at the end of training, as in the paper's Fig. 4; ``None``
    for others."""
    if not isinstance(replay.trainer.cell.optimizer.head, AdamWSettings):
        return None
    optimizer = replay.trainer.optimizers.head
    moment_VD = second_moment(optimizer.state[replay.output.weight], optimizer.param_groups[0])
    return against_probability(moment_VD.mean(1).cpu().numpy(), unigram_counts) | {
        "n_batches": None
    }


def _summary(cell: Cell, detail: dict[str, Any]) -> tuple[list[Any], list[str]]:
    """Return the rows of the results, and the reasons for values that are NaN."""
    matrix = EMBEDDING if cell.model.tied else HEAD
    drift, moment, label = (
        detail["drift"][matrix],
        detail["second_moment"],
        cell.optimizer.head.label,
    )
    update_sum = largest_after_warmup(
        drift["step"], drift["update_sum"], cell.training.warmup(cell.steps)
    )
    assert update_sum is not None, "the last step is always recorded, and no run is all warmup"
    values = {
        "head_gradient_sum": detail["gradient_sum"]["output"]["float64"],
        "update_sum": update_sum,
        "second_moment_slope": moment["slope"],
        "second_moment_r_squared": moment["r_squared"],
        "drift_input_share": math.nan if drift["input_share"] is None else drift["input_share"],
    }
    undefined = []
    if math.isnan(moment["r_squared"]):
        undefined.append(
            "no line of the second moment: all tokens have the same probability or moment"
        )
    if drift["residual"] is None:
        undefined.append(
            f"no shares of the drift: {label} is not known to be linear in its gradients"
        )
    elif drift["input_share"] is None:
        undefined.append(
            f"no shares of the drift: the mean of the {matrix} moved by no more than rounding"
        )
    return [row("theory", metric, values[metric]) for metric in THEORY_METRICS], undefined
