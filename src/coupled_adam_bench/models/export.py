"""Weights to and from the Hugging Face format of transformers' own GPT-2 class, without importing transformers."""

import json
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from coupled_adam_bench.files import read_json
from coupled_adam_bench.models.gpt2 import GPT2, LAYER_NORM_EPS

WEIGHTS = "model.safetensors"


def _layer_names(n_layer: int) -> Iterator[tuple[str, str, bool]]:
    """Yield (our name, transformers' name, transposed) of each weight; Conv1D of transformers stores (in, out)."""
    yield "embedding.weight", "transformer.wte.weight", False
    yield "positions.weight", "transformer.wpe.weight", False
    for layer in range(n_layer):
        ours, theirs = f"blocks.{layer}.", f"transformer.h.{layer}."
        yield f"{ours}ln_1.weight", f"{theirs}ln_1.weight", False
        yield f"{ours}attn_qkv.weight", f"{theirs}attn.c_attn.weight", True
        yield f"{ours}attn_proj.weight", f"{theirs}attn.c_proj.weight", True
        yield f"{ours}ln_2.weight", f"{theirs}ln_2.weight", False
        yield f"{ours}mlp_fc.weight", f"{theirs}mlp.c_fc.weight", True
        yield f"{ours}mlp_proj.weight", f"{theirs}mlp.c_proj.weight", True
    yield "ln_f.weight", "transformer.ln_f.weight", False


def _config(model: GPT2, eot_id: int) -> dict[str, Any]:
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "activation_function": "gelu",  # exact, where GPT-2's own is the tanh approximation
        "attn_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "resid_pdrop": 0.0,
        "layer_norm_epsilon": LAYER_NORM_EPS,
        "n_embd": model.d_model,
        "n_head": model.n_head,
        "n_layer": len(model.blocks),
        "n_positions": model.seq_len,
        "vocab_size": model.vocab_size,
        "tie_word_embeddings": True,
        "bos_token_id": eot_id,
        "eos_token_id": eot_id,
        "dtype": "float32",
    }


def save_model(model: GPT2, folder: Path, tokenizer: Path, eot_id: int) -> None:
    """Write ``folder`` so that ``transformers.AutoModelForCausalLM.from_pretrained(folder)`` gives the same logits.

    ``tokenizer`` is a folder in Hugging Face format whose files are put beside the weights. The folder appears whole or
    not at all; one that is already there is replaced.
    """
    temporary = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.tmp")
    try:
        shutil.copytree(tokenizer, temporary)
        state: dict[str, Tensor] = {}
        ours = model.state_dict()
        for name, theirs, transposed in _layer_names(len(model.blocks)):
            weight = ours.pop(name).detach().to("cpu", torch.float32)
            state[theirs] = (weight.T if transposed else weight).contiguous()
            if not theirs.startswith(("transformer.wte", "transformer.wpe")):
                # transformers' class has biases; the paper's model has none.
                state[theirs.removesuffix("weight") + "bias"] = torch.zeros(state[theirs].shape[-1])
        assert not ours, f"not exported: {sorted(ours)}"
        save_file(state, temporary / WEIGHTS, metadata={"format": "pt"})
        (temporary / "config.json").write_text(json.dumps(_config(model, eot_id), indent=1) + "\n", encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        temporary.replace(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def load_model(folder: Path, device: str | torch.device = "cpu") -> GPT2:
    """Read a model that :func:`save_model` wrote, in float32 and evaluation mode."""
    config = read_json(folder / "config.json")
    model = GPT2(
        vocab_size=config["vocab_size"],
        seq_len=config["n_positions"],
        n_layer=config["n_layer"],
        n_head=config["n_head"],
        d_model=config["n_embd"],
    )
    theirs = load_file(folder / WEIGHTS)
    names = _layer_names(config["n_layer"])
    model.load_state_dict({ours: theirs[name].T if transposed else theirs[name] for ours, name, transposed in names})
    return model.to(device).eval()
