"""The rule against the paper's formula, and what is AdamW against torch's."""

import warnings

import numpy as np
import pytest
import torch

from coupled_adam import CoupledAdam

ROWS, COLUMNS = 13, 5


def paper_formula(start, grads, lr, beta1, beta2, eps, weight_decay, scale):
    """The paper's algorithm word for word: a full second moment, averaged over the rows."""
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
    return weight.detach().numpy()


def drawn(seed, steps, rows=ROWS):
    """A start and gradients whose rows differ in size as those of frequent and rare tokens."""
    generator = np.random.default_rng(seed)
    start = generator.normal(size=(rows, COLUMNS))
    sizes = np.logspace(-4, 0, rows)[:, None]
    return start, generator.normal(size=(steps, rows, COLUMNS)) * sizes


@pytest.mark.parametrize("scale", [1.0, 2.0**-5, 2.0**5])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_1000_steps_are_those_of_the_paper_s_formula(scale, weight_decay):
    start, grads = drawn(0, 1000)
    settings = {"lr": 1e-2, "eps": 1e-8, "weight_decay": weight_decay}
    ours = run(CoupledAdam, start, grads, betas=(0.9, 0.95), scale=scale, **settings)
    expected = paper_formula(start, grads, beta1=0.9, beta2=0.95, scale=scale, **settings)
    np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-12)


def test_rows_beyond_a_block_are_counted():
    start, grads = drawn(1, 20, rows=300)
    ours = run(CoupledAdam, start, grads, lr=1e-2)
    expected = paper_formula(start, grads, 1e-2, 0.9, 0.999, 1e-8, 0.0, 1.0)
    np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-12)
    up = run(CoupledAdam, start, -grads, lr=1e-2, maximize=True)
    np.testing.assert_allclose(up, ours, rtol=0, atol=1e-12)


def test_each_group_has_its_own_settings():
    own = (
        {"lr": 1e-1, "betas": (0.8, 0.9), "eps": 1e-3, "weight_decay": 0.3, "scale": 4.0},
        {"lr": 1e-3, "betas": (0.95, 0.99), "eps": 1e-2, "weight_decay": 0.0, "scale": 0.5},
    )
    data = [drawn(seed, 30) for seed in (2, 3)]
    weights = [torch.nn.Parameter(torch.tensor(start)) for start, _ in data]
    groups = [{"params": [weight], **each} for weight, each in zip(weights, own, strict=True)]
    optimizer = CoupledAdam(groups[:1])
    optimizer.add_param_group(groups[1])
    for grads in zip(*(grads for _, grads in data), strict=True):
        for weight, grad in zip(weights, grads, strict=True):
            weight.grad = torch.tensor(grad)
        optimizer.step()
    for weight, (start, grads), each in zip(weights, data, own, strict=True):
        given = {name: value for name, value in each.items() if name != "betas"}
        beta1, beta2 = each["betas"]
        expected = paper_formula(start, grads, beta1=beta1, beta2=beta2, **given)
        np.testing.assert_allclose(weight.detach().numpy(), expected, rtol=0, atol=1e-12)


def test_equal_rows_move_as_with_adamw():
    start, grads = drawn(4, 200)
    grads = np.repeat(grads[:, :1], ROWS, axis=1)
    settings = {"lr": 1e-2, "betas": (0.9, 0.95), "weight_decay": 0.1}
    ours = run(CoupledAdam, start, grads, **settings)
    theirs = run(torch.optim.AdamW, start, grads, **settings)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)


def test_the_mean_moves_with_adamw_alone():
    # Paper, Sec. 3 and 4: gradients of a head sum to zero over the rows.
    start, grads = drawn(5, 50)
    grads -= grads.mean(1, keepdims=True)
    moved = run(CoupledAdam, start, grads, lr=1e-2) - start
    adams = run(torch.optim.AdamW, start, grads, lr=1e-2, weight_decay=0.0) - start
    assert np.abs(moved.mean(0)).max() < 1e-14
    assert np.abs(adams.mean(0)).max() > 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_groups_have_the_bits_of_adamw(dtype):
    generator = torch.Generator().manual_seed(0)
    shapes = [(7, 3), (4,), (2, 3, 2)]
    start = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
    ours, theirs = ([torch.nn.Parameter(tensor.clone()) for tensor in start] for _ in range(2))
    settings = {"lr": 1e-2, "betas": (0.9, 0.95), "weight_decay": 0.1}
    one = CoupledAdam([{"params": ours, "coupled": False}], **settings)
    other = torch.optim.AdamW(theirs, **settings)
    for step in range(20):
        for mine, its in zip(ours, theirs, strict=True):
            mine.grad = torch.randn(mine.shape, generator=generator).to(dtype)
            its.grad = mine.grad.clone()
        if step % 3 == 0:  # a parameter without a gradient stays
            ours[1].grad = theirs[1].grad = None
        one.step()
        other.step()
    assert all(torch.equal(mine, its) for mine, its in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_run_goes_on_with_the_same_bits(dtype, tmp_path):
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(ROWS, COLUMNS, generator=generator).to(dtype)
    grads = torch.randn(20, ROWS, COLUMNS, generator=generator).to(dtype)

    def at(weight, state=None):
        weight = torch.nn.Parameter(weight.clone())
        optimizer = CoupledAdam([weight], lr=1e-2, weight_decay=0.1)
        if state is not None:
            optimizer.load_state_dict(state)
        return weight, optimizer

    def go(weight, optimizer, grads):
        for grad in grads:
            weight.grad = grad.clone()
            optimizer.step()

    whole, first = at(start), at(start)
    go(*whole, grads)
    go(*first, grads[:10])
    torch.save(first[1].state_dict(), tmp_path / "state.pt")
    second = at(first[0].detach(), torch.load(tmp_path / "state.pt", weights_only=True))
    go(*second, grads[10:])
    assert torch.equal(second[0], whole[0])
    (state,) = second[1].state.values()
    assert state["exp_avg"].dtype == dtype
    assert state["exp_avg_sq"].dtype == torch.float32 and state["exp_avg_sq"].shape == (COLUMNS,)


def test_a_closure_gives_its_loss_and_parameters_without_gradient_stay():
    weight, other = (torch.nn.Parameter(torch.ones(2, 2)) for _ in range(2))
    optimizer = CoupledAdam([weight, other])

    def closure():
        optimizer.zero_grad()
        loss = weight.square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 4.0
    assert weight.sum() < 4 and torch.equal(other, torch.ones(2, 2))


@pytest.mark.parametrize(
    "settings",
    [
        {"lr": -1.0},
        {"betas": (1.0, 0.9)},
        {"betas": (0.9, -0.1)},
        {"eps": -1e-8},
        {"weight_decay": -0.1},
        {"scale": 0.0},
    ],
)
def test_settings_out_of_range_are_named(settings):
    (name,) = settings
    with pytest.raises(ValueError, match=name):
        CoupledAdam([torch.nn.Parameter(torch.ones(2, 2))], **settings)


def test_vectors_are_refused_and_a_third_matrix_warns_once():
    matrices = [torch.nn.Parameter(torch.ones(2, 2)) for _ in range(5)]
    vector = torch.nn.Parameter(torch.ones(2))
    with pytest.raises(ValueError, match="coupled=False"):
        CoupledAdam([vector])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        CoupledAdam(matrices[:2])
        CoupledAdam([{"params": [*matrices, vector]}], coupled=False)
    with pytest.warns(UserWarning, match="3 parameters"):
        optimizer = CoupledAdam(matrices[:3])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.add_param_group({"params": matrices[3:]})
