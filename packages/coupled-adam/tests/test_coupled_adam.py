import math
import subprocess
import sys

import numpy as np
import pytest
import torch

from coupled_adam import CoupledAdam
from coupled_adam.update import sums_of_squares

ROWS, COLUMNS = 13, 5


def paper_formula(start, grads, lr, beta1, beta2, eps, weight_decay, scale):
    """The paper's algorithm word for word in numpy: a full second moment, its moving average
    averaged over the rows."""
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


@pytest.mark.parametrize(
    ("scale", "weight_decay", "fused"),
    [(1.0, 0.0, None), (1.0, 0.1, True), (2.0**-5, 0.1, None), (2.0**5, 0.0, True)],
)
def test_equals_the_formula_of_the_paper_over_1000_steps(scale, weight_decay, fused):
    generator = np.random.default_rng(0)
    start = generator.normal(size=(ROWS, COLUMNS))
    # Rows of very different size, as frequent and rare tokens have.
    grads = generator.normal(size=(1000, ROWS, COLUMNS)) * np.logspace(-4, 0, ROWS)[:, None]
    settings = {"lr": 1e-2, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": weight_decay}
    weight, _ = run(CoupledAdam, start, grads, scale=scale, fused=fused, **settings)
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
    # Paper, Sec. 3 and 4: gradients that sum to zero over the rows give updates that do so only if
    # coupled.
    generator = np.random.default_rng(2)
    grads = generator.normal(size=(50, ROWS, COLUMNS)) * np.logspace(-3, 0, ROWS)[:, None]
    grads -= grads.mean(1, keepdims=True)
    start = np.zeros((ROWS, COLUMNS))
    coupled, _ = run(CoupledAdam, start, grads, lr=1e-2)
    adam, _ = run(torch.optim.AdamW, start, grads, lr=1e-2, weight_decay=0.0)
    assert np.abs(coupled.mean(0)).max() < 1e-15
    assert np.abs(adam.mean(0)).max() > 1e-3


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


@pytest.mark.parametrize(
    "settings", [{"amsgrad": True}, {"foreach": True}, {"differentiable": True}]
)
def test_what_only_adamw_has_is_refused_with_what_to_write(settings):
    (name,) = settings
    parameter = torch.nn.Parameter(torch.ones(2, 2))
    refused = pytest.raises(
        ValueError, match=rf"^{name}: True is not supported by CoupledAdam; leave it out"
    )
    with refused:
        CoupledAdam([parameter], **settings)
    with refused:  # in a group too, where torch keeps any key
        CoupledAdam([{"params": [parameter], **settings}])
    CoupledAdam([parameter], amsgrad=False, foreach=None, differentiable=False)  # AdamW's defaults


def test_a_module_is_refused_with_what_to_write():
    with pytest.raises(
        TypeError, match=r"^params: got a module, Sequential; .*coupled_param_groups\(model\)"
    ):
        CoupledAdam(torch.nn.Sequential(torch.nn.Linear(2, 2)))


@pytest.mark.parametrize(
    ("parameter", "settings", "message"),
    [
        (
            torch.ones(6),
            {},
            (
                r"real numbers, got a parameter of shape \(6,\) .*coupled=False, as"
                r" coupled_param_groups"
            ),
        ),
        (
            torch.ones(2, 2, dtype=torch.complex64),
            {},
            r"real numbers, .* of shape \(2, 2\) and torch.complex64",
        ),
        (
            torch.ones(2, 3),
            {"coupled_dim": 2},
            r"^coupled_dim: 2 is not a dimension of a parameter of shape \(2, 3\)$",
        ),
    ],
)
def test_what_cannot_be_coupled_is_refused(parameter, settings, message):
    with pytest.raises(ValueError, match=message):
        CoupledAdam([torch.nn.Parameter(parameter)], **settings)


def test_equals_the_formula_of_the_paper_in_a_training():
    torch.manual_seed(0)
    embedding = torch.nn.Embedding(29, 6).double()
    start, grads = embedding.weight.detach().numpy().copy(), []
    optimizer = CoupledAdam([embedding.weight], lr=1e-2)
    for batch in (
        (torch.randn(300, 2, 9).abs() * 8).long().clamp(max=28)
    ):  # frequent and rare tokens
        logits = torch.nn.functional.linear(embedding(batch[:, :-1]), embedding.weight)
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten()).backward()
        grads.append(embedding.weight.grad.numpy().copy())
        optimizer.step()
        optimizer.zero_grad()
    expected = paper_formula(start, grads, 1e-2, 0.9, 0.999, 1e-8, 0.0, 1.0)
    np.testing.assert_allclose(embedding.weight.detach().numpy(), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("shape", "dim", "order"),
    [((5, 13), 1, (1, 0)), ((4, 13, 3), 1, (1, 0, 2)), ((4, 3, 13), -1, (2, 0, 1))],
)
@pytest.mark.parametrize("fused", [None, True])
def test_another_coupled_dimension_is_the_rows_of_the_transposed(shape, dim, order, fused):
    generator = np.random.default_rng(5)
    start, grads = generator.normal(size=shape), generator.normal(size=(30, *shape))
    settings = {"lr": 1e-2, "weight_decay": 0.1}
    ours, optimizer = run(CoupledAdam, start, grads, coupled_dim=dim, fused=fused, **settings)
    rows = [grad.transpose(order).reshape(13, -1) for grad in grads]
    expected = paper_formula(
        start.transpose(order).reshape(13, -1), rows, 1e-2, 0.9, 0.999, 1e-8, 0.1, 1.0
    )
    np.testing.assert_allclose(ours.transpose(order).reshape(13, -1), expected, rtol=0, atol=1e-13)
    (state,) = optimizer.state.values()
    assert state["exp_avg_sq"].shape == np.empty(shape).sum(dim).shape


@pytest.mark.parametrize("fused", [None, True])
def test_maximize_goes_the_other_way(fused):
    generator = np.random.default_rng(6)
    start, grads = (
        generator.normal(size=(ROWS, COLUMNS)),
        generator.normal(size=(20, ROWS, COLUMNS)),
    )
    up, _ = run(CoupledAdam, start, grads, lr=1e-2, maximize=True, fused=fused)
    down, _ = run(CoupledAdam, start, -grads, lr=1e-2)
    np.testing.assert_allclose(up, down, rtol=0, atol=1e-14)


@pytest.mark.parametrize("fused", [None, True])
@pytest.mark.parametrize(
    ("settings", "tolerance"),
    [
        ({"lr": torch.tensor(1e-2, dtype=torch.float64)}, 1e-14),
        ({"lr": 1e-2, "capturable": True}, 1e-6),  # its step is counted in float32
        ({"lr": torch.tensor(1e-2), "capturable": True}, 1e-5),
    ],
)
def test_a_learning_rate_or_step_on_the_device_changes_nothing(settings, tolerance, fused):
    generator = np.random.default_rng(7)
    start, grads = (
        generator.normal(size=(ROWS, COLUMNS)),
        generator.normal(size=(20, ROWS, COLUMNS)),
    )
    ours, _ = run(CoupledAdam, start, grads, weight_decay=0.1, fused=fused, **settings)
    expected, _ = run(CoupledAdam, start, grads, lr=1e-2, weight_decay=0.1)
    np.testing.assert_allclose(ours, expected, rtol=0, atol=tolerance)


def test_a_tensor_learning_rate_can_be_changed_in_place():
    weight, lr = torch.nn.Parameter(torch.zeros(2, 2)), torch.tensor(1.0)
    optimizer = CoupledAdam([weight], lr=lr)
    weight.grad = torch.ones(2, 2)
    optimizer.step()
    torch.testing.assert_close(weight.detach(), torch.full((2, 2), -1.0))
    lr.fill_(0.0)
    optimizer.step()
    torch.testing.assert_close(weight.detach(), torch.full((2, 2), -1.0))


def test_groups_have_their_own_settings():
    first, second = (torch.nn.Parameter(torch.zeros(3, 2)) for _ in range(2))
    optimizer = CoupledAdam([{"params": [first], "lr": 1.0}], lr=0.5)
    optimizer.add_param_group({"params": [second], "scale": 4.0})
    for parameter in (first, second):
        parameter.grad = torch.ones(3, 2)
    optimizer.step()
    torch.testing.assert_close(first.detach(), torch.full((3, 2), -1.0))
    torch.testing.assert_close(second.detach(), torch.full((3, 2), -0.25))
    with pytest.raises(ValueError, match=r"^scale: -1 is out of range; it must be above 0$"):
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(2, 2))], "scale": -1})
    assert len(optimizer.param_groups) == 2


def test_two_parameters_are_coupled_each_for_itself():
    generator = np.random.default_rng(9)
    starts = [generator.normal(size=(ROWS, COLUMNS)) for _ in range(2)]
    grads = generator.normal(size=(2, 20, ROWS, COLUMNS)) * np.array([1.0, 1e-3]).reshape(
        2, 1, 1, 1
    )
    parameters = [torch.nn.Parameter(torch.tensor(start)) for start in starts]
    optimizer = CoupledAdam(parameters, lr=1e-2)
    for pair in zip(*grads, strict=True):
        for parameter, grad in zip(parameters, pair, strict=True):
            parameter.grad = torch.tensor(grad)
        optimizer.step()
    for parameter, start, own in zip(parameters, starts, grads, strict=True):
        expected = paper_formula(start, own, 1e-2, 0.9, 0.999, 1e-8, 0.0, 1.0)
        np.testing.assert_allclose(parameter.detach().numpy(), expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("fused", [None, True])
def test_low_precision_is_rounded_once_a_step_and_keeps_its_second_moment(dtype, fused):
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(300, 7).to(dtype))
    exact = torch.nn.Parameter(weight.detach().double())
    optimizers = [CoupledAdam([parameter], lr=0.1, fused=fused) for parameter in (weight, exact)]
    weight.grad = torch.randn(300, 7).to(dtype)
    exact.grad = weight.grad.double()
    for optimizer in optimizers:
        optimizer.step()
    spacing = torch.finfo(dtype).eps * exact.detach().abs().clamp(min=2**-6)
    assert ((weight.double() - exact).abs() <= 0.51 * spacing).all()
    state = optimizers[0].state[weight]
    assert state["exp_avg"].dtype == dtype
    assert state["exp_avg_sq"].dtype == torch.float32
    again = CoupledAdam([torch.nn.Parameter(weight.detach().clone())])
    again.load_state_dict(optimizers[0].state_dict())
    (loaded,) = again.state.values()
    assert torch.equal(loaded["exp_avg_sq"], state["exp_avg_sq"])


# What is not a plain gradient


@pytest.mark.parametrize("shape", [(0, 3), (3, 0)])
@pytest.mark.parametrize("fused", [None, True])
def test_a_parameter_without_elements_is_left_alone(shape, fused):
    empty, weight = torch.nn.Parameter(torch.ones(shape)), torch.nn.Parameter(torch.ones(2, 2))
    optimizer = CoupledAdam([empty, weight], lr=0.1, fused=fused)
    for parameter in (empty, weight):
        parameter.grad = torch.ones_like(parameter)
    assert optimizer.clip_grad_norm_([], 10.0).item() == 2.0
    optimizer.step()
    torch.testing.assert_close(weight.detach(), torch.full((2, 2), 0.9))


@pytest.mark.parametrize("value", [math.inf, math.nan])
@pytest.mark.parametrize("fused", [None, True])
def test_what_is_not_finite_takes_its_column_and_no_other(value, fused):
    grad = np.ones((ROWS, COLUMNS))
    grad[2, 1] = value
    weight, _ = run(CoupledAdam, np.zeros((ROWS, COLUMNS)), [grad], lr=0.1, fused=fused)
    others = np.delete(weight, 1, axis=1)
    np.testing.assert_allclose(others, -0.1, rtol=1e-7)
    assert np.isnan(weight[2, 1])
    # inf: the mean is inf, so the column's other rows stand still; NaN: they are lost.
    rest = np.delete(weight[:, 1], 2)
    assert np.isnan(rest).all() if math.isnan(value) else (rest == 0).all()


@pytest.mark.parametrize("coupled", [True, False])
def test_sparse_gradients_are_refused(coupled):
    embedding = torch.nn.Embedding(4, 2, sparse=True)
    optimizer = CoupledAdam([{"params": embedding.parameters(), "coupled": coupled}])
    embedding(torch.tensor([1])).sum().backward()
    with pytest.raises(
        ValueError,
        match=r"takes dense gradients, not torch.sparse_coo; use Embedding\(sparse=False\)",
    ):
        optimizer.step()


# Clipping that shares the sums of the columns


def clipped_run(shared, max_norm, grads, fused=None):
    torch.manual_seed(0)
    own = [torch.nn.Parameter(torch.randn(ROWS, COLUMNS, dtype=torch.float64)) for _ in range(2)]
    other = torch.nn.Parameter(torch.zeros(4, dtype=torch.float64))
    optimizer = CoupledAdam(own, lr=1e-2, fused=fused)
    norms, others = [], []
    for grad in grads:
        for parameter, value in zip((*own, other), (grad, 0.1 * grad, grad[0, :4]), strict=True):
            parameter.grad = torch.tensor(value)
        clip = optimizer.clip_grad_norm_ if shared else torch.nn.utils.clip_grad_norm_
        norms.append(clip([*own, other], max_norm).item())
        others.append(other.grad.clone())
        if shared:
            assert np.array_equal(own[0].grad.numpy(), grad)
        optimizer.step()
    return [parameter.detach().clone() for parameter in own], norms, others


@pytest.mark.parametrize("fused", [None, True])
@pytest.mark.parametrize("max_norm", [1e-2, 8.0, 1e3])
def test_the_shared_clip_is_clipping_and_a_step(max_norm, fused):
    grads = np.random.default_rng(10).normal(size=(20, ROWS, COLUMNS))
    ours, our_norms, our_others = clipped_run(True, max_norm, grads, fused)
    theirs, their_norms, their_others = clipped_run(False, max_norm, grads)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-13)
    np.testing.assert_allclose(our_norms, their_norms, rtol=1e-14)
    torch.testing.assert_close(our_others, their_others, rtol=1e-14, atol=0)


def test_a_clip_counts_for_one_step_only():
    weight = torch.nn.Parameter(torch.zeros(2, 2))
    optimizer = CoupledAdam([weight], lr=1.0, betas=(0.0, 0.0))
    weight.grad = torch.full((2, 2), 4.0)
    optimizer.clip_grad_norm_([weight], 1.0)
    optimizer.zero_grad()
    weight.grad = torch.full((2, 2), 4.0)
    optimizer.step()
    optimizer.step()
    assert optimizer.state[weight]["exp_avg"][0, 0] == 4.0


@pytest.mark.parametrize(
    "change",
    [
        lambda weight: setattr(weight, "grad", torch.ones(2, 2)),
        lambda weight: weight.grad.mul_(0.5),
        lambda weight: torch._foreach_mul_([weight.grad], 0.5),
        lambda weight: torch.nn.utils.clip_grad_norm_([weight], 0.1),
        lambda weight: weight.grad.detach()[0].zero_(),
        lambda weight: weight.sum().backward(),
    ],
    ids=[
        "replaced",
        "scaled",
        "scaled by foreach",
        "clipped again",
        "changed in a view",
        "added to",
    ],
)
def test_a_gradient_that_was_changed_after_the_clip_is_said(change):
    weight = torch.nn.Parameter(torch.zeros(2, 2))
    optimizer = CoupledAdam([weight])
    weight.grad = torch.ones(2, 2)
    optimizer.clip_grad_norm_([weight], 1.0)
    change(weight)
    with pytest.raises(
        RuntimeError, match=r"a gradient was replaced or changed after clip_grad_norm_; clip last"
    ):
        optimizer.step()


def test_the_sums_of_a_step_that_was_left_out_are_never_used():
    """The gradient of the step that is left out is inf, which made the weights NaN one step
    later."""
    weight, head = torch.nn.Parameter(torch.zeros(2, 2)), torch.nn.Linear(2, 1)
    optimizer = CoupledAdam([weight], lr=1.0)
    head(weight).sum().backward()
    weight.grad.fill_(math.inf)
    optimizer.clip_grad_norm_([weight], 1.0)  # not finite, so the step is left out
    weight.grad.zero_()
    head(weight).sum().backward()
    with pytest.raises(
        RuntimeError, match=r"after a step that is left out call the optimizer's zero_grad\(\)$"
    ):
        optimizer.step()
    optimizer.clip_grad_norm_([weight], 1.0)
    optimizer.step()
    assert weight.isfinite().all()


def test_a_norm_that_is_not_finite_is_said_when_asked():
    weight = torch.nn.Parameter(torch.zeros(2, 2))
    weight.grad = torch.tensor([[math.inf, 1.0], [1.0, 1.0]])
    optimizer = CoupledAdam([weight])
    assert optimizer.clip_grad_norm_([weight], 1.0).isinf()
    with pytest.raises(RuntimeError, match=r"the norm of the gradients is inf"):
        optimizer.clip_grad_norm_([weight], 1.0, error_if_nonfinite=True)


# From AdamW


def after_adamw(steps, **settings):
    generator = np.random.default_rng(11)
    start, grads = (
        generator.normal(size=(ROWS, COLUMNS)),
        generator.normal(size=(2 * steps, ROWS, COLUMNS)),
    )
    weight, adamw = run(
        torch.optim.AdamW, start, grads[:steps], lr=1e-2, weight_decay=0.1, **settings
    )
    return weight, adamw, grads


def coupled_from_adamw(weight, grads, steps):
    """The formula of the paper from a state of Adam: its moments go on and the second is averaged
    from here."""
    first, second = np.zeros_like(weight), np.zeros_like(weight)
    for step, grad in enumerate(grads, 1):
        first, second = 0.9 * first + 0.1 * grad, 0.999 * second + 0.001 * grad**2
        if step > steps:
            coupled = (second / (1 - 0.999**step)).mean(0)
            weight = weight * (1 - 1e-2 * 0.1) - 1e-2 * first / (1 - 0.9**step) / (
                np.sqrt(coupled) + 1e-8
            )
    return weight


@pytest.mark.parametrize("how", ["state_dict", "optimizer"])
@pytest.mark.parametrize("fused", [False, True])
def test_goes_on_from_a_state_of_adamw(how, fused):
    weight, adamw, grads = after_adamw(10, fused=fused)
    parameter = torch.nn.Parameter(torch.tensor(weight))
    if how == "state_dict":
        optimizer = CoupledAdam([parameter], lr=123.0)
        optimizer.load_state_dict(adamw.state_dict())
        assert optimizer.param_groups[0]["fused"] is None
    else:
        (theirs,) = adamw.param_groups[0]["params"]
        both = torch.optim.AdamW([parameter, torch.nn.Parameter(torch.ones(1))])
        both.state[parameter] = adamw.state[theirs]
        optimizer = CoupledAdam([parameter], lr=1e-2, weight_decay=0.1)
        optimizer.load_adamw_state(both)
        before = both.state[parameter]["exp_avg"].clone()
    for grad in grads[10:]:
        parameter.grad = torch.tensor(grad)
        optimizer.step()
    expected = coupled_from_adamw(weight, grads, 10)
    np.testing.assert_allclose(parameter.detach().numpy(), expected, rtol=0, atol=1e-13)
    assert optimizer.state[parameter]["exp_avg_sq"].shape == (COLUMNS,)
    if how == "optimizer":
        assert torch.equal(both.state[parameter]["exp_avg"], before), (
            "the old optimizer's state was written to"
        )


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (
            lambda: after_adamw(3, amsgrad=True)[1].state_dict(),
            r"^amsgrad: Coupled Adam does not have it",
        ),
        (
            lambda: run(
                torch.optim.Adam,
                np.ones((ROWS, COLUMNS)),
                [np.ones((ROWS, COLUMNS))],
                weight_decay=0.1,
            )[1].state_dict(),
            r"^weight_decay: the state is of Adam, whose decay is a part of the gradient",
        ),
        (
            lambda: run(
                torch.optim.SGD, np.ones((ROWS, COLUMNS)), [np.ones((ROWS, COLUMNS))], momentum=0.9
            )[1].state_dict(),
            (
                r"^state: has no step, exp_avg, exp_avg_sq; it must be one of CoupledAdam or"
                r" torch.optim.AdamW$"
            ),
        ),
        (
            lambda: torch.optim.AdamW(
                [{"params": [torch.nn.Parameter(torch.ones(2))]} for _ in range(2)]
            ).state_dict(),
            r"different number of parameter groups",
        ),
        (
            lambda: run(CoupledAdam, np.ones((ROWS, 3)), [np.ones((ROWS, 3))])[1].state_dict(),
            (
                r"^state: exp_avg_sq has shape \(3,\); a parameter of shape \(13, 5\) with"
                r" coupled_dim 0 needs \(5,\)$"
            ),
        ),
    ],
)
def test_a_state_of_another_rule_is_refused(state, message):
    optimizer = CoupledAdam([torch.nn.Parameter(torch.ones(ROWS, COLUMNS, dtype=torch.float64))])
    with pytest.raises(ValueError, match=message):
        optimizer.load_state_dict(state())


@pytest.mark.parametrize("shape", [(1, 1), (700, 3), (3, 700), (5000, 130)])
@pytest.mark.parametrize("dim", [0, 1])
def test_sums_of_squares_are_exact_in_blocks(shape, dim):
    tensor = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = torch.einsum("ij,ij->j" if dim == 0 else "ij,ij->i", tensor, tensor)
    torch.testing.assert_close(sums_of_squares(tensor, dim), expected, rtol=1e-13, atol=0)
    torch.testing.assert_close(
        sums_of_squares(tensor.float(), dim), expected.float(), rtol=1e-6, atol=0
    )


WITH_TORCH_ALONE = """
import sys

for name in ("datasets", "lm_eval", "matplotlib", "mlflow", "pandas", "pydantic", "scipy", "snakemake",
             "tokenizers", "tqdm", "transformers", "yaml"):
    sys.modules[name] = None  # as if it were not installed
import torch
sys.modules["numpy"] = None  # which torch warns about at its import
from coupled_adam import CoupledAdam, coupled_param_groups

model = torch.nn.Sequential(torch.nn.Embedding(5, 2), torch.nn.Linear(2, 5))
optimizer = CoupledAdam(coupled_param_groups(model), lr=0.1)
model(torch.tensor([1])).sum().backward()
optimizer.clip_grad_norm_(model.parameters(), 100.0)
optimizer.step()

weight = torch.nn.Parameter(torch.zeros(3, 2))
optimizer = CoupledAdam([weight], lr=0.1)
weight.grad = torch.ones(3, 2)
optimizer.clip_grad_norm_([weight], 100.0)
optimizer.step()
assert torch.allclose(weight, torch.full((3, 2), -0.1))
"""


def test_needs_torch_alone():
    subprocess.run([sys.executable, "-W", "error", "-c", WITH_TORCH_ALONE], check=True, timeout=120)
