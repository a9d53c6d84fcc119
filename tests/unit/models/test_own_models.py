"""Architectures and initializations of a study's own: what the trial refuses, and that a model comes
back as it was saved."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from coupled_adam_bench.models.build import build_model
from coupled_adam_bench.models.export import load_model, model_card, save_model
from coupled_adam_bench.models.plug_ins import n_own_parameters
from coupled_adam_bench.models.trial import try_models
from coupled_adam_bench.store.files import read_json
from coupled_adam_bench.study.plan import make_plan
from coupled_adam_bench.study.plan.inputs import with_code
from coupled_adam_bench.study.settings import Model, Study, parse_study

CODE = """
import torch
from torch import nn
from torch.nn import functional as F
from coupled_adam_bench.models.gpt2 import GPT2, GPT2Block
from coupled_adam_bench.models.plug_ins import ArchitecturePlugIn, InitializationPlugIn

class SquaredReLUBlock(GPT2Block):
    def mlp(self, x_BTD):
        return self.mlp_proj(F.relu(self.mlp_fc(x_BTD)).square())

class SquaredReLU(GPT2, ArchitecturePlugIn):
    contract = 1
    block_type = SquaredReLUBlock

class Mean(nn.Module):
    "A layer without attention: the mean of all before."
    def __init__(self, d_model, n_head, d_ffn):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(d_model))
    @staticmethod
    def norm(width):
        return nn.LayerNorm(width)
    def forward(self, x_BTD, sees_B1TT=None):
        return x_BTD + self.scale * x_BTD.cumsum(1)

class Means(ArchitecturePlugIn):
    contract, block_type, learned_positions = 1, Mean, False
    def __init__(self, *, factor=1.0, **sizes):
        super().__init__(**sizes)
        self.factor = factor
    def inputs(self, tokens_BT, places_BT=None):
        return (self.factor * self.embedding(tokens_BT),)

class Ahead(Means):
    def inputs(self, tokens_BT, places_BT=None):
        return (self.embedding(tokens_BT.flip(1)),)

class Narrow(Means):
    def hidden(self, tokens_BT, places_BT=None, sees_B1TT=None):
        return self.embedding(tokens_BT)[..., :1]

class Raises(Means):
    def inputs(self, tokens_BT, places_BT=None):
        raise KeyError("lost")

class Buffered(Means):
    def __init__(self, **sizes):
        super().__init__(**sizes)
        self.register_buffer("table", torch.ones(2))

class Kept(Means):
    "A tensor that is no parameter, which a checkpoint does not have."
    def __init__(self, **sizes):
        super().__init__(**sizes)
        self.half = torch.ones(()) * 0.5
    def inputs(self, tokens_BT, places_BT=None):
        return (self.half * self.embedding(tokens_BT),)

class ReadsValues(Means):
    def __init__(self, **sizes):
        super().__init__(**sizes)
        self.half = torch.ones(1).tolist()

class Dropped(Means):
    def inputs(self, tokens_BT, places_BT=None):
        return (F.dropout(self.embedding(tokens_BT), 0.5),)

class NoTuple(Means):
    def inputs(self, tokens_BT, places_BT=None):
        return self.embedding(tokens_BT)

class NotFinite(Means):
    def inputs(self, tokens_BT, places_BT=None):
        return (self.embedding(tokens_BT) / 0,)

class NoNorm(Means):
    block_type = nn.Identity

class NoLayer(ArchitecturePlugIn):
    contract = 1
    def inputs(self, tokens_BT, places_BT=None):
        return (self.embedding(tokens_BT),)

class Twice(InitializationPlugIn):
    contract = 1
    def __init__(self, value=0.5):
        self.value = value
    def fill(self, name, matrix, model, generator):
        matrix.fill_(self.value)

class Undefined(Twice):
    def fill(self, name, matrix, model, generator):
        matrix.fill_(float("nan"))

class Nothing(Twice):
    def fill(self, name, matrix, model, generator):
        return torch.ones_like(matrix)

class Half(Twice):
    def fill(self, name, matrix, model, generator):
        matrix[::2] = 1

class OwnDraws(Twice):
    def fill(self, name, matrix, model, generator):
        matrix.normal_()

class Failing(Twice):
    def fill(self, name, matrix, model, generator):
        raise KeyError(name)
"""
WIDTH, LAYERS = 8, 3
N_MEANS = LAYERS * WIDTH + 2 * WIDTH
"""A scale in each layer, and a LayerNorm with biases behind the last."""
N_SQUARED = 16 * WIDTH + LAYERS * (12 * WIDTH**2 + 2 * WIDTH) + WIDTH


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The module of the classes, which no other test has."""
    name = f"models_{tmp_path.parent.name}_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(CODE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    return name


@pytest.fixture
def study_of(tiny_study: Callable[..., dict[str, Any]], module: str) -> Callable[..., Study]:
    def make(kind: str | None, parameters: int = N_MEANS, **changes: Any) -> Study:
        values = tiny_study()
        if kind is not None:
            arguments = changes.pop("arguments", {})
            architecture = {"path": f"{module}.{kind}", "arguments": arguments}
            values["models"] = [
                {
                    "name": "nano",
                    "architecture": architecture,
                    "parameters": parameters,
                    "n_layer": LAYERS,
                    "n_head": 2,
                    "d_model": WIDTH,
                    "learning_rate": 0.01,
                }
            ]
        for section, changed in changes.items():
            values[section] |= changed
        return parse_study(values)

    return make


@pytest.mark.parametrize(("kind", "parameters"), [("Means", N_MEANS), ("SquaredReLU", N_SQUARED)])
def test_a_right_class_passes_the_trial(study_of, kind, parameters):
    study = study_of(kind, parameters)
    (model,) = study.models
    try_models(study)
    assert n_own_parameters(model, study.training.seq_len) == parameters
    built = build_model(model, 61, study.training.seq_len)
    counted = sum(one.numel() for one in built.parameters())
    assert counted == model.n_params(61, study.training.seq_len) == 61 * WIDTH + parameters


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("Ahead", r"\.path: .*Ahead reads tokens that come later"),
        ("Narrow", r"states of .*Narrow must be of the shape \(2, 8, 8\), not \(2, 8, 1\)$"),
        ("NotFinite", r"the hidden states of .*NotFinite are not finite, with weights of the"),
        ("Raises", r"hidden\(\) of .*Raises fails \(KeyError: 'lost'\) at line 45 of models_"),
        ("NoTuple", r"inputs\(\) of .*NoTuple must return a tuple .*, not Tensor; let it end in"),
        ("Dropped", r"Dropped gives other hidden states the second time .* as dropout does"),
        ("Kept", r"\.path: .*Kept keeps a tensor that is no parameter.* at line 58 of models_"),
        ("ReadsValues", r"ReadsValues can be made on the CPU, but not on torch's device `meta`"),
        ("NoNorm", r"architecture\.path: .*NoNorm cannot be made \(AttributeError: .*'norm'\)"),
        ("Buffered", r"Buffered has the buffer table, which checkpoints"),
        ("NoLayer", r"NoLayer lacks `block_type`, `learned_positions`; the class must have"),
        ("Twice", r"Twice is no subclass of ArchitecturePlugIn; derive it from coupled_adam"),
        ("Lost", r"models\.nano\.architecture\.path: .* has no 'Lost'"),
    ],
)
def test_a_class_that_breaks_the_contract_is_refused(study_of, kind, said):
    with pytest.raises(ValueError, match=said):
        try_models(study_of(kind))


def test_the_trial_names_the_right_number_of_parameters(study_of):
    with pytest.raises(ValueError, match=rf"models\.nano\.parameters: .* set it to {N_MEANS}$"):
        try_models(study_of("Means", 1))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"parameters": None}, "parameters: missing; give the number of parameters"),
        ({"n_layer": 0}, "n_layer: missing; an architecture of your own needs at least 1"),
        ({"rope_base": 100.0}, r"rope_base: .*\.Means has none; rope_base is for"),
        ({"architecture": "gpt2"}, "parameters: those of architecture gpt2 are counted"),
        ({"architecture": {"path": "Means"}}, "a module and what it defines, joined by dots"),
        ({"architecture": {"arguments": {}}}, "Field required"),
    ],
)
def test_settings_that_do_not_go_with_it(study_of, module, changes, said):
    (model,) = study_of("Means").models
    with pytest.raises(ValueError, match=said):
        Model.model_validate(model.model_dump() | changes)


def test_the_id_follows_class_arguments_and_code(study_of, module, tmp_path):
    def ids(*given: Any, **changes: Any) -> list[str]:
        return list(make_plan(study_of(*given, **changes)).cells)

    before = ids("Means")
    assert ids("Means") == before
    assert ids("Means", arguments={"factor": 2.0}) != before
    plain, own = ids(None), ids(None, training={"init": {"path": f"{module}.Twice"}})
    assert plain != own
    (tmp_path / f"{module}.py").write_text(CODE + "\n", encoding="utf-8")
    assert ids("Means") != before
    assert ids(None, training={"init": {"path": f"{module}.Twice"}}) != own
    assert ids(None) == plain


def test_code_that_was_edited_after_the_start_is_refused(study_of, module, tmp_path):
    study = with_code(study_of("Means"))
    (tmp_path / f"{module}.py").write_text(CODE + "\n", encoding="utf-8")
    with pytest.raises(ValueError, match="Means is not the code with which the study was started"):
        try_models(study)
    with pytest.raises(ValueError, match=r"models\.0\.architecture\.code: the study names other"):
        with_code(study)


@pytest.mark.parametrize("tied", [True, False])
def test_it_comes_back_as_it_was_saved(study_of, tied, tmp_path, tokenizer_folder):
    cell = next(iter(make_plan(study_of("SquaredReLU", N_SQUARED)).cells.values()))
    cell = replace(cell, model=cell.model.model_copy(update={"tied": tied}))
    model = build_model(cell.model, cell.vocab_size, cell.training.seq_len)
    model.init_weights(0, 0.3)
    save_model(model, tmp_path / "model", tokenizer_folder, eot_id=5, cell=cell)
    again = load_model(tmp_path / "model", cell=cell)
    tokens = torch.randint(0, cell.vocab_size, (3, 8))
    with torch.no_grad():
        assert torch.equal(again.logits(tokens), model.logits(tokens))
    config = read_json(tmp_path / "model" / "config.json")
    assert (config["model_type"], config["hidden_size"]) == ("own", WIDTH)
    assert "transformers has no such model" in model_card(cell).replace("\n", " ")
    with pytest.raises(ValueError, match="architecture of a study's own; give `cell`"):
        load_model(tmp_path / "model")


def test_an_initialization_fills_the_matrices(study_of, module):
    init = {"path": f"{module}.Twice", "arguments": {"value": 0.25}}
    study = study_of(None, training={"init": init})
    try_models(study)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("Undefined", r"training\.init\.path: fill\(\) of .*Undefined gives values that are not"),
        ("Nothing", r"Nothing gives .* only a part of embedding\.weight; let it change all"),
        ("Half", r"Half gives values that are not finite, or fills only a part of embedding"),
        ("OwnDraws", r"OwnDraws gives embedding\.weight other values a second time; let it draw"),
        ("Failing", r"training\.init\.path: fill\(\) of .*Failing fails \(KeyError"),
        ("Means", r"training\.init\.path: .*Means is no subclass of InitializationPlugIn"),
    ],
)
def test_an_initialization_that_breaks_the_contract_is_refused(study_of, module, kind, said):
    with pytest.raises(ValueError, match=said):
        try_models(study_of(None, training={"init": {"path": f"{module}.{kind}"}}))
