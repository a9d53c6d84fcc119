"""A model as lm-evaluation-harness sees it, each request checked before any is scored.

lm-eval itself meets a request that it cannot score in the middle of its work, with an AssertionError that says nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from coupled_adam_bench.config import Study

ADVICE = "leave the task out of evaluation.downstream.tasks"


class RequestError(ValueError):
    """A request that no model of the study can be given, in words for the user."""


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


def open_harness_model(folder: Path, study: Study, device: str, rehearsal: bool = False) -> Any:
    """Return lm-eval's model of a model folder, in the study's precision and with its sequence length.

    Its attribute ``lengths`` holds a :class:`Lengths` for each task. With ``rehearsal`` it computes nothing
    and gives each request the same score.
    """
    bf16 = study.evaluation.downstream.precision == "bf16" and device.startswith("cuda")
    model = _model_class()(
        pretrained=str(folder),
        backend="causal",
        dtype="float32",
        mixed_precision_dtype="bfloat16" if bf16 else None,
        device=device,
        batch_size=study.execution.evaluation_batch_sequences,
        max_length=study.training.seq_len,
    )
    model.rehearsal = rehearsal
    return model


@cache
def _model_class() -> Any:
    from lm_eval.models.huggingface import HFLM
    from lm_eval.models.utils import normalize_gen_kwargs

    class HarnessModel(HFLM):  # type: ignore[misc]
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self.lengths: dict[str, Lengths] = {}
            self.rehearsal = False
            self._encoding = False

        def loglikelihood(self, requests: list[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
            encoded = [self._encode(request) for request in requests]
            self._note(
                [
                    Request(request.task_name, request.doc_id, len(context), len(continuation))
                    for request, (_, context, continuation) in zip(requests, encoded, strict=True)
                ]
            )
            if self.rehearsal:
                return [(-1.0, False)] * len(requests)
            scores: list[tuple[float, bool]] = super()._loglikelihood_tokens(encoded, disable_tqdm=disable_tqdm)
            return scores

        def _encode(self, request: Any) -> Any:
            """Return a request with its tokens, as lm-eval itself makes them."""
            self._encoding = True
            try:
                (encoded,) = super().loglikelihood([request], disable_tqdm=True)
            except IndexError:  # lm-eval raises it for an empty continuation after an empty context
                encoded = (request.args, [self.prefix_token_id], [])
            except Exception as error:  # the library tokenizers raises nothing more precise
                raise RequestError(
                    f"downstream task {request.task_name!r}, item {request.doc_id} (from 0): the study's tokenizer "
                    f"cannot read it: {type(error).__name__}: {error}; {ADVICE}"
                ) from error
            finally:
                self._encoding = False
            return encoded

        def _loglikelihood_tokens(self, requests: list[Any], **options: Any) -> list[Any]:
            if self._encoding:
                return requests
            result: list[Any] = super()._loglikelihood_tokens(requests, **options)
            return result

        def _note(self, requests: list[Request]) -> None:
            """Check requests, and add them to the lengths of their tasks."""
            check_requests(requests, self.max_length)
            for request in requests:
                lengths = self.lengths.setdefault(request.task, Lengths())
                lengths.add(request.n_context, request.n_continuation, self.max_length)

        def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
            for request in requests:
                n_new = normalize_gen_kwargs(dict(request.args[1]), self.max_gen_toks)["max_gen_toks"]
                if n_new >= self.max_length:
                    raise RequestError(
                        f"downstream task {request.task_name!r}: asks for up to {n_new} generated tokens, "
                        f"training.seq_len is {self.max_length}; raise training.seq_len, or {ADVICE}"
                    )
                self._note([Request(request.task_name, request.doc_id, len(self.tok_encode(request.args[0])), n_new)])
            if self.rehearsal:
                return [""] * len(requests)
            texts: list[str] = super().generate_until(requests, disable_tqdm=disable_tqdm)
            return texts

        def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
            if self.rehearsal:
                return [-1.0] * len(requests)
            scores: list[float] = super().loglikelihood_rolling(requests, disable_tqdm=disable_tqdm)
            return scores

    return HarnessModel
