"""Requests for log-likelihoods as trees of tokens, and trees as batches for a model. No torch.

The answers to a question have its text in common, and the questions of a task often have their
first tokens in common. So requests become trees: a tree holds one node for each token of a
beginning.

B: trees    T: nodes of a tree    S: scored tokens
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

TokenIds = NDArray[np.int32]
_ATTENTION_PER_WIDTH = 6
"""A layer's products take 24 d_model^2 FLOPs for each token, attention 4 d_model for each token
that is seen: as many FLOPs as 6 d_model seen tokens."""


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
    """Return trees of the requests, no two of which are equal.

    A request joins the tree before it if a model of this ``width`` computes less so than in a
    separate tree: the model then reads only what is new in the request, but in one sequence with
    what the request does not see. No tree grows beyond ``max_nodes`` in this way.
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

    A tree that is larger is a separate batch.
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
