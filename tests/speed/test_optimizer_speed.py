"""A step of Coupled Adam with torch's clip beside fused AdamW, on GPT-2's embedding."""

import torch

from coupled_adam import CoupledAdam


def clip_and_step(kind, **settings):
    weight = torch.nn.Parameter(torch.randn(50_304, 768))
    weight.grad = torch.randn(50_304, 768)
    optimizer = kind([weight], **settings)

    def step():
        torch.nn.utils.clip_grad_norm_([weight], 1.0)
        optimizer.step()

    return step


def test_a_step_takes_at_most_1_3_of_fused_adamw(ratio):
    ours = clip_and_step(CoupledAdam)
    theirs = clip_and_step(torch.optim.AdamW, fused=True)
    assert ratio(ours, theirs, 80) <= 1.3
