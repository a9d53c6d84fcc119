"""Requests of downstream tasks: their tokens, made once for all cells of a job, and the checks before any is scored.

lm-eval itself meets a request that it cannot score in the middle of its work, with an AssertionError that says nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from coupled_adam_bench.evaluation.prefix_trees import TokenRequest

ADVICE = "leave the task out of evaluation.downstream.tasks"


class RequestError(ValueError):
    """A request that no model of the study can be given, in words for the user."""


class NotFiniteError(ValueError):
    """A log-likelihood that is no finite number."""


@dataclass
class Lengths:
    """How long the requests of a task are, in tokens of the study's tokenizer."""

    requests: int = 0
    longest_context: int = 0
    longest_continuation: int = 0
    truncated_contexts: int = 0
    """The number of requests of which the model sees only the last ``seq_len`` tokens."""

    def add(self, n_context: int, n_continuation: int, seq_len: int) -> None:
        """Count a request."""
        self.requests += 1
        self.longest_context = max(self.longest_context, n_context)
        self.longest_continuation = max(self.longest_continuation, n_continuation)
        self.truncated_contexts += n_context + n_continuation > seq_len + 1  # the last token is no input


class Request(NamedTuple):
    """The task and the item of a request, and its lengths in tokens."""

    task: str
    item: int
    n_context: int
    n_continuation: int


def check_requests(requests: Sequence[Request], seq_len: int) -> None:
    """Raise :class:`RequestError` if one has no context or no continuation, or a continuation that does not fit."""
    for request in requests:
        empty = [name for name in ("context", "continuation") if getattr(request, f"n_{name}") == 0]
        if empty:
            raise RequestError(
                f"downstream task {request.task!r}, item {request.item} (from 0): its {' and its '.join(empty)} has no "
                f"tokens under the study's tokenizer; {ADVICE}"
            )
    too_long = [request for request in requests if request.n_continuation > seq_len]
    if too_long:
        longest = max(too_long, key=lambda request: request.n_continuation)
        n_items = len({(request.task, request.item) for request in too_long})
        raise RequestError(
            f"downstream task {longest.task!r}, item {longest.item} (from 0): its continuation has "
            f"{longest.n_continuation} tokens (its context {longest.n_context}), the longest of {n_items} item(s) "
            f"whose continuations have more than training.seq_len {seq_len}; raise training.seq_len to "
            f"{longest.n_continuation}, or {ADVICE}"
        )


class RequestTokens:
    """The tokens of requests, remembered by tokenizer and text."""

    def __init__(self) -> None:
        self._known: dict[str, dict[tuple[str, str], TokenRequest]] = {}

    def of(
        self, requests: Sequence[Any], tokenizer: str, encode: Callable[[Any], tuple[list[int], list[int]]]
    ) -> list[TokenRequest]:
        """Return the tokens of lm-eval's ``requests``; ``tokenizer`` is the SHA-256 of its files.

        ``encode`` returns the tokens of a request's context and of its continuation.
        """
        known = self._known.setdefault(tokenizer, {})
        for request in requests:
            if request.args not in known:
                context, continuation = encode(request)
                known[request.args] = TokenRequest(np.array(context + continuation, np.int32), len(continuation))
        return [known[request.args] for request in requests]


def check_vocabulary(requests: Sequence[Any], tokens: Sequence[TokenRequest], vocab_size: int) -> None:
    """Raise :class:`RequestError` for the first of lm-eval's requests with a token that the model does not have."""
    for request, encoded in zip(requests, tokens, strict=True):
        if (largest := encoded.tokens.max(initial=0)) >= vocab_size:
            raise RequestError(
                f"downstream task {request.task_name!r}, item {request.doc_id} (from 0): has token {largest}, but the "
                f"model has {vocab_size}, the first of which is 0: the tokenizer beside it is not its own; train the "
                "cell anew"
            )
