"""Z-loss and soft cap of the chunked cross-entropy, against autograd of the plain formula and a
formula by hand."""

import math

import pytest
import torch
from torch.nn import functional as F

from coupled_adam_bench.models import cross_entropy
from coupled_adam_bench.models.build import build_model
from coupled_adam_bench.models.cross_entropy import (
    IGNORED,
    sum_cross_entropy,
    sum_with_z_loss,
    token_cross_entropy,
)
from coupled_adam_bench.models.export import load_model, save_model
from coupled_adam_bench.study.settings import Model

CASES = [(0.0, None), (0.3, None), (0.0, 2.0), (0.3, 2.0), (1e-4, 30.0)]


@pytest.fixture
def head() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(70, 12, generator=generator, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(41, 12, generator=generator, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(0, 41, (70,), generator=generator)
    targets[[3, 50]] = IGNORED
    return hidden, weight, targets


def plain(hidden, weight, targets, z_loss, soft_cap):
    """What is minimized, and the cross-entropy, with all logits and torch's own functions."""
    logits = hidden @ weight.T
    if soft_cap is not None:
        logits = soft_cap * torch.tanh(logits / soft_cap)
    loss = F.cross_entropy(logits, targets, reduction="sum", ignore_index=IGNORED)
    kept = targets != IGNORED
    return loss + z_loss * (logits.logsumexp(1) ** 2)[kept].sum(), loss


@pytest.mark.parametrize(("z_loss", "soft_cap"), CASES)
@pytest.mark.parametrize("chunk_tokens", [1, 16, 70, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_loss_and_gradients_are_those_of_the_plain_formula(
    z_loss, soft_cap, chunk_tokens, dtype, device, head, monkeypatch
):
    monkeypatch.setitem(
        cross_entropy._SOFTMAX, "cpu", cross_entropy._SOFTMAX[device]
    )  # both forms run on a CPU
    monkeypatch.setitem(cross_entropy.LOGITS_CHUNK, "cpu", chunk_tokens)
    hidden, weight, targets = head
    ours = [x.detach().to(dtype).requires_grad_() for x in (hidden, weight)]
    objective, loss = sum_with_z_loss(*ours, targets, z_loss, soft_cap)
    (3 * objective).backward()
    expected_objective, expected_loss = plain(hidden, weight, targets, z_loss, soft_cap)
    (3 * expected_objective).backward()
    tolerance = 1e-11 if dtype == torch.float64 else 3e-5
    torch.testing.assert_close(
        objective.double(), expected_objective.detach(), rtol=tolerance, atol=0
    )
    torch.testing.assert_close(loss.double(), expected_loss.detach(), rtol=tolerance, atol=0)
    for mine, theirs in zip(ours, (hidden, weight), strict=True):
        torch.testing.assert_close(mine.grad.double(), theirs.grad, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("z_loss", "soft_cap"), CASES)
def test_gradients_are_differences_of_the_value(z_loss, soft_cap, head):
    # torch.autograd.gradcheck goes backward several times, which this loss refuses.
    hidden, weight, targets = (
        head[0].detach()[:4],
        head[1].detach()[:6],
        torch.tensor([0, 5, IGNORED, 2]),
    )
    inputs = [x.clone().requires_grad_() for x in (hidden, weight)]
    sum_with_z_loss(*inputs, targets, z_loss, soft_cap)[0].backward()
    for place, x in enumerate((hidden, weight)):
        for index in range(0, x.numel(), 5):
            values = []
            for change in (1e-5, -1e-5):
                moved = [hidden.clone(), weight.clone()]
                moved[place].view(-1)[index] += change
                values.append(sum_with_z_loss(*moved, targets, z_loss, soft_cap)[0].item())
            slope = (values[0] - values[1]) / 2e-5
            assert inputs[place].grad.view(-1)[index].item() == pytest.approx(
                slope, rel=1e-6, abs=1e-8
            )


def test_one_token_by_hand():
    """Logits 2 and 0, capped at 1: tanh 2 and 0. Gradient of the first: (p (1 + 2 z log Z) - 1) (1
    - tanh^2 2)."""
    hidden = torch.ones(1, 1, dtype=torch.float64, requires_grad=True)
    weight = torch.tensor([[2.0], [0.0]], dtype=torch.float64, requires_grad=True)
    objective, loss = sum_with_z_loss(hidden, weight, torch.tensor([0]), 0.1, 1.0)
    objective.backward()
    log_z = math.log(math.exp(math.tanh(2)) + 1)
    p = math.exp(math.tanh(2) - log_z)
    assert loss.item() == pytest.approx(log_z - math.tanh(2), rel=1e-14)
    assert objective.item() == pytest.approx(loss.item() + 0.1 * log_z**2, rel=1e-14)
    first = (p * (1 + 0.2 * log_z) - 1) * (1 - math.tanh(2) ** 2)
    torch.testing.assert_close(weight.grad[:, 0].tolist(), [first, (1 - p) * (1 + 0.2 * log_z)])


def test_no_weight_and_a_cap_without_bound_are_the_plain_loss(head):
    hidden, weight, targets = head
    gradients = []
    for losses in (
        lambda: sum_cross_entropy(hidden, weight, targets),
        lambda: sum_with_z_loss(hidden, weight, targets, 0.0)[0],
        lambda: sum_with_z_loss(hidden, weight, targets, 0.0, 1e9)[0],
    ):
        gradients.append(torch.autograd.grad(losses(), (hidden, weight)))
    for name in (0, 1):
        assert torch.equal(gradients[0][name], gradients[1][name])
        torch.testing.assert_close(gradients[0][name], gradients[2][name], rtol=1e-9, atol=1e-9)


def test_a_cap_bounds_what_would_overflow(head):
    hidden, weight, targets = (x.detach() for x in head)
    hidden = (hidden * 1e30).requires_grad_()
    objective, loss = sum_with_z_loss(hidden, weight, targets, 1e-4, 15.0)
    objective.backward()
    assert loss.isfinite()
    assert hidden.grad.isfinite().all()
    assert loss <= (targets != IGNORED).sum() * (30 + math.log(41))


def test_autocast_takes_products_in_bf16_and_keeps_gradients_in_fp32(head):
    hidden, weight, targets = (x.detach().float() if x.is_floating_point() else x for x in head)
    exact, rounded = ([x.clone().requires_grad_() for x in (hidden, weight)] for _ in range(2))
    expected = sum_with_z_loss(*exact, targets, 0.01, 5.0)
    with torch.autocast("cpu", torch.bfloat16):
        found = sum_with_z_loss(*rounded, targets, 0.01, 5.0)
    expected[0].backward()
    found[0].backward()
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == torch.float32
        assert ours.item() == pytest.approx(theirs.item(), rel=0.01)
    for ours, theirs in zip(rounded, exact, strict=True):
        assert ours.grad.dtype == torch.float32
        assert (ours.grad - theirs.grad).norm() < 0.02 * theirs.grad.norm()


def test_the_loss_of_each_token_has_the_cap(head):
    hidden, weight, targets = (x.detach() for x in head)
    losses = token_cross_entropy(hidden, weight, targets, soft_cap=2.0)
    torch.testing.assert_close(losses.sum(), sum_cross_entropy(hidden, weight, targets, 2.0))
    assert losses[3] == losses[50] == 0


@pytest.mark.parametrize("architecture", ["gpt2", "stablelm"])
def test_a_capped_model_has_its_cap_wherever_it_gives_logits(architecture, tmp_path):
    settings = Model(
        name="m", architecture=architecture, n_layer=1, n_head=2, d_model=8, learning_rate=1
    )
    model = build_model(settings, 17, 6, soft_cap=0.5)
    model.init_weights(0, 2.0)
    tokens = torch.randint(0, 17, (3, 6), generator=torch.Generator().manual_seed(0))
    logits = model.logits(tokens)
    assert 0.4 < logits.abs().max() <= 0.5
    expected = F.cross_entropy(logits.flatten(0, 1), tokens.flatten(), reduction="none")
    torch.testing.assert_close(model(tokens, tokens, reduction="none").flatten(), expected)
    for reduction, value in (("mean", expected.mean()), ("sum", expected.sum())):
        torch.testing.assert_close(model(tokens, tokens, reduction=reduction), value)
    z_loss = 0.1 * logits.flatten(0, 1).logsumexp(1).square().sum()
    objective = model(tokens, tokens, reduction="objective", z_loss=0.1)
    torch.testing.assert_close(objective, (expected.sum() + z_loss, expected.sum()))
    tokenizer = tmp_path / "tokenizer"
    tokenizer.mkdir()
    (tokenizer / "tokenizer_config.json").write_text("{}")
    save_model(model, tmp_path / "model", tokenizer, 0)
    again = load_model(tmp_path / "model")
    assert again.soft_cap == 0.5
    assert torch.equal(again.logits(tokens), logits)
