"""A model as lm-evaluation-harness sees it: we compute log-likelihoods, and its own ``hf`` generates texts.

Requests that no model can be given are found before any is scored: lm-eval meets them in the middle of its work, with
an AssertionError that says nothing. Only functions import this module, since it loads lm-eval.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import has_bos_prefix, normalize_gen_kwargs
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from transformers import AutoTokenizer

from coupled_adam_bench.evaluation.prefix_trees import TokenRequest
from coupled_adam_bench.evaluation.scoring import Scorer
from coupled_adam_bench.evaluation.settings import downstream_of
from coupled_adam_bench.models.cross_entropy import cap
from coupled_adam_bench.models.export import load_model
from coupled_adam_bench.store.files import digest, sha256_file
from coupled_adam_bench.store.paths import WEIGHTS
from coupled_adam_bench.study.config import Study

_MAX_NEW_TOKENS = 256
"""How many tokens lm-eval's ``hf`` generates for a request that does not say it."""
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


def computes_in_bf16(study: Study, device: str) -> bool:
    """Tell whether downstream tasks are scored in bfloat16: where the study says so, and on GPUs only."""
    return downstream_of(study).precision == "bf16" and device.startswith("cuda")


def _tokenizer_sha256(folder: Path) -> str:
    """Return a hash of the files of a model's folder that can belong to its tokenizer: all but those of the model."""
    of_model = {WEIGHTS, "config.json", "generation_config.json", "README.md"}
    files = [path for path in sorted(folder.glob("*")) if path.name not in of_model]
    return digest([(path.name, sha256_file(path)) for path in files if path.is_file()], 64)


class HarnessModel(TemplateLM):  # type: ignore[misc]
    """lm-eval's model of a model folder, in the study's precision and with its sequence length.

    There is a replica on each of the ``devices``. ``tokens`` remembers the tokens of requests beyond this model. The
    attribute ``lengths`` holds a :class:`Lengths` for each task. With ``rehearsal`` it computes nothing and gives
    each request the same score.
    """

    def __init__(
        self,
        folder: Path,
        study: Study,
        devices: Sequence[str] = ("cpu",),
        tokens: RequestTokens | None = None,
        rehearsal: bool = False,
    ) -> None:
        super().__init__()
        self.lengths: dict[str, Lengths] = {}
        self.max_length = study.training.seq_len
        self.tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        self._folder, self._device, self._rehearsal = folder, devices[0], rehearsal
        self._known_tokens, self._tokenizer_sha256 = tokens or RequestTokens(), _tokenizer_sha256(folder)
        self._sequences = study.execution.evaluation_batch_sequences
        self._bf16 = computes_in_bf16(study, devices[0])
        replicas = [load_model(folder, device) for device in devices]
        self._vocab_size = replicas[0].vocab_size
        self._scorer = Scorer(replicas, self.max_length, self._sequences * self.max_length, self._bf16)

    # ---- tokens, as lm-eval's `hf` makes them ----

    @property
    def eot_token_id(self) -> int:
        """The token that ends a document."""
        return int(self.tokenizer.eos_token_id)

    @property
    def prefix_token_id(self) -> int:
        """The token before a text that has no context."""
        bos = self.tokenizer.bos_token_id
        return self.eot_token_id if bos is None else int(bos)

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Return the tokens of a text, without a second token of its beginning where it has one."""
        if add_special_tokens is None and has_bos_prefix(string, self.tokenizer.decode(self.prefix_token_id)):
            add_special_tokens = False
        given = {} if add_special_tokens is None else {"add_special_tokens": add_special_tokens}
        encoded: list[int] = self.tokenizer.encode(string, **given)
        return encoded

    def _loglikelihood_tokens(self, requests: list[Any], **_: Any) -> list[Any]:
        return requests  # which lm-eval's own `loglikelihood` has encoded; they are scored all at once

    def _encode(self, request: Any) -> tuple[list[int], list[int]]:
        """Return the tokens of context and continuation, as lm-eval itself makes them."""
        try:
            ((_, context, continuation),) = super().loglikelihood([request], disable_tqdm=True)
        except IndexError:  # lm-eval raises it for an empty continuation after an empty context
            context, continuation = [self.prefix_token_id], []
        except Exception as error:  # the library tokenizers raises nothing more precise
            raise RequestError(
                f"downstream task {request.task_name!r}, item {request.doc_id} (from 0): the study's tokenizer "
                f"cannot read it: {type(error).__name__}: {error}; {ADVICE}"
            ) from error
        return context, continuation

    # ---- what lm-eval asks ----

    def loglikelihood(self, requests: list[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:  # noqa: ARG002 - lm-eval's
        """Return each request's log-likelihood of its continuation, and whether the model would say just that."""
        encoded = self._known_tokens.of(requests, self._tokenizer_sha256, self._encode)
        self._note(
            [
                Request(request.task_name, request.doc_id, len(tokens) - n_continuation, n_continuation)
                for request, (tokens, n_continuation) in zip(requests, encoded, strict=True)
            ]
        )
        check_vocabulary(requests, encoded, self._vocab_size)
        if self._rehearsal:
            return [(-1.0, False)] * len(requests)
        return self._score(requests, encoded)

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:  # noqa: ARG002 - lm-eval's
        """Score whole texts, in windows that follow each other, as lm-eval's ``hf`` cuts them."""
        if self._rehearsal:
            return [-1.0] * len(requests)
        owners, encoded = [], []
        for number, request in enumerate(requests):
            tokens = self.tok_encode(request.args[0])
            for window in get_rolling_token_windows(tokens, self.prefix_token_id, self.max_length, context_len=1):
                context, continuation = make_disjoint_window(window)
                owners.append(number)
                encoded.append(TokenRequest(np.array([*context, *continuation], np.int32), len(continuation)))
        asked = [requests[number] for number in owners]
        check_vocabulary(asked, encoded, self._vocab_size)
        sums = [0.0] * len(requests)
        for number, (log_p, _) in zip(owners, self._score(asked, encoded), strict=True):
            sums[number] += log_p
        return sums

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """Return the text that lm-eval's ``hf`` generates for each request."""
        for request in requests:
            n_new = normalize_gen_kwargs(dict(request.args[1]), _MAX_NEW_TOKENS)["max_gen_toks"]
            if n_new >= self.max_length:
                raise RequestError(
                    f"downstream task {request.task_name!r}: asks for up to {n_new} generated tokens, "
                    f"training.seq_len is {self.max_length}; raise training.seq_len, or {ADVICE}"
                )
            self._note([Request(request.task_name, request.doc_id, len(self.tok_encode(request.args[0])), n_new)])
        if self._rehearsal:
            return [""] * len(requests)
        texts: list[str] = self._generator.generate_until(requests, disable_tqdm=disable_tqdm)
        return texts

    @cached_property
    def _generator(self) -> Any:
        """lm-eval's own ``hf``, which loads most of transformers."""
        from lm_eval.models.huggingface import HFLM

        hf = HFLM(
            pretrained=str(self._folder),
            backend="causal",
            dtype="float32",
            mixed_precision_dtype="bfloat16" if self._bf16 else None,
            device=self._device,
            batch_size=self._sequences,
            max_length=self.max_length,
        )
        soft_cap = getattr(hf.model.config, "soft_cap", None)
        if soft_cap is not None:  # the classes of transformers have none, and all logits come from the head
            hf.model.get_output_embeddings().register_forward_hook(
                lambda _head, _hidden, logits: cap(logits.float(), soft_cap)
            )
        return hf

    def _score(self, requests: list[Any], encoded: list[TokenRequest]) -> list[tuple[float, bool]]:
        """Score requests with the tokens ``encoded``; :class:`NotFiniteError` for the first without a number."""
        scores = self._scorer.score(encoded)
        for request, (log_p, _) in zip(requests, scores, strict=True):
            if not math.isfinite(log_p):
                raise NotFiniteError(
                    f"the log-likelihood of item {request.doc_id} (from 0) is {log_p}: weights of this model are "
                    "not finite, or so large that its logits are not"
                )
        return scores

    def _note(self, requests: list[Request]) -> None:
        """Check requests, and add them to the lengths of their tasks."""
        check_requests(requests, self.max_length)
        for request in requests:
            lengths = self.lengths.setdefault(request.task, Lengths())
            lengths.add(request.n_context, request.n_continuation, self.max_length)
