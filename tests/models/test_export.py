"""Models against transformers' own classes, by way of the folders that we write for them."""

import pytest
import torch
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer

from coupled_adam_bench.models.build import FAMILIES
from coupled_adam_bench.models.export import load_model, save_model


def logits(model, tokens_BT):
    return F.linear(model.hidden(tokens_BT), model.head_weight)


@pytest.fixture
def model(make):
    """A model whose norms, too, have left the values from which they start."""
    model = make()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return model


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@torch.no_grad()
def test_transformers_computes_the_same_logits(model, architecture, tokens, tokenizer, tmp_path):
    folder = tmp_path / "model"
    save_model(model, model.state_dict(), folder, tokenizer, eot_id=5)
    theirs, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(info.values())  # no weight is missing, unexpected or of another shape
    assert [type(theirs).__name__] == FAMILIES[architecture].fixed["architectures"]
    is_tied = theirs.lm_head.weight is theirs.get_input_embeddings().weight
    assert is_tied == model.tied

    ours_BTV = logits(model, tokens)
    torch.testing.assert_close(theirs(tokens).logits, ours_BTV, rtol=0, atol=2e-5)
    # As text is generated, where positions go on behind those of the cache.
    start = theirs(tokens[:, :11], use_cache=True)
    rest = theirs(tokens[:, 11:], past_key_values=start.past_key_values)
    torch.testing.assert_close(rest.logits, ours_BTV[:, 11:], rtol=0, atol=2e-5)

    ends = theirs.generation_config
    assert (ends.bos_token_id, ends.eos_token_id, ends.pad_token_id) == (5, 5, 5)
    read = AutoTokenizer.from_pretrained(folder)
    assert read("w3 w4")["input_ids"] == [3, 4]
    assert read.model_max_length == model.seq_len


def test_a_model_comes_back_as_it_was_saved(model, tokens, tokenizer, tmp_path):
    save_model(model, model.state_dict(), tmp_path / "model", tokenizer, eot_id=5)
    again = load_model(tmp_path / "model")
    assert type(again) is type(model) and not again.training
    ours, read = model.state_dict(), again.state_dict()
    assert list(read) == list(ours)
    assert all(torch.equal(read[name], ours[name]) for name in ours)
    assert torch.equal(again(tokens, tokens), model(tokens, tokens))
    again(tokens, tokens).backward()  # the weights are its own, to be trained on
    assert all(parameter.grad is not None for parameter in again.parameters())


def test_whole_weights_stand_in_for_a_model_that_has_none(model, make, tokenizer, tmp_path):
    save_model(model, model.state_dict(), tmp_path / "one", tokenizer, eot_id=5)
    empty = make().to("meta")
    save_model(empty, model.state_dict(), tmp_path / "other", tokenizer, eot_id=5)
    assert files(tmp_path / "one") == files(tmp_path / "other")  # and the same bytes each time
    with pytest.raises(AssertionError, match="extra"):
        weights = model.state_dict() | {"extra.weight": torch.zeros(1)}
        save_model(model, weights, tmp_path / "third", tokenizer, eot_id=5)
    save_model(make(7), make(7).state_dict(), tmp_path / "one", tokenizer, eot_id=5)
    assert torch.equal(load_model(tmp_path / "one").head_weight, make(7).head_weight)
    assert {path.name for path in tmp_path.iterdir()} == {"one", "other", "tokenizer"}
