import math

import pytest
import torch
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

from coupled_adam_bench.models import cross_entropy
from coupled_adam_bench.models.cross_entropy import (
    by_log_softmax,
    sum_cross_entropy,
    sum_with_z_loss,
    token_cross_entropy,
)


@pytest.fixture
def head() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(70, 12, generator=generator, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(41, 12, generator=generator, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(0, 41, (70,), generator=generator)
    targets[[3, 50]] = cross_entropy.IGNORED
    return hidden, weight, targets


@pytest.mark.parametrize("chunk_tokens", [1, 16, 20, 70, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_loss_and_gradients_equal_those_of_torch(head, chunk_tokens, dtype, device, monkeypatch):
    monkeypatch.setitem(
        cross_entropy._SOFTMAX, "cpu", cross_entropy._SOFTMAX[device]
    )  # both forms run on a CPU
    monkeypatch.setitem(cross_entropy.LOGITS_CHUNK, "cpu", chunk_tokens)
    hidden, weight, targets = head
    ours_hidden, ours_weight = (x.detach().to(dtype).requires_grad_() for x in (hidden, weight))
    loss = sum_cross_entropy(ours_hidden, ours_weight, targets)
    (3 * loss).backward()
    expected = F.cross_entropy(hidden @ weight.T, targets, reduction="sum")
    (3 * expected).backward()
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    assert loss.dtype == dtype
    torch.testing.assert_close(loss.double(), expected, rtol=tolerance, atol=0)
    torch.testing.assert_close(
        ours_hidden.grad.double(), hidden.grad, rtol=tolerance, atol=tolerance
    )
    torch.testing.assert_close(
        ours_weight.grad.double(), weight.grad, rtol=tolerance, atol=tolerance
    )


def test_a_compiled_softmax_gives_the_same_bits(head):
    """The compiler's own kernels are for GPUs: here it traces the function and runs its parts."""
    hidden, weight, targets = (tensor.detach() for tensor in head)
    found = []
    for softmax in (
        by_log_softmax,
        torch.compile(by_log_softmax, dynamic=False, backend="aot_eager"),
    ):
        ours = [tensor.bfloat16().requires_grad_() for tensor in (hidden, weight)]
        objective, _ = sum_with_z_loss(*ours, targets, 1e-4, None, softmax)
        objective.backward()
        found.append((objective, *(tensor.grad for tensor in ours)))
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_extreme_logits_neither_overflow_nor_lose_the_gradient():
    weight = torch.tensor([[1e4], [-1e4], [0.0]], dtype=torch.float64, requires_grad=True)
    hidden = torch.tensor([[1.0], [1.0], [-1.0]], dtype=torch.float64, requires_grad=True)
    targets = torch.tensor([0, 1, 1])  # certain and right, certain and wrong, certain and right
    loss = sum_cross_entropy(hidden, weight, targets)
    loss.backward()
    assert loss.item() == 2e4
    torch.testing.assert_close(
        hidden.grad, torch.tensor([[0.0], [2e4], [0.0]], dtype=torch.float64)
    )
    losses = token_cross_entropy(hidden, weight, targets)
    torch.testing.assert_close(losses, torch.tensor([0.0, 2e4, 0.0], dtype=torch.float64))


def test_a_probability_near_one_keeps_its_gradient_in_bf16():
    # In bfloat16 softmax rounds to 1 at a margin of 8, while p - 1 = -1 / (1 + e^8) does not round
    # to 0.
    hidden = torch.ones(1, 1, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        loss = sum_cross_entropy(hidden, torch.tensor([[8.0], [0.0]]), torch.tensor([0]))
    loss.backward()
    assert hidden.grad.item() == pytest.approx(-8 / (1 + math.exp(8)), rel=0.01)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_is_seen_in_the_loss(head, value):
    hidden, weight, targets = (x.detach().clone() for x in head)
    hidden[7, 2] = value
    assert not torch.isfinite(sum_cross_entropy(hidden, weight, targets))


def test_without_any_target_loss_and_gradients_are_zero(head):
    hidden, weight, targets = head
    loss = sum_cross_entropy(hidden, weight, torch.full_like(targets, cross_entropy.IGNORED))
    loss.backward()
    assert loss.item() == 0
    assert not hidden.grad.any()
    assert not weight.grad.any()


def test_gradient_of_the_head_sums_to_zero_over_the_vocabulary(head):
    # Paper, Sec. 3: the probabilities sum to one, so the gradients of the output embeddings sum to
    # zero.
    hidden, weight, targets = (x.detach().float() if x.is_floating_point() else x for x in head)
    weight.requires_grad_()
    sum_cross_entropy(hidden, weight, targets).backward()
    assert weight.grad.sum(0).abs().max() < 1e-5 * weight.grad.abs().sum(0).max()


def test_autocast_takes_products_in_bf16_and_keeps_gradients_in_fp32(head):
    hidden, weight, targets = (x.detach().float() if x.is_floating_point() else x for x in head)
    weight.requires_grad_()
    exact = sum_cross_entropy(hidden, weight, targets).item()
    with torch.autocast("cpu", torch.bfloat16):
        loss = sum_cross_entropy(hidden, weight, targets)
    loss.backward()
    assert weight.grad.dtype == torch.float32
    assert loss.item() != exact
    assert loss.item() == pytest.approx(exact, rel=0.01)


def test_token_losses_sum_to_the_sum_and_are_zero_where_ignored(head):
    hidden, weight, targets = (x.detach().float() if x.is_floating_point() else x for x in head)
    losses = token_cross_entropy(hidden, weight, targets)
    torch.testing.assert_close(losses.sum(), sum_cross_entropy(hidden, weight, targets))
    assert losses[3] == losses[50] == 0


def test_bf16_logits_are_cast_to_float32_and_back_once(head, monkeypatch):
    monkeypatch.setitem(cross_entropy.LOGITS_CHUNK, "cpu", 35)
    hidden, weight, targets = (x.detach().float() if x.is_floating_point() else x for x in head)
    weight.requires_grad_()
    with (
        profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiled,
        torch.autocast("cpu", torch.bfloat16),
    ):
        sum_cross_entropy(hidden, weight, targets)
    copies = [event.input_shapes for event in profiled.events() if event.name == "aten::copy_"]
    of_logits = [shapes for shapes in copies if shapes[0] == [35, 41]]
    assert len(of_logits) == 2 * 2  # of two chunks


def test_the_head_s_gradient_is_the_same_by_blocks(head, monkeypatch):
    hidden, weight, targets = (x.detach().float() if x.is_floating_point() else x for x in head)
    gradients = []
    for block in (2**18, 5 * 12, 1):
        monkeypatch.setattr(cross_entropy, "_BLOCK", block)
        ours = weight.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            sum_cross_entropy(hidden, ours, targets).backward()
        gradients.append(ours.grad)
    assert torch.equal(gradients[0], gradients[1])
    assert torch.equal(gradients[0], gradients[2])
