"""Measures a training step of ``architecture: contexts`` by its parts, and with the plain loss of
all tokens.

A step prepares a batch, computes loss and gradients, clips, and updates the head by each of some
optimizers and the rest by AdamW. The tokens are drawn from Zipf's law. Each part is measured alone
on one thread, in CPU seconds, as the median over the rounds; in training the next batch is prepared
in a thread of its own. It prints Markdown.

    python benchmarks/contexts.py [--vocab-size 50304] [--sequences 96] [--contexts 64] [--d-model
    16] [--rounds 9]
"""

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from coupled_adam_bench.models.build import build_model
from coupled_adam_bench.models.cross_entropy import sum_cross_entropy
from coupled_adam_bench.optim.build import build_optimizers
from coupled_adam_bench.study.settings import (
    AdamWSettings,
    CoupledAdamSettings,
    EmberSettings,
    Model,
    SgdSettings,
    Training,
)
from coupled_adam_bench.training.batches import Batches
from coupled_adam_bench.training.distributed import WorkerGroup

SEQ_LEN = 1024
OPTIMIZERS = (
    AdamWSettings(name="adamw"),
    AdamWSettings(name="adamw", amsgrad=True),
    CoupledAdamSettings(name="coupled_adam"),
    EmberSettings(name="ember"),
    SgdSettings(name="sgd", lr_factor=100),
)


def cpu_milliseconds(work: Callable[[], object], rounds: int) -> float:
    """Return the median CPU time of a call, after one that is not counted."""
    times = []
    for _ in range(rounds + 1):
        started = time.process_time()
        work()
        times.append(1e3 * (time.process_time() - started))
    return statistics.median(times[1:])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vocab-size", type=int, default=50304)
    parser.add_argument("--sequences", type=int, default=96)
    parser.add_argument("--contexts", type=int, default=64)
    parser.add_argument("--d-model", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    vocab_size, n_tokens = arguments.vocab_size, 4_000_000
    weights = 1 / np.arange(1, vocab_size + 1)
    tokens = (
        np.random.default_rng(0)
        .choice(vocab_size, n_tokens, p=weights / weights.sum())
        .astype("<u4")
    )
    counts = np.bincount(tokens, minlength=vocab_size)
    training = Training(seq_len=SEQ_LEN, batch_sequences=arguments.sequences, weight_decay=0)
    batches = Batches(tokens, training, 1, WorkerGroup(torch.device("cpu")))
    settings = Model(
        name="c",
        architecture="contexts",
        n_contexts=arguments.contexts,
        d_model=arguments.d_model,
        tied=False,
        learning_rate=6e-3,
    )
    model = build_model(settings, vocab_size, SEQ_LEN, unigram_counts=counts)
    model.init_weights(1, 0.02)
    inputs, targets = batches.get(0)

    def loss() -> None:
        objective, _ = model(inputs, targets, reduction="objective")
        (objective / targets.numel()).backward()

    def plain() -> None:
        rows = slice(0, 1)  # of one sequence; the time is that of a batch divided by its sequences
        hidden = model.hidden(inputs[rows]).flatten(0, 1)
        (
            sum_cross_entropy(hidden, model.head_weight, targets[rows].flatten()) / targets.numel()
        ).backward()

    parts = {
        "preparing the batch": cpu_milliseconds(lambda: batches._read(1), arguments.rounds),
        "loss and gradients": cpu_milliseconds(loss, arguments.rounds),
    }
    for one in OPTIMIZERS:
        optimizers = build_optimizers(
            model, model.embedding_parameters(), one, training, settings.learning_rate
        )
        loss()

        def update(optimizers=optimizers) -> None:
            optimizers.clip_grad_norm_(model.parameters(), 1.0)
            optimizers.step()

        parts[f"clipping and update, {one.label}"] = cpu_milliseconds(update, arguments.rounds)
        optimizers.zero_grad()
    batch, gradients, adam = list(parts.values())[:3]
    step = batch + gradients + adam
    n_tokens = arguments.sequences * SEQ_LEN
    sizes = f"V {vocab_size:,}, B {n_tokens:,}, K {arguments.contexts}, d {arguments.d_model}"
    print(f"{sizes}; a step of Adam: {step:.1f} ms\n")
    print("| part | CPU ms | share of a step of Adam |\n|---|---|---|")
    for name, milliseconds in parts.items():
        print(f"| {name} | {milliseconds:.2f} | {100 * milliseconds / step:.0f} % |")
    whole = arguments.sequences * cpu_milliseconds(plain, min(3, arguments.rounds))
    print(
        f"| loss and gradients with the softmax of each token | {whole:.0f} |"
        f" {whole / gradients:.0f} times ours |"
    )
    batches.close()


if __name__ == "__main__":
    main()
