"""Reads and writes models in the Hugging Face format of transformers' own classes, without importing transformers."""

import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from coupled_adam_bench.models.base import LAYER_NORM_EPS, LanguageModel
from coupled_adam_bench.models.card import CARD, model_card
from coupled_adam_bench.models.gpt2 import GPT2
from coupled_adam_bench.models.stablelm import StableLM
from coupled_adam_bench.store.files import ASIDE, read_json, remove, write_json, write_text
from coupled_adam_bench.store.paths import WEIGHTS
from coupled_adam_bench.store.weights import CELL, header_bytes
from coupled_adam_bench.study.cells import Cell

_TOKENIZER_CONFIG = "tokenizer_config.json"


@dataclass(frozen=True)
class _Weight:
    """One of our weights and the transformers weights whose rows it stacks.

    ``transposed`` says that transformers stores (in, out), as its Conv1D does; ``bias``, that it also has a bias, which
    our layers never have.
    """

    ours: str
    theirs: tuple[str, ...]
    transposed: bool = False
    bias: bool = False


def _gpt2_weights(model: LanguageModel) -> Iterator[_Weight]:
    yield _Weight("embedding", ("transformer.wte",))
    yield _Weight("positions", ("transformer.wpe",))
    for layer in range(model.n_layer):
        ours, theirs = f"blocks.{layer}.", f"transformer.h.{layer}."
        for norm in ("ln_1", "ln_2"):
            yield _Weight(ours + norm, (theirs + norm,), bias=True)
        for name, their_name in (
            ("attn_qkv", "attn.c_attn"),
            ("attn_proj", "attn.c_proj"),
            ("mlp_fc", "mlp.c_fc"),
            ("mlp_proj", "mlp.c_proj"),
        ):
            yield _Weight(ours + name, (theirs + their_name,), transposed=True, bias=True)
    yield _Weight("ln_f", ("transformer.ln_f",), bias=True)
    if not model.tied:
        yield _Weight("head", ("lm_head",))


def _stablelm_weights(model: StableLM) -> Iterator[_Weight]:
    yield _Weight("embedding", ("model.embed_tokens",))
    for layer in range(model.n_layer):
        ours, theirs = f"blocks.{layer}.", f"model.layers.{layer}."
        yield _Weight(f"{ours}ln_1", (f"{theirs}input_layernorm",), bias=True)
        yield _Weight(f"{ours}attn_qkv", tuple(f"{theirs}self_attn.{name}_proj" for name in "qkv"))
        yield _Weight(f"{ours}attn_proj", (f"{theirs}self_attn.o_proj",))
        if model.qk_norm:
            for name in "qk":
                norms = f"{theirs}self_attn.{name}_layernorm.norms"
                yield _Weight(f"{ours}{name}_norm", tuple(f"{norms}.{head}" for head in range(model.n_head)))
        yield _Weight(f"{ours}ln_2", (f"{theirs}post_attention_layernorm",), bias=True)
        yield _Weight(f"{ours}mlp_gate_up", (f"{theirs}mlp.gate_proj", f"{theirs}mlp.up_proj"))
        yield _Weight(f"{ours}mlp_proj", (f"{theirs}mlp.down_proj",))
    yield _Weight("ln_f", ("model.norm",), bias=True)
    if not model.tied:
        yield _Weight("head", ("lm_head",))


@dataclass(frozen=True)
class _Format:
    """How one of our classes is stored in transformers' format.

    ``keys`` maps each argument of our class to its key in config.json; ``fixed`` holds the keys that never change.
    """

    model: type[LanguageModel]
    weights: Callable[[Any], Iterator[_Weight]]
    keys: Mapping[str, str]
    fixed: Mapping[str, Any]


_FORMATS = {
    "gpt2": _Format(
        GPT2,
        _gpt2_weights,
        {
            "vocab_size": "vocab_size",
            "seq_len": "n_positions",
            "n_layer": "n_layer",
            "n_head": "n_head",
            "d_model": "n_embd",
            "d_ffn": "n_inner",
            "tied": "tie_word_embeddings",
        },
        {
            "architectures": ["GPT2LMHeadModel"],
            "activation_function": "gelu",  # exact GELU; GPT-2's own is the tanh approximation
            "attn_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "resid_pdrop": 0.0,
            "layer_norm_epsilon": LAYER_NORM_EPS,
        },
    ),
    "stablelm": _Format(
        StableLM,
        _stablelm_weights,
        {
            "vocab_size": "vocab_size",
            "seq_len": "max_position_embeddings",
            "n_layer": "num_hidden_layers",
            "n_head": "num_attention_heads",
            "d_model": "hidden_size",
            "d_ffn": "intermediate_size",
            "tied": "tie_word_embeddings",
            "rope_base": "rope_theta",
            "qk_norm": "qk_layernorm",
        },
        {
            "architectures": ["StableLmForCausalLM"],
            "hidden_act": "silu",
            "layer_norm_eps": LAYER_NORM_EPS,
            "partial_rotary_factor": 1.0,
            "use_qkv_bias": False,
            "use_parallel_residual": False,
            "hidden_dropout": 0.0,
            "attention_dropout": 0.0,
        },
    ),
}


def _config(model: LanguageModel, model_type: str, eot_id: int) -> dict[str, Any]:
    form = _FORMATS[model_type]
    config = {"model_type": model_type, **form.fixed}
    config |= {key: getattr(model, argument) for argument, key in form.keys.items()}
    if isinstance(model, StableLM):
        config["num_key_value_heads"] = model.n_head
        # transformers 5 reads these keys here, transformers 4 at the top level.
        rope = {key: config[key] for key in ("rope_theta", "partial_rotary_factor")}
        config["rope_parameters"] = {"rope_type": "default", **rope}
    if model.soft_cap is not None:
        config["soft_cap"] = model.soft_cap
    return config | {"bos_token_id": eot_id, "eos_token_id": eot_id, "dtype": "float32"}


def save_model(
    model: LanguageModel,
    folder: Path,
    tokenizer: Path,
    eot_id: int,
    state: Mapping[str, Tensor] | None = None,
    cell: Cell | None = None,
) -> None:
    """Write ``folder`` so that ``transformers.AutoModelForCausalLM.from_pretrained(folder)`` gives the same logits.

    The classes of transformers have no soft cap, so for a model with one they give the logits before it. ``tokenizer``
    is a folder in Hugging Face format; its files are copied beside the weights. The folder appears whole or not at all,
    and replaces an existing one. For a sharded model, ``state`` is its state dict with whole tensors. With a ``cell``,
    the weights carry its id, and a model card says how it was trained. The same gives the same bytes.
    """
    (model_type,) = (name for name, form in _FORMATS.items() if isinstance(model, form.model))
    ours = dict(model.state_dict() if state is None else state)
    theirs: dict[str, Tensor] = {}
    for entry in _FORMATS[model_type].weights(model):
        weight = ours.pop(f"{entry.ours}.weight").detach().to("cpu", torch.float32)
        for name, chunk in zip(entry.theirs, weight.chunk(len(entry.theirs)), strict=True):
            theirs[f"{name}.weight"] = (chunk.T if entry.transposed else chunk).contiguous()
            if entry.bias:
                theirs[f"{name}.bias"] = torch.zeros(chunk.shape[0])
    assert not ours, f"not exported: {sorted(ours)}"

    temporary = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.tmp")
    try:
        shutil.copytree(tokenizer, temporary, ignore=shutil.ignore_patterns(f"*{ASIDE}*"))
        _save_weights(temporary / WEIGHTS, theirs, {} if cell is None else {CELL: cell.id})
        _check_weights(temporary / WEIGHTS, theirs, folder)
        write_json(temporary / "config.json", _config(model, model_type, eot_id))
        ends = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), eot_id)
        write_json(temporary / "generation_config.json", ends)
        known = read_json(temporary / _TOKENIZER_CONFIG)
        write_json(temporary / _TOKENIZER_CONFIG, known | {"model_max_length": model.seq_len})
        if cell is not None:
            write_text(temporary / CARD, model_card(cell))
        remove(folder)
        temporary.replace(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _save_weights(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write float32 tensors as safetensors does, but with its metadata in a fixed order."""
    with path.open("wb") as file:
        file.write(header_bytes({name: tuple(tensor.shape) for name, tensor in tensors.items()}, metadata))
        for _, tensor in sorted(tensors.items()):
            file.write(tensor.numpy().data)
        file.flush()
        os.fsync(file.fileno())


def _check_weights(path: Path, tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Read written weights back; ``OSError`` with the ``folder`` of the model if they are not the same bit for bit."""
    try:
        with safe_open(path, framework="pt") as written:
            same = set(written.keys()) == set(tensors) and all(
                torch.equal(written.get_tensor(name).view(torch.int32), tensor.view(torch.int32))
                for name, tensor in tensors.items()
            )
        problem = "" if same else ": they differ from those in memory"
    except SafetensorError as error:
        same, problem = False, f" ({error})"
    if not same:
        raise OSError(
            f"{folder}: the weights that were written cannot be read back{problem}; see that the disk has space and is "
            "sound, and start again: training goes on from its last checkpoint"
        )


def load_model(folder: Path, device: str | torch.device = "cpu") -> LanguageModel:
    """Read a model that :func:`save_model` wrote, in float32 and evaluation mode."""
    config = read_json(folder / "config.json")
    form = _FORMATS[config["model_type"]]
    with torch.device("meta"):  # no memory for weights that the file's will replace
        model = form.model(
            **{argument: config[key] for argument, key in form.keys.items()}, soft_cap=config.get("soft_cap")
        )
    theirs = load_file(folder / WEIGHTS)
    ours = {}
    for entry in form.weights(model):
        chunks = [theirs.pop(f"{name}.weight") for name in entry.theirs]  # no weight is in memory twice for long
        weight = torch.cat(chunks) if len(chunks) > 1 else chunks[0]
        ours[f"{entry.ours}.weight"] = weight.T.contiguous() if entry.transposed else weight
    model.load_state_dict(ours, assign=True)
    return model.to(device).eval()
