"""A trial of a study's own architectures and of its own initialization, on small models."""

import numpy as np
import torch
from torch import Tensor

from coupled_adam_bench.models.base import LanguageModel
from coupled_adam_bench.models.build import build_model
from coupled_adam_bench.models.plug_ins import initialization, n_own_parameters
from coupled_adam_bench.study.settings import Model, Own, Study

_VOCABULARY, _SEQ_LEN = 64, 8
_CLOSE = 1e-3
"""How far hidden states may differ that are computed in another order, as in a sum over time."""


def try_models(study: Study) -> None:
    """Try a study's own architectures and its own initialization, with one layer and a small
    vocabulary; ``ValueError`` names the field of one that breaks the contract."""
    for model in study.models:
        small = model.model_copy(update={"n_layer": min(1, model.n_layer)})
        if isinstance(model.architecture, Own):
            _try_architecture(model, small, study.training.seq_len)
        if isinstance(study.training.init, Own):
            _try_initialization(study.training.init.path, study, small)


def _small(model: Model) -> LanguageModel:
    n_rows = max(_VOCABULARY, model.n_contexts or 0)
    return build_model(model, n_rows, _SEQ_LEN, None, np.ones(n_rows, np.int64))


def _try_architecture(model: Model, small: Model, seq_len: int) -> None:
    path, field = model.kind, f"models.{model.name}.architecture.path"
    counted = n_own_parameters(model, seq_len)
    if counted != model.parameters:
        raise ValueError(
            f"models.{model.name}.parameters: {path} has {counted} without embedding and head, not"
            f" {model.parameters}; set it to {counted}"
        )
    module = _small(small)
    if names := [name for name, _ in module.named_buffers()]:
        raise ValueError(
            f"{field}: {path} has the buffer {names[0]}, which checkpoints and shards do not have;"
            " compute it where it is used"
        )
    module.init_weights(0, 0.1)

    @torch.no_grad()
    def hidden(tokens_BT: Tensor) -> Tensor:
        try:
            return module.hidden(tokens_BT)
        except Exception as error:  # the class is the user's
            raise ValueError(
                f"{field}: hidden() of {path} fails ({type(error).__name__}: {error})"
            ) from error

    tokens_BT = torch.arange(2 * _SEQ_LEN).view(2, _SEQ_LEN)
    hidden_BTD = hidden(tokens_BT)
    expected = (2, _SEQ_LEN, model.d_model)
    if hidden_BTD.shape != expected or not hidden_BTD.isfinite().all():
        raise ValueError(
            f"{field}: the hidden states of {path} must be finite and of the shape {expected}, not"
            f" {tuple(hidden_BTD.shape)}"
        )
    others_BT = tokens_BT.clone()
    others_BT[:, -1] += 1
    before, again = hidden_BTD[:, :-1], hidden(others_BT)[:, :-1]
    if not torch.allclose(before, again, rtol=_CLOSE, atol=_CLOSE):
        raise ValueError(
            f"{field}: {path} reads tokens that come later; let the hidden state of a token depend"
            " on it and on those before it"
        )


def _try_initialization(path: str, study: Study, small: Model) -> None:
    own, module = initialization(study.training), _small(small)
    try:
        values = [value for _, value in module.initial_values(0, own)]
    except Exception as error:  # the class is the user's
        raise ValueError(
            f"training.init.path: fill() of {path} fails ({type(error).__name__}: {error})"
        ) from error
    if not all(value.isfinite().all() for value in values):
        raise ValueError(f"training.init.path: fill() of {path} gives values that are not finite")
