"""Log-likelihoods of continuations under a language model, which reads each common beginning of
requests once.

The answers to a question have its text in common, and the questions of a task often have their
first tokens in common. So requests become trees: a tree holds one node for each token of a
beginning. A model reads the nodes of a tree as one sequence, in which a node sees only itself and
the nodes above it, at the position that its depth gives. The head is applied only where a token of
a continuation is predicted, a block of its rows at a time.

B: trees    T: nodes of a tree    N: nodes that predict    S: scored tokens    D: width
V: rows of the head, in K blocks of R
"""

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from coupled_adam_bench.models.base import LanguageModel
from coupled_adam_bench.models.cross_entropy import cap

TokenIds = NDArray[np.int32]
_ATTENTION_PER_WIDTH = 6
"""A layer's products take 24 d_model^2 FLOPs for each token, attention 4 d_model for each token
that is seen: as many FLOPs as 6 d_model seen tokens."""
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


class TokenRequest(NamedTuple):
    """Tokens of a text, and the number of them at its end whose log-likelihood is asked for."""

    tokens: TokenIds
    n_continuation: int

    def within(self, max_length: int) -> "TokenRequest":
        """Return the request as a model of this length sees it: its last ``max_length`` inputs, and
        the last token."""
        return self._replace(tokens=self.tokens[-(max_length + 1) :])


@dataclass
class Tree:
    """Requests that begin alike; nodes stand in the order in which a walk into the depth meets
    them."""

    tokens: list[int] = field(default_factory=list)
    """The token of each node, length T."""
    depths: list[int] = field(default_factory=list)
    """The position of each node in the texts that it belongs to, length T."""
    ends: list[int] = field(default_factory=list)
    """For each node the node after the last one below it, length T: node j is above node i if j <=
    i < ends[j]."""
    scored: list[tuple[int, list[int], TokenIds]] = field(default_factory=list)
    """For each request its number, the nodes that predict its continuation, and the
    continuation."""
    _path: list[int] = field(default_factory=list)

    def add(self, number: int, request: TokenRequest, n_shared: int) -> None:
        """Add a request, of whose inputs the first ``n_shared`` are those of the request before."""
        del self._path[n_shared:]
        first = len(self.tokens)
        inputs = request.tokens[n_shared:-1].tolist()
        self.tokens += inputs
        self.depths += range(n_shared, n_shared + len(inputs))
        self._path += range(first, first + len(inputs))
        self.ends += [0] * len(inputs)
        for node in self._path:
            self.ends[node] = len(self.tokens)
        n = request.n_continuation
        self.scored.append((number, self._path[-n:], request.tokens[-n:]))

    @property
    def is_chain(self) -> bool:
        """Whether each node sees all nodes before it, as in plain text."""
        return self.depths[-1] == len(self.depths) - 1


def build_trees(requests: Sequence[TokenRequest], width: int, max_nodes: int) -> list[Tree]:
    """Return trees of the requests, among which are no equal ones.

    A request joins the tree before it if a model of this ``width`` computes less so than in a tree
    of its own: it reads only what is new, but in one sequence with what it does not see. No tree
    grows beyond ``max_nodes`` in this way.
    """
    linear = _ATTENTION_PER_WIDTH * width
    inputs = [request.tokens[:-1] for request in requests]
    trees: list[Tree] = []
    before = np.empty(0, np.int32)
    for number in sorted(
        range(len(requests)), key=lambda number: inputs[number].astype(">u4").tobytes()
    ):
        n_all = len(inputs[number])
        n_shared = _n_shared(before, inputs[number])
        n_new, n_there = n_all - n_shared, len(trees[-1].tokens) if trees else 0
        dear = n_new * (linear + 2 * n_there + n_new) > n_all * (linear + n_all)
        if n_shared == 0 or dear or n_there + n_new > max_nodes:
            trees.append(Tree())
            n_shared = 0
        trees[-1].add(number, requests[number], n_shared)
        before = inputs[number]
    return trees


def _n_shared(first: TokenIds, second: TokenIds) -> int:
    """Return how many tokens two texts have in common from their beginning on."""
    n = min(len(first), len(second))
    differs = np.flatnonzero(first[:n] != second[:n])
    return int(differs[0]) if len(differs) else n


def pack(trees: Iterable[Tree], max_tokens: int) -> list[list[Tree]]:
    """Return batches of trees of like size, the largest first, of at most ``max_tokens`` nodes with
    their padding.

    A tree that is larger is a batch of its own.
    """
    batches: list[list[Tree]] = []
    for tree in sorted(trees, key=lambda tree: -len(tree.tokens)):
        if not batches or (len(batches[-1]) + 1) * len(batches[-1][0].tokens) > max_tokens:
            batches.append([])
        batches[-1].append(tree)
    return batches


@dataclass(frozen=True)
class Batch:
    """Trees side by side, padded at their ends. A padding node sees only itself.

    B: trees    T: nodes of the largest    S: scored tokens
    """

    tokens: NDArray[np.int64]
    """Shape (B, T)."""
    depths: NDArray[np.int64]
    """Shape (B, T)."""
    ends: NDArray[np.int64]
    """Shape (B, T)."""
    is_plain: bool
    """Whether all trees are plain text, so that causal attention is all that is needed."""
    nodes: NDArray[np.int64]
    """The nodes that predict the scored tokens, as places in the flattened batch, in rising order,
    shape (S,)."""
    targets: NDArray[np.int64]
    """The scored tokens, shape (S,)."""
    requests: NDArray[np.int64]
    """The numbers of their requests, shape (S,)."""


def batch_of(trees: Sequence[Tree]) -> Batch:
    """Return trees as the arrays that a model is given."""
    n_nodes = max(len(tree.tokens) for tree in trees)
    tokens_BT = np.zeros((len(trees), n_nodes), np.int64)
    depths_BT = np.zeros_like(tokens_BT)
    ends_BT = np.tile(np.arange(1, n_nodes + 1), (len(trees), 1))
    nodes, targets, requests = [], [], []
    for index, tree in enumerate(trees):
        n = len(tree.tokens)
        tokens_BT[index, :n], depths_BT[index, :n], ends_BT[index, :n] = (
            tree.tokens,
            tree.depths,
            tree.ends,
        )
        for number, path, continuation in tree.scored:
            nodes.append(np.asarray(path) + index * n_nodes)
            targets.append(continuation)
            requests.append(np.full(len(path), number))
    # A model's outputs are read in one pass, so the nodes are in their order in the batch.
    nodes_S = np.concatenate(nodes)
    order = np.argsort(nodes_S, kind="stable")
    return Batch(
        tokens=tokens_BT,
        depths=depths_BT,
        ends=ends_BT,
        is_plain=all(tree.is_chain for tree in trees),
        nodes=nodes_S[order],
        targets=np.concatenate(targets).astype(np.int64)[order],
        requests=np.concatenate(requests)[order],
    )


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
