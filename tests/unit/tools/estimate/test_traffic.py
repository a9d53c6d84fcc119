"""The memory traffic of training without a compiler, counted operation by operation."""

from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from coupled_adam_bench.models import base
from coupled_adam_bench.models.cross_entropy import by_log_softmax
from coupled_adam_bench.models.gpt2 import GPT2
from coupled_adam_bench.tools.estimate import roofline

VOCAB_SIZE, TOKENS, WIDTH = 512, 16 * 128, 64


class Traffic(TorchDispatchMode):
    """Counts the bytes of the matrices that operations read and write, without products, attention
    and views."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes: Counter[str] = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__
        if (
            not function.is_view
            and name not in ("mm", "_unsafe_view")
            and "attention" not in name
            and "empty" not in name
        ):
            for tensor in tree_leaves((args, result)):
                if isinstance(tensor, torch.Tensor) and tensor.ndim > 1:
                    self.bytes[name] += tensor.nbytes
        return result


def test_a_layer(monkeypatch):
    """A cast of each weight is in it, which the estimate counts with the weights."""
    monkeypatch.setattr(base, "IN_FLOAT32", ())
    found = []
    for n_layer in (1, 2):
        model = GPT2(VOCAB_SIZE, 128, n_layer, 2, WIDTH, 4 * WIDTH, True)
        model.init_weights(0, 0.02)
        tokens = torch.randint(
            0, VOCAB_SIZE, (TOKENS // 128, 128), generator=torch.Generator().manual_seed(0)
        )
        with Traffic() as traffic, torch.autocast("cpu", torch.bfloat16):
            hidden = model.hidden(tokens)
            hidden.backward(torch.ones_like(hidden))
        found.append(traffic.bytes)
    each = {name: (found[1][name] - found[0][name]) / (TOKENS * WIDTH) for name in found[1]}
    weights = 12 * WIDTH / TOKENS * 2 * (4 + 2)  # cast, and the gradient back
    assert sum(each.values()) - weights == pytest.approx(roofline._LAYER_PLAIN, rel=0.1), each


def test_a_logit():
    logits = torch.randn(TOKENS, VOCAB_SIZE).bfloat16()
    with Traffic() as traffic:
        by_log_softmax(logits, torch.zeros(TOKENS, 1, dtype=torch.int64))
    written = 2  # by the product before
    # An operation in place has its matrix twice, as argument and as result: read and written.
    assert sum(traffic.bytes.values()) / logits.numel() + written == pytest.approx(
        roofline._LOGIT[False], rel=0.2
    ), traffic.bytes
