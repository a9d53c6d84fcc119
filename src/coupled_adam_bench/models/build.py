"""Builds the model of a cell."""

from typing import Any, assert_never

import numpy as np
from numpy.typing import NDArray

from coupled_adam_bench.models import contexts, gpt2, stablelm
from coupled_adam_bench.models.base import Family, LanguageModel
from coupled_adam_bench.models.plug_ins import arguments_of, own_model
from coupled_adam_bench.study.catalogue.architectures import ArchitectureName
from coupled_adam_bench.study.settings import Model
from coupled_adam_bench.study.settings.plug_ins import Own


def family_of(architecture: ArchitectureName) -> Family:
    """Return the modules of an architecture."""
    match architecture:
        case "gpt2":
            return gpt2.FAMILY
        case "stablelm":
            return stablelm.FAMILY
        case "contexts":
            return contexts.FAMILY
        case _:
            assert_never(architecture)


def build_model(
    model: Model,
    vocab_size: int,
    seq_len: int,
    soft_cap: float | None = None,
    unigram_counts: NDArray[np.integer[Any]] | None = None,
) -> LanguageModel:
    """Return the module that a configuration describes, with weights that are not initialised yet.

    ``soft_cap`` bounds its logits. ``contexts`` need ``unigram_counts``, how often each token is in
    the training text. Under ``torch.device("meta")`` the module takes no memory.
    """
    if model.n_contexts is not None:
        assert unigram_counts is not None
        frequent = contexts.most_frequent(unigram_counts, model.n_contexts)
        return contexts.Contexts(vocab_size, seq_len, model.d_model, model.tied, frequent, soft_cap)
    if isinstance(model.architecture, Own):
        return own_model(model, vocab_size, seq_len, soft_cap)
    return family_of(model.architecture).model(
        **arguments_of(model, vocab_size, seq_len, soft_cap),
        **{option: getattr(model, option) for option in model.family.options},
    )
