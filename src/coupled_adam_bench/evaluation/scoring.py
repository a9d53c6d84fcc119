"""Log-likelihoods of continuations under a causal language model of transformers.

The model's layers read each common beginning once, and its head is applied only where a token of a continuation is
predicted, to a chunk of hidden states at a time. Its logits must be what the head makes of the last hidden states, as
those of GPT-2 and StableLM are.

B: trees    T: nodes of a tree    N: nodes that predict    S: scored tokens    D: width    V: vocabulary
"""

from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coupled_adam_bench.evaluation.prefix_trees import Batch, TokenRequest, Tree, batch_of, build_trees, pack

_TREE_LENGTHS = 2
"""Largest number of nodes of a tree, in lengths of the model: a text that fills the model has its answers beside it,
and the attention mask, which has the square of this number of entries, stays small."""
# Nodes whose logits are held at once. On a CPU their memory is used again: with GPT-2's vocabulary, the logits of 256
# nodes get new memory each time, which takes as long as the products of a small model.
_LOGITS_CHUNK = {"cpu": 64, "cuda": 4096}
_CPU_TOKENS = 2048
"""Largest number of tokens of a forward pass on a CPU, where more are slower: their hidden states leave the cache."""


@dataclass(frozen=True)
class Scores:
    """What a model says about the scored tokens of one batch."""

    log_p: NDArray[np.float64]
    """Their log-probabilities in nats, shape (S,)."""
    greedy: NDArray[np.bool_]
    """Whether each is the likeliest token in its place, shape (S,)."""


class Scorer:
    """Scores requests on one or several replicas of a model, each on a device of its own.

    A forward pass has at most ``max_tokens``. With ``bf16`` the products are computed in bfloat16 under autocast;
    softmax and sums are not.
    """

    def __init__(self, replicas: Sequence[Any], max_length: int, max_tokens: int, bf16: bool = False) -> None:
        on_cpu = replicas[0].device.type == "cpu"
        self.replicas, self.max_length, self.bf16 = replicas, max_length, bf16
        self.max_tokens = min(max_tokens, _CPU_TOKENS) if on_cpu else max_tokens

    def score(self, requests: Sequence[TokenRequest]) -> list[tuple[float, bool]]:
        """Return for each request the log-likelihood of its continuation, and whether it is the likeliest throughout.

        Equal requests are scored once. Log-probabilities are of float32 logits, and are summed in float64.
        """
        numbers: dict[tuple[bytes, int], int] = {}
        different: list[TokenRequest] = []
        of_request = []
        for request in (request.within(self.max_length) for request in requests):
            number = numbers.setdefault((request.tokens.tobytes(), request.n_continuation), len(different))
            if number == len(different):
                different.append(request)
            of_request.append(number)
        sums, greedy = np.zeros(len(different)), np.ones(len(different), dtype=bool)
        trees = build_trees(different, self.replicas[0].config.hidden_size, _TREE_LENGTHS * self.max_length)
        for batch, scores in self._score_all(pack(trees, self.max_tokens)):
            np.add.at(sums, batch.requests, scores.log_p)
            np.logical_and.at(greedy, batch.requests, scores.greedy)
        return [(float(sums[number]), bool(greedy[number])) for number in of_request]

    def _score_all(self, batches: list[list[Tree]]) -> list[tuple[Batch, Scores]]:
        """Score batches: each replica takes the largest that is left as soon as it is free."""
        waiting = deque(batches)

        def work(replica: Any) -> list[tuple[Batch, Scores]]:
            done = []
            while waiting:
                try:
                    batch = batch_of(waiting.popleft())
                except IndexError:  # another replica took the last one
                    break
                done.append((batch, score_batch(replica, batch, self.bf16)))
            return done

        if len(self.replicas) == 1:
            return work(self.replicas[0])
        with ThreadPoolExecutor(len(self.replicas)) as pool:
            return [found for done in pool.map(work, self.replicas) for found in done]


@torch.inference_mode()
def score_batch(model: Any, batch: Batch, bf16: bool = False) -> Scores:
    """Return the log-probabilities of the scored tokens of a batch."""
    device = model.device
    with torch.autocast(device.type, torch.bfloat16) if bf16 else nullcontext():
        hidden_BTD = _hidden(model, batch, device)
        nodes_N, first_S = np.unique(batch.nodes, return_inverse=True)
        hidden_ND = hidden_BTD.flatten(0, 1)[torch.from_numpy(nodes_N).to(device)]
        targets_S = torch.from_numpy(batch.targets).to(device)
        node_S = torch.from_numpy(first_S).to(device)
        chunk = _LOGITS_CHUNK[device.type]
        starts = np.arange(0, len(nodes_N), chunk)
        bounds = [*np.searchsorted(first_S, starts), len(first_S)]
        parts = [
            _score_chunk(model, hidden_ND[start : start + chunk], node_S[low:high] - int(start), targets_S[low:high])
            for start, (low, high) in zip(starts, pairwise(bounds), strict=True)
        ]
    log_p_S, greedy_S = (torch.cat(tensors).cpu().numpy() for tensors in zip(*parts, strict=True))
    return Scores(log_p_S, greedy_S)


def _hidden(model: Any, batch: Batch, device: torch.device) -> Tensor:
    """Return the last hidden states, shape BTD."""
    tokens_BT = torch.from_numpy(batch.tokens).to(device)
    options: dict[str, Tensor] = {}
    if not batch.is_plain:
        options["position_ids"] = torch.from_numpy(batch.depths).to(device)
        ends_B1T = torch.from_numpy(batch.ends).to(device)[:, None]
        node_T = torch.arange(tokens_BT.shape[1], device=device)
        sees_BTT = (node_T[:, None] >= node_T) & (node_T[:, None] < ends_B1T)
        options["attention_mask"] = sees_BTT[:, None]  # the same for all heads
    hidden_BTD: Tensor = model.base_model(tokens_BT, use_cache=False, **options).last_hidden_state
    return hidden_BTD


def _score_chunk(model: Any, hidden_ND: Tensor, node_S: Tensor, targets_S: Tensor) -> tuple[Tensor, Tensor]:
    """Return log-probabilities in float64 and whether each target is the likeliest, both of shape S."""
    logits_NV = model.get_output_embeddings()(hidden_ND).float()
    target_S, max_N = logits_NV[node_S, targets_S], logits_NV.amax(dim=-1)
    log_sum_N = logits_NV.sub_(max_N[:, None]).exp_().sum(dim=-1).log()  # in place: writing new memory takes as long
    log_p_S = target_S.double() - max_N[node_S].double() - log_sum_N[node_S].double()
    return log_p_S, target_S == max_N[node_S]
