"""Tests of the optimizer: it is a known one where it should be, and it is another one elsewhere."""

import torch
from my_optimizer import MyOptimizer

SETTINGS = {"lr": 0.01, "weight_decay": 0.1, "betas": (0.9, 0.95)}


def train(kind, **settings):
    """Return a matrix after 20 steps on random gradients, the same for all optimizers."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(24, 8, generator=generator))
    optimizer = kind([weight], **SETTINGS, **settings)
    for _ in range(20):
        weight.grad = torch.randn(24, 8, generator=generator)
        optimizer.step()
    return weight.detach()


def test_with_a_power_of_one_half_it_is_adamw():
    torch.testing.assert_close(train(MyOptimizer, power=0.5), train(torch.optim.AdamW))


def test_its_own_power_makes_another_step():
    assert (train(MyOptimizer) - train(torch.optim.AdamW)).abs().max() > 1e-3
