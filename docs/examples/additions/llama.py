# src/coupled_adam_bench/models/llama.py
"""Llama: RMSNorm, SwiGLU and RoPE, without biases."""

from collections.abc import Iterator
from dataclasses import replace

from torch import nn

from coupled_adam_bench.models import stablelm
from coupled_adam_bench.models.base import LAYER_NORM_EPS, Family, Weight


class LlamaBlock(stablelm.StableLMBlock):
    """A layer of StableLM with other norms."""

    @staticmethod
    def norm(width: int) -> nn.Module:
        """Return an RMSNorm (Zhang and Sennrich 2019, arXiv 1910.07467)."""
        return nn.RMSNorm(width, LAYER_NORM_EPS)


class Llama(stablelm.StableLM):
    """The decoder that transformers calls Llama."""

    block_type = LlamaBlock


def weights(model: Llama) -> Iterator[Weight]:
    """Yield the weights of a model by their names in transformers: StableLM's, without biases."""
    yield from (replace(weight, bias=False) for weight in stablelm.weights(model))


FAMILY = Family(
    Llama,
    weights,
    {argument: key for argument, key in stablelm.FAMILY.keys.items() if argument != "qk_norm"},
    {"architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "rms_norm_eps": LAYER_NORM_EPS},
    stablelm.rotary_config,
)
