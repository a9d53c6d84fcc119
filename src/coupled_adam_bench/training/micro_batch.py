"""How many sequences fit into one forward pass."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from coupled_adam_bench.config import Execution
from coupled_adam_bench.training.distributed import Group

_GPU_SHARE = 0.9  # of its memory; the rest is fragmentation and the communication of gradients
# Of a CPU's job beside weights and activations: Python, torch and the batches read ahead.
_CPU_PROCESS_BYTES = 800_000_000
_STATE_NUMBERS = 4  # weight, gradient and two moments of each parameter, in float32


def pieces(sequences: int, fitting: int) -> int:
    """Return the size of the micro-batches, as few and as equal as can be, when at most ``fitting`` sequences fit."""
    return math.ceil(sequences / math.ceil(sequences / max(1, fitting)))


def measure(forward_backward: Callable[[int], None], device: torch.device) -> tuple[int, int]:
    """Return (bytes without sequences, bytes a sequence) of a pass over 1 and over 2 sequences.

    On a GPU both are what its allocator held at most; on a CPU they are what is kept for the backward pass, and the
    first is 0.
    """
    used = []
    for sequences in (1, 2):
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            forward_backward(sequences)
            used.append(torch.cuda.max_memory_allocated(device))
        else:
            kept: list[torch.UntypedStorage] = []

            def keep(tensor: Tensor, kept: list[torch.UntypedStorage] = kept) -> Tensor:
                kept.append(tensor.untyped_storage())
                return tensor

            with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
                forward_backward(sequences)
            # Counted when all are known: FSDP2 empties the weights of a layer, and the next ones take their place.
            used.append(sum({storage.data_ptr(): storage.nbytes() for storage in kept}.values()))
    each = max(1, used[1] - used[0])
    return (max(0, used[0] - each) if device.type == "cuda" else 0), each


def find(
    forward_backward: Callable[[int], None], sequences: int, n_local_params: int, execution: Execution, group: Group
) -> int:
    """Return the micro-batch of a process with ``sequences`` in each step, from what one and two sequences take.

    The memory is the GPU's, or on a CPU the process's share of ``execution.train_mem_mb``. ``n_local_params`` are the
    parameters of this process's shards. The same in all processes: the least of what they find.
    """
    fixed, each = measure(forward_backward, group.device)
    if group.device.type == "cuda":
        total = torch.cuda.mem_get_info(group.device)[1]
        # Weights and gradients were there when measured, the optimizers' moments were not.
        room = _GPU_SHARE * total - fixed - 8 * n_local_params
    else:
        share = execution.train_mem_mb * 1e6 / execution.processes
        room = share - _CPU_PROCESS_BYTES - 4 * _STATE_NUMBERS * n_local_params
    fitting = torch.tensor([max(1, int(room // each))])
    if group.size > 1:
        torch.distributed.all_reduce(fitting, torch.distributed.ReduceOp.MIN, group=group.votes)
    return pieces(sequences, int(fitting))
