"""A plug-in (docs/plugins.md): the initial values of arXiv 2601.02031 [C].

    training:
      init: {path: research.plugins.xavier.XavierLinear}

Source: flxst/output-embedding-centering, nanoGPT/model.py.
"""

import math

import torch
from torch import Tensor

from coupled_adam_bench.models.base import LanguageModel
from coupled_adam_bench.models.plug_ins import InitializationPlugIn


def xavier_std(name: str, weight: Tensor, n_layer: int) -> float:
    """Return the initial standard deviation that the authors give a matrix of an untied model.

    A linear layer, the head too, has sqrt(2 / (inputs + outputs)) (Glorot and Bengio 2010).
    Queries, keys and values are one layer, the gate and the factor of SwiGLU are two. The
    projection behind attention has GPT-2's 0.02 / sqrt(2 n_layer), and the embedding 1 /
    sqrt(d_model).
    """
    n_rows, n_columns = weight.shape
    if name == "embedding.weight" or name == "positions.weight":
        return 1 / math.sqrt(n_columns)
    if name.endswith("attn_proj.weight"):
        return 0.02 / math.sqrt(2 * n_layer)
    return math.sqrt(2 / ((n_rows // 2 if "mlp_gate_up" in name else n_rows) + n_columns))


class XavierLinear(InitializationPlugIn):
    """The standard deviations of the authors; a tied embedding has the head's, which is drawn last
    there."""

    contract = 1

    def fill(
        self, name: str, matrix: Tensor, model: LanguageModel, generator: torch.Generator
    ) -> None:
        """Fill a matrix with normal values."""
        of_head = model.head is None and name == "embedding.weight"
        std = xavier_std("head.weight" if of_head else name, matrix, model.n_layer)
        matrix.normal_(0.0, std, generator=generator)
