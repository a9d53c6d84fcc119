"""Trees of common beginnings, against the texts that they are made of."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coupled_adam_bench.evaluation.prefix_trees import TokenRequest, Tree, batch_of, build_trees, pack


def request(text: list[int], n_continuation: int = 1) -> TokenRequest:
    return TokenRequest(np.array(text, np.int32), n_continuation)


@st.composite
def different_requests(draw) -> list[TokenRequest]:
    """Requests over few tokens, so that many begin alike and some are the beginning of others."""
    texts = draw(st.lists(st.lists(st.integers(0, 2), min_size=2, max_size=9), min_size=1, max_size=20))
    found = {}
    for text in texts:
        n = draw(st.integers(1, len(text) - 1))
        found[tuple(text), n] = request(text, n)
    return list(found.values())


def above(tree: Tree, node: int) -> list[int]:
    """The nodes that a node sees, as the model's attention mask has them."""
    return [other for other in range(len(tree.tokens)) if other <= node < tree.ends[other]]


@given(different_requests(), st.sampled_from([1, 8, 10**6]), st.sampled_from([1, 6, 1000]))
def test_every_request_is_read_from_its_tree(requests, width, max_nodes):
    trees = build_trees(requests, width, max_nodes)
    seen = []
    for tree in trees:
        for number, nodes, continuation in tree.scored:
            seen.append(number)
            tokens, n = requests[number]
            assert continuation.tolist() == tokens[-n:].tolist()
            path = above(tree, nodes[-1])
            assert [tree.tokens[node] for node in path] == tokens[:-1].tolist()
            assert [tree.depths[node] for node in path] == list(range(len(path)))
            assert nodes == path[-n:]
        assert len(tree.tokens) <= max(max_nodes, *(len(requests[number].tokens) - 1 for number, _, _ in tree.scored))
        assert tree.is_chain == all(len(above(tree, node)) == node + 1 for node in range(len(tree.tokens)))
    assert sorted(seen) == list(range(len(requests)))
    assert sum(len(tree.tokens) for tree in trees) <= sum(len(one.tokens) - 1 for one in requests)


@given(different_requests(), st.integers(1, 40))
def test_batches_hold_every_tree_within_the_budget(requests, max_tokens):
    trees = build_trees(requests, 10**6, 1000)
    batches = pack(trees, max_tokens)
    assert sorted(map(id, trees)) == sorted(id(tree) for batch in batches for tree in batch)
    for trees_of_batch in batches:
        batch = batch_of(trees_of_batch)
        assert batch.tokens.size <= max_tokens or len(trees_of_batch) == 1
        assert list(batch.nodes) == sorted(batch.nodes)
        padding = np.concatenate(
            [
                np.arange(len(tree.tokens), batch.tokens.shape[1]) + index * batch.tokens.shape[1]
                for index, tree in enumerate(trees_of_batch)
            ]
        )
        assert not set(padding) & set(batch.nodes)
        column = np.tile(np.arange(batch.tokens.shape[1]), len(trees_of_batch))
        assert (batch.ends.ravel()[padding] == column[padding] + 1).all()  # it sees only itself
    sizes = [len(tree.tokens) for batch in batches for tree in batch]
    assert sizes == sorted(sizes, reverse=True)


def test_a_question_with_its_answers_by_hand():
    question = [5, 6, 7]
    answers = [[8], [9], [8, 3], [4, 4, 4]]
    (tree,) = build_trees([request(question + answer, len(answer)) for answer in answers], 100, 100)
    # The last token of an answer is no input: both one-token answers are read from the last token of the question.
    assert tree.tokens == [5, 6, 7, 4, 4, 8]
    assert tree.depths == [0, 1, 2, 3, 4, 3]
    assert tree.ends == [6, 6, 6, 5, 5, 6]
    scored = {number: (nodes, continuation.tolist()) for number, nodes, continuation in tree.scored}
    assert scored == {0: ([2], [8]), 1: ([2], [9]), 2: ([2, 5], [8, 3]), 3: ([2, 3, 4], [4, 4, 4])}


def test_texts_that_begin_differently_share_nothing():
    trees = build_trees([request([1, 2, 3]), request([2, 2, 3]), request([3, 2, 3])], 10**6, 100)
    assert [tree.tokens for tree in trees] == [[1, 2], [2, 2], [3, 2]]
    assert all(tree.is_chain for tree in trees)


def test_a_short_common_beginning_is_read_again_where_that_is_less_work():
    alike = [request([1, *range(2, 40)]), request([1, *range(50, 90)])]
    assert len(build_trees(alike, 10**6, 1000)) == 1  # attention is for nothing in a wide model
    assert len(build_trees(alike, 1, 1000)) == 2


@pytest.mark.parametrize(("max_length", "kept"), [(2, [3, 4, 5]), (4, [1, 2, 3, 4, 5]), (9, [1, 2, 3, 4, 5])])
def test_a_text_is_cut_on_the_left(max_length, kept):
    assert request([1, 2, 3, 4, 5]).within(max_length).tokens.tolist() == kept
