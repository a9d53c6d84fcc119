"""Finds the embedding matrices of a checkpoint by the names that most models give them, without
transformers.

A matrix is taken only if its name leaves no doubt and its rows are as many as the configuration has
tokens.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from embedding_geometry.stored import Matrices, StoredMatrix

_INPUT = re.compile(
    r"(^|\.)(embed_tokens|wte|word_embeddings?|embed_in|tok_embeddings|tokens_embed|input_embedding|embeddings|shared)"
    r"\.weight$"
)
_OUTPUT = re.compile(
    r"(^|\.)(lm_head|generator_lm_head|embed_out|lm_loss|output_projection|vocab_projector|proj_out"
    r"|(lm_head|predictions)\.decoder)\.weight$"
)
_ADVICE = (
    "install torch and transformers, which know it: pip install 'embedding-geometry[transformers]'"
)


def find_by_name(
    model: str,
    config: Mapping[str, Any],
    names: Sequence[str],
    tensor_of: Callable[[str], StoredMatrix],
) -> Matrices:
    """Return where the matrices of the ``model`` are, given the names of its stored tensors.

    ``ValueError`` if more than one tensor may be the input or the output matrix, or none the input
    matrix.
    """
    sizes = set(_vocabulary_sizes(config))

    def candidates(pattern: re.Pattern[str]) -> list[StoredMatrix]:
        tensors = [tensor_of(name) for name in names if pattern.search(name)]
        return [
            each
            for each in tensors
            if len(each.shape) == 2 and (not sizes or each.shape[0] in sizes)
        ]

    embeddings = _only(model, candidates(_INPUT), "input")
    head = _only(model, candidates(_OUTPUT), "output")
    says = config.get("tie_word_embeddings")
    # A tied matrix may be stored only as the head. An input matrix of another size, though, is not
    # the head.
    if says is True and not any(map(_INPUT.search, names)):
        embeddings, head = head, None
    if embeddings is None:
        raise ValueError(
            f"{model}: no stored tensor has a usual name of an input embedding; {_ADVICE}"
        )
    # As transformers does it: what is stored twice with different values is not tied.
    if head is not None and says is not False and head.equals(embeddings):
        head, says = None, True
    if head is not None:
        tied: bool | None = False
    else:  # a head of another name may be stored, so that nobody knows that there is none
        tied = True if says is True else None
    return Matrices(_architecture(config), embeddings, head, tied)


def _only(model: str, found: list[StoredMatrix], which: str) -> StoredMatrix | None:
    if len(found) > 1:
        listed = ", ".join(each.name for each in found)
        raise ValueError(f"{model}: each of {listed} may be the {which} matrix; {_ADVICE}")
    return found[0] if found else None


def _vocabulary_sizes(config: Mapping[str, Any]) -> Iterator[int]:
    """Yield the numbers of tokens in a configuration and in those in it, such as that of a text
    model."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _vocabulary_sizes(value)
        elif key == "vocab_size" and isinstance(value, int):
            yield value


def _architecture(config: Mapping[str, Any]) -> str:
    architectures = config.get("architectures")
    if isinstance(architectures, list) and architectures and isinstance(architectures[0], str):
        return architectures[0]
    return "not named"
