"""A model as lm-evaluation-harness sees it: log-likelihoods are ours, all else is lm-eval's own ``hf``."""

import copy
import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from coupled_adam_bench.config import Study
from coupled_adam_bench.evaluation.prefix_trees import TokenRequest
from coupled_adam_bench.evaluation.requests import (
    ADVICE,
    Lengths,
    Request,
    RequestError,
    RequestTokens,
    check_requests,
    check_vocabulary,
)
from coupled_adam_bench.files import digest, sha256_file
from coupled_adam_bench.models.cross_entropy import cap
from coupled_adam_bench.paths import WEIGHTS


class NotFiniteError(ValueError):
    """A log-likelihood that is no finite number."""


def open_harness_model(
    folder: Path,
    study: Study,
    devices: Sequence[str] = ("cpu",),
    tokens: RequestTokens | None = None,
    rehearsal: bool = False,
) -> Any:
    """Return lm-eval's model of a model folder, in the study's precision and with its sequence length.

    There is a replica on each of the ``devices``. ``tokens`` remembers the tokens of requests beyond this model. The
    attribute ``lengths`` holds a :class:`Lengths` for each task. With ``rehearsal`` it computes nothing and gives
    each request the same score.
    """
    bf16 = study.evaluation.downstream.precision == "bf16" and devices[0].startswith("cuda")
    sequences, seq_len = study.execution.evaluation_batch_sequences, study.training.seq_len
    model = _model_class()(
        pretrained=str(folder),
        backend="causal",
        dtype="float32",
        mixed_precision_dtype="bfloat16" if bf16 else None,
        device=devices[0],
        batch_size=sequences,
        max_length=seq_len,
    )
    soft_cap = getattr(model.model.config, "soft_cap", None)
    if soft_cap is not None:  # the classes of transformers have none, and all logits come from the head
        model.model.get_output_embeddings().register_forward_hook(
            lambda _head, _hidden, logits: cap(logits.float(), soft_cap)
        )
    model.devices, model.max_tokens, model.bf16 = devices, sequences * seq_len, bf16
    model.known_tokens, model.tokenizer_sha256 = tokens or RequestTokens(), _tokenizer_sha256(folder)
    model.rehearsal = rehearsal
    return model


def _tokenizer_sha256(folder: Path) -> str:
    """Return a hash of the files of a model's folder that can belong to its tokenizer: all but those of the model."""
    of_model = {WEIGHTS, "config.json", "generation_config.json", "README.md"}
    files = [path for path in sorted(folder.glob("*")) if path.name not in of_model]
    return digest([(path.name, sha256_file(path)) for path in files if path.is_file()], 64)


@cache
def _model_class() -> Any:
    from lm_eval.models.huggingface import HFLM
    from lm_eval.models.utils import normalize_gen_kwargs

    from coupled_adam_bench.evaluation.scoring import Scorer

    class HarnessModel(HFLM):  # type: ignore[misc]
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self.lengths: dict[str, Lengths] = {}
            self.rehearsal = False
            self._encoding = False
            self._scorer: Scorer | None = None

        def loglikelihood(self, requests: list[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:  # noqa: ARG002 - lm-eval's
            encoded = self.known_tokens.of(requests, self.tokenizer_sha256, self._encode)
            self._note(
                [
                    Request(request.task_name, request.doc_id, len(tokens) - n_continuation, n_continuation)
                    for request, (tokens, n_continuation) in zip(requests, encoded, strict=True)
                ]
            )
            check_vocabulary(requests, encoded, self.model.config.vocab_size)
            if self.rehearsal:
                return [(-1.0, False)] * len(requests)
            return self._score(requests, encoded)

        def _score(self, requests: list[Any], encoded: list[TokenRequest]) -> list[tuple[float, bool]]:
            if self._scorer is None:
                others = [copy.deepcopy(self.model).to(device) for device in self.devices[1:]]
                self._scorer = Scorer([self.model, *others], self.max_length, self.max_tokens, self.bf16)
            scores = self._scorer.score(encoded)
            for request, (log_p, _) in zip(requests, scores, strict=True):
                if not math.isfinite(log_p):
                    raise NotFiniteError(
                        f"the log-likelihood of item {request.doc_id} (from 0) is {log_p}: weights of this model are "
                        "not finite, or so large that its logits are not"
                    )
            return scores

        def _encode(self, request: Any) -> tuple[list[int], list[int]]:
            """Return the tokens of context and continuation, as lm-eval itself makes them."""
            self._encoding = True
            try:
                ((_, context, continuation),) = super().loglikelihood([request], disable_tqdm=True)
            except IndexError:  # lm-eval raises it for an empty continuation after an empty context
                context, continuation = [self.prefix_token_id], []
            except Exception as error:  # the library tokenizers raises nothing more precise
                raise RequestError(
                    f"downstream task {request.task_name!r}, item {request.doc_id} (from 0): the study's tokenizer "
                    f"cannot read it: {type(error).__name__}: {error}; {ADVICE}"
                ) from error
            finally:
                self._encoding = False
            return context, continuation

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
