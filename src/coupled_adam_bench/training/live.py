"""What is measured while a run trains, such as validation loss and geometry; no weight changes.

A measurement is a class with a place in ``MEASUREMENTS``, or one that the study brings.

The numbers go into the history. So a resumed run has each of them once, and a checkpoint holds
them.

Shapes: B sequences of a pass, T = seq_len tokens, V = vocab_size, D = d_model, N windows.
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coupled_adam_bench.data.bins import UNIGRAM, open_tokens, verified_file
from coupled_adam_bench.models.cross_entropy import IGNORED
from coupled_adam_bench.study.catalogue.bands import BAND_NAMES, BAND_SHARES
from coupled_adam_bench.study.catalogue.names import VALIDATION_LOSS as VALIDATION_LOSS
from coupled_adam_bench.study.plan.schedule import learning_rate_factor
from coupled_adam_bench.study.settings import AdamWSettings, Execution
from coupled_adam_bench.training.distributed import reading, whole
from coupled_adam_bench.training.measurement import AtGeometrySteps, Measurement
from coupled_adam_bench.training.moment import moment_by_occupancy
from coupled_adam_bench.training.plug_ins import own_measurements
from coupled_adam_bench.training.trainer import Trainer
from embedding_geometry.frequency import bands_of_tokens
from embedding_geometry.metrics import embedding_metrics

RATE_SUM = "rate_sum"
ROW_STEP, HEAD_ROW_STEP = "row_step", "head_row_step"
"""What the names of relative steps begin with, before that of the band."""


def validation_windows(
    tokens: NDArray[np.integer[Any]], seq_len: int, n_windows: int
) -> NDArray[np.int64]:
    """Return ``n_windows`` windows without overlap, evenly spread, with the target of their last
    token: (N, T + 1).

    If the split has fewer windows, all are returned; if it is shorter than one window, the whole
    split is. ``ValueError`` if there is nothing to predict.
    """
    if len(tokens) < 2:
        raise ValueError(
            f"execution.eval_every: the split val has {len(tokens)} token(s), which predict"
            " nothing; raise data.split.val_fraction, or set eval_every to null"
        )
    length = min(seq_len, len(tokens) - 1)
    there = (len(tokens) - 1) // length
    n_windows = min(n_windows, there)
    starts_N = np.arange(n_windows) * there // n_windows * length
    windows: NDArray[np.int64] = tokens[starts_N[:, None] + np.arange(length + 1)].astype(np.int64)
    return windows


class ValidationLoss(Measurement):
    """The mean loss of the weights on the same windows of the validation split, whatever the number
    of processes.

    With the order ``pairs`` these are windows of its source.
    Each process computes its share of the windows, in passes of the size of a micro-batch.
    """

    @staticmethod
    def is_wanted(execution: Execution) -> bool:
        """Tell whether ``execution.eval_every`` is set."""
        return execution.eval_every is not None

    def __init__(self, trainer: Trainer) -> None:
        super().__init__(trainer)
        training, group = trainer.cell.training, trainer.group
        tokens = open_tokens(trainer.data_dir, training.held_out("val"), verify=group.is_first)
        n_windows = trainer.execution.eval_sequences or training.batch_sequences
        windows = validation_windows(tokens, training.seq_len, n_windows)
        self.n_targets = windows[:, 1:].size
        own = -(-len(windows) // group.size)
        self._sequences = min(trainer.micro_batch_sequences, own)
        self._windows = torch.from_numpy(windows[group.rank * own : (group.rank + 1) * own])
        self._n_passes = -(-own // self._sequences)

    def _passes(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield inputs and targets (shapes BT) of each pass, as many and as large in every
        process."""
        for index in range(self._n_passes):
            rows = self._windows[index * self._sequences : (index + 1) * self._sequences]
            padding = (0, 0, 0, self._sequences - len(rows))
            inputs = torch.nn.functional.pad(rows[:, :-1], padding)
            targets = torch.nn.functional.pad(rows[:, 1:], padding, value=IGNORED)
            yield inputs.to(self.trainer.device), targets.to(self.trainer.device)

    def is_due(self, step: int, last: bool) -> bool:
        """Tell whether ``step`` is one of ``execution.eval_every``, or the last."""
        every = self.trainer.execution.eval_every
        return last or (every is not None and step % every == 0)

    def after(self, step: int) -> dict[str, float]:  # noqa: ARG002 - as of the others
        """Return the mean loss in nats per token, the same in all processes."""
        model, device = self.trainer.model, self.trainer.device
        total = torch.zeros((), dtype=torch.float64, device=device)
        bf16 = self.trainer.cell.training.precision == "bf16"
        with reading(model), torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            for inputs_BT, targets_BT in self._passes():
                total += model(inputs_BT, targets_BT, reduction="none").double().sum()
        return {VALIDATION_LOSS: self.trainer.group.sum(total).item() / self.n_targets}


class Geometry(AtGeometrySteps):
    """The metrics of the embedding matrix, computed by the first process on the CPU in float64.

    The isotropy is that of both signs: a run belongs to all studies that share it, whatever they
    evaluate.
    """

    def __init__(self, trainer: Trainer) -> None:
        super().__init__(trainer)
        self._unigram_counts = np.load(verified_file(trainer.data_dir, UNIGRAM))

    def after(self, step: int) -> dict[str, float]:  # noqa: ARG002 - as of the others
        """Return the metrics by name, in the first process.

        Returns nothing if the matrix is not finite; the next loss will show that the run has
        diverged.
        """
        weight_VD = whole(self.trainer.model.embedding.weight.detach())
        if not self.trainer.group.is_first:
            return {}
        embeddings_VD = weight_VD.cpu().numpy().astype(np.float64)
        if not np.isfinite(embeddings_VD).all():
            return {}
        return embedding_metrics(embeddings_VD, self._unigram_counts, "both_signs")


class RowSteps(AtGeometrySteps):
    """How far one step of the optimizer moves the rows of the embedding and of an untied head, by
    frequency band."""

    def __init__(self, trainer: Trainer) -> None:
        super().__init__(trainer)
        # A tied model has one matrix, and so only the first name.
        self._matrices = dict(
            zip((ROW_STEP, HEAD_ROW_STEP), trainer.model.embedding_parameters(), strict=False)
        )
        self._bands_V = bands_of_tokens(_unigram_counts(trainer), BAND_SHARES)
        self._before: dict[str, Tensor] = {}

    def before(self) -> None:
        """Keep the rows as they are before the step."""
        self._before = {
            name: whole(weight.detach()).clone() for name, weight in self._matrices.items()
        }

    def after(self, step: int) -> dict[str, float]:  # noqa: ARG002 - as of the others
        """Return by matrix and band the mean of ‖step‖ / ‖row‖ over the rows.

        A band is left out if none of its rows has a length, or if a row is not finite.
        """
        found = {}
        for name, weight in self._matrices.items():
            before_VD = self._before.pop(name)
            steps_V, lengths_V = (
                torch.linalg.vector_norm(rows_VD, dim=1).double().cpu().numpy()
                for rows_VD in (whole(weight.detach()) - before_VD, before_VD)
            )
            for number, band in enumerate(BAND_NAMES):
                chosen_V = (self._bands_V == number) & (lengths_V > 0)
                mean = (
                    float((steps_V[chosen_V] / lengths_V[chosen_V]).mean())
                    if chosen_V.any()
                    else math.nan
                )
                if math.isfinite(mean):
                    found[f"{name}_{band}"] = mean
        return found


class SecondMoment(AtGeometrySteps):
    """Adam's own second moment of the rows of the head, by how often a batch has their tokens;
    other rules have none."""

    def __init__(self, trainer: Trainer) -> None:
        super().__init__(trainer)
        self._counts_V = _unigram_counts(trainer)

    def after(self, step: int) -> dict[str, float]:  # noqa: ARG002 - as of the others
        """Return the numbers of :func:`moment_by_occupancy`."""
        optimizer, training = self.trainer.optimizers.head, self.trainer.cell.training
        if not isinstance(self.trainer.cell.optimizer.head, AdamWSettings):
            return {}
        state = optimizer.state[self.trainer.model.embedding_parameters()[-1]]
        group = optimizer.param_groups[-1]
        # AdamW divides by this; with AMSGrad by the largest one so far.
        moment_VD = state["max_exp_avg_sq" if group["amsgrad"] else "exp_avg_sq"].double()
        corrected_VD = moment_VD / (1 - group["betas"][1] ** state["step"].item())
        moment_V = whole(corrected_VD).mean(1).cpu().numpy()
        return moment_by_occupancy(
            moment_V, self._counts_V, training.batch_sequences * training.seq_len
        )


class RateSum(AtGeometrySteps):
    """The sum of the learning rates of the head in the steps so far.

    It is computed anew each time, so that a resumed run has the same bits.
    """

    def after(self, step: int) -> dict[str, float]:
        """Return the sum up to ``step`` (from 1)."""
        cell = self.trainer.cell
        peak = cell.model.learning_rate
        factors = (
            learning_rate_factor(before, cell.steps, cell.training, peak) for before in range(step)
        )
        return {RATE_SUM: self.trainer.optimizers.head_peak * math.fsum(factors)}


def _unigram_counts(trainer: Trainer) -> NDArray[np.int64]:
    """Return how often each token is in the training text, shape V."""
    counts = np.load(verified_file(trainer.data_dir, UNIGRAM))
    counts_V = np.zeros(trainer.cell.vocab_size, dtype=np.int64)
    counts_V[: len(counts)] = counts
    return counts_V


MEASUREMENTS: tuple[type[Measurement], ...] = (
    ValidationLoss,
    Geometry,
    RowSteps,
    SecondMoment,
    RateSum,
)
"""All measurements, in the order in which the history has them."""


class LiveMeasurements:
    """The measurements that a study asks for, of which some are due at a step."""

    def __init__(self, trainer: Trainer) -> None:
        wanted = [kind for kind in MEASUREMENTS if kind.is_wanted(trainer.execution)]
        self._wanted = [*(kind(trainer) for kind in wanted), *own_measurements(trainer)]
        self._due: list[Measurement] = []
        trainer.before_clipping = self.between

    @property
    def are_due(self) -> bool:
        """Whether anything is measured after this step."""
        return bool(self._due)

    def before(self, step: int, last: bool) -> None:
        """Begin ``step`` (from 1), which may be the ``last`` of the run; all processes must call
        this."""
        self._due = [each for each in self._wanted if each.is_due(step, last)]
        for each in self._due:
            each.before()

    def between(self) -> None:
        """Let what is due look at the gradients of the step."""
        for each in self._due:
            each.between()

    def after(self, step: int) -> dict[str, float]:
        """Return what is due after ``step`` by name, in the first process; all processes must call
        this."""
        found: dict[str, float] = {}
        for each in self._due:
            found |= each.after(step)
        return found
