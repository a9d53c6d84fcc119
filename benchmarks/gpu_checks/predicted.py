"""Prints the bytes that a step of 125M takes on fake tensors: see ``fast.memory``.

python -m gpu_checks.predicted MICRO_BATCH REHEARSED ON_GPU
"""

import sys
from pathlib import Path

import torch
from gpu_checks.common import At
from gpu_checks.fast import paper_cell

from coupled_adam_bench.tools.rehearsal.combinations import Combination
from coupled_adam_bench.tools.rehearsal.fake import rehearse


def main() -> None:
    """Rehearse the cell as on a GPU of any memory, since the micro-batch is given."""
    micro, rehearsed, on_gpu = map(int, sys.argv[1:])
    cell = paper_cell(At(torch.device("cpu"), Path(), bool(rehearsed)), gpus=on_gpu, micro_batch_sequences=micro)
    result = rehearse(Combination(cell, 1), 1e12)
    if result.peak_bytes is None or result.findings:
        raise RuntimeError(f"the rehearsal has found: {'; '.join(map(str, result.findings))}")
    print(result.peak_bytes)


if __name__ == "__main__":
    main()
