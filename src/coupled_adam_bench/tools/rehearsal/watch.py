"""What happens under fake tensors: the memory that lives on the device, and the waits for it inside a step."""

import traceback
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from coupled_adam_bench.tools.rehearsal.fake_gpu import replaced

_TORCH = str(Path(torch.__file__).parent)
_HERE = str(Path(__file__).parent)
_READS = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.item.default)
_SNAPSHOT_GROWTH = 1.005  # gradients are counted anew when the peak has grown by this factor
# Code that reads a number on purpose where it lies on a CPU, and never on a GPU.
_READS_ON_CPUS = "optim/coupled_adam/optimizer.py"


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
    """Counts the storages that live on a device, and notes reads of a number inside :meth:`step`.

    A read returns 1, so that what comes after it is rehearsed too. ``gradients`` returns their bytes, and is called
    when there is a new peak.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.device = device
        self.live: dict[int, int] = {}
        self.bytes = self.peak = 0
        self.gradients_at_peak = 0
        self.gradients: Callable[[], int] = lambda: 0
        self.is_host_number: Callable[[Tensor], bool] = lambda _tensor: False
        self.findings: list[Finding] = []
        self._snapshot = 0.0
        self._in_step = False
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

    @contextmanager
    def step(self) -> Iterator[None]:
        """Note each wait for the device in this block as a finding."""
        self._in_step = True
        try:
            yield
        finally:
            self._in_step = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and count the storages that it returns."""
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # its shards come here one by one
        if func is torch.ops.prim.device.default and isinstance(args[0], FakeTensor):
            return args[0].fake_device  # asked for more often than all else together
        kwargs = kwargs or {}
        if func in _READS and isinstance(args[0], FakeTensor):
            return self._read(args[0])
        if func is torch.ops._c10d_functional.wait_tensor.default:
            return args[0]  # its fake version would return a copy
        if func is torch.ops.aten._to_copy.default:
            self._note_copy(args[0], kwargs)
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

    def _read(self, tensor: Tensor) -> bool | int | float:
        on_cpu = tensor.device.type == "cpu"
        place = place_of(traceback.extract_stack())
        is_fine = self.is_host_number(tensor) or _READS_ON_CPUS in Path(place).as_posix()
        if self._in_step and not (on_cpu and (self.device.type != "cpu" or is_fine)):
            self._note(
                f"the host reads a number from a {_shown(tensor)} inside a step, and waits for the device", place
            )
        return True if tensor.dtype == torch.bool else 1.0 if tensor.is_floating_point() else 1

    def _note_copy(self, tensor: Tensor, options: dict[str, Any]) -> None:
        target = options.get("device")
        leaves = tensor.device.type != "cpu" and target is not None and torch.device(target).type == "cpu"
        if self._in_step and leaves and not options.get("non_blocking"):
            place = place_of(traceback.extract_stack())
            self._note(
                f"a {_shown(tensor)} is copied to the CPU inside a step, and the host waits for the device", place
            )

    def _note(self, what: str, place: str) -> None:
        finding = Finding(what, place)
        if finding not in self.findings:
            self.findings.append(finding)


def _shown(tensor: Tensor) -> str:
    return f"tensor of shape {tuple(tensor.shape)} on {tensor.device}"
