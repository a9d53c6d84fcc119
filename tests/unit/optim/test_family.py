"""Optimizers of few lines: each against its paper's formula in numpy, and where it is a known
one."""

import numpy as np
import pytest
import torch

from coupled_adam_bench.optim.build import build_embedding_optimizer
from coupled_adam_bench.optim.normalized_sgd import NormalizedSGD, ObliqueSGD
from coupled_adam_bench.study.settings import Training, rate_factor
from coupled_adam_bench.study.settings.optimizers import (
    AdamMiniSettings,
    AdamWSettings,
    NormalizedSgdSettings,
    ObliqueSgdSettings,
    SgdSettings,
)

TRAINING = Training(beta1=0.9, beta2=0.95, eps=1e-8, embedding_weight_decay=0.1)
LR = 0.05


def normalized(direction, axis):
    return direction / np.sqrt(np.mean(direction**2, axis=axis, keepdims=True))


def adam_mini(state, weight, grad, step):
    """Arxiv 2406.16793, Alg. 1, where a block is a row: v <- b2 v + (1 - b2) mean(g * g)."""
    state["m"] = 0.9 * state.get("m", 0) + 0.1 * grad
    state["v"] = 0.95 * state.get("v", 0) + 0.05 * np.mean(grad**2, axis=1, keepdims=True)
    adapted = (state["m"] / (1 - 0.9**step)) / (np.sqrt(state["v"] / (1 - 0.95**step)) + 1e-8)
    return weight - LR * 0.1 * weight - LR * adapted


def scale_of_the_embedding(state, weight, grad, step):
    """Arxiv 2506.16659, Alg. 1, for the first layer."""
    return weight - LR * 0.1 * weight - LR * normalized(grad, 0)


def scale_of_the_head(state, weight, grad, step):
    """Arxiv 2506.16659, Alg. 1, for the last layer, whose columns are rows here."""
    state["m"] = 0.9 * state.get("m", 0) + 0.1 * grad
    return weight - LR * 0.1 * weight - LR * normalized(state["m"], 1)


def oblique(state, weight, grad, step):
    """Boumal's Riemannian gradient descent on spheres, row by row, with heavy-ball momentum."""
    state["m"] = 0.5 * state.get("m", 0) + grad
    rows = []
    for row, moment in zip(weight, state["m"], strict=True):
        tangent = (np.eye(len(row)) - np.outer(row, row)) @ moment
        moved = (1 - LR * 0.1) * row - LR * tangent
        rows.append(moved / np.linalg.norm(moved))
    return np.array(rows)


@pytest.mark.parametrize(
    ("optimizer", "formula", "n_states"),
    [
        (AdamMiniSettings(name="adam_mini"), adam_mini, 17 * 8 + 17),
        (NormalizedSgdSettings(name="normalized_sgd", by="column"), scale_of_the_embedding, 0),
        (
            NormalizedSgdSettings(name="normalized_sgd", by="row", momentum=0.9),
            scale_of_the_head,
            17 * 8,
        ),
        (ObliqueSgdSettings(name="oblique_sgd", lr_factor=1, momentum=0.5), oblique, 17 * 8),
    ],
    ids=lambda value: getattr(value, "key", ""),
)
def test_a_step_is_the_papers_formula(optimizer, formula, n_states):
    generator = np.random.default_rng(0)
    weight = generator.normal(size=(17, 8))
    if optimizer.name == "oblique_sgd":
        weight /= np.linalg.norm(weight, axis=1, keepdims=True)
    parameter = torch.nn.Parameter(torch.tensor(weight))
    built = build_embedding_optimizer([parameter], optimizer, TRAINING, LR)
    state = {}
    for step in range(1, 51):
        grad = generator.normal(size=(17, 8)) * generator.exponential(size=(17, 1))
        parameter.grad = torch.tensor(grad)
        built.step()
        weight = formula(state, weight, grad, step)
    np.testing.assert_allclose(parameter.detach().numpy(), weight, rtol=1e-9, atol=1e-12)
    kept = [
        value
        for value in built.state[parameter].values()
        if isinstance(value, torch.Tensor) and value.ndim
    ]
    assert sum(value.numel() for value in kept) == optimizer.n_states(17, 8) == n_states


@pytest.mark.parametrize(
    ("optimizer", "known"),
    [
        (AdamMiniSettings(name="adam_mini", beta2=0.8), AdamWSettings(name="adamw", beta2=0.8)),
        (
            NormalizedSgdSettings(name="normalized_sgd", by="row"),
            SgdSettings(name="sgd", lr_factor=1, momentum=0),
        ),
        (
            NormalizedSgdSettings(name="normalized_sgd", by="column"),
            SgdSettings(name="sgd", lr_factor=1, momentum=0),
        ),
    ],
    ids=lambda value: value.key,
)
def test_with_gradients_of_one_size_it_is_a_known_one(optimizer, known):
    """All elements of a gradient are 1 or -1: what is averaged or divided by is the same for each
    element."""
    generator = torch.Generator().manual_seed(0)
    training = TRAINING.model_copy(update={"embedding_weight_decay": 0.0})
    ours, theirs = (torch.nn.Parameter(torch.ones(9, 4, dtype=torch.float64)) for _ in range(2))
    built = [
        build_embedding_optimizer([p], one, training, LR)
        for p, one in ((ours, optimizer), (theirs, known))
    ]
    for _ in range(30):
        ours.grad = torch.randn(9, 4, generator=generator, dtype=torch.float64).sign()
        theirs.grad = ours.grad.clone()
        for one in built:
            one.step()
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=0)


def test_oblique_steps_of_a_tangent_gradient_are_those_of_sgd_but_for_the_length_of_rows():
    rows = torch.nn.functional.normalize(
        torch.randn(6, 5, generator=torch.Generator().manual_seed(0)).double(), dim=1
    )
    parameter = torch.nn.Parameter(3 * rows)
    built = ObliqueSGD([parameter], lr=LR, momentum=0.0)
    torch.testing.assert_close(parameter.detach(), rows)  # they get length 1 at once
    grad = torch.randn(6, 5, generator=torch.Generator().manual_seed(1)).double()
    grad -= (grad * rows).sum(1, keepdim=True) * rows
    parameter.grad = grad.clone()
    built.step()
    moved = rows - LR * grad
    torch.testing.assert_close(parameter.detach(), moved / moved.norm(dim=1, keepdim=True))


def test_rows_and_columns_without_a_gradient_stay():
    for by in ("row", "column"):
        parameter = torch.nn.Parameter(torch.ones(3, 4))
        built = NormalizedSGD([parameter], lr=LR, by=by)
        parameter.grad = torch.zeros(3, 4)
        parameter.grad[1, 2] = 5.0
        built.step()
        assert parameter.isfinite().all()
        assert (parameter != 1).sum() == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr": -1.0}, "lr: -1.0 is out of range; it must be at least 0"),
        ({"momentum": 1.0}, "momentum: 1.0 is out of range; it must be at least 0 and below 1"),
        (
            {"params": [torch.nn.Parameter(torch.ones(3))]},
            "NormalizedSGD takes matrices of real numbers, got a",
        ),
    ],
)
def test_mistakes_are_named(settings, message):
    given = {"params": [torch.nn.Parameter(torch.ones(3, 4))], "lr": 0.1, "by": "row"} | settings
    with pytest.raises(ValueError, match=r"takes matrices|out of range") as error:
        NormalizedSGD(**given)
    assert message in str(error.value)


def test_the_rate_follows_the_width():
    """Hayou and Liu, arXiv 2506.15025: four times the width, twice the rate relative to the
    model's."""
    own = {"width_scale": {"power": 0.5, "reference": 64}}
    optimizer = AdamWSettings(name="adamw", lr_factor=3, **own)
    assert (optimizer.key, optimizer.label) == ("adamw_f3_w0.5-64", "Adam, f = 3, f x (D / 64)^0.5")
    assert [rate_factor(optimizer, width) for width in (64, 256)] == [3, 6]
    built = build_embedding_optimizer(
        [torch.nn.Parameter(torch.ones(9, 256))], optimizer, TRAINING, LR
    )
    assert built.param_groups[0]["lr"] == 6 * LR
    assert AdamWSettings(name="adamw", **own).model_dump() == {"name": "adamw", **own}
