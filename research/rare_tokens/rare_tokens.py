"""A toy of rare tokens: how an optimizer's second moment moves the probability that a model gives
to them.

A token that is absent from two batches in turn ends below its frequency under Adam, at every
learning rate (Kar 2026, arXiv 2609.37535). The toy has that paper's form at a smaller size: an
untied embedding and head, half of the words of which never occur, and text from a Markov chain. The
table is the mean over tokens of a band of log(mean predicted probability / frequency), in the last
quarter of training: 0 is calibrated. Prints Markdown.

    python research/rare_tokens/rare_tokens.py [--steps 4000] [--seeds 3]

Shapes: B tokens of a batch, U words that occur, V = vocab_size, D = d_model.
"""

import argparse
import statistics
from dataclasses import dataclass

import torch
from pydantic import TypeAdapter
from torch import Tensor, nn

from coupled_adam_bench.models.cross_entropy import sum_cross_entropy
from coupled_adam_bench.optim.build import build_embedding_optimizer
from coupled_adam_bench.study.settings import Optimizer, Training

# Each optimizer with its learning rate, which was not tuned.
RIVALS: dict[str, tuple[dict[str, object], float]] = {
    "Adam": ({"name": "adamw"}, 0.01),
    "RMSProp": ({"name": "adamw", "beta1": 0.0}, 0.01),
    "AMSGrad": ({"name": "adamw", "amsgrad": True}, 0.01),
    "SGD": ({"name": "sgd", "lr_factor": 1.0}, 0.3),
    "Coupled Adam": ({"name": "coupled_adam"}, 0.01),
    "Ember": ({"name": "ember"}, 0.01),
}


@dataclass(frozen=True)
class Toy:
    """The sizes of the toy."""

    vocab_size: int = 1024
    d_model: int = 32
    batch_tokens: int = 8
    steps: int = 4000


def transitions(n_words: int, seed: int) -> Tensor:
    """Return the transitions of a Markov chain, shape UU: half the weight is Zipf's law, half a
    permuted one."""
    generator = torch.Generator().manual_seed(seed)
    zipf_U = 1 / torch.arange(1, n_words + 1, dtype=torch.float64)
    own_UU = torch.stack(
        [zipf_U[torch.randperm(n_words, generator=generator)] for _ in range(n_words)]
    )
    rows_UU = zipf_U / zipf_U.sum() + own_UU / own_UU.sum(1, keepdim=True) * zipf_U / zipf_U.max()
    return rows_UU / rows_UU.sum(1, keepdim=True)


def calibration(
    settings: dict[str, object], lr: float, seed: int, toy: Toy
) -> tuple[Tensor, Tensor, float]:
    """Return log(mean predicted probability / frequency) and the frequency of each word, shape U,
    and the mean loss."""
    n_words = toy.vocab_size // 2
    chain_UU = transitions(n_words, seed)
    stationary_U = torch.linalg.matrix_power(chain_UU, 64)[0]
    generator = torch.Generator().manual_seed(seed)
    embedding, head = (
        nn.Parameter(torch.randn(toy.vocab_size, toy.d_model, generator=generator) * std)
        for std in (toy.d_model**-0.5, 0.02)
    )
    optimizer: Optimizer = TypeAdapter(Optimizer).validate_python(settings)
    updater = build_embedding_optimizer([embedding, head], optimizer, Training(), lr)
    probability_U, loss, counted = torch.zeros(n_words, dtype=torch.float64), 0.0, 0
    for step in range(toy.steps):
        tokens_B = torch.multinomial(
            stationary_U, toy.batch_tokens, replacement=True, generator=generator
        )
        targets_B = torch.multinomial(chain_UU[tokens_B], 1, generator=generator)[:, 0]
        mean_loss = sum_cross_entropy(embedding[tokens_B], head, targets_B) / toy.batch_tokens
        mean_loss.backward()
        updater.step()
        updater.zero_grad()
        if step >= 0.75 * toy.steps:
            counted += 1
            loss += mean_loss.item()
            if counted % 10 == 0:
                # Exact in the tokens: each word's row with its stationary probability.
                with torch.no_grad():
                    softmax_UV = (embedding[:n_words] @ head.T).double().softmax(1)
                probability_U += stationary_U @ softmax_UV[:, :n_words]
    return (probability_U / (counted // 10) / stationary_U).log(), stationary_U, loss / counted


def bands(frequency_U: Tensor, batch_tokens: int) -> dict[str, Tensor]:
    """Return which words are rare, in fewer than one of 100 batches, and which are frequent, in
    more than one of 20."""
    expected_U = frequency_U * batch_tokens
    return {"rare": expected_U < 0.01, "frequent": expected_U > 0.05}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=Toy.steps)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    toy = Toy(steps=arguments.steps)
    print(
        "| optimizer | learning rate | loss | rare tokens | frequent tokens"
        " |\n|---|---|---|---|---|"
    )
    for name, (settings, lr) in RIVALS.items():
        losses, found = [], {"rare": [], "frequent": []}
        for seed in range(1, arguments.seeds + 1):
            log_ratio_U, frequency_U, loss = calibration(settings, lr, seed, toy)
            losses.append(loss)
            for band, is_in_U in bands(frequency_U, toy.batch_tokens).items():
                found[band].append(log_ratio_U[is_in_U].mean().item())
        numbers = " | ".join(
            f"{statistics.mean(values):.2f}" for values in (losses, *found.values())
        )
        print(f"| {name} | {lr:g} | {numbers} |", flush=True)


if __name__ == "__main__":
    main()
