"""A fake GPU for rehearsals of these checks: nothing is computed, and each tensor must lie where it belongs."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from coupled_adam_bench.tools.rehearsal.fake_gpu import pretended_gpu, replaced
from coupled_adam_bench.tools.rehearsal.watch import Watch


class _Event:
    """An event that nothing records."""

    def __init__(self, **_: Any) -> None:
        pass

    def record(self) -> None:
        pass

    def elapsed_time(self, _end: Any) -> float:
        return 1000.0


@contextlib.contextmanager
def fake_gpu() -> Iterator[torch.device]:
    """Yield a GPU of fake tensors, whose numbers are all 1, with the answers that a driver would give."""
    device = torch.device("cuda", 0)
    watch = Watch(device)
    answers: dict[str, Any] = {
        "Event": _Event,
        "get_device_name": lambda *_: "NVIDIA H200",
        "mem_get_info": lambda *_: (140 * 10**9, 141 * 10**9),
        "memory_reserved": lambda *_: 0,
        "reset_peak_memory_stats": lambda *_: watch.reset(),
        "max_memory_allocated": lambda *_: max(1, watch.peak),
        "empty_cache": lambda: None,
        "set_sync_debug_mode": lambda _mode: None,
    }
    with (
        pretended_gpu(),
        replaced(
            *((torch.cuda, name, answer) for name, answer in answers.items()),
            (torch, "compile", lambda function, **_: function),
            (torch.nn.Module, "compile", lambda _module, **_: None),
        ),
        FakeTensorMode(allow_non_fake_inputs=True),
        watch,
    ):
        yield device
