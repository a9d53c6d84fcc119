import pytest
import torch
from torch.nn import functional as F

from coupled_adam_bench.models import cross_entropy
from coupled_adam_bench.models.cross_entropy import sum_cross_entropy, token_cross_entropy


@pytest.fixture
def head() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(70, 12, generator=generator, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(41, 12, generator=generator, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(0, 41, (70,), generator=generator)
    targets[[3, 50]] = cross_entropy.IGNORED
    return hidden, weight, targets


@pytest.mark.parametrize("chunk_numbers", [1, 41 * 20, 2**24], ids=["chunks of 16", "chunks of 20", "one chunk"])
def test_loss_and_gradients_equal_those_of_torch(head, chunk_numbers, monkeypatch):
    monkeypatch.setitem(cross_entropy._CHUNK_NUMBERS, "cpu", chunk_numbers)
    hidden, weight, targets = head
    hidden32, weight32 = (x.detach().float().requires_grad_() for x in (hidden, weight))
    (3 * sum_cross_entropy(hidden32, weight32, targets)).backward()
    expected = F.cross_entropy(hidden @ weight.T, targets, reduction="sum")
    (3 * expected).backward()
    torch.testing.assert_close(sum_cross_entropy(hidden32, weight32, targets).double(), expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(hidden32.grad.double(), hidden.grad, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(weight32.grad.double(), weight.grad, rtol=1e-5, atol=1e-5)


def test_gradient_of_the_head_sums_to_zero_over_the_vocabulary(head):
    # Paper, Sec. 3: the probabilities sum to one, so the gradients of the output embeddings sum to zero.
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
