"""What the passes of a model take, found from models of a few of its layers: each further layer takes the same."""

import gc
from dataclasses import replace
from pathlib import Path

import torch

from coupled_adam_bench.study.cells import Cell
from coupled_adam_bench.study.config import Execution
from coupled_adam_bench.tools.rehearsal.watch import Watch
from coupled_adam_bench.training import micro_batch
from coupled_adam_bench.training.distributed import WorkerGroup
from coupled_adam_bench.training.trainer import Trainer

_LAYERS = 2  # with two layers, FSDP holds the weights of one while it fetches those of the next


class _Shallow(Trainer):
    """A trainer whose passes are measured one by one."""

    def _micro_batch(self) -> int:
        return 1

    def fixed_and_each(self, watch: Watch, held: int) -> tuple[int, int]:
        """Return what ``micro_batch.measure`` would on a GPU, without the bytes that others ``held``."""
        for parameter in self.names:
            parameter.grad = torch.zeros_like(parameter)  # so the pass that would make them is not needed
        used = []
        for sequences in micro_batch.passes(self._enough)[1:]:
            watch.reset()
            self._try(sequences)
            used.append(watch.peak - held)
        return micro_batch.fixed_and_each(used)


def fixed_and_each(
    watch: Watch, cell: Cell, execution: Execution, data_dir: Path, run_dir: Path, group: WorkerGroup
) -> tuple[int, int]:
    """Return the fixed bytes and the bytes per sequence of a pass of the whole model."""
    layers = min(_LAYERS, cell.model.n_layer)
    found = []
    for depth in (layers, layers + 1):
        shallow = replace(cell, model=cell.model.model_copy(update={"n_layer": depth}))
        held = watch.bytes
        trainer = _Shallow(shallow, execution, data_dir, run_dir, group)
        try:
            found.append(trainer.fixed_and_each(watch, held))
        finally:
            trainer.close()
        del trainer
        gc.collect()  # it would be counted in what is measured next, or freed in the middle of it
    (fixed, each), (next_fixed, next_each) = found
    further = cell.model.n_layer - layers
    return fixed + further * (next_fixed - fixed), each + further * (next_each - each)
