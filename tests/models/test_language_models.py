"""What holds for both architectures, tied and untied."""

import math

import pytest
import torch
from torch.nn import functional as F

from coupled_adam_bench.models.build import build_model
from coupled_adam_bench.models.stablelm import rope_tables, rotated
from coupled_adam_bench.study.catalogue.presets import MODEL_PRESETS
from coupled_adam_bench.study.model import Model

CPU = torch.device("cpu")


# The counts are the paper's, with its 50,304 tokens and windows of 1,024; those of the large scale
# follow from the sizes of Modalities' defaults.
@pytest.mark.parametrize(
    ("name", "n_params"),
    [
        ("gpt2-125m", 124_373_760),
        ("gpt2-355m", 354_599_936),
        ("gpt2-760m", 758_392_320),
        ("stablelm-1.3b", 1_336_248_320),
        ("stablelm-2.6b", 2_666_498_560),
    ],
)
def test_the_paper_s_models_have_their_sizes(name, n_params):
    settings = Model(**MODEL_PRESETS[name])
    with torch.device("meta"):
        model = build_model(settings, 50_304, 1024)
    assert sum(parameter.numel() for parameter in model.parameters()) == n_params
    assert settings.n_params(50_304, 1024) == n_params


def test_the_count_of_the_settings_is_that_of_the_model(make, settings):
    assert sum(parameter.numel() for parameter in make().parameters()) == settings.n_params(97, 16)


def test_initial_values_follow_the_seed_and_the_paper(make):
    model = make(3, 0.02, n_layer=8, d_model=64)
    before = torch.random.get_rng_state()
    model.init_weights(3, 0.02)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert not torch.equal(make(3).head_weight, make(4).head_weight)
    # Drawn in the order of the parameters, so that the values of a seed are those of any machine.
    generator = torch.Generator().manual_seed(3)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            assert torch.equal(parameter, torch.ones_like(parameter)), name
            continue
        is_residual = name.endswith(("attn_proj.weight", "mlp_proj.weight"))
        std = 0.02 / math.sqrt(2 * 8) if is_residual else 0.02
        expected = torch.empty(parameter.shape).normal_(0, std, generator=generator)
        assert torch.equal(parameter, expected), name
        assert parameter.std().item() == pytest.approx(std, rel=0.1), name


@pytest.mark.parametrize("reduction", ["sum", "none"])
def test_the_loss_is_the_cross_entropy_of_the_logits(reduction, make, tokens):
    model = make()
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    logits = F.linear(model.hidden(inputs), model.head_weight)
    expected = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction=reduction)
    loss = model(inputs, targets, reduction=reduction)
    torch.testing.assert_close(loss.flatten(), expected.flatten())


def test_bf16_on_a_cpu_is_close_and_its_gradients_are_float32(make, tokens):
    model = make()
    exact = model(tokens, tokens).item()
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(tokens, tokens)
    loss.backward()
    assert loss.item() == pytest.approx(exact, rel=0.02) and loss.item() != exact
    assert {parameter.grad.dtype for parameter in model.parameters()} == {torch.float32}


@torch.no_grad()
def test_two_texts_in_a_row_do_not_see_each_other(make, tokens):
    model = make()
    first, second = tokens[:1, :7], tokens[1:2, :9]
    row = torch.cat((first, second), 1)
    places = torch.cat((torch.arange(7), torch.arange(9)))[None]
    text_of = torch.tensor([0] * 7 + [1] * 9)
    sees = (text_of[:, None] == text_of) & torch.ones(16, 16, dtype=torch.bool).tril()
    joined = model.hidden(row, places, sees[None, None])
    apart = torch.cat((model.hidden(first), model.hidden(second)), 1)
    torch.testing.assert_close(joined, apart, rtol=0, atol=1e-5)


def test_the_rotation_is_a_product_with_complex_units():
    generator = torch.Generator().manual_seed(0)
    x_BHTK = torch.randn(2, 3, 50, 8, generator=generator)
    places_T1 = torch.arange(50, dtype=torch.float64)[:, None]
    angles_TJ = places_T1 * 10_000.0 ** (-torch.arange(4, dtype=torch.float64) / 4)
    product = torch.complex(*x_BHTK.double().chunk(2, -1)) * torch.polar(
        torch.ones_like(angles_TJ), angles_TJ
    )
    expected = torch.cat((product.real, product.imag), -1)
    with torch.autocast("cpu", torch.bfloat16):  # which must not round angles
        tables = rope_tables(50, 8, CPU)
    torch.testing.assert_close(rotated(x_BHTK, *tables).double(), expected, rtol=0, atol=1e-5)
    rounded = rotated(x_BHTK.bfloat16(), *tables)
    assert torch.equal(rounded, rotated(x_BHTK.bfloat16().float(), *tables).bfloat16())
