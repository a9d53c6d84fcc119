"""The model of modded-nanogpt's optimizer track: logits by the formulas of its script, initial
values and export."""

import math
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from coupled_adam_bench.models.base import LanguageModel
from coupled_adam_bench.models.build import build_model
from coupled_adam_bench.models.export import load_model, save_model
from coupled_adam_bench.study.settings import Model

VOCAB_SIZE, SEQ_LEN, N_HEAD, D_HEAD = 37, 12, 2, 16
BASE = 1024 ** (
    (D_HEAD // 4) / (D_HEAD // 4 - 1)
)  # its frequencies are 1024^(-j / (J - 1)) for J = D_HEAD / 4 pairs


@pytest.fixture
def model() -> LanguageModel:
    settings = Model(
        name="m",
        architecture="modded_nanogpt",
        n_layer=2,
        n_head=N_HEAD,
        d_model=N_HEAD * D_HEAD,
        tied=False,
        learning_rate=0.01,
        rope_base=BASE,
        rope_fraction=0.5,
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


def test_the_logits_are_those_of_the_formulas(model: LanguageModel) -> None:
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


def test_initial_values(model: LanguageModel) -> None:
    model.init_weights(3, "zero_projections")
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


def test_it_comes_back_as_it_was_saved(
    model: LanguageModel, tmp_path: Path, tokenizer_folder: Path
) -> None:
    save_model(model, tmp_path / "model", tokenizer_folder, eot_id=5)
    again = load_model(tmp_path / "model")
    ours, read = model.state_dict(), again.state_dict()
    assert list(read) == list(ours)
    assert all(torch.equal(read[name], ours[name]) for name in ours)
    tokens = torch.randint(0, VOCAB_SIZE, (3, SEQ_LEN))
    with torch.no_grad():
        assert torch.equal(again.logits(tokens), model.logits(tokens))
