"""The numbers of an update: its settings, and the precision of its sums."""

import torch
from torch import Tensor

Scalar = float | Tensor
"""A setting of a step; a tensor where the step is captured as a graph."""


def exact_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which squares of ``dtype`` are summed and stored: float32 or better."""
    return torch.promote_types(dtype, torch.float32)
