"""The loss in chunks against torch's own over all logits."""

import math
from functools import partial

import pytest
import torch
from torch.nn import functional as F

from coupled_adam_bench.models import cross_entropy
from coupled_adam_bench.models.cross_entropy import (
    by_log_softmax,
    by_softmax,
    sum_cross_entropy,
    token_cross_entropy,
)


@pytest.fixture
def head() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Hidden states, weight and targets."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(70, 12, generator=generator, dtype=torch.float64)
    weight = torch.randn(41, 12, generator=generator, dtype=torch.float64)
    targets = torch.randint(0, 41, (70,), generator=generator)
    return hidden, weight, targets


def exact(hidden, weight, targets):
    """Loss and both gradients, of three times the loss, by torch in float64."""
    hidden, weight = (matrix.clone().requires_grad_() for matrix in (hidden, weight))
    loss = F.cross_entropy(hidden @ weight.T, targets, reduction="sum")
    (3 * loss).backward()
    return loss.detach(), hidden.grad, weight.grad


def ours(hidden, weight, targets, dtype, chunk_loss=None):
    """The same by our function."""
    hidden, weight = (matrix.to(dtype, copy=True).requires_grad_() for matrix in (hidden, weight))
    loss = sum_cross_entropy(hidden, weight, targets, chunk_loss)
    (3 * loss).backward()
    return loss.detach(), hidden.grad, weight.grad


@pytest.mark.parametrize("chunk", [1, 20, 70, 1000])
@pytest.mark.parametrize("softmax", [None, by_log_softmax], ids=["cpu", "cuda"])
@pytest.mark.parametrize(
    ("dtype", "bound"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 2**-6)]
)
def test_loss_and_gradients_are_those_of_torch(head, chunk, softmax, dtype, bound, monkeypatch):
    monkeypatch.setitem(cross_entropy.CHUNK, "cpu", chunk)
    chunk_loss = None if softmax is None else partial(by_softmax, softmax=softmax)
    found = ours(*head, dtype, chunk_loss)
    assert found[0].dtype == torch.promote_types(dtype, torch.float32)
    for one, expected in zip(found, exact(*head), strict=True):
        assert (one.double() - expected).norm() <= bound * expected.norm()


@pytest.mark.parametrize("chunk", [7, 35])
def test_autocast_multiplies_in_bf16_and_adds_gradients_in_float32(head, chunk, monkeypatch):
    monkeypatch.setitem(cross_entropy.CHUNK, "cpu", chunk)
    with torch.autocast("cpu", torch.bfloat16):
        found = ours(*head, torch.float32)
    assert {tensor.dtype for tensor in found} == {torch.float32}
    for one, expected in zip(found, exact(*head), strict=True):
        assert 0 < (one.double() - expected).norm() <= 2**-6 * expected.norm()


def test_a_probability_near_one_keeps_its_gradient_in_bf16():
    # In bfloat16 the softmax is 1 at a margin of 8, but p - 1 = -1 / (1 + e^8) is not 0.
    hidden = torch.ones(1, 1, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        loss = sum_cross_entropy(hidden, torch.tensor([[8.0], [0.0]]), torch.tensor([0]))
    loss.backward()
    assert hidden.grad.item() == pytest.approx(-8 / (1 + math.exp(8)), rel=0.01)


def test_extreme_logits_neither_overflow_nor_lose_the_gradient():
    weight = torch.tensor([[1e4], [-1e4], [0.0]])
    hidden = torch.tensor([[1.0], [1.0], [-1.0]])
    targets = torch.tensor([0, 1, 1])  # certain and right, certain and wrong, certain and right
    loss, hidden_grad, _ = ours(hidden, weight, targets, torch.float32)
    assert loss == 2e4
    torch.testing.assert_close(hidden_grad, torch.tensor([[0.0], [6e4], [0.0]]))
    losses = token_cross_entropy(hidden, weight, targets)
    torch.testing.assert_close(losses, torch.tensor([0.0, 2e4, 0.0]))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_is_seen_in_the_loss(head, value):
    hidden, weight, targets = head
    hidden[7, 2] = value
    assert not sum_cross_entropy(hidden, weight, targets).isfinite()


def test_the_losses_of_tokens_are_torch_s(head, monkeypatch):
    monkeypatch.setitem(cross_entropy.CHUNK, "cpu", 20)
    hidden, weight, targets = head
    losses = token_cross_entropy(hidden, weight, targets)
    expected = F.cross_entropy(hidden @ weight.T, targets, reduction="none")
    torch.testing.assert_close(losses, expected)
