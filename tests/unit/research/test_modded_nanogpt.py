"""The model of modded-nanogpt's optimizer track: logits by the formulas of its script, initial
values and export."""

import math

import numpy as np
import pytest
import torch
from research.plugins.modded_nanogpt import ZeroProjections
from torch.nn import functional as F

from coupled_adam_bench.models.base import LanguageModel
from coupled_adam_bench.models.build import build_model
from coupled_adam_bench.study.settings import Model, Training
from coupled_adam_bench.training.order import order_of

VOCAB_SIZE, SEQ_LEN, N_HEAD, D_HEAD = 37, 12, 2, 16
BASE = 1024 ** (
    (D_HEAD // 4) / (D_HEAD // 4 - 1)
)  # its frequencies are 1024^(-j / (J - 1)) for J = D_HEAD / 4 pairs


@pytest.fixture
def model() -> LanguageModel:
    settings = Model(
        name="m",
        architecture={
            "path": "research.plugins.modded_nanogpt.ModdedNanoGPT",
            "arguments": {"rope_base": BASE, "rope_fraction": 0.5},
        },
        parameters=2 * (12 * (N_HEAD * D_HEAD) ** 2 + 2 * N_HEAD * D_HEAD) + 2 * N_HEAD * D_HEAD,
        n_layer=2,
        n_head=N_HEAD,
        d_model=N_HEAD * D_HEAD,
        tied=False,
        learning_rate=0.01,
    )
    model = build_model(settings, VOCAB_SIZE, SEQ_LEN, soft_cap=15.0)
    model.init_weights(0, 0.3)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():  # gains too away from where they start
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
    assert sum(p.numel() for p in model.parameters()) == settings.n_params(VOCAB_SIZE, SEQ_LEN)
    return model


def norm(x: torch.Tensor, gain: torch.Tensor | float = 1.0) -> torch.Tensor:
    return x / x.square().mean(-1, keepdim=True).sqrt() * gain


def turned(x_BTHK: torch.Tensor) -> torch.Tensor:
    """Each pair as a complex number, which is turned; pair j is coordinates j and j + K / 4, the
    other half stays."""
    n_pairs = D_HEAD // 4
    frequencies = 1024.0 ** -torch.linspace(0, 1, n_pairs)
    angles = torch.outer(torch.arange(x_BTHK.shape[1]).float(), frequencies)[:, None]
    pairs = torch.complex(x_BTHK[..., :n_pairs], x_BTHK[..., n_pairs : 2 * n_pairs]) * torch.polar(
        torch.ones_like(angles), angles
    )
    return torch.cat((pairs.real, pairs.imag, x_BTHK[..., 2 * n_pairs :]), -1)


def test_the_logits_are_those_of_the_formulas(model):
    tokens = torch.randint(0, VOCAB_SIZE, (3, SEQ_LEN), generator=torch.Generator().manual_seed(2))
    of = {name.removesuffix(".weight"): value.detach() for name, value in model.named_parameters()}
    x = norm(of["embedding"][tokens], of["ln_0"])
    after = torch.ones(SEQ_LEN, SEQ_LEN).triu(1).bool()
    for layer in ("blocks.0.", "blocks.1."):
        z = norm(x, of[layer + "ln_1"])
        q, k, v = (
            F.linear(z, of[f"{layer}attn_qkv.{name}"]).view(3, SEQ_LEN, N_HEAD, D_HEAD)
            for name in "qkv"
        )
        scores = 0.12 * torch.einsum("bthk,bshk->bhts", turned(norm(q)), turned(norm(k)))
        y = torch.einsum("bhts,bshk->bthk", scores.masked_fill(after, -math.inf).softmax(-1), v)
        x = x + F.linear(y.flatten(-2), of[layer + "attn_proj"])
        hidden = F.linear(norm(x, of[layer + "ln_2"]), of[layer + "mlp_fc"]).clamp(min=0) ** 2
        x = x + F.linear(hidden, of[layer + "mlp_proj"])
    logits = 15 * (F.linear(norm(x, of["ln_f"]), of["head"]) / 15).tanh()
    with torch.no_grad():
        torch.testing.assert_close(model.logits(tokens), logits, rtol=1e-4, atol=1e-4)


def test_initial_values(model):
    model.init_weights(3, ZeroProjections())
    expected = {
        "embedding": 1.0,
        "q": math.sqrt(0.33 / 32),
        "k": math.sqrt(0.33 / 32),
        "v": math.sqrt(0.33 / 32),
        "mlp_fc": math.sqrt(0.33 / 32),
        "attn_proj": 0.0,
        "mlp_proj": 0.0,
        "head": 0.0,
    }
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2:
            assert parameter.std().item() == pytest.approx(
                expected[name.split(".")[-2]], rel=0.1
            ), name
        else:
            assert (parameter == 1).all()
    tokens = torch.zeros(1, SEQ_LEN, dtype=torch.long)
    assert model(tokens, tokens).item() == pytest.approx(math.log(VOCAB_SIZE))


@pytest.mark.parametrize("seed", [1, 2])
def test_sequential_reads_the_text_as_it_lies(seed):
    training = Training(
        seq_len=8,
        batch_sequences=12,
        data_order={"path": "research.plugins.modded_nanogpt.Sequential"},
    )
    order = order_of(209, training, seed)  # 26 windows of 8 inputs and a last target
    run = np.array([order.positions(step)[:, 0] for step in range(5)]).ravel()
    assert run.tolist() == [8 * (i % 26) for i in range(60)]
    assert (order.positions(2) == order.positions(2)[:, :1] + np.arange(8)).all()
    assert order_of(209, training, seed).positions(4)[:, 0].tolist() == run[48:].tolist()
