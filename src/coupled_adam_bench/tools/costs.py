"""What a study will run and what that takes: hours, memory and disk."""

import math
from collections import Counter

from coupled_adam_bench.study.catalogue.presets import CARDS
from coupled_adam_bench.study.plan import Cell, Plan
from coupled_adam_bench.study.study import Study

CPU_FLOPS = 40e9
"""FLOP/s of a thread: the demo's runs did 37 to 55 GFLOP/s on one with AVX2."""
BYTES_PER_PARAMETER = 16
"""Weight, gradient and two moments in float32."""
LOSS_TOKENS = 4096
"""Tokens whose logits the loss holds at a time, in bfloat16 twice and in float32 once; it is CHUNK
of ``models/cross_entropy.py``, which needs torch."""
GPU_SHARE = 0.9
"""Share of a GPU's memory to fill; the rest is for CUDA, fragments and communication."""
CHECKPOINTS = 2
"""Checkpoints that a cell keeps (``training/checkpoint.py``), each of weights and two moments."""


def flops(cell: Cell) -> int:
    """Return the model FLOPs of a run."""
    return cell.n_tokens * cell.model.flops_per_token(cell.vocab_size, cell.training.seq_len)


def hours(cell: Cell, study: Study) -> float:
    """Return the hours of a run on one GPU of the budget's kind or, without GPUs, on one thread."""
    rate = CPU_FLOPS
    if study.execution.gpus:
        card = CARDS[study.budget.gpu]
        rate = card.peak * card.mfu(cell.model.d_model)
    return flops(cell) / rate / 3600


def gpu_bytes(cell: Cell, study: Study, sequences: int) -> int:
    """Return the bytes on a GPU that trains on so many sequences at once."""
    model, tokens = cell.model, sequences * cell.training.seq_len
    shards = study.execution.gpus if study.execution.parallel == "fsdp" else 1
    # Bytes of a token and a layer, in widths: norms and residuals in float32, inputs of products in
    # bfloat16; SwiGLU keeps its two factors and their product, RoPE the rotated queries and keys.
    widths = model.n_layer * (36 if model.architecture == "gpt2" else 46) + 14
    activations = tokens * widths * model.d_model
    logits = min(tokens, LOSS_TOKENS) * cell.vocab_size * 8
    # FSDP gathers a layer at a time, but embedding and head whole.
    gathered = 0 if shards == 1 else 8 * cell.vocab_size * model.d_model
    return BYTES_PER_PARAMETER * cell.n_params // shards + gathered + activations + logits


def most_sequences(cell: Cell, study: Study) -> int:
    """Return the micro-batch that fits into the budget's card: all, halved as training does."""
    execution, memory = study.execution, CARDS[study.budget.gpu].memory
    sequences = cell.training.batch_sequences // max(1, execution.gpus)
    sequences = min(execution.micro_batch_sequences or sequences, sequences)
    while sequences and gpu_bytes(cell, study, sequences) > GPU_SHARE * memory:
        sequences //= 2
    return sequences


def describe_plan(plan: Plan) -> str:
    """Return what a plan runs, what it takes and what comes next; the text is not read."""
    study, cells = plan.study, list(plan.cells.values())
    models = Counter(cell.size_label for cell in cells)
    counted = ", ".join(f"{n} of {model}" for model, n in models.items())
    blocks = [
        (
            f"  {block.table or 'no table'}",
            f"{len(plan.cells_of(block))} cells, {len(block.optimizers)} optimizers,"
            f" seeds {', '.join(map(str, block.seeds))}",
        )
        for block in study.grid
    ]
    lines = [
        (study.folder_name, study.title),
        ("cells", f"{len(cells)} on {study.data.name}: {counted}"),
        *blocks,
        ("tokens", f"{sum(cell.n_tokens for cell in cells):,}"),
        *_time_and_memory(cells, study),
        ("disk", _disk(cells, study)),
        ("next", "snakemake rehearse (all in miniature), then fetch, then all"),
    ]
    return "\n".join(f"{name:<13} {said}".rstrip() for name, said in lines)


def _time_and_memory(cells: list[Cell], study: Study) -> list[tuple[str, str]]:
    budget, n_gpus = study.budget, study.execution.gpus
    spent = sum(hours(cell, study) for cell in cells)
    longest = max(hours(cell, study) for cell in cells) / max(1, n_gpus)
    slots = f"{budget.gpus} GPUs" if n_gpus else "one core"
    wall = max(longest, spent / (budget.gpus if n_gpus else 1))
    waits = f"at least {_time(wall)} on {slots}, without evaluation; longest cell {_time(longest)}"
    if not n_gpus:
        return [("GPU hours", f"0; {_time(spent)} of a CPU's thread"), ("wall time", waits)]
    return [
        ("GPU hours", f"{_three(spent)} on {budget.gpu}"),
        ("wall time", waits),
        ("GPU memory", _memory(cells, study)),
    ]


def _memory(cells: list[Cell], study: Study) -> str:
    """Return what the largest model takes, and how many sequences of it fit into a card."""
    largest = max(cells, key=lambda cell: cell.n_params)
    name, n = largest.model.name, most_sequences(largest, study)
    if n == 0:
        return f"{name}: not even one sequence fits into {study.budget.gpu}"
    return f"{_size(gpu_bytes(largest, study, n))}: {name}, {n} sequences at once"


def _disk(cells: list[Cell], study: Study) -> str:
    of_token = 2 if study.data.vocab_size <= 2**16 else 4
    n_tokens = study.data.max_tokens
    bins = _size(of_token * n_tokens) if n_tokens else f"{of_token} bytes a token"
    n_params = sum(cell.n_params for cell in cells)
    checkpoints = _size(CHECKPOINTS * 12 * n_params)
    return f"token bins {bins}, checkpoints {checkpoints}, models {_size(4 * n_params)}"


def _three(value: float) -> str:
    """Return a number with three digits, such as 1,710."""
    return f"{float(f'{value:.3g}'):,.12g}"


def _size(n_bytes: float) -> str:
    return f"{_three(n_bytes / 1e9)} GB"


def _time(n_hours: float) -> str:
    return f"{_three(n_hours)} h" if n_hours >= 1 else f"{math.ceil(60 * n_hours)} min"
