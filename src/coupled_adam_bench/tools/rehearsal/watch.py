"""What happens under fake tensors: the memory that lives on the device, and what fails."""

import traceback
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from coupled_adam_bench.tools.rehearsal.fake_gpu import replaced

_TORCH = str(Path(torch.__file__).parent)
_HERE = str(Path(__file__).parent)
_READS = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.item.default)
_SNAPSHOT_GROWTH = 1.005  # gradients are counted anew when the peak has grown by this factor


@dataclass(frozen=True)
class Finding:
    """What a rehearsal has found: where in the code, and what."""

    what: str
    place: str
    """``file:line``, or a stage of the pipeline."""

    def __str__(self) -> str:
        return f"{self.place}: {self.what}"


def place_of(stack: traceback.StackSummary) -> str:
    """Return ``file:line`` of the innermost frame that is neither PyTorch's nor the rehearsal's."""
    own = [frame for frame in stack if not frame.filename.startswith((_TORCH, _HERE, "<"))]
    frame = (own or list(stack))[-1]
    path = Path(frame.filename)
    shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return f"{shown}:{frame.lineno}"


def found(error: BaseException) -> Finding:
    """Return an exception as a finding."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return Finding(
        f"{type(error).__name__}: {lines[0] if lines else ''}", place_of(traceback.extract_tb(error.__traceback__))
    )


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the storages that live on a device; a number that is read is 1.

    ``gradients`` returns their bytes, and is called when there is a new peak.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.device = device
        self.live: dict[int, int] = {}
        self.bytes = self.peak = 0
        self.gradients_at_peak = 0
        self.gradients: Callable[[], int] = lambda: 0
        self._snapshot = 0.0
        self._resize = replaced((torch.UntypedStorage, "resize_", self._resizing()))

    def __enter__(self) -> Self:
        self._resize.__enter__()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        self._resize.__exit__(kind, error, trace)

    def reset(self) -> None:
        """Forget the peak so far."""
        self.peak, self._snapshot, self.gradients_at_peak = self.bytes, 0.0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and count the storages that it returns."""
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # its shards come here one by one
        if func is torch.ops.prim.device.default and isinstance(args[0], FakeTensor):
            return args[0].fake_device  # asked for more often than all else together
        kwargs = kwargs or {}
        if func in _READS and isinstance(args[0], FakeTensor):
            return True if args[0].dtype == torch.bool else 1.0 if args[0].is_floating_point() else 1
        if func is torch.ops._c10d_functional.wait_tensor.default:
            return args[0]  # its fake version would return a copy
        result = func(*args, **kwargs)
        for tensor in tree_iter(result):
            if isinstance(tensor, FakeTensor) and tensor.device.type == self.device.type:
                self._see(tensor.untyped_storage())
        return result

    def _see(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key not in self.live:
            self.live[key] = 0
            weakref.finalize(storage, self._forget, key)
        self._set(key, storage.nbytes())

    def _set(self, key: int, size: int) -> None:
        self.bytes += size - self.live[key]
        self.live[key] = size
        self.peak = max(self.peak, self.bytes)
        if self.peak > self._snapshot * _SNAPSHOT_GROWTH:
            self._snapshot = self.peak
            self.gradients_at_peak = self.gradients()

    def _forget(self, key: int) -> None:
        self.bytes -= self.live.pop(key)

    def _resizing(self) -> Callable[[torch.UntypedStorage, int], Any]:
        original = torch.UntypedStorage.resize_

        def resize(storage: torch.UntypedStorage, size: int) -> Any:  # how FSDP2 frees weights
            result = original(storage, size)
            if storage._cdata in self.live:
                self._set(storage._cdata, storage.nbytes())
            return result

        return resize
