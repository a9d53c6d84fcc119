"""Gradients that lie in one buffer, as DistributedDataParallel keeps them."""

import torch

from coupled_adam import CoupledAdam


def test_gradients_of_one_buffer_are_clipped_and_stepped():
    """They share torch's count of changes in place, which clipping another gradient moves on."""
    embedding = torch.nn.Parameter(torch.ones(4, 2))
    bias = torch.nn.Parameter(torch.ones(2))
    buffer = torch.full((10,), 3.0)
    embedding.grad, bias.grad = buffer[:8].view(4, 2), buffer[8:]
    optimizer = CoupledAdam(
        [{"params": [embedding], "coupled": True}, {"params": [bias], "coupled": False}], lr=0.1
    )
    optimizer.clip_grad_norm_([embedding, bias], 1.0)
    optimizer.step()
    assert not embedding.eq(1).any() and not bias.eq(1).any()
