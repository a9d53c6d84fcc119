"""Causal self-attention.

Shapes: B sequences, H heads, T tokens, K = width of a head.
"""

from torch import Tensor
from torch.nn import functional as F


def causal_attention(q_BHTK: Tensor, k_BHTK: Tensor, v_BHTK: Tensor) -> Tensor:
    """Return softmax(q k^T / sqrt(K)) v with each token attending to itself and those before it, shape BHTK."""
    return F.scaled_dot_product_attention(q_BHTK, k_BHTK, v_BHTK, is_causal=True)
