import math

import numpy as np
import pytest
import torch

from coupled_adam_bench.optim import CoupledAdam

ROWS, COLUMNS = 13, 5


def paper_formula(start, grads, lr, beta1, beta2, eps, weight_decay, scale):
    """The paper's algorithm word for word in numpy: a full second moment, its moving average averaged over the rows."""
    weight, first, second = start.copy(), np.zeros_like(start), np.zeros_like(start)
    for step, grad in enumerate(grads, 1):
        first = beta1 * first + (1 - beta1) * grad
        second = beta2 * second + (1 - beta2) * grad**2
        first_hat, second_hat = first / (1 - beta1**step), second / (1 - beta2**step)
        coupled = np.broadcast_to(second_hat.mean(0), second.shape) * scale
        weight = weight - lr * weight_decay * weight
        weight = weight - lr * first_hat / (np.sqrt(coupled) + eps)
    return weight


def run(optimizer_class, start, grads, **settings):
    weight = torch.nn.Parameter(torch.tensor(start))
    optimizer = optimizer_class([weight], **settings)
    for grad in grads:
        weight.grad = torch.tensor(grad)
        optimizer.step()
    return weight.detach().numpy(), optimizer


@pytest.mark.parametrize("scale", [1.0, 2.0**-5, 2.0**5])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_equals_the_formula_of_the_paper_over_1000_steps(scale, weight_decay):
    generator = np.random.default_rng(0)
    start = generator.normal(size=(ROWS, COLUMNS))
    # Rows of very different size, as frequent and rare tokens have.
    grads = generator.normal(size=(1000, ROWS, COLUMNS)) * np.logspace(-4, 0, ROWS)[:, None]
    settings = {"lr": 1e-2, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": weight_decay}
    weight, _ = run(CoupledAdam, start, grads, scale=scale, **settings)
    expected = paper_formula(start, grads, 1e-2, 0.9, 0.95, 1e-8, weight_decay, scale)
    np.testing.assert_allclose(weight, expected, rtol=0, atol=1e-12)


def test_equals_adamw_when_all_rows_see_the_same_gradient():
    generator = np.random.default_rng(1)
    start = generator.normal(size=(ROWS, COLUMNS))
    grads = np.repeat(generator.normal(size=(200, 1, COLUMNS)), ROWS, axis=1)
    settings = {"lr": 1e-2, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
    ours, _ = run(CoupledAdam, start, grads, **settings)
    theirs, _ = run(torch.optim.AdamW, start, grads, **settings)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)


def test_the_mean_moves_with_adam_and_not_with_coupled_adam():
    # Paper, Sec. 3 and 4: gradients that sum to zero over the rows give updates that do so only if coupled.
    generator = np.random.default_rng(2)
    grads = generator.normal(size=(50, ROWS, COLUMNS)) * np.logspace(-3, 0, ROWS)[:, None]
    grads -= grads.mean(1, keepdims=True)
    start = np.zeros((ROWS, COLUMNS))
    coupled, _ = run(CoupledAdam, start, grads, lr=1e-2)
    adam, _ = run(torch.optim.AdamW, start, grads, lr=1e-2, weight_decay=0.0)
    assert np.abs(coupled.mean(0)).max() < 1e-15
    assert np.abs(adam.mean(0)).max() > 1e-3


def test_second_moment_is_one_number_per_column():
    _, optimizer = run(CoupledAdam, np.zeros((ROWS, COLUMNS)), [np.ones((ROWS, COLUMNS))])
    (state,) = optimizer.state.values()
    assert state["exp_avg_sq"].shape == (COLUMNS,)
    assert state["exp_avg"].shape == (ROWS, COLUMNS)


def test_state_dict_round_trip_goes_on_bit_for_bit():
    generator = np.random.default_rng(3)
    start, grads = generator.normal(size=(ROWS, COLUMNS)), generator.normal(size=(20, ROWS, COLUMNS))
    through, _ = run(CoupledAdam, start, grads, lr=1e-2)
    half, optimizer = run(CoupledAdam, start, grads[:10], lr=1e-2)
    weight = torch.nn.Parameter(torch.tensor(half))
    again = CoupledAdam([weight], lr=0.5)
    again.load_state_dict(optimizer.state_dict())
    for grad in grads[10:]:
        weight.grad = torch.tensor(grad)
        again.step()
    assert np.array_equal(weight.detach().numpy(), through)


def test_a_zero_gradient_and_lr_zero_change_nothing():
    start = np.random.default_rng(4).normal(size=(ROWS, COLUMNS))
    assert np.array_equal(run(CoupledAdam, start, [np.zeros_like(start)])[0], start)
    assert np.array_equal(run(CoupledAdam, start, [np.ones_like(start)], lr=0.0)[0], start)


def test_closure_returns_its_loss_and_parameters_without_gradient_stay():
    weight, other = (torch.nn.Parameter(torch.ones(2, 2)) for _ in range(2))
    optimizer = CoupledAdam([weight, other])

    def closure():
        optimizer.zero_grad()
        loss = weight.square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 4.0
    assert math.isclose(other.sum().item(), 4.0)
    assert other not in optimizer.state


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"lr": -1.0}, "lr"),
        ({"betas": (1.0, 0.9)}, "betas"),
        ({"eps": -1e-8}, "eps"),
        ({"weight_decay": -0.1}, "weight_decay"),
        ({"scale": 0.0}, "scale"),
    ],
)
def test_settings_out_of_range_are_named(settings, field):
    with pytest.raises(ValueError, match=rf"^{field}: .* out of range"):
        CoupledAdam([torch.nn.Parameter(torch.ones(2, 2))], **settings)


def test_a_vector_is_refused():
    with pytest.raises(ValueError, match=r"takes matrices, got a parameter of shape \(3,\)"):
        CoupledAdam([torch.nn.Parameter(torch.ones(3))])
