"""Memory of a process that trains a cell, counted from the tensors that it holds; and what a
training job asks for.

The layers are counted as they run without torch.compile, which keeps less, so that the count is an
upper bound for compiled ones. docs/gpu.md compares it with measurements.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from coupled_adam_bench.machine.device import LOGITS_CHUNK
from coupled_adam_bench.machine.gpus import GPUS
from coupled_adam_bench.study.plan.cells import Cell
from coupled_adam_bench.study.settings import Execution

GPU_SHARE = 0.9
"""Share of a GPU's memory to use; the rest is for CUDA itself, fragmentation and the communication
of gradients."""
CPU_PROCESS_BYTES = 800_000_000
"""Memory of a process on a CPU beside weights and activations: Python, torch and the batches read
ahead."""
FP32, BF16 = 4, 2
LEAST_MEM_MB = 4000
_MEMORY_MARGIN = 1.5
# Memory of a process on the machine of its GPU, beside the model: Python, torch, the libraries of
# CUDA, pinned batches.
_GPU_PROCESS_BYTES = 5_000_000_000
STOP_SECONDS = 120
"""Time that a training job has to stop, beside that for its checkpoint."""
# A checkpoint is written and read again for its checksums; shared file systems can be as slow.
_CHECKPOINT_BYTES_PER_SECOND = 0.2e9


@dataclass(frozen=True)
class Memory:
    """Bytes of a training process by what they hold, in a step after the first, and the size of a
    micro-batch."""

    weights: int
    """Weights in float32; of sharded ones the process's shard."""
    gathered: int
    """Weights of the layers that FSDP2 gathers at a time; 0 without shards."""
    casts: int
    """Weights in bfloat16, which the forward pass keeps for the backward pass; 0 in float32."""
    gradients: int
    optimizer: int
    """State of the optimizers; of a sharded one the process's shard."""
    activations: int
    """What the layers keep for the backward pass of a micro-batch."""
    head: int
    """What the loss holds: logits of a chunk, hidden states of a micro-batch, and the gradients of
    both factors."""
    backward: int
    """What the backward pass of the last layer holds besides: gradients of its stream, its MLP and
    the head."""
    tied_gradients: int
    """Gradients of a tied embedding as head and as input, before their sum is its gradient or,
    after the first micro-batch, is added to it; 0 if it is not tied."""
    micro_batch_sequences: int
    kept_gradients: int
    """Gradients that lie in memory when a backward pass begins: of several micro-batches, and under
    DDP."""

    @property
    def peak(self) -> int:
        """Return the bytes at the fullest moment, the beginning or the end of a backward pass."""
        always = self.weights + self.gathered + self.casts + self.optimizer
        begin = self.activations + max(self.head, self.backward) + self.kept_gradients
        return always + max(begin, self.gradients + self.tied_gradients)


def embedding_params(cell: Cell) -> int:
    """Return the number of parameters that the embedding's optimizer updates: the embedding and an
    untied head."""
    return cell.vocab_size * cell.model.d_model * (2 if cell.model.has_own_head else 1)


def optimizer_bytes(cell: Cell) -> int:
    """Return the bytes of the states of a cell's optimizers, in all shards together.

    For each of the other parameters, AdamW has two moments and Muon one.
    """
    model = cell.model
    muon = model.matrix_params if cell.training.core_optimizer != "adamw" else 0
    core = 2 * (cell.n_params - embedding_params(cell) - muon) + muon
    entries = (
        (cell.optimizer.embedding, cell.optimizer.head)
        if model.has_own_head
        else (cell.optimizer.head,)
    )
    return FP32 * (core + sum(entry.n_states(cell.vocab_size, model.d_model) for entry in entries))


def layer_bytes_per_token(cell: Cell, on_gpu: bool) -> int:
    """Return the bytes that one layer keeps for each token until the backward pass.

    In float32: the inputs of both norms with their statistics, and the logarithm of each head's sum
    of exponentials. In the precision of the products: what the architecture says. Norms of queries
    and keys keep their float32 outputs before and after the weights, with their statistics. On a
    CPU attention is in float32: its inputs and its output, of which the product keeps a copy.
    """
    model, product = cell.model, BF16 if cell.training.precision == "bf16" else FP32
    attention = 0 if on_gpu or product == FP32 else (4 * FP32 - 3 * product) * model.d_model
    in_float32 = (
        2 * (model.d_model + 2)
        + model.n_head
        + (4 * (model.d_model + model.n_head) if model.qk_norm else 0)
    )
    of_model, of_ffn = model.family.kept
    in_float32 += model.family.kept_float32 * model.d_model
    in_products = of_model * model.d_model + of_ffn * model.d_ffn
    return FP32 * in_float32 + product * in_products + attention


def local_sequences(cell: Cell, execution: Execution) -> int:
    """Return the number of sequences that a process trains on in a step."""
    return cell.training.batch_sequences // execution.processes


def memory_of(cell: Cell, execution: Execution, micro_batch_sequences: int | None = None) -> Memory:
    """Return the memory of one of the processes that train ``cell``, on its GPU or, without GPUs,
    of its tensors.

    By default the micro-batch is that of ``execution``; for ``auto``, the largest that fits into
    the GPU of the study's budget, or on a CPU one sequence.
    """
    if micro_batch_sequences is None:
        micro_batch_sequences = _micro_batch(cell, execution)
    model, training, n_params = cell.model, cell.training, cell.n_params
    sequences = local_sequences(cell, execution)
    sharded, is_ddp = (
        execution.parallel == kind and execution.processes > 1 for kind in ("fsdp", "ddp")
    )
    shards = execution.processes if sharded else 1
    several = micro_batch_sequences < sequences
    tokens = micro_batch_sequences * training.seq_len
    bf16, on_gpu = training.precision == "bf16", execution.gpus > 0
    matrices = model.matrix_params
    # What belongs to no layer.
    root = n_params - matrices - model.n_layer * model.norm_params_per_layer
    head_weight = FP32 * cell.vocab_size * model.d_model
    chunk = min(LOGITS_CHUNK["cuda" if on_gpu else "cpu"], tokens)
    # The logits and their softmax in the products' precision, between them log-softmax in float32;
    # on a CPU, float32 logits are overwritten.
    if bf16:
        logit = 2 * BF16 + FP32
    elif on_gpu:
        logit = 2 * FP32
    else:
        logit = FP32
    soft_cap = cell.optimizer.head.soft_cap
    if soft_cap is not None:
        # Its derivative, and beside bfloat16 logits the capped ones in float32.
        logit += BF16 + FP32 if bf16 else FP32
    # The last norm's input and output, the loss's copy of the output, and its gradient.
    hidden = tokens * model.d_model * (3 * FP32 + (BF16 if bf16 else 0))
    # The gradient of the head, and in bfloat16 a copy of the head and the product that is added to
    # its gradient.
    factors = head_weight + (2 * BF16 * cell.vocab_size * model.d_model if bf16 else 0)
    mlp_gradients = model.family.mlp_gradients * (BF16 if bf16 else FP32) * model.d_ffn
    token_ids = 16 * sequences * training.seq_len  # inputs and targets in int64
    # A norm behind the embedding keeps its input, and on a CPU its output before the weights.
    outer = 2 * FP32 * model.d_model * (model.family.outer_norms - 1)
    if model.n_contexts is not None:
        # float32 logits of all contexts, in bfloat16 beside those of the products.
        logit = FP32
        if bf16:
            logit += BF16
        if soft_cap is not None:
            logit += FP32
        # Inputs, contexts, targets and pairs in int64, and a mask and the logits of the targets in
        # float32.
        chunk, hidden, tokens = model.n_contexts, (4 * 8 + 2 * FP32) * tokens, 0
    if sharded:
        # The root stays gathered; of the layers, one computes while the next arrives in a buffer
        # and is copied out.
        gathered = FP32 * (root + 3 * matrices // model.n_layer)
        # FSDP2 makes shards of a layer's gradients once it is done, and the root is done last.
        gradients = FP32 * (root + n_params // shards)
    else:
        gathered = 0
        gradients = FP32 * n_params
    kept_gradients = 0
    if several or is_ddp:
        kept_gradients = FP32 * n_params // shards
    # Several micro-batches add up their gradients, and those of a tied table have two parts.
    tied_gradients = 0
    if model.tied:
        tied_gradients = (3 if several else 2) * head_weight
    return Memory(
        weights=FP32 * n_params // shards,
        gathered=gathered,
        casts=BF16 * matrices if bf16 else 0,
        gradients=gradients,
        optimizer=optimizer_bytes(cell) // shards,
        activations=tokens * (model.n_layer * layer_bytes_per_token(cell, on_gpu) + outer)
        + token_ids,
        head=chunk * cell.vocab_size * logit + hidden + factors,
        backward=head_weight + tokens * (FP32 * model.d_model + mlp_gradients),
        tied_gradients=tied_gradients,
        micro_batch_sequences=micro_batch_sequences,
        kept_gradients=kept_gradients,
    )


def pieces(sequences: int, fitting: int) -> int:
    """Return the micro-batch size that splits ``sequences`` into the fewest and most equal
    micro-batches that fit."""
    return math.ceil(sequences / math.ceil(sequences / max(1, fitting)))


def most_sequences(cell: Cell, execution: Execution, room: float) -> int:
    """Return how many of a process's sequences fit at once into ``room`` bytes; 0 if not even one
    does."""
    sequences = local_sequences(cell, execution)
    if memory_of(cell, execution, sequences).peak <= room:
        return sequences
    # More sequences never take less, apart from all of them at once.
    return bisect_right(
        range(1, sequences), room, key=lambda count: memory_of(cell, execution, count).peak
    )


def largest_micro_batch(cell: Cell, execution: Execution, gpu_bytes: float) -> int | None:
    """Return the largest micro-batch with which a cell fits into a GPU, None if it does not fit
    with one sequence."""
    fitting = most_sequences(cell, execution, GPU_SHARE * gpu_bytes)
    return pieces(local_sequences(cell, execution), fitting) if fitting else None


def _micro_batch(cell: Cell, execution: Execution) -> int:
    sequences, setting = local_sequences(cell, execution), execution.micro_batch_sequences
    if setting != "auto":
        return min(setting or sequences, sequences)
    if not execution.gpus:
        return 1
    return largest_micro_batch(cell, execution, GPUS[cell.study.budget.gpu].memory) or 1


def checkpoint_bytes(cell: Cell) -> int:
    """Return the bytes of a checkpoint: weights and optimizer states in float32."""
    return FP32 * cell.n_params + optimizer_bytes(cell)


def model_bytes(cell: Cell) -> int:
    """Return the bytes of the exported weights in float32; transformers' classes also have biases,
    which are 0."""
    model = cell.model
    in_layer, in_mlp, at_end = model.family.biases
    biases = (
        model.n_layer * (in_layer * model.d_model + in_mlp * model.d_ffn) + at_end * model.d_model
    )
    return FP32 * (cell.n_params + biases)


def host_bytes(cell: Cell, execution: Execution) -> int:
    """Return the bytes that all processes of a training job take on its machine, GPUs left out.

    Each process builds the whole model before it goes to the GPU or into shards. A checkpoint is
    copied before it is written, and the first process holds the model twice when it exports it.
    """
    if execution.gpus:
        each = _GPU_PROCESS_BYTES + FP32 * cell.n_params
    else:
        each = CPU_PROCESS_BYTES + memory_of(cell, execution).peak
    copies = execution.processes if execution.parallel == "ddp" else 1
    return execution.processes * each + copies * checkpoint_bytes(cell) + 2 * FP32 * cell.n_params


def train_mem_mb(cell: Cell, execution: Execution) -> int:
    """Return the memory in MB of a job that trains a cell: that of ``execution``, or computed with
    a margin."""
    if execution.train_mem_mb is not None:
        return execution.train_mem_mb
    return max(LEAST_MEM_MB, math.ceil(_MEMORY_MARGIN * host_bytes(cell, execution) / 1e6))


def stop_seconds(parts: Iterable[Cell]) -> int:
    """Return the seconds before its end at which a job that trains ``parts`` must be asked to
    stop."""
    return STOP_SECONDS + math.ceil(
        max(map(checkpoint_bytes, parts)) / _CHECKPOINT_BYTES_PER_SECOND
    )
