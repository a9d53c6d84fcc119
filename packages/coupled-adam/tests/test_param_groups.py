"""coupled_param_groups finds the token embeddings of any model, and says when it cannot."""

import pytest
import torch
from torch import nn

from coupled_adam import CoupledAdam, coupled_param_groups

transformers = pytest.importorskip("transformers")

SMALL = {
    "vocab_size": 64,
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}
GPT2_SMALL = {"vocab_size": 64, "n_positions": 64, "n_embd": 8, "n_layer": 1, "n_head": 2}
T5_SMALL = {"vocab_size": 64, "d_model": 8, "d_kv": 4, "d_ff": 16, "num_layers": 1, "num_heads": 2}


def coupled_names(model, **settings):
    names = {parameter: name for name, parameter in model.named_parameters()}
    groups = coupled_param_groups(model, **settings)
    everything = [parameter for group in groups for parameter in group["params"]]
    trainable = [parameter for parameter in names if parameter.requires_grad]
    assert len(everything) == len(set(everything)) == len(trainable), (
        "a parameter is missing or there twice"
    )
    CoupledAdam(groups)
    return [
        names[parameter] for group in groups if group["coupled"] for parameter in group["params"]
    ]


@pytest.mark.parametrize(
    ("kind", "config", "expected"),
    [
        ("GPT2LMHeadModel", transformers.GPT2Config(**GPT2_SMALL), ["transformer.wte.weight"]),
        (
            "GPT2LMHeadModel",
            transformers.GPT2Config(**GPT2_SMALL, tie_word_embeddings=False),
            ["transformer.wte.weight", "lm_head.weight"],
        ),
        ("GPT2Model", transformers.GPT2Config(**GPT2_SMALL), ["wte.weight"]),
        (
            "LlamaForCausalLM",
            transformers.LlamaConfig(**SMALL, tie_word_embeddings=False),
            ["model.embed_tokens.weight", "lm_head.weight"],
        ),
        (
            "LlamaForSequenceClassification",
            transformers.LlamaConfig(**SMALL),
            ["model.embed_tokens.weight"],
        ),
        (
            "BertForMaskedLM",
            transformers.BertConfig(**SMALL, max_position_embeddings=64),
            ["bert.embeddings.word_embeddings.weight"],
        ),
        ("T5ForConditionalGeneration", transformers.T5Config(**T5_SMALL), ["shared.weight"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_model_of_transformers_says_itself_which_its_embeddings_are(kind, config, expected):
    assert coupled_names(getattr(transformers, kind)(config)) == expected


def test_positions_biases_and_norms_have_their_groups_and_decay():
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT2_SMALL))
    names = {parameter: name for name, parameter in model.named_parameters()}
    coupled, matrices, vectors = coupled_param_groups(
        model, weight_decay=0.1, embedding_weight_decay=0.2
    )
    assert (coupled["weight_decay"], matrices["weight_decay"], vectors["weight_decay"]) == (
        0.2,
        0.1,
        0.0,
    )
    assert "transformer.wpe.weight" in {names[parameter] for parameter in matrices["params"]}
    assert {names[parameter].split(".")[-1] for parameter in matrices["params"]} == {"weight"}
    assert {parameter.ndim for parameter in vectors["params"]} == {1}
    assert (
        coupled_param_groups(model, weight_decay=0.1, decay_vectors=True)[2]["weight_decay"] == 0.1
    )


class Plain(nn.Module):
    def __init__(self, n_positions=8, hidden=5, tied=False, head=True):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(29, 6), nn.Embedding(n_positions, 6)
        self.up, self.down = nn.Linear(6, hidden), nn.Linear(hidden, 6)
        if head:
            self.head = nn.Linear(6, 29, bias=False)
        if tied:
            self.head.weight = self.wte.weight


def test_untied_tied_and_single_embeddings_of_plain_modules():
    assert coupled_names(Plain()) == ["wte.weight", "head.weight"]
    # A position embedding of the size of a hidden layer does not confuse a tied head.
    assert coupled_names(Plain(n_positions=5, tied=True)) == ["wte.weight"]
    assert coupled_names(nn.Sequential(nn.Embedding(7, 3), nn.Linear(3, 2))) == ["0.weight"]


@pytest.mark.parametrize(
    ("model", "reason", "candidates"),
    [
        (
            Plain(n_positions=5),
            "2 embeddings have as many rows as a linear layer",
            "wte.weight (29 x 6), wpe.weight",
        ),
        (
            Plain(hidden=29),
            "2 linear layers have 29 outputs",
            "up.weight (29 x 6), head.weight (29 x 6)",
        ),
        (
            Plain(head=False),
            "none of its 2 embeddings has a linear layer for a head",
            "wte.weight (29 x 6), wpe.weight",
        ),
        (nn.Linear(3, 3), "it has no nn.Embedding", "name them"),
    ],
    ids=["positions", "hidden layer", "no head", "no embedding"],
)
def test_what_cannot_be_told_apart_is_listed_and_names_are_asked_for(model, reason, candidates):
    with pytest.raises(
        ValueError, match=r"^embeddings: cannot tell which parameters of \w+ are its token"
    ) as error:
        coupled_param_groups(model)
    assert reason in str(error.value)
    assert candidates in str(error.value)
    assert str(error.value).endswith(
        "name them: coupled_param_groups(model, embeddings=[NAME, ...])"
    )


def test_names_decide():
    assert coupled_names(Plain(hidden=29), embeddings=["wte.weight", "head.weight"]) == [
        "wte.weight",
        "head.weight",
    ]
    assert coupled_names(Plain(tied=True), embeddings=["wte.weight", "head.weight"]) == [
        "wte.weight"
    ]


@pytest.mark.parametrize(
    ("embeddings", "message"),
    [
        ("wte.weight", "'wte.weight' is text; give a list of names, embeddings=['wte.weight']"),
        (
            ["wte.weight", "lm_head.weight", "wpe"],
            (
                "the model has no parameter 'wte.weight' (did you mean 'transformer.wte.weight'?),"
                " 'wpe' (did you mean 'transformer.wpe.weight'?); names are those of"
                " model.named_parameters()"
            ),
        ),
        (
            ["ln_1.weight"],
            (
                "the model has no parameter 'ln_1.weight' (did you mean"
                " 'transformer.h.0.ln_1.weight'?); na"
            ),
        ),
        (
            ["transformer.wtf.weight"],
            "no parameter 'transformer.wtf.weight' (did you mean 'transformer.wte.weight'?)",
        ),
        (
            ["x.wte"],
            "the model has no parameter 'x.wte' (did you mean 'transformer.wte.weight'?); na",
        ),
        (["?"], "the model has no parameter '?'; names are those of model.named_parameters()"),
        ([], "it has no names; give at least one, or leave it out"),
        (nn.Embedding(3, 2), "it must be a list of names, as in model.named_parameters()"),
        (
            [nn.Parameter(torch.ones(2, 2))],
            "it must be a list of names, as in model.named_parameters()",
        ),
    ],
    ids=[
        "text",
        "ends",
        "end",
        "a letter",
        "other first parts",
        "nothing alike",
        "none",
        "a module",
        "a parameter",
    ],
)
def test_what_are_no_names_of_the_model_is_refused_with_what_is_meant(embeddings, message):
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT2_SMALL))
    with pytest.raises(ValueError, match=r"^embeddings: ") as error:
        coupled_param_groups(model, embeddings=embeddings)
    assert message in str(error.value)


def decays(model, settings, **groups):
    """Return the weight decays that the optimizer has for embeddings, matrices and vectors."""
    optimizer = CoupledAdam(coupled_param_groups(model, **groups), lr=0.1, **settings)
    return [group["weight_decay"] for group in optimizer.param_groups]


def test_the_weight_decay_of_the_optimizer_is_that_of_the_matrices():
    model = Plain()
    assert decays(model, {}) == [0.0, 0.0, 0.0]
    assert decays(model, {"weight_decay": 0.1}) == [0.0, 0.1, 0.0]
    assert decays(model, {"weight_decay": 0.1}, decay_vectors=True) == [0.0, 0.1, 0.1]
    assert decays(model, {"weight_decay": 0.1}, embedding_weight_decay=0.2) == [0.2, 0.1, 0.0]
    assert decays(model, {}, weight_decay=0.1) == [0.0, 0.1, 0.0]
    assert decays(model, {"weight_decay": 0.1}, weight_decay=0.1) == [0.0, 0.1, 0.0]
    before, wte = model.up.weight.detach().clone(), model.wte.weight.detach().clone()
    optimizer = CoupledAdam(coupled_param_groups(model), lr=0.5, weight_decay=0.1)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    torch.testing.assert_close(model.up.weight.detach(), 0.95 * before)
    torch.testing.assert_close(model.wte.weight.detach(), wte)


@pytest.mark.parametrize(
    ("settings", "groups", "message"),
    [
        ({"weight_decay": 0.2}, {"weight_decay": 0.1}, r"every group has its own \(0.0, 0.1\)"),
        (
            {"eps": 1e-3},
            {"eps": 1e-6},
            r"every group has its own \(1e-06\); give it in one of the two places",
        ),
        ({"betas": (0.9, 0.95)}, {"betas": (0.8, 0.9)}, "every group has its own"),
        ({"scale": 0.5}, {"coupled": False}, "no group is coupled; leave it out"),
        ({"coupled_dim": 1}, {"coupled": False}, "no group is coupled"),
        ({"fused": True}, {"fused": False}, "every group has its own"),
    ],
    ids=["decay", "eps", "betas", "scale", "coupled_dim", "fused"],
)
def test_a_setting_that_no_group_would_have_is_refused(settings, groups, message):
    if "weight_decay" in groups:
        made = coupled_param_groups(Plain(), **groups)
    else:
        made = [group | groups for group in coupled_param_groups(Plain())]
    (name,) = settings
    with pytest.raises(ValueError, match=rf"^{name}: .* has no effect, since .*{message}"):
        CoupledAdam(made, **settings)


def test_a_setting_that_some_group_has_is_taken():
    coupled, *others = coupled_param_groups(Plain())
    weight = torch.nn.Parameter(torch.ones(2, 2))
    CoupledAdam([coupled, *(group | {"eps": 1e-6} for group in others)], eps=1e-3)
    CoupledAdam([coupled | {"scale": 0.5}, *others], scale=0.5)
    CoupledAdam([{"params": [weight], "lr": 1.0}], lr=0.5)  # that of groups that are added later


def test_frozen_parameters_are_left_out():
    model = Plain()
    model.up.requires_grad_(False)
    parameters = {
        parameter for group in coupled_param_groups(model) for parameter in group["params"]
    }
    assert model.up.weight not in parameters
    model.wte.requires_grad_(False)
    model.head.requires_grad_(False)
    with pytest.raises(ValueError, match=r"^embeddings: all token embeddings are frozen"):
        coupled_param_groups(model)


@pytest.mark.filterwarnings("ignore")  # PEFT and transformers say what is of no matter here
@pytest.mark.parametrize(
    ("saved", "expected"),
    [
        (["wte"], ["transformer.wte"]),
        (["wte", "lm_head"], ["transformer.wte", "lm_head"]),
        (["lm_head"], ["lm_head"]),
    ],
)
def test_the_copies_that_peft_trains_are_found(saved, expected):
    peft = pytest.importorskip("peft")
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(**GPT2_SMALL, tie_word_embeddings=False)
    )
    config = peft.LoraConfig(
        target_modules=["c_attn"], modules_to_save=saved, r=2, fan_in_fan_out=True
    )
    wrapped = peft.get_peft_model(model, config)
    assert coupled_names(wrapped) == [
        f"base_model.model.{name}.modules_to_save.default.weight" for name in expected
    ]
    wrapped.add_adapter("other", config)
    wrapped.set_adapter("other")
    assert coupled_names(wrapped) == [
        f"base_model.model.{name}.modules_to_save.other.weight" for name in expected
    ]


def test_a_vision_model_has_no_token_embeddings():
    config = transformers.ViTConfig(
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        image_size=4,
        patch_size=2,
    )
    with pytest.raises(ValueError, match=r"are its token embeddings: it has no nn.Embedding"):
        coupled_param_groups(transformers.ViTModel(config))


def test_a_compiled_model_is_split_like_itself():
    compiled = torch.compile(transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT2_SMALL)))
    assert coupled_names(compiled) == ["_orig_mod.transformer.wte.weight"]


def test_all_matrices_of_a_model_coupled_are_named_once_at_construction():
    model = Plain(hidden=29)
    matrices = [(name, each) for name, each in model.named_parameters() if each.ndim == 2]
    with pytest.warns(UserWarning, match="couples all") as found:
        CoupledAdam(matrices)
    assert len(found) == 1
    said = str(found[0].message)
    assert "wte.weight (" in said and "coupled_param_groups(model)" in said
    with pytest.warns(UserWarning, match="couples all"):  # without names by their shapes
        CoupledAdam([each for _, each in matrices])
    # One that is asked for, and embedding and head, whose rows are the tokens, are not.
    CoupledAdam([{"params": [each for _, each in matrices], "coupled": True}])
    CoupledAdam([torch.nn.Parameter(torch.ones(5, 2)), torch.nn.Parameter(torch.ones(5, 2))])
