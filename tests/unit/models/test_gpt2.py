import math

import pytest
import torch

from coupled_adam_bench.config import Model
from coupled_adam_bench.models.export import load_model, save_model
from coupled_adam_bench.models.gpt2 import GPT2

VOCAB_SIZE, SEQ_LEN, N_LAYER, N_HEAD, D_MODEL = 97, 16, 3, 2, 8


def make_model(seed: int = 0, n_layer: int = N_LAYER) -> GPT2:
    model = GPT2(VOCAB_SIZE, SEQ_LEN, n_layer, N_HEAD, D_MODEL)
    model.init_weights(seed, 0.02)
    return model


@pytest.fixture
def tokenizer_folder(tmp_path):
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    folder = tmp_path / "tokenizer"
    folder.mkdir()
    Tokenizer(WordLevel({f"w{i}": i for i in range(VOCAB_SIZE)}, unk_token="w0")).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    return folder


def test_transformers_gives_the_same_logits_and_tokenizer(tmp_path, tokenizer_folder):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = make_model()
    with torch.no_grad():  # away from the initialisation, so that nothing is zero or one by chance
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)), alpha=0.3)
    save_model(model, tmp_path / "model", tokenizer_folder, eot_id=5)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert type(theirs).__name__ == "GPT2LMHeadModel"
    tokens = torch.randint(0, VOCAB_SIZE, (4, SEQ_LEN), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        difference = (theirs(tokens).logits - model.logits(tokens)).abs().max().item()
    assert difference < 1e-5
    assert theirs.config.eos_token_id == 5
    assert AutoTokenizer.from_pretrained(tmp_path / "model")("w3 w4")["input_ids"] != []
    # And the way back.
    again = load_model(tmp_path / "model")
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


def test_saving_replaces_a_model_and_leaves_nothing_behind(tmp_path, tokenizer_folder):
    for seed in (0, 1):
        save_model(make_model(seed), tmp_path / "model", tokenizer_folder, eot_id=0)
    assert torch.equal(load_model(tmp_path / "model").embedding.weight, make_model(1).embedding.weight)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "tokenizer"]


def test_initialisation_follows_the_seed_and_the_paper():
    assert torch.equal(make_model(3).embedding.weight, make_model(3).embedding.weight)
    assert not torch.equal(make_model(3).embedding.weight, make_model(4).embedding.weight)
    model = GPT2(500, 64, 8, 2, 64)
    model.init_weights(0, 0.02)
    assert model.embedding.weight.std().item() == pytest.approx(0.02, rel=0.02)
    assert model.blocks[0].mlp_proj.weight.std().item() == pytest.approx(0.02 / math.sqrt(2 * 8), rel=0.02)
    assert model.blocks[0].attn_proj.weight.std().item() == pytest.approx(0.02 / math.sqrt(2 * 8), rel=0.03)
    assert torch.equal(model.ln_f.weight, torch.ones(64))


def test_initialisation_does_not_touch_the_global_generator():
    model = GPT2(10, 4, 1, 1, 4)
    before = torch.random.get_rng_state()
    model.init_weights(0, 0.02)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_token_sees_none_that_come_later():
    model = make_model()
    tokens = torch.randint(0, VOCAB_SIZE, (1, SEQ_LEN), generator=torch.Generator().manual_seed(0))
    changed = tokens.clone()
    changed[0, 9] = (changed[0, 9] + 1) % VOCAB_SIZE
    with torch.no_grad():
        before, after = model.logits(tokens), model.logits(changed)
    torch.testing.assert_close(before[:, :9], after[:, :9], rtol=0, atol=0)
    assert not torch.allclose(before[:, 9:], after[:, 9:])


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_loss_is_the_cross_entropy_of_the_logits(reduction):
    model = make_model()
    generator = torch.Generator().manual_seed(0)
    tokens, targets = (torch.randint(0, VOCAB_SIZE, (2, 7), generator=generator) for _ in range(2))
    targets[1, 5:] = -100
    logits = model.logits(tokens).flatten(0, 1)
    expected = torch.nn.functional.cross_entropy(logits, targets.flatten(), reduction=reduction)
    loss = model(tokens, targets, reduction=reduction)
    torch.testing.assert_close(loss.flatten(), expected.flatten())


def test_parameter_count_of_the_configuration_is_that_of_the_model():
    model = make_model()
    settings = Model(name="m", n_layer=N_LAYER, n_head=N_HEAD, d_model=D_MODEL, learning_rate=1e-3)
    assert sum(p.numel() for p in model.parameters()) == settings.n_params(VOCAB_SIZE, SEQ_LEN)
