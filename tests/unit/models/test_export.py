import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from coupled_adam_bench.models import export
from coupled_adam_bench.models.build import family_of
from coupled_adam_bench.models.export import load_model, save_model
from coupled_adam_bench.store.files import sha256_file


@pytest.fixture
def model(make_model):
    model = make_model()
    with torch.no_grad():  # norms too away from where they start
        for parameter in model.parameters():
            parameter.add_(
                torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)), alpha=0.1
            )
    return model


def test_transformers_gives_the_same_logits_and_tokenizer(
    model, tokens, architecture, tied, tmp_path, tokenizer_folder
):
    save_model(model, tmp_path / "model", tokenizer_folder, eot_id=5)
    theirs, info = AutoModelForCausalLM.from_pretrained(
        tmp_path / "model", output_loading_info=True
    )
    assert {
        what: found for what, found in info.items() if found
    } == {}  # no weight is missing, unexpected or misshapen
    assert [type(theirs).__name__] == family_of(architecture).fixed["architectures"]
    assert (theirs.lm_head.weight is theirs.get_input_embeddings().weight) == tied
    with torch.no_grad():
        torch.testing.assert_close(theirs(tokens).logits, model.logits(tokens), rtol=0, atol=2e-5)
        # One token after the other, as text is generated: positions of the cache go on where it
        # ends.
        start = theirs(tokens[:, :11], use_cache=True)
        rest = theirs(tokens[:, 11:], past_key_values=start.past_key_values)
        torch.testing.assert_close(rest.logits, model.logits(tokens)[:, 11:], rtol=0, atol=2e-5)
    assert theirs.config.eos_token_id == 5
    assert AutoTokenizer.from_pretrained(tmp_path / "model")("w3 w4")["input_ids"] != []


@pytest.mark.parametrize("kind", ["stablelm", "stablelm, rope_fraction, qk_norm"], indirect=True)
def test_transformers_turns_by_the_same_base(make_model, tokens, tmp_path, tokenizer_folder):
    model = make_model(rope_base=77.0, d_model=16)
    save_model(model, tmp_path / "model", tokenizer_folder, eot_id=0)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    with torch.no_grad():
        logits = model.logits(tokens)
        torch.testing.assert_close(theirs(tokens).logits, logits, rtol=0, atol=2e-5)
        assert (make_model(d_model=16).logits(tokens) - logits).abs().max() > 0.01
    # Where transformers 4 looks for what 5 takes from rope_parameters.
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert (config["rope_theta"], config["partial_rotary_factor"]) == (77.0, model.rope_fraction)


def test_a_model_comes_back_as_it_was_saved(model, tokens, tmp_path, tokenizer_folder):
    save_model(model, tmp_path / "model", tokenizer_folder, eot_id=5)
    again = load_model(tmp_path / "model")
    assert type(again) is type(model)
    assert not again.training
    assert again.seq_len == model.seq_len
    ours, read = model.state_dict(), again.state_dict()
    assert list(read) == list(ours)
    assert all(torch.equal(read[name], ours[name]) and read[name].is_contiguous() for name in ours)
    with torch.no_grad():
        assert torch.equal(again.logits(tokens), model.logits(tokens))
    # The weights are the model's own, to be trained on.
    again(tokens, tokens).backward()
    assert all(parameter.grad is not None for parameter in again.parameters())


def test_a_gathered_state_stands_in_for_the_weights(
    model, make_model, settings, tmp_path, tokenizer_folder
):
    state = {name: value.clone() for name, value in model.state_dict().items()}
    save_model(
        make_model(seed=1).to("meta"),
        tmp_path / "gathered",
        tokenizer_folder,
        eot_id=5,
        state=state,
    )
    save_model(model, tmp_path / "model", tokenizer_folder, eot_id=5)
    gathered, whole = (
        load_file(tmp_path / folder / "model.safetensors") for folder in ("gathered", "model")
    )
    assert gathered.keys() == whole.keys()
    assert all(torch.equal(gathered[name], whole[name]) for name in whole)
    assert len(state) == len(model.state_dict())  # the caller's own, left as it is


def test_a_state_of_another_model_is_refused_before_anything_is_written(
    model, tmp_path, tokenizer_folder
):
    state = model.state_dict() | {"blocks.3.extra.weight": torch.zeros(1)}
    with pytest.raises(AssertionError, match=r"blocks\.3\.extra"):
        save_model(model, tmp_path / "model", tokenizer_folder, eot_id=0, state=state)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tokenizer"]


def test_saving_replaces_a_model_and_leaves_nothing_behind(make_model, tmp_path, tokenizer_folder):
    for seed in (0, 1):
        save_model(make_model(seed), tmp_path / "model", tokenizer_folder, eot_id=0)
    assert torch.equal(
        load_model(tmp_path / "model").embedding.weight, make_model(1).embedding.weight
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "tokenizer"]


def cut(contents: bytes) -> bytes:
    return contents[:-8]


def flip(contents: bytes) -> bytes:
    return contents[:-1] + bytes([contents[-1] ^ 1])


@pytest.mark.fault(
    "training",
    "The disk keeps the weights of an exported model cut short, or with one bit changed.",
    "The run is not called completed: a sentence names the model, the one before stays, and"
    " training can go on.",
)
@pytest.mark.parametrize("kind", ["gpt2"], indirect=True)
@pytest.mark.parametrize("damage", [cut, flip, lambda contents: b""])
def test_weights_that_the_disk_did_not_keep(damage, model, tmp_path, tokenizer_folder, monkeypatch):
    save_model(model, tmp_path / "model", tokenizer_folder, eot_id=5)
    before = (tmp_path / "model" / "model.safetensors").read_bytes()
    save = export._save_weights

    def save_on_a_bad_disk(path, *arguments):
        save(path, *arguments)
        path.write_bytes(damage(path.read_bytes()))

    monkeypatch.setattr(export, "_save_weights", save_on_a_bad_disk)
    with pytest.raises(
        OSError, match=r"model: the weights that were written cannot be read back.*start again"
    ):
        save_model(model, tmp_path / "model", tokenizer_folder, eot_id=5)
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == before
    assert not list(tmp_path.glob(".*"))  # nothing half written


def test_a_folder_without_a_model_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"config\.json: no such file"):
        load_model(tmp_path)


def test_an_exported_cell_says_what_it_is(model, tmp_path, tokenizer_folder, tiny_plan):
    cell = next(iter(tiny_plan.cells.values()))
    for name in ("model", "again"):
        save_model(model, tmp_path / name, tokenizer_folder, eot_id=5, cell=cell)
    files = {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()}
    assert files == {path.name: path.read_bytes() for path in (tmp_path / "again").iterdir()}
    assert set(files) == {
        "README.md",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    with safe_open(tmp_path / "model" / "model.safetensors", "pt") as weights:
        assert weights.metadata() == {"format": "pt", "cell": cell.id}
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    generation = theirs.generation_config
    assert (generation.bos_token_id, generation.eos_token_id, generation.pad_token_id) == (5, 5, 5)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    assert tokenizer.model_max_length == model.seq_len
    generated = theirs.generate(
        **tokenizer("w3 w4", return_tensors="pt"), max_new_tokens=3, do_sample=False
    )
    assert generated.shape[1] <= 5
    assert "model_max_length" not in (tokenizer_folder / "tokenizer_config.json").read_text()


def test_the_bytes_are_those_of_the_library(model, tmp_path, tokenizer_folder, tiny_plan):
    cell = next(iter(tiny_plan.cells.values()))
    save_model(model, tmp_path / "plain", tokenizer_folder, eot_id=5)
    save_model(model, tmp_path / "cell", tokenizer_folder, eot_id=5, cell=cell)
    plain, with_cell = (tmp_path / name / "model.safetensors" for name in ("plain", "cell"))
    save_file(load_file(plain), tmp_path / "theirs.safetensors", metadata={"format": "pt"})
    assert plain.read_bytes() == (tmp_path / "theirs.safetensors").read_bytes()
    assert sha256_file(with_cell) != sha256_file(plain)
