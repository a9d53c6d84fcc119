"""The number of sequences that fit into one forward pass."""

import contextlib
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from coupled_adam_bench.tools.estimate.memory import CPU_PROCESS_BYTES, GPU_SHARE, pieces
from coupled_adam_bench.training.distributed import WorkerGroup

_STATE_NUMBERS = 4  # weight, gradient and two moments of each parameter, in float32


class MicroBatchError(Exception):
    """A micro-batch of several sequences does not fit into memory."""


def passes(enough: int) -> tuple[int, int, int]:
    """Return the sequences of three passes on a GPU, of which the last two differ by the memory of one sequence alone.

    The first makes the gradients. From ``enough`` sequences on, nothing grows in steps: see :func:`measure`.
    """
    return enough, enough, enough + 1


def measure(forward_backward: Callable[[int], None], device: torch.device, enough: int = 1) -> tuple[int, int]:
    """Return the fixed bytes and the bytes per sequence of a forward and backward pass, from two numbers of sequences.

    On a GPU they come from the allocator's peak. From ``enough`` sequences on, the loss has a whole chunk of tokens,
    whose logits take more than the rest of a small model; if so many do not fit, one and two sequences are compared. On
    a CPU only the tensors saved for the backward pass are counted, of one and two sequences, and the fixed bytes are 0.
    """
    if device.type == "cuda":
        with contextlib.suppress(torch.OutOfMemoryError):
            return fixed_and_each([_peak_on_gpu(forward_backward, device, count) for count in passes(enough)])
        torch.cuda.empty_cache()  # here the error, which holds what was computed, is gone
        return fixed_and_each([_peak_on_gpu(forward_backward, device, count) for count in passes(1)])
    used = []
    for sequences in (1, 2):
        kept: list[torch.UntypedStorage] = []

        def keep(tensor: Tensor, kept: list[torch.UntypedStorage] = kept) -> Tensor:
            kept.append(tensor.untyped_storage())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            forward_backward(sequences)
        # Counted at the end, because FSDP2 frees a layer's weights and the next layer's reuse their memory.
        used.append(sum({storage.data_ptr(): storage.nbytes() for storage in kept}.values()))
    return 0, fixed_and_each(used)[1]


def _peak_on_gpu(forward_backward: Callable[[int], None], device: torch.device, sequences: int) -> int:
    torch.cuda.reset_peak_memory_stats(device)
    forward_backward(sequences)
    return torch.cuda.max_memory_allocated(device)


def fixed_and_each(used: Sequence[int]) -> tuple[int, int]:
    """Return the fixed bytes and the bytes per sequence, given the bytes used by the passes, the last with one more."""
    each = max(1, used[-1] - used[-2])
    return max(0, used[-2] - each), each


def fitting_on_gpu(available: int, fixed: int, each: int, n_local_params: int) -> int:
    """Return how many sequences fit into ``available`` bytes of a GPU, given what :func:`measure` found."""
    # The measurement includes weights and gradients, but not the optimizers' moments.
    return max(1, int((GPU_SHARE * available - fixed - 8 * n_local_params) // each))


def find(
    forward_backward: Callable[[int], None],
    sequences: int,
    n_local_params: int,
    cpu_bytes: float,
    group: WorkerGroup,
    enough: int = 1,
) -> int:
    """Return the micro-batch size of a process with ``sequences`` per step, from the memory of a few: :func:`measure`.

    The limit is the free memory of the GPU, or on a CPU ``cpu_bytes``. ``n_local_params`` is the number of parameters
    in this process's shards. All processes use the smallest size that any of them finds.
    """
    fixed, each = measure(forward_backward, group.device, enough)
    if group.device.type == "cuda":  # what other processes hold of the GPU is not there
        available = torch.cuda.mem_get_info(group.device)[0] + torch.cuda.memory_reserved(group.device)
        most = fitting_on_gpu(available, fixed, each, n_local_params)
    else:
        most = max(1, int((cpu_bytes - CPU_PROCESS_BYTES - 4 * _STATE_NUMBERS * n_local_params) // each))
    fitting = torch.tensor([most])
    if group.size > 1:
        torch.distributed.all_reduce(fitting, torch.distributed.ReduceOp.MIN, group=group.votes)
    return pieces(sequences, int(fitting))
