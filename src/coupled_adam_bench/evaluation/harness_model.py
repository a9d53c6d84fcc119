"""A model as lm-evaluation-harness sees it: it gives log-likelihoods of continuations, and
generates nothing.

Requests that no model can be given are found before any is scored: lm-eval meets them in the middle
of its work, with an AssertionError that says nothing. Only functions import this module, since it
loads lm-eval.
"""

import math
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import has_bos_prefix

from coupled_adam_bench.data.tokenizers import load_saved
from coupled_adam_bench.evaluation.scoring import Scorer
from coupled_adam_bench.evaluation.settings import downstream_of
from coupled_adam_bench.evaluation.ties import Response
from coupled_adam_bench.evaluation.trees import TokenRequest
from coupled_adam_bench.models.export import load_model
from coupled_adam_bench.study.settings import Study

ADVICE = "leave the task out of evaluation.downstream.tasks"

KnownTokens = dict[tuple[str, str], TokenRequest]
"""The tokens of requests by context and continuation."""


class RequestError(ValueError):
    """A request that no model of the study can be given, in words for the user."""


class NotFiniteError(ValueError):
    """A log-likelihood that is no finite number."""


def _place(request: Any) -> str:
    return f"downstream task {request.task_name!r}, item {request.doc_id} (from 0)"


def _check_text(request: Any) -> None:
    """Raise :class:`RequestError` if lm-eval made a list of the right answer, as it does where a
    template gives a text like ``[1, 2]``."""
    continuation = request.args[1]
    if not isinstance(continuation, str):
        raise RequestError(
            f"{_place(request)}: lm-eval reads its right answer as {continuation!r}, which is not"
            f" a text; let doc_to_target be the name of the column, without braces, or {ADVICE}"
        )


def check_requests(requests: Sequence[Any], encoded: Sequence[TokenRequest], seq_len: int) -> None:
    """Raise :class:`RequestError` if one has no context or no continuation, or a continuation that
    does not fit."""
    for request, (tokens, n_continuation) in zip(requests, encoded, strict=True):
        for name, n in (
            ("context", len(tokens) - n_continuation),
            ("continuation", n_continuation),
        ):
            if n == 0:
                raise RequestError(
                    f"{_place(request)}: its {name} has no tokens under the study's tokenizer;"
                    f" {ADVICE}"
                )
    if not encoded:
        return
    longest = max(range(len(encoded)), key=lambda number: encoded[number].n_continuation)
    if (n := encoded[longest].n_continuation) > seq_len:
        raise RequestError(
            f"{_place(requests[longest])}: its continuation has {n} tokens, training.seq_len is"
            f" {seq_len}; raise training.seq_len to {n}, or {ADVICE}"
        )


def computes_in_bf16(study: Study, device: str) -> bool:
    """Tell whether downstream tasks are scored in bfloat16: where the study says so, and on GPUs
    only."""
    return downstream_of(study).precision == "bf16" and device.startswith("cuda")


class HarnessModel(TemplateLM):  # type: ignore[misc]
    """lm-eval's model of a model folder, in the study's precision and with its sequence length.

    ``tokens`` remembers the tokens of requests beyond this model, for others with the same
    tokenizer. With ``rehearsal`` it computes nothing, gives each request the same score, and needs
    no more than a tokenizer's folder.
    """

    def __init__(
        self,
        folder: Path,
        study: Study,
        device: str = "cpu",
        tokens: KnownTokens | None = None,
        rehearsal: bool = False,
    ) -> None:
        super().__init__()
        self.max_length = study.training.seq_len
        self._tokenizer, self._eot_id = load_saved(folder)
        self._folder, self._device, self._rehearsal = folder, device, rehearsal
        self._tokens = {} if tokens is None else tokens
        self._max_tokens = study.execution.evaluation_batch_sequences * self.max_length
        self._bf16 = computes_in_bf16(study, device)

    # ---- tokens, as lm-eval's `hf` makes them ----

    @property
    def eot_token_id(self) -> int:
        """The token that ends a document."""
        return self._eot_id

    @property
    def prefix_token_id(self) -> int:
        """The token before a text that has no context."""
        return self._eot_id  # our tokenizers have no other token of a beginning

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **_: Any
    ) -> list[int]:
        """Return the tokens of a text, without a second token of its beginning where it has one."""
        if add_special_tokens is None:
            begin = self._tokenizer.decode([self.prefix_token_id], skip_special_tokens=False)
            add_special_tokens = not has_bos_prefix(string, begin)
        encoded: list[int] = self._tokenizer.encode(
            string, add_special_tokens=add_special_tokens
        ).ids
        return encoded

    def _loglikelihood_tokens(self, requests: list[Any], **_: Any) -> list[Any]:
        return (
            requests  # which lm-eval's own `loglikelihood` has encoded; they are scored all at once
        )

    def _encode(self, request: Any) -> TokenRequest:
        """Return the tokens of context and continuation, as lm-eval itself makes them."""
        ((_, context, continuation),) = super().loglikelihood([request], disable_tqdm=True)
        return TokenRequest(np.array(context + continuation, np.int32), len(continuation))

    # ---- what lm-eval asks ----

    def loglikelihood(
        self,
        requests: list[Any],
        disable_tqdm: bool = False,  # noqa: ARG002
    ) -> list[tuple[float, bool]]:
        """Return each request's log-likelihood of its continuation, and whether the model would say
        just that."""
        for request in requests:
            _check_text(request)
            if request.args not in self._tokens:
                self._tokens[request.args] = self._encode(request)
        encoded = [self._tokens[request.args] for request in requests]
        check_requests(requests, encoded, self.max_length)
        return self._score(requests, encoded)

    def loglikelihood_rolling(
        self,
        requests: list[Any],
        disable_tqdm: bool = False,  # noqa: ARG002
    ) -> list[float]:
        """Refuse a task that scores whole texts, which has no accuracy."""
        raise RequestError(
            f"{_place(requests[0])}: asks for whole texts, and only choices have an accuracy;"
            f" {ADVICE}"
        )

    def generate_until(
        self,
        requests: list[Any],
        disable_tqdm: bool = False,  # noqa: ARG002
    ) -> list[str]:
        """Refuse a task whose answers are generated."""
        raise RequestError(
            f"{_place(requests[0])}: asks for generated text, which is not supported; {ADVICE}"
        )

    @cached_property
    def _scorer(self) -> Scorer:
        return Scorer(
            load_model(self._folder, self._device), self.max_length, self._max_tokens, self._bf16
        )

    def _score(self, requests: list[Any], encoded: list[TokenRequest]) -> list[tuple[float, bool]]:
        """Score requests with the tokens ``encoded``; :class:`NotFiniteError` for the first without
        a number."""
        scores = [(-1.0, False)] * len(requests)
        if not self._rehearsal:
            scores = self._scorer.score(encoded)
        for request, (log_p, _) in zip(requests, scores, strict=True):
            if not math.isfinite(log_p):
                raise NotFiniteError(
                    f"the log-likelihood of item {request.doc_id} (from 0) is {log_p}: weights of"
                    " this model are not finite, or so large that its logits are not"
                )
        read = [request.within(self.max_length) for request in encoded]
        return [Response.of(*answer) for answer in zip(scores, read, strict=True)]
