"""Which parameters are coupled, and which decay."""

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from coupled_adam import coupled_param_groups


def names_by_group(model, **settings):
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = coupled_param_groups(model, **settings)
    return [
        (group["coupled"], group["weight_decay"], {names[id(each)] for each in group["params"]})
        for group in groups
    ]


@pytest.mark.parametrize("tied", [True, False])
def test_a_model_of_transformers_says_what_its_embeddings_are(tied):
    config = GPT2Config(
        vocab_size=11, n_positions=4, n_embd=4, n_layer=1, n_head=1, tie_word_embeddings=tied
    )
    model = GPT2LMHeadModel(config)
    model.transformer.h[0].mlp.c_fc.weight.requires_grad_(False)
    coupled, matrices, vectors = names_by_group(model, weight_decay=0.1)
    head = set() if tied else {"lm_head.weight"}
    assert coupled == (True, 0.0, {"transformer.wte.weight", *head})
    assert matrices[:2] == (False, 0.1) and vectors[:2] == (False, 0.0)
    assert "transformer.wpe.weight" in matrices[2] and "transformer.ln_f.bias" in vectors[2]
    every = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert coupled[2] | matrices[2] | vectors[2] == every
    assert not coupled[2] & matrices[2]
    for embedding in (model.get_input_embeddings(), model.get_output_embeddings()):
        embedding.weight.requires_grad_(False)
    with pytest.raises(ValueError, match=r"^embeddings: "):
        coupled_param_groups(model)


def test_names_are_taken_as_given_and_unknown_ones_refused():
    model = torch.nn.Sequential(torch.nn.Embedding(5, 3), torch.nn.Linear(3, 5))
    coupled, *rest = names_by_group(model, embeddings=["0.weight", "1.weight"])
    assert coupled[2] == {"0.weight", "1.weight"}
    assert rest == [(False, 0.0, {"1.bias"})]
    for wrong in (None, [], ["0.weight", "wte.weight"]):
        with pytest.raises(ValueError, match=r"^embeddings: "):
            coupled_param_groups(model, embeddings=wrong)
    model[0].weight.requires_grad_(False)
    with pytest.raises(ValueError, match=r"^embeddings: "):
        coupled_param_groups(model, embeddings=["0.weight"])
