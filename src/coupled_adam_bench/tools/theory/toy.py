"""The toy example of the paper's Fig. 1: one step of each optimizer on a few embeddings in two dimensions.

The data of the paper's figure were not available; tokens, probabilities and the hidden state are ours [I].
Shapes: V tokens in 2 dimensions.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
ZERO_FLOAT64 = 1e-12
"""The sum of vectors over the sum of their norms that counts as zero: rounding alone leaves about 1e-16."""


@dataclass(frozen=True)
class Toy:
    """The arrays of the figure."""

    embeddings_V2: Array  # noqa: N815
    hidden_2: Array
    probabilities_V: Array  # noqa: N815
    """Unigram probabilities of the targets."""
    updates: dict[str, Array]
    """Update of each optimizer, shape V2, scaled to a mean length of 1."""
    sums: dict[str, Array]
    """Sum of each optimizer's updates over the tokens, shape (2,)."""


def toy() -> Toy:
    """Return updates of SGD, Adam and Coupled Adam for four tokens around the origin and one hidden state.

    With targets t drawn from p and predictions q = softmax(E h), a token's gradient is g_i = -(delta_it - q_i) h. Its
    mean is (q_i - p_i) h. Its mean square, over the two coordinates as in Fig. 4, is
    v_i = (p_i (1 - q_i)^2 + (1 - p_i) q_i^2) |h|^2 / 2. Adam's moments converge to these two.
    """
    angles_V = np.pi / 4 + np.pi / 2 * np.arange(4)
    embeddings_V2 = np.stack([np.cos(angles_V), np.sin(angles_V)], axis=1)
    hidden_2 = np.array([0.4, 0.2])
    p_V = np.array([0.6, 0.25, 0.1, 0.05])
    q_V = np.exp(embeddings_V2 @ hidden_2)
    q_V /= q_V.sum()
    mean_gradient_V2 = (q_V - p_V)[:, None] * hidden_2
    v_V = (p_V * (1 - q_V) ** 2 + (1 - p_V) * q_V**2) * (hidden_2 @ hidden_2) / 2
    denominators = {"SGD": np.ones(4), "Adam": np.sqrt(v_V), "Coupled Adam": np.full(4, np.sqrt(v_V.mean()))}
    updates = {}
    for name, denominator_V in denominators.items():
        update_V2 = -mean_gradient_V2 / denominator_V[:, None]
        updates[name] = update_V2 / np.linalg.norm(update_V2, axis=1).mean()
    sums = {name: update_V2.sum(axis=0) for name, update_V2 in updates.items()}
    return Toy(embeddings_V2, hidden_2, p_V, updates, sums)
