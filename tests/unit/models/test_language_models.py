"""What holds for every architecture, tied and untied."""

import math

import pytest
import torch
import torch.distributed as dist
from casts import Casts
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F

from coupled_adam_bench.models.build import build_model

VOCAB_SIZE, SEQ_LEN = 97, 16


def loss_and_gradients(model, tokens_BT):
    model.zero_grad()
    loss = model(tokens_BT[:, :-1], tokens_BT[:, 1:])
    loss.backward()
    return loss.detach(), {name: parameter.grad for name, parameter in model.named_parameters()}


def test_initialisation_follows_the_seed_and_the_paper(make_model):
    assert torch.equal(make_model(3).head_weight, make_model(3).head_weight)
    assert not torch.equal(make_model(3).head_weight, make_model(4).head_weight)
    model = make_model(0, 0.02, n_layer=8, d_model=64)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            assert torch.equal(parameter, torch.ones_like(parameter)), name
        else:
            residual = name.endswith(("attn_proj.weight", "mlp_proj.weight"))
            expected = 0.02 / math.sqrt(2 * 8) if residual else 0.02
            assert parameter.std().item() == pytest.approx(expected, rel=0.1), name
            assert abs(parameter.mean().item()) < 0.1 * expected, name


def test_initialisation_does_not_touch_the_global_generator(make_model):
    model = make_model()
    before = torch.random.get_rng_state()
    model.init_weights(0, 0.02)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_initial_values_do_not_need_the_weights(make_model, settings):
    with torch.device("meta"):
        empty = build_model(settings, VOCAB_SIZE, SEQ_LEN)
    values = [value for _, value in empty.initial_values(5, 0.3)]
    assert all(torch.equal(a, b) for a, b in zip(make_model(5).parameters(), values, strict=True))


def test_parameter_count_of_the_configuration_is_that_of_the_model(make_model, settings):
    count = sum(parameter.numel() for parameter in make_model().parameters())
    assert count == settings.n_params(VOCAB_SIZE, SEQ_LEN)


def test_a_token_sees_none_that_come_later(make_model, tokens):
    model = make_model()
    changed = tokens.clone()
    changed[:, 9] = (changed[:, 9] + 1) % VOCAB_SIZE
    with torch.no_grad():
        before, after = model.logits(tokens), model.logits(changed)
    torch.testing.assert_close(before[:, :9], after[:, :9], rtol=0, atol=0)
    for position in range(9, SEQ_LEN):  # and every one that comes earlier
        assert (before[:, position] - after[:, position]).abs().max() > 1e-4


def test_the_order_of_earlier_tokens_matters(make_model, tokens):
    model = make_model(n_layer=1)
    with torch.no_grad():
        before, after = (
            model.logits(tokens)[:, -1],
            model.logits(tokens[:, [*range(14, -1, -1), 15]])[:, -1],
        )
    assert not torch.allclose(before, after, atol=1e-3)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_loss_is_the_cross_entropy_of_the_logits(reduction, make_model, tokens):
    model = make_model()
    inputs, targets = tokens[:, :-1], tokens[:, 1:].clone()
    targets[1, 5:] = -100
    expected = F.cross_entropy(
        model.logits(inputs).flatten(0, 1), targets.flatten(), reduction=reduction
    )
    torch.testing.assert_close(
        model(inputs, targets, reduction=reduction).flatten(), expected.flatten()
    )


def test_the_head_is_the_embedding_or_its_own_matrix(make_model, tokens, tied):
    model = make_model()
    parameters = dict(model.named_parameters())
    assert ("head.weight" in parameters) != tied
    expected = (
        [parameters["embedding.weight"]]
        if tied
        else [parameters["embedding.weight"], parameters["head.weight"]]
    )
    assert [id(p) for p in model.embedding_parameters()] == [id(p) for p in expected]
    assert model.head_weight is expected[-1]
    # A row that no input uses learns from the head alone.
    low = tokens.clamp(max=90)
    _, gradients = loss_and_gradients(model, low)
    rows = gradients["embedding.weight"].any(1).nonzero().flatten()
    assert torch.equal(rows, torch.arange(VOCAB_SIZE) if tied else low[:, :-1].unique())
    if not tied:
        assert gradients["head.weight"].any(1).all()


# torch looks at it while it compiles and hides the warning from all but strict filters.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_compiled_layers_compute_the_same(make_model, tokens):
    model, compiled = make_model(), make_model()
    for block in compiled.blocks:
        block.compile(backend="aot_eager")
    loss, gradients = loss_and_gradients(model, tokens)
    compiled_loss, compiled_gradients = loss_and_gradients(compiled, tokens)
    torch.testing.assert_close(compiled_loss, loss)
    torch.testing.assert_close(compiled_gradients, gradients)


def test_no_kernel_is_chosen_by_its_time_if_kernels_are_deterministic(make_model, monkeypatch):
    asked = []
    monkeypatch.setattr(
        torch.nn.Module, "compile", lambda _block, **settings: asked.append(settings["options"])
    )
    model = make_model()
    model.compile_parts()
    model.compile_parts(deterministic=True)
    has_mode = "deterministic" in torch._inductor.list_options()  # from PyTorch 2.10 on
    assert asked == [None] * len(model.blocks) + [
        {"deterministic": True} if has_mode else None
    ] * len(model.blocks)


def test_attention_on_a_cpu_is_in_float32_under_autocast(make_model, tokens, monkeypatch):
    seen = []

    def attention(q_BHTK, *others, **options):
        seen.append(q_BHTK.dtype)
        return kernel(q_BHTK, *others, **options)

    kernel = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", attention)
    model = make_model()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        close = model.logits(tokens)
    with torch.no_grad():
        exact = model.logits(tokens)
    assert set(seen) == {torch.float32}
    assert (close.float() - exact).abs().mean() < 0.05


def test_queries_keys_and_values_without_rotation_are_cast_together(
    make_model, architecture, tokens
):
    model = make_model()
    with torch.autocast("cpu", torch.bfloat16), Casts() as casts:
        model(tokens, tokens).backward()
    n_sequences, seq_len = tokens.shape
    together = (n_sequences, seq_len, 3 * model.d_model)
    expected = model.n_layer if architecture == "gpt2" else 0
    assert casts.of(together, torch.bfloat16, torch.float32) == expected
    assert casts.of(together, torch.float32, torch.bfloat16) == expected


@pytest.fixture
def process_group(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize("bf16", [False, True], ids=["fp32", "bf16"])
def test_a_model_in_shards_computes_the_same(bf16, make_model, settings, tokens):
    with torch.device("meta"):
        sharded = build_model(settings, VOCAB_SIZE, SEQ_LEN)
    mesh = dist.init_device_mesh("cpu", (1,))
    for block in sharded.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    sharded.to_empty(device="cpu")
    with torch.no_grad():
        for parameter, value in sharded.initial_values(0, 0.3):
            parameter.to_local().copy_(value)
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        loss, gradients = loss_and_gradients(make_model(), tokens)
        sharded_loss, sharded_gradients = loss_and_gradients(sharded, tokens)
    torch.testing.assert_close(sharded_loss, loss)
    torch.testing.assert_close(
        {name: g.full_tensor() for name, g in sharded_gradients.items()}, gradients
    )
