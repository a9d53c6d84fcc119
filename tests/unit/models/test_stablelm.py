import math

import pytest
import torch

from coupled_adam_bench.models.stablelm import StableLMBlock, rope_tables, rotate

CPU = torch.device("cpu")


def heads(n_tokens: int, d_head: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(2, 3, n_tokens, d_head, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("base", [100.0, 10_000.0])
def test_tables_hold_the_angles_of_the_formula(base):
    cos_TJ, sin_TJ = rope_tables(2048, 10, base, CPU)
    assert cos_TJ.shape == sin_TJ.shape == (2048, 5)
    for t in (0, 1, 7, 2047):
        for j in range(5):
            angle = t * base ** (-2 * j / 10)
            # Angles in float32 are good to t 2^-24 at best.
            assert cos_TJ[t, j].item() == pytest.approx(
                math.cos(angle), abs=3e-4 if t > 7 else 1e-6
            )
            assert sin_TJ[t, j].item() == pytest.approx(
                math.sin(angle), abs=3e-4 if t > 7 else 1e-6
            )


def test_tables_are_float32_under_autocast():
    with torch.autocast("cpu", torch.bfloat16):
        tables = rope_tables(300, 8, 10_000.0, CPU)
    for table, expected in zip(tables, rope_tables(300, 8, 10_000.0, CPU), strict=True):
        assert table.dtype == torch.float32
        assert torch.equal(table, expected)


def test_rotation_is_the_product_with_complex_units():
    x_BHTK = heads(6, 8)
    first, second = x_BHTK.double().split(4, dim=-1)
    angles_TJ = torch.tensor(
        [[t * 50.0 ** (-2 * j / 8) for j in range(4)] for t in range(6)], dtype=torch.float64
    )
    product = torch.complex(first, second) * torch.polar(torch.ones_like(angles_TJ), angles_TJ)
    expected = torch.cat((product.real, product.imag), dim=-1)
    torch.testing.assert_close(
        rotate(x_BHTK, *rope_tables(6, 8, 50.0, CPU)).double(), expected, rtol=0, atol=1e-5
    )


def test_rotation_of_bf16_is_exact_before_it_is_rounded():
    x_BHTK = heads(64, 8).bfloat16()
    tables = rope_tables(64, 8, 10_000.0, CPU)
    turned = rotate(x_BHTK, *tables)
    assert turned.dtype == torch.bfloat16
    assert torch.equal(turned, rotate(x_BHTK.float(), *tables).bfloat16())


def test_products_depend_on_the_distance_of_two_positions_only():
    n_tokens = 40
    tables = rope_tables(n_tokens, 8, 10_000.0, CPU)
    q_K, k_K = torch.randn(2, 8, generator=torch.Generator().manual_seed(1))
    q_TK, k_TK = (rotate(x.expand(n_tokens, 8), *tables) for x in (q_K, k_K))
    products_TT = (q_TK @ k_TK.T).double()
    for distance in range(-n_tokens + 1, n_tokens):
        diagonal = products_TT.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=0, atol=1e-5)
    assert products_TT[0].std() > 0.1  # and they do depend on it


@pytest.fixture
def block() -> StableLMBlock:
    block = StableLMBlock(d_model=16, n_head=2, d_ffn=12)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.normal_(0.0, 0.5, generator=generator)
    return block


def test_a_layer_does_not_know_where_its_tokens_stand(block):
    x_BTD = torch.randn(2, 9, 16, generator=torch.Generator().manual_seed(1))
    cos_TJ, sin_TJ = rope_tables(200, 8, 10_000.0, CPU)
    with torch.no_grad():
        here = block(x_BTD, cos_TJ[:9], sin_TJ[:9])
        there = block(x_BTD, cos_TJ[150:159], sin_TJ[150:159])
        stretched = block(x_BTD, cos_TJ[:27:3], sin_TJ[:27:3])
    torch.testing.assert_close(here, there, rtol=0, atol=1e-4)
    assert (here - stretched).abs().max() > 0.01


def test_a_fraction_of_each_head_is_rotated_and_the_rest_stays():
    x_BHTK = torch.randn(2, 2, 9, 8, generator=torch.Generator().manual_seed(1))
    tables = rope_tables(9, 4, 10_000.0, CPU)
    turned_BHTK = rotate(x_BHTK, *tables)
    assert torch.equal(turned_BHTK[..., 4:], x_BHTK[..., 4:])
    assert torch.equal(
        turned_BHTK[..., :4], rotate(x_BHTK[..., :4], *tables)
    )  # by the angles of a head of 4


def test_queries_and_keys_are_normed_head_by_head():
    block = StableLMBlock(d_model=16, n_head=2, d_ffn=12, qk_norm=True)
    with torch.no_grad():
        block.q_norm.weight.copy_(torch.arange(8) / 10)
    q_BHTK = 3 + 5 * torch.randn(2, 2, 9, 8, generator=torch.Generator().manual_seed(1))
    expected = torch.nn.functional.layer_norm(q_BHTK, (8,), torch.arange(8) / 10, eps=1e-5)
    still = torch.ones(9, 4), torch.zeros(9, 4)  # no rotation
    turned_BHTK, k_BHTK = block.apply_rotary(q_BHTK, 7 * q_BHTK, *still)
    torch.testing.assert_close(turned_BHTK, expected)
    torch.testing.assert_close(
        k_BHTK.mean(-1), torch.zeros(2, 2, 9), rtol=0, atol=1e-5
    )  # its weights are 1
    torch.testing.assert_close(k_BHTK.var(-1, correction=0), torch.ones(2, 2, 9), rtol=0, atol=1e-4)


def test_the_mlp_is_swiglu(block):
    x_D = torch.randn(16, generator=torch.Generator().manual_seed(1))
    weight = block.mlp_gate_up.weight.tolist()
    dot = [sum(w * x for w, x in zip(row, x_D.tolist(), strict=True)) for row in weight]
    inner = [gate / (1 + math.exp(-gate)) * up for gate, up in zip(dot[:12], dot[12:], strict=True)]
    expected = [
        sum(w * x for w, x in zip(row, inner, strict=True))
        for row in block.mlp_proj.weight.tolist()
    ]
    torch.testing.assert_close(block.mlp(x_D), torch.tensor(expected))


def test_rounded_tables_are_refused(block):
    tables = (table.bfloat16() for table in rope_tables(4, 8, 10_000.0, CPU))
    with pytest.raises(AssertionError, match="bf16"):
        block(torch.zeros(1, 4, 16), *tables)
