"""The example of an own optimizer, workflow/config/ember.py, against its formula."""

import runpy

import numpy as np
import pytest
import torch
from tiny import REPOSITORY

from coupled_adam_bench.study.optimizers import Optimizer
from coupled_adam_bench.study.training import Training
from coupled_adam_bench.training.trial import try_optimizer

Ember = runpy.run_path(str(REPOSITORY / "workflow/config/ember.py"))["Ember"]


def formula(start, grads, lr, beta2, eps, decay):
    """The paper's rule, with the moment of the whole matrix that the file leaves out."""
    weight, row, column, whole = start.copy(), 0.0, 0.0, 0.0
    for step, grad in enumerate(grads, 1):
        square = grad**2
        row = beta2 * row + (1 - beta2) * square.mean(1, keepdims=True)
        column = beta2 * column + (1 - beta2) * square.mean(0)
        whole = beta2 * whole + (1 - beta2) * square.mean()
        moment = row * column / whole / (1 - beta2**step)
        weight = (1 - lr * decay) * weight - lr * grad / (np.sqrt(moment) + eps)
    return weight


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_500_steps_are_those_of_the_formula(decay):
    generator = np.random.default_rng(0)
    start = generator.normal(size=(7, 5))
    grads = generator.normal(size=(500, 7, 5)) * np.logspace(-3, 0, 7)[:, None]
    weight = torch.nn.Parameter(torch.tensor(start))
    optimizer = Ember([weight], lr=1e-2, beta2=0.99, eps=1e-6, weight_decay=decay)
    for grad in grads:
        weight.grad = torch.tensor(grad)
        optimizer.step()
    expected = formula(start, grads, 1e-2, 0.99, 1e-6, decay)
    np.testing.assert_allclose(weight.detach().numpy(), expected, rtol=0, atol=1e-11)


def test_a_row_without_a_gradient_stays_and_nothing_divides_by_zero():
    weight = torch.nn.Parameter(torch.ones(4, 3))
    optimizer = Ember([weight], lr=0.1)
    weight.grad = torch.zeros_like(weight)
    optimizer.step()
    assert torch.equal(weight.detach(), torch.ones(4, 3))
    weight.grad[1:] = 1e-12
    optimizer.step()
    assert torch.equal(weight[0].detach(), torch.ones(3)) and weight.isfinite().all()
    assert (weight[1:] < 1).all()


def test_it_passes_the_trial_of_own_optimizers(monkeypatch):
    monkeypatch.syspath_prepend(REPOSITORY)
    own = Optimizer(name="custom", path="workflow.config.ember.Ember", key="ember")
    assert try_optimizer(own, Training())["rms_change"] > 0
