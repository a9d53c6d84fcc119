"""The casts of a computation between precisions, those in the kernels of torch left out."""

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class Casts(TorchDispatchMode):
    """Records the shape of each tensor that is cast, with the dtype before and after."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[tuple[int, ...], torch.dtype, torch.dtype]] = []

    def __torch_dispatch__(
        self, operation: Any, _types: Any, args: tuple[Any, ...] = (), options: Any = None
    ) -> Any:
        result = operation(*args, **(options or {}))
        if operation is torch.ops.aten._to_copy.default and result.dtype != args[0].dtype:
            source: Tensor = args[0]
            self.seen.append((tuple(source.shape), source.dtype, result.dtype))
        return result

    def of(self, shape: tuple[int, ...], before: torch.dtype, after: torch.dtype) -> int:
        """Return how many tensors of a shape were cast from one dtype to another."""
        return self.seen.count((shape, before, after))
