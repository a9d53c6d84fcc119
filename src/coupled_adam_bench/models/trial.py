"""A trial of a study's own architectures and of its own initialization, on small models."""

import numpy as np
import torch
from torch import Tensor

from coupled_adam_bench.models.base import LanguageModel
from coupled_adam_bench.models.build import build_model
from coupled_adam_bench.models.plug_ins import initialization, n_own_parameters
from coupled_adam_bench.study.plan.dotted import failure
from coupled_adam_bench.study.plan.plug_ins import failing
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
    module = _small(small)  # refuses wrong arguments before the next line does
    try:
        counted = n_own_parameters(model, seq_len)
    except ValueError as error:
        raise ValueError(
            f"{field}: {path} can be made on the CPU, but not on torch's device `meta`"
            f" {failure(error.__cause__ or error)}; read no values of tensors in `__init__`"
        ) from error
    if counted != model.parameters:
        raise ValueError(
            f"models.{model.name}.parameters: {path} has {counted} without embedding and head, not"
            f" {model.parameters}; set it to {counted}"
        )
    if names := [name for name, _ in module.named_buffers()]:
        raise ValueError(
            f"{field}: {path} has the buffer {names[0]}, which checkpoints and shards do not have;"
            " compute it where it is used"
        )
    module.init_weights(0, 0.1)
    tokens_BT = torch.arange(2 * _SEQ_LEN).view(2, _SEQ_LEN)
    others_BT = tokens_BT.clone()
    others_BT[:, -1] += 1
    hidden_BTD = _hidden(module, tokens_BT, field, path)
    expected = (2, _SEQ_LEN, model.d_model)
    if hidden_BTD.shape != expected:
        raise ValueError(
            f"{field}: the hidden states of {path} must be of the shape {expected}, not"
            f" {tuple(hidden_BTD.shape)}"
        )
    if not hidden_BTD.isfinite().all():
        raise ValueError(
            f"{field}: the hidden states of {path} are not finite, with weights of the standard"
            " deviation 0.1; look for a division by zero or a logarithm of zero"
        )
    if not _are_close(hidden_BTD, _hidden(module, tokens_BT, field, path)):
        raise ValueError(
            f"{field}: {path} gives other hidden states the second time that it reads the same"
            " tokens; let it draw nothing at random, as dropout does, and keep nothing"
        )
    if not _are_close(hidden_BTD[:, :-1], _hidden(module, others_BT, field, path)[:, :-1]):
        raise ValueError(
            f"{field}: {path} reads tokens that come later; let the hidden state of a token depend"
            " on it and on those before it"
        )
    _try_reading(module, small, tokens_BT, field)


def _are_close(one: Tensor, other: Tensor) -> bool:
    return torch.allclose(one, other, rtol=_CLOSE, atol=_CLOSE)


@torch.no_grad()
def _hidden(module: LanguageModel, tokens_BT: Tensor, field: str, path: str) -> Tensor:
    """Return the hidden states; ``ValueError`` if the class fails."""
    inputs: object = ()
    try:
        inputs = module.inputs(tokens_BT)
        return module.hidden(tokens_BT)
    except Exception as error:  # the class is the user's
        if not isinstance(inputs, tuple):
            raise ValueError(
                f"{field}: inputs() of {path} must return a tuple with the vectors of the tokens,"
                f" not {type(inputs).__name__}; let it end in `return (x_BTD,)`"
            ) from error
        raise ValueError(f"{field}: hidden() of {path} fails {failure(error)}") from error


def _try_reading(module: LanguageModel, small: Model, tokens_BT: Tensor, field: str) -> None:
    """Read a model as its evaluation does: it is made without values, and only parameters get
    some."""
    with torch.device("meta"):
        read = _small(small)
    read.load_state_dict(module.state_dict(), assign=True)
    try:
        read.hidden(tokens_BT)
    except Exception as error:  # the class is the user's
        raise ValueError(
            f"{field}: {small.kind} keeps a tensor that is no parameter, which a model that is read"
            f" for its evaluation does not have {failure(error)}; compute it where it is used"
        ) from error


def _try_initialization(path: str, study: Study, small: Model) -> None:
    own, module = initialization(study.training), _small(small)
    with failing(f"training.init.path: fill() of {path} fails"):
        # The numbers that torch itself draws are others the second time.
        drawn = dict(module.initial_values(0, own))
        again = dict(module.initial_values(0, own))
    for name, parameter in module.named_parameters():
        value = drawn[parameter]
        if not value.isfinite().all():
            raise ValueError(
                f"training.init.path: fill() of {path} gives values that are not finite, or fills"
                f" only a part of {name}; let it change all of `matrix` in place, since what it"
                " returns is not read"
            )
        if not torch.equal(value, again[parameter]):
            raise ValueError(
                f"training.init.path: fill() of {path} gives {name} other values a second time; let"
                " it draw them from `generator` only, which has the seed of the cell"
            )
