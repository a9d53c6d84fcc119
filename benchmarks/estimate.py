"""Estimate of a training step on an H200 from its FLOPs and bytes: what docs/performance.md shows. Measures nothing.

    python benchmarks/estimate.py

Time = FLOPs at 0.75 of the dense bf16 peak (attention at 0.5) + bytes at 0.8 of the memory's bandwidth, nothing
overlapped. The shares are assumptions; communication between GPUs is left out.
"""

from coupled_adam_bench.config import Model
from coupled_adam_bench.presets import MODEL_PRESETS

PEAK_FLOPS, MATMUL_SHARE, ATTENTION_SHARE = 989e12, 0.75, 0.5
BANDWIDTH, BANDWIDTH_SHARE = 4.8e12, 0.8
VOCAB_SIZE = 50304
OPTIMIZER = (
    28  # bytes a parameter of AdamW in float32: 4 x (read weight, gradient, two moments; write all but gradient)
)
CLIP = 12  # read for the norm, read and write to scale
ACCUMULATE = 8 + 6  # a micro-batch: add to the gradient in float32, cast the weight to bfloat16
# A logit: bfloat16 written, read and widened by log-softmax, exponential in place, narrowed, read by two products.
LOGIT = 2 + (2 + 4) + (4 + 4) + (4 + 2) + 2 * 2
# A token, layer and unit of width: norms and residual in float32, the rest in bfloat16; backward twice the forward.
ACTIVATION = 3 * 74
KEPT = 60  # bytes of these that the backward pass needs


def step(name: str, seq_len: int, tokens: int, gpus: int) -> str:
    """Return the row of a model that trains ``tokens`` a step on ``gpus``."""
    model = Model(**MODEL_PRESETS[name])
    local = tokens / gpus
    n_params = model.n_params(VOCAB_SIZE, seq_len)
    attention = 12 * model.n_layer * model.d_model * seq_len * local
    matmul = model.flops_per_token(VOCAB_SIZE, seq_len) * local - attention
    layers = model.n_layer * model.d_model * local
    micro_batches = max(1, round(KEPT * layers / 110e9 + 0.5))
    seconds = {
        "products": matmul / (PEAK_FLOPS * MATMUL_SHARE),
        "attention": attention / (PEAK_FLOPS * ATTENTION_SHARE),
        "logits": LOGIT * VOCAB_SIZE * local / (BANDWIDTH * BANDWIDTH_SHARE),
        "layers": ACTIVATION * layers / (BANDWIDTH * BANDWIDTH_SHARE),
        "weights": ((OPTIMIZER + CLIP) / gpus + ACCUMULATE * micro_batches) * n_params / (BANDWIDTH * BANDWIDTH_SHARE),
    }
    mfu = (matmul + attention) / PEAK_FLOPS / sum(seconds.values())
    cells = [f"{1000 * value:.0f}" for value in seconds.values()]
    return f"| {name} | {gpus} | {micro_batches} | {' | '.join(cells)} | {100 * mfu:.0f} % |"


def main() -> None:
    """Print the table."""
    print("| model | GPUs | micro-batches | products, ms | attention | logits | layers | weights | MFU |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name in ("gpt2-125m", "gpt2-355m", "gpt2-760m"):
        print(step(name, 1024, 96 * 1024, 1))
    for name in ("stablelm-1.3b", "stablelm-2.6b"):
        print(step(name, 2048, 256 * 2048, 8))


if __name__ == "__main__":
    main()
