import pytest

from coupled_adam_bench.models.build import build_model
from coupled_adam_bench.models.gpt2 import GPT2
from coupled_adam_bench.models.stablelm import StableLM
from coupled_adam_bench.study.settings import Model

SIZES = {"name": "m", "n_layer": 2, "n_head": 2, "d_model": 12, "learning_rate": 1e-3}


def test_a_configuration_becomes_its_model():
    gpt2 = build_model(Model(**SIZES), 97, 16)
    assert type(gpt2) is GPT2
    assert (gpt2.vocab_size, gpt2.seq_len, gpt2.n_layer, gpt2.n_head, gpt2.d_model) == (
        97,
        16,
        2,
        2,
        12,
    )
    assert (gpt2.d_ffn, gpt2.blocks[0].mlp_fc.out_features) == (48, 48)
    settings = Model(architecture="stablelm", tied=False, ffn_dim=20, rope_base=500.0, **SIZES)
    stablelm = build_model(settings, 97, 16)
    assert type(stablelm) is StableLM
    assert (stablelm.d_ffn, stablelm.tied, stablelm.rope_base) == (20, False, 500.0)
    assert stablelm.blocks[0].mlp_gate_up.out_features == 40


@pytest.mark.parametrize(
    ("d_model", "d_ffn"), [(12, 256), (96, 256), (98, 512), (2048, 5632), (2560, 6912)]
)
def test_the_width_of_swiglu_is_a_multiple_of_256(d_model, d_ffn):
    assert (
        Model(architecture="stablelm", **SIZES | {"d_model": d_model, "n_head": 1}).d_ffn == d_ffn
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"architecture": "llama"}, "'gpt2', 'stablelm', 'modded_nanogpt' or 'contexts'"),
        ({"n_layer": 0}, "n_layer: missing; architecture gpt2"),
        ({"n_contexts": 8}, "n_contexts: gpt2 has none; n_contexts is for architecture 'contexts'"),
        ({"architecture": "contexts"}, "n_contexts: missing"),
        (
            {"architecture": "contexts", "n_contexts": 8},
            "n_layer: architecture contexts has no layers",
        ),
        ({"architecture": "contexts", "n_contexts": 6, "n_layer": 0, "n_head": 0}, "multiple of 4"),
        ({"architecture": "stablelm", "n_head": 4}, "d_model / n_head = 3 is not even"),
        ({"rope_base": 500.0}, "rope_base: gpt2 has none; rope_base is for"),
        ({"qk_norm": "shared"}, "qk_norm is for architecture 'stablelm'"),
        ({"ffn_dim": 0}, "greater than 0"),
    ],
)
def test_sizes_that_make_no_model_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        Model(**SIZES | fields)


def test_an_untied_head_costs_parameters_and_no_flops():
    tied, untied = Model(**SIZES), Model(tied=False, **SIZES)
    assert untied.n_params(97, 16) - tied.n_params(97, 16) == 97 * 12
    assert untied.flops_per_token(97, 16) == tied.flops_per_token(97, 16)
