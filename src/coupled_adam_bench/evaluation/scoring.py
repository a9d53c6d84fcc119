"""Log-likelihoods of continuations under a language model, which reads each common beginning of
requests once.

A model reads the nodes of a tree of requests as one sequence, in which a node sees only itself and
the nodes above it, at the position that its depth gives. The head is applied only where a token of
a continuation is predicted, a block of its rows at a time.

B: trees    T: nodes of a tree    N: nodes that predict    S: scored tokens    D: width
V: rows of the head, in K blocks of R
"""

from collections.abc import Sequence
from contextlib import nullcontext
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from coupled_adam_bench.evaluation.trees import Batch, TokenRequest, batch_of, build_trees, pack
from coupled_adam_bench.models.base import LanguageModel
from coupled_adam_bench.models.cross_entropy import cap

_TREE_LENGTHS = 2
"""Largest number of nodes of a tree, in lengths of the model: a text that fills the model has its
answers beside it, and the attention mask, which has the square of this number of entries, stays
small."""
# Logits held at once: of all nodes of a batch and a block of the head's rows. On a CPU they stay
# near the cache for all that is done with them, which is 1.3 times as fast with gpt2-4x256 as all
# rows for 64 nodes at a time.
_LOGITS_CHUNK = {"cpu": 2**20, "cuda": 2**27}
_ROWS_STEP = 64
"""Blocks have a multiple of this many rows, where they can: products of other shapes take up to
half as long again."""
_CPU_TOKENS = 2048
"""Largest number of tokens of a forward pass on a CPU, where more are slower: their hidden states
leave the cache."""


class Scorer:
    """Scores requests with a model.

    A forward pass has at most ``max_tokens``. With ``bf16`` the products are computed in bfloat16
    under autocast; softmax and sums are not.
    """

    def __init__(
        self, model: LanguageModel, max_length: int, max_tokens: int, bf16: bool = False
    ) -> None:
        on_cpu = model.head_weight.device.type == "cpu"
        self.model, self.max_length, self.bf16 = model, max_length, bf16
        self.max_tokens = min(max_tokens, _CPU_TOKENS) if on_cpu else max_tokens

    def score(self, requests: Sequence[TokenRequest]) -> list[tuple[float, bool]]:
        """Return for each request the log-likelihood of its continuation, and whether it is the
        likeliest throughout.

        Equal requests are scored once. Log-probabilities are of float32 logits, and are summed in
        float64.
        """
        seen = [request.within(self.max_length) for request in requests]
        keys = [(request.tokens.tobytes(), request.n_continuation) for request in seen]
        different = dict(zip(keys, seen, strict=True))
        numbers = {key: number for number, key in enumerate(different)}
        sums, greedy = np.zeros(len(different)), np.ones(len(different), dtype=bool)
        most = _TREE_LENGTHS * self.max_length if self.model.joins_texts else 0
        trees = build_trees([*different.values()], self.model.d_model, most)
        for batch in map(batch_of, pack(trees, self.max_tokens)):
            log_p, likeliest = score_batch(self.model, batch, self.bf16)
            np.add.at(sums, batch.requests, log_p)
            np.logical_and.at(greedy, batch.requests, likeliest)
        return [(float(sums[numbers[key]]), bool(greedy[numbers[key]])) for key in keys]


@torch.inference_mode()
def score_batch(
    model: LanguageModel, batch: Batch, bf16: bool = False
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the log-probabilities of the scored tokens in nats, and whether each is the likeliest
    in its place.

    If several tokens are equally likely, the first counts as the likeliest. Both arrays have the
    shape (S,).
    """
    device = model.head_weight.device
    with torch.autocast(device.type, torch.bfloat16) if bf16 else nullcontext():
        hidden_BTD = _hidden(model, batch, device)
        nodes_N, first_S = np.unique(batch.nodes, return_inverse=True)
        hidden_ND = hidden_BTD.flatten(0, 1)[torch.from_numpy(nodes_N).to(device)]
        log_p_S, greedy_S = _score_nodes(
            model.head_weight, model.soft_cap, hidden_ND, first_S, batch.targets
        )
    return log_p_S.cpu().numpy(), greedy_S.cpu().numpy()


def _hidden(model: LanguageModel, batch: Batch, device: torch.device) -> Tensor:
    """Return the last hidden states, shape BTD."""
    tokens_BT = torch.from_numpy(batch.tokens).to(device)
    if batch.is_plain:
        return model.hidden(tokens_BT)
    ends_B1T = torch.from_numpy(batch.ends).to(device)[:, None]
    node_T = torch.arange(tokens_BT.shape[1], device=device)
    sees_BTT = (node_T[:, None] >= node_T) & (node_T[:, None] < ends_B1T)
    return model.hidden(tokens_BT, torch.from_numpy(batch.depths).to(device), sees_BTT[:, None])


def _score_nodes(
    head_VD: Tensor,
    soft_cap: float | None,
    hidden_ND: Tensor,
    nodes: NDArray[np.int64],
    targets: NDArray[np.int64],
) -> tuple[Tensor, Tensor]:
    """Return log-probabilities in float64 and whether each target is the likeliest, both of shape
    S.

    ``nodes`` are the rows of ``hidden_ND`` that predict the ``targets``, both of shape S.
    """
    device = hidden_ND.device
    n_rows = len(head_VD)
    rows = max(1, _LOGITS_CHUNK[device.type] // len(hidden_ND))
    starts = range(0, n_rows, rows - rows % min(rows, _ROWS_STEP))
    order = np.argsort(targets, kind="stable")
    bounds = np.searchsorted(targets[order], [*starts, n_rows])
    node_S, target_S, order_S = (
        torch.from_numpy(array).to(device) for array in (nodes, targets, order)
    )
    target_logit_S = torch.empty(len(targets), device=device)
    max_KN, sum_KN = (torch.empty(len(starts), len(hidden_ND), device=device) for _ in range(2))
    likeliest_KN = torch.empty_like(max_KN, dtype=torch.int64)
    for block, (start, (low, high)) in enumerate(zip(starts, pairwise(bounds), strict=True)):
        logits_NR = cap(F.linear(hidden_ND, head_VD[start : start + starts.step]).float(), soft_cap)
        here = order_S[low:high]
        target_logit_S[here] = logits_NR[node_S[here], target_S[here] - start]
        max_N, _ = torch.max(logits_NR, 1, out=(max_KN[block], likeliest_KN[block]))
        likeliest_KN[block] += start
        # All is done in place, since new memory takes as long as the sums.
        torch.sum(logits_NR.sub_(max_N[:, None]).exp_(), 1, out=sum_KN[block])
    max_N, block_N = max_KN.max(0)
    likeliest_N = likeliest_KN.gather(0, block_N[None])[0]
    log_sum_N = sum_KN.mul_(max_KN.sub_(max_N).exp_()).sum(0).log()
    log_p_S = target_logit_S.double() - max_N[node_S].double() - log_sum_N[node_S].double()
    return log_p_S, (target_S == likeliest_N[node_S]) & target_logit_S.isfinite()
