"""Fake CUDA tensors on a machine without a GPU: what a CUDA build of PyTorch asks of a driver, answered without one.

Under ``FakeTensorMode`` nothing is computed, so operations need no GPU. Three things still do, and are replaced: the
C++ autograd engine, which asks the driver for streams; the choice of the attention kernel, which depends on the model
of the GPU; and what ``torch.cuda`` answers about the device. Seen with PyTorch 2.15.0 for CUDA 13.2.
"""

import contextlib
import heapq
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node
from torch.nn import functional as F

_FLASH_DTYPES = (torch.bfloat16, torch.float16)


class _Stream(torch.cpu.Stream):
    """A stream of a GPU on which nothing runs, so there is nothing to wait for."""

    stream_id, device_index, device_type = 0, 0, 1  # PyTorch's number of CUDA

    def record_event(self) -> torch.cpu.Event:  # type: ignore[override]
        return torch.cpu.Event()


@contextlib.contextmanager
def replaced(*replacements: tuple[Any, str, Any]) -> Iterator[None]:
    """Replace attributes, each given as (owner, name, value), for the time of a block."""
    with contextlib.ExitStack() as stack:
        for owner, name, value in replacements:
            # Through a class, an inherited attribute would be written into the class and stay there.
            if name in vars(owner):
                stack.callback(setattr, owner, name, vars(owner)[name])
            else:
                stack.callback(delattr, owner, name)
            setattr(owner, name, value)
        yield


def is_possible() -> bool:
    """Tell whether this build of PyTorch has fake CUDA tensors that autograd accepts; it needs no driver."""
    return torch.version.cuda is not None


@contextlib.contextmanager
def pretended_gpu() -> Iterator[None]:
    """Let training code under ``FakeTensorMode`` run on the device ``cuda:0`` of a machine without a GPU."""
    cuda, engine = torch.cuda, _Engine()
    answers: dict[str, Any] = {
        "is_bf16_supported": lambda *_, **__: True,
        "set_device": lambda _device: None,
        "current_device": lambda: 0,
        "synchronize": lambda *_: None,
        "current_stream": lambda *_: _Stream(),
        "stream": lambda _stream: contextlib.nullcontext(),
        "Stream": _Stream,
        "Event": torch.cpu.Event,
    }
    with (
        replaced(
            *((cuda, name, answer) for name, answer in answers.items()),
            (torch.accelerator, "current_stream", answers["current_stream"]),
            (cuda.amp.common, "amp_definitely_not_available", lambda: False),  # or autocast would be switched off
            (Tensor, "pin_memory", lambda tensor, *_: tensor),
            (Tensor, "record_stream", lambda _tensor, _stream: None),
            (F, "scaled_dot_product_attention", _attention),
            (torch.autograd, "_engine_run_backward", engine.run),
            (torch.autograd.Variable, "_execution_engine", engine),
            (Tensor, "register_hook", engine.register_hook),
        ),
    ):
        yield


def _attention(q_BHTK: Tensor, k_BHTK: Tensor, v_BHTK: Tensor, mask: None, *, is_causal: bool) -> Tensor:
    """Return causal attention by the kernel that PyTorch takes on GPUs from Ampere on: none holds a T x T matrix."""
    assert mask is None
    inputs = (q_BHTK, k_BHTK, v_BHTK)
    if torch.is_autocast_enabled(q_BHTK.device.type):
        inputs = tuple(each.to(torch.get_autocast_dtype(q_BHTK.device.type)) for each in inputs)  # type: ignore[assignment]
    if inputs[0].dtype in _FLASH_DTYPES:
        return torch.ops.aten._scaled_dot_product_flash_attention(*inputs, 0.0, is_causal)[0]  # type: ignore[no-any-return]
    return torch.ops.aten._scaled_dot_product_efficient_attention(*inputs, None, True, 0.0, is_causal)[0]  # type: ignore[no-any-return]


Callback = Callable[[], None]
Hook = Callable[[Tensor], Tensor | None]


class _Engine:
    """Backward passes in Python: nodes in the order of the C++ engine, each freed once it is done."""

    def __init__(self) -> None:
        self._callbacks: list[Callback] = []
        self._hooks: dict[Node, list[tuple[int, Hook]]] = defaultdict(list)
        self._register_on_leaf = Tensor.register_hook

    def queue_callback(self, callback: Callback) -> None:
        self._callbacks.append(callback)

    @property
    def register_hook(self) -> Callable[[Tensor, Hook], Any]:
        """What stands in for ``Tensor.register_hook``."""

        def register(tensor: Tensor, hook: Hook) -> Any:
            if tensor.grad_fn is None:
                return self._register_on_leaf(tensor, hook)  # type: ignore[no-untyped-call]
            self._hooks[tensor.grad_fn].append((tensor.output_nr, hook))
            return None

        return register

    @torch.no_grad()
    def run(self, tensors: Sequence[Tensor], grads: Sequence[Tensor], *_: Any, **__: Any) -> tuple[()]:
        """Stand in for the C++ engine in ``loss.backward()``."""
        (loss,), (grad,) = tensors, grads
        root = loss.grad_fn
        assert root is not None
        loss.detach_()  # or the caller's variable would hold the graph until the end
        waiting = _dependencies(root)
        received: dict[Node, dict[int, Tensor]] = {root: {0: grad}}
        ready: list[tuple[int, int, Node]] = [(0, 0, root)]
        n_ready = 0
        del root, grad
        while ready:
            node = heapq.heappop(ready)[-1]
            for (following, index), output in zip(node.next_functions, self._call(node, received), strict=True):
                if following is None:
                    continue
                if output is not None:
                    slots = received.setdefault(following, {})
                    given = _checked(output, following, index, node)
                    slots[index] = slots[index] + given if index in slots else given
                waiting[following] -= 1
                if waiting[following] == 0:
                    del waiting[following]
                    n_ready += 1
                    heapq.heappush(ready, (-following._sequence_nr(), n_ready, following))
            # Nothing may hold a node, and with it what it saved, or a gradient after its use.
            del node
            following = output = given = slots = None  # type: ignore[assignment]
        self._hooks.clear()
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()
        return ()

    def _call(self, node: Node, received: dict[Node, dict[int, Tensor]]) -> tuple[Tensor | None, ...]:
        """Call a node with the gradients that it has received, after the hooks of its outputs."""
        given = received.pop(node, {})
        for index, hook in self._hooks.pop(node, []):
            if index in given and (replacement := hook(given[index])) is not None:
                given[index] = replacement
        arguments = [given.pop(index, None) for index in range(len(node._input_metadata))]
        if callable(node):
            returned = node(*arguments)
            return returned if isinstance(returned, tuple) else (returned,)
        returned = node.apply(*arguments)  # type: ignore[attr-defined]
        outputs = list(returned) if isinstance(returned, tuple) else [returned]
        while len(outputs) > len(node.next_functions):  # a Python function returns None for what is not a tensor, too
            outputs.remove(None)
        return tuple(outputs)


def _dependencies(root: Node) -> dict[Node, int]:
    """Return for each node how many nodes give it a gradient."""
    counts: dict[Node, int] = defaultdict(int)
    stack, seen = [root], {root}
    while stack:
        for following, _ in stack.pop().next_functions:
            if following is not None:
                counts[following] += 1
                if following not in seen:
                    seen.add(following)
                    stack.append(following)
    return counts


def _checked(grad: Tensor, node: Node, index: int, origin: Node) -> Tensor:
    """Return a gradient as its receiver needs it, as the C++ engine does; raise ``RuntimeError`` for another device."""
    expected = node._input_metadata[index]
    if grad.device != expected.device:
        raise RuntimeError(
            f"{origin.name()} returned a gradient on {grad.device}, but its input is on {expected.device}"
        )
    if grad.shape != expected.shape:
        grad = grad.sum_to_size(expected.shape)
    return grad if grad.dtype == expected.dtype else grad.to(expected.dtype)
