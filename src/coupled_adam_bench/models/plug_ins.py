"""Architectures and initializations that a study brings: classes of its own."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from coupled_adam_bench.models.base import LanguageModel
from coupled_adam_bench.study.plan.plug_ins import Contract
from coupled_adam_bench.study.settings import Model, Training
from coupled_adam_bench.study.settings.plug_ins import Own


class ArchitecturePlugIn(LanguageModel, Contract, ABC):
    """A model of a study's own; it is called with its sizes, and with the arguments that the study
    gives."""

    block_type: ClassVar[type[nn.Module]]  # type: ignore[assignment]
    """The class of a layer, called with ``d_model``, ``n_head`` and ``d_ffn``, which has
    ``norm(width)``."""
    learned_positions: ClassVar[bool]
    """Whether there is a matrix ``positions``, with a row for each place in a text."""
    joins_texts = False


class InitializationPlugIn(Contract, ABC):
    """An initialization of a study's own; it is called with the arguments that the study gives."""

    @abstractmethod
    def fill(
        self, name: str, matrix: Tensor, model: LanguageModel, generator: torch.Generator
    ) -> None:
        """Fill a matrix in place with its initial values, drawn by ``generator``."""


def arguments_of(
    model: Model, vocab_size: int, seq_len: int, soft_cap: float | None
) -> dict[str, Any]:
    """Return the arguments with which the module of every architecture is made."""
    return {
        "vocab_size": vocab_size,
        "seq_len": seq_len,
        "n_layer": model.n_layer,
        "n_head": model.n_head,
        "d_model": model.d_model,
        "d_ffn": model.d_ffn,
        "tied": model.tied,
        "soft_cap": soft_cap,
    }


def own_model(
    model: Model, vocab_size: int, seq_len: int, soft_cap: float | None = None
) -> ArchitecturePlugIn:
    """Return the module of a study's own architecture, with weights that are not initialised
    yet."""
    assert isinstance(model.architecture, Own)
    return ArchitecturePlugIn.made(
        f"models.{model.name}.architecture",
        model.architecture,
        **arguments_of(model, vocab_size, seq_len, soft_cap),
    )


def initialization(training: Training) -> float | InitializationPlugIn:
    """Return what fills the initial matrices: a standard deviation, or a class of the study's
    own."""
    if isinstance(training.init, Own):
        return InitializationPlugIn.made("training.init", training.init)
    return training.init_std


def n_own_parameters(model: Model, seq_len: int) -> int:
    """Return the number of parameters of a study's own architecture without embedding and head."""
    with torch.device("meta"):
        module = own_model(model, 2, seq_len)
    tables = {id(table) for table in module.embedding_parameters()}
    return sum(one.numel() for one in module.parameters() if id(one) not in tables)
