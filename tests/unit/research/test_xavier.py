"""The initial values of arXiv 2601.02031, as a plug-in."""

import pytest
import torch
from research.plugins.xavier import XavierLinear

from coupled_adam_bench.models.build import build_model
from coupled_adam_bench.study.settings import Model


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("architecture", ["gpt2", "stablelm"])
def test_xavier_s_variances_are_those_of_torch_for_each_linear_layer_of_the_authors(
    architecture, tied
):
    sizes = {"n_layer": 2, "n_head": 2, "d_model": 64, "ffn_dim": 96, "learning_rate": 1e-3}
    model = build_model(Model(name="m", architecture=architecture, tied=tied, **sizes), 97, 16)
    model.init_weights(0, XavierLinear())
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            assert torch.equal(parameter, torch.ones_like(parameter)), name
            continue
        for matrix in parameter.chunk(2 if "mlp_gate_up" in name else 1):
            theirs = torch.nn.init.xavier_normal_(
                torch.empty_like(matrix), generator=torch.Generator().manual_seed(0)
            )
            expected = theirs.std().item()
            if "attn_proj" in name:
                expected = 0.02 / 2
            elif name.startswith("positions") or (name.startswith("embedding") and not model.tied):
                expected = 1 / 8
            assert matrix.std().item() == pytest.approx(expected, rel=0.06), name
