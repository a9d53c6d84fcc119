"""The time of a training step on a GPU by a count of its operations: FLOPs at a share of the peak
plus bytes at a share of the memory bandwidth, without overlap.

Communication between GPUs is left out. ``public_logs`` says how much longer real steps take.
"""

from coupled_adam_bench.machine.gpus import GPUS
from coupled_adam_bench.study.plan.cells import Cell
from coupled_adam_bench.study.settings import Execution
from coupled_adam_bench.training.memory import local_sequences, memory_of

# Shares of the peak that we assume; TF32, in which float32 is multiplied, has half the peak of
# bfloat16.
_MATMUL_SHARE, _ATTENTION_SHARE, _BANDWIDTH_SHARE, _TF32 = 0.75, 0.5, 0.8, 0.5
# The following are bytes of memory traffic. Per parameter, AdamW in float32 reads weight, gradient
# and two moments and writes all but the gradient.
_OPTIMIZER = 4 * (4 + 3)
_CLIP = 12  # per parameter: one read for the norm, a read and a write to scale
# Per parameter and micro-batch: add to the gradient in float32, cast the weight to bfloat16.
_ACCUMULATE = 8 + 6
# Per logit, beside what the products read: write it in bfloat16, and then widen it, log-softmax,
# exponential in place, narrow it; or, compiled, one kernel that reads and writes it.
_LOGIT = {False: 2 + (2 + 4) + (4 + 4) + (4 + 4) + (4 + 2), True: 2 + (2 + 2)}
# Per token, layer and unit of width, beside products and attention, with norms and residual in
# float32 and the rest in bfloat16: norms forward and backward, residual sums and those of
# gradients, GELU, casts, and the gradients of queries, keys and values put into one matrix.
_LAYER_PLAIN = (16 + 24) + (20 + 24) + (16 + 24) + 38 + 12
# Compiled, norms, residual sums and casts are kernels of their own: three forward, and backward
# each norm with a sum, a cast and the gradient of its weight, and one cast more.
_LAYER_COMPILED = (6 + 12 + 10) + 2 * (16 + 6) + 6 + (16 + 24) + 12


def step_parts(cell: Cell, execution: Execution) -> dict[str, float]:
    """Return the seconds of one step on the GPUs of the study's budget by what takes them."""
    model, training, gpu = cell.model, cell.training, GPUS[cell.study.budget.gpu]
    sequences = local_sequences(cell, execution)
    tokens = sequences * training.seq_len
    micro_batches = -(-sequences // memory_of(cell, execution).micro_batch_sequences)
    peak = gpu.peak_flops * (1 if training.precision == "bf16" else _TF32)
    attention = 12 * model.n_layer * model.d_model * training.seq_len * tokens
    products = cell.flops // cell.n_tokens * tokens - attention
    shards = execution.processes if execution.parallel == "fsdp" else 1
    bandwidth = gpu.bandwidth * _BANDWIDTH_SHARE
    layer = _LAYER_COMPILED if execution.compile else _LAYER_PLAIN
    weights = (_OPTIMIZER + _CLIP) / shards + _ACCUMULATE * micro_batches
    return {
        "products": products / (peak * _MATMUL_SHARE),
        "attention": attention / (peak * _ATTENTION_SHARE),
        "logits": _LOGIT[execution.compile] * cell.vocab_size * tokens / bandwidth,
        "layers": layer * model.n_layer * model.d_model * tokens / bandwidth,
        "weights": weights * cell.n_params / bandwidth,
    }
