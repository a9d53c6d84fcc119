"""The matrices by their names alone: the same that transformers finds, or a sentence."""

import importlib.util
import json
import shutil

import numpy as np
import pytest
from every_class import language_models, small_model
from safetensors.numpy import load_file, save_file
from small_models import FAMILIES, build

from embedding_geometry import checkpoint
from embedding_geometry.checkpoint import find_matrices
from embedding_geometry.model import measure_model
from embedding_geometry.place import open_place
from embedding_geometry.stored import Matrices
from embedding_geometry.word_lists import WordLists


@pytest.fixture
def alone(monkeypatch):
    """A function after whose call torch and transformers are not found."""

    def hide() -> None:
        hidden = ("torch", "transformers")
        monkeypatch.setattr(
            checkpoint,
            "find_spec",
            lambda name: None if name in hidden else importlib.util.find_spec(name),
        )

    return hide


def assert_same(found: Matrices, known: Matrices) -> None:
    assert found.embeddings.name == known.embeddings.name
    assert (found.head and found.head.name) == (known.head and known.head.name)
    assert found.tied in (known.tied, None)
    np.testing.assert_array_equal(found.embeddings.read(), known.embeddings.read())


@pytest.mark.parametrize("family", FAMILIES)
def test_the_matrices_of_each_family(saved, alone, family):
    known = find_matrices(open_place(str(saved(family))))
    with_transformers = measure_model(str(saved(family)), WordLists({}, []), [])
    alone()
    found = find_matrices(open_place(str(saved(family))))
    assert_same(found, known)
    assert found.architecture == known.architecture
    assert (
        measure_model(str(saved(family)), WordLists({}, []), []).results
        == with_transformers.results
    )


SOME_CLASSES = (
    "Gemma3ForCausalLM",
    "NemotronHForCausalLM",
    "CpmAntForCausalLM",
    "XLMWithLMHeadModel",
)


@pytest.mark.parametrize(
    "name",
    [
        *SOME_CLASSES,
        *(
            pytest.param(n, marks=pytest.mark.nightly)
            for n in language_models()
            if n not in SOME_CLASSES
        ),
    ],
)
def test_no_class_of_transformers_has_another_matrix_than_transformers_finds(tmp_path, alone, name):
    try:
        small_model(name).save_pretrained(tmp_path)
        known = find_matrices(open_place(str(tmp_path)))
    except Exception:
        # One reason for all, so that pytest prints one line with their number.
        pytest.skip("the class cannot be built small, or is not measured at all")
    alone()
    try:
        found = find_matrices(open_place(str(tmp_path)))
    except ValueError as error:
        assert "install torch and transformers" in str(error)
        return
    assert found.embeddings.name == known.embeddings.name
    assert found.head is None or found.head.name == known.head.name


def test_a_name_that_leaves_a_doubt_is_refused(saved, tmp_path, alone):
    alone()
    folder = shutil.copytree(saved("gpt2"), tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 101}))
    with pytest.raises(
        ValueError, match="no stored tensor has a usual name of an input embedding; install torch"
    ):
        find_matrices(open_place(str(folder)))


@pytest.mark.fault(
    "evaluation",
    "A model is measured without transformers, and its config.json is missing, no object, or names"
    " no file of weights.",
    "It is refused with a sentence, or the usual file is read.",
)
def test_a_configuration_that_is_damaged(saved, tmp_path, alone):
    alone()
    folder = shutil.copytree(saved("gpt2"), tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps(config | {"transformers_weights": 3, "architectures": 5})
    )
    assert find_matrices(open_place(str(folder))).architecture == "not named"
    for text in ("[1]", "{", '{"n_layer": 1e99}'):
        (folder / "config.json").write_text(text)
        with pytest.raises(ValueError, match=r"config\.json cannot be used"):
            find_matrices(open_place(str(folder)))
    (folder / "config.json").unlink()
    with pytest.raises(ValueError, match="there is none"):
        find_matrices(open_place(str(folder)))


def test_a_tied_matrix_under_the_name_of_the_head(saved, tmp_path, alone):
    alone()
    folder = shutil.copytree(saved("gpt2"), tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"] = weights.pop("transformer.wte.weight")
    save_file(weights, folder / "model.safetensors")
    found = find_matrices(open_place(str(folder)))
    assert (found.embeddings.name, found.head, found.tied) == ("lm_head.weight", None, True)


def test_a_head_with_the_values_of_the_embedding_is_tied(tmp_path, alone):
    alone()
    model = build("llama")
    model.lm_head.weight.data.copy_(model.model.embed_tokens.weight.data)
    for says, tied in ((True, True), (False, False)):
        model.config.tie_word_embeddings = says
        model.save_pretrained(tmp_path)
        found = find_matrices(open_place(str(tmp_path)))
        assert (found.tied, found.head is None) == (tied, tied)
