"""Builds the model of a cell."""

from typing import Any

from coupled_adam_bench.models.base import LanguageModel
from coupled_adam_bench.models.gpt2 import GPT2
from coupled_adam_bench.models.stablelm import StableLM
from coupled_adam_bench.study.config import Model


def build_model(model: Model, vocab_size: int, seq_len: int, soft_cap: float | None = None) -> LanguageModel:
    """Return the module that a configuration describes, with weights that are not initialised yet.

    ``soft_cap`` bounds its logits. Under ``torch.device("meta")`` the module takes no memory.
    """
    sizes: dict[str, Any] = {
        "vocab_size": vocab_size,
        "seq_len": seq_len,
        "n_layer": model.n_layer,
        "n_head": model.n_head,
        "d_model": model.d_model,
        "d_ffn": model.d_ffn,
        "tied": model.tied,
        "soft_cap": soft_cap,
    }
    if model.architecture == "gpt2":
        return GPT2(**sizes)
    return StableLM(**sizes, rope_base=model.rope_base, qk_norm=model.qk_norm)
