"""The generated language: its bytes, its laws, and sets that it solves itself."""

import itertools
import math
from collections import Counter
from hashlib import sha256

import numpy as np
import pytest
from scipy import stats

from coupled_adam_bench.data.language import (
    GRAMMAR_ITEMS,
    MARGIN,
    N_CLASSES,
    N_TOPICS,
    SHARD_WORDS,
    TOPIC_BOOST,
    TOPIC_ITEMS,
    Language,
    task_items,
    word_pairs,
)
from coupled_adam_bench.study.data import SyntheticSource


def language(**settings: float) -> Language:
    return Language(SyntheticSource(kind="synthetic", **settings))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def demo() -> Language:
    return language()


@pytest.fixture(scope="module")
def small() -> Language:
    return language(n_words=60, n_tokens=400_000, document_tokens=30)


def word_probability(small: Language, word: int, topic: int) -> float:
    """p(w | class of w, topic) from its definition."""

    def weight(w: int) -> float:
        return (1 + TOPIC_BOOST * (small.topic_W[w] == topic)) / (w + 1)

    peers = [w for w in range(60) if small.class_W[w] == small.class_W[word]]
    return float(weight(word) / sum(weight(w) for w in peers))


def test_the_text_is_the_same_on_any_machine_and_numpy(demo: Language) -> None:
    # A change here changes the numbers of every study on generated text: raise the version.
    words = np.concatenate([words for words, _ in demo.documents()])[SHARD_WORDS : 2 * SHARD_WORDS]
    known = "bfce23b3ef99aca43dfd27d6c67fb1c09b86a435fa7da905fc0667cac92bb7d4"
    assert sha256(words.astype("<u2").tobytes()).hexdigest() == known


def test_the_seed_draws_language_text_and_sets(demo: Language) -> None:
    other = language(seed=1)
    assert (other.class_W != demo.class_W).any()
    assert (other.transition_CC != demo.transition_CC).any()
    assert word_pairs(other) != word_pairs(demo) == word_pairs(language())


def test_the_size_of_the_text(small: Language) -> None:
    lengths = np.array([len(words) for words, _ in small.documents()])
    assert lengths.sum() == 400_000
    assert SHARD_WORDS in lengths.cumsum()
    assert (lengths < 15).sum() <= 2  # the last of a shard is cut
    assert lengths.max() == 44
    assert lengths.mean() == pytest.approx(30, rel=0.02)


@pytest.mark.parametrize("n_words", [50, 1000, 10_000])
def test_classes_and_topics_are_balanced_over_the_ranks(n_words: int) -> None:
    found = language(n_words=n_words, n_word_pairs=20)
    assert len({*found.names_W}) == n_words
    for first in range(0, n_words - N_CLASSES, N_CLASSES):
        assert len({*found.class_W[first : first + N_CLASSES].tolist()}) == N_CLASSES
    both = (found.class_W * N_TOPICS + found.topic_W)[: N_CLASSES * N_TOPICS]
    assert len({*both.tolist()}) == min(N_CLASSES * N_TOPICS, n_words)


@pytest.mark.parametrize("exponent", [1.0, 1.1])
def test_the_grammar_keeps_the_mass_of_the_classes(exponent: float) -> None:
    found = language(n_words=500, zipf_exponent=exponent)
    zipf = np.array([rank**-exponent for rank in range(1, 501)])
    mass = np.array([zipf[found.class_W == c].sum() / zipf.sum() for c in range(N_CLASSES)])
    assert found.transition_CC.sum(axis=1) == pytest.approx(1, abs=1e-12)
    assert mass @ found.transition_CC == pytest.approx(mass, abs=1e-12)
    # The grammar tells something: the next class is much less open than without it.
    open_CC = found.transition_CC * np.log(found.transition_CC)
    assert -(mass[:, None] * open_CC).sum() < 0.85 * stats.entropy(mass)


def test_the_text_follows_zipf_the_grammar_and_the_topics(demo: Language, small: Language) -> None:
    words = np.concatenate([words for words, _ in demo.documents()])
    counts = np.sort(np.bincount(words, minlength=1000))[::-1]
    slope = stats.linregress(np.log(np.arange(1, 1001)), np.log(counts)).slope
    assert slope == pytest.approx(-1, abs=0.05)
    pairs = np.zeros((N_CLASSES, N_CLASSES))
    counts_TW = np.zeros((N_TOPICS, 60))
    for document, topic in small.documents():
        np.add.at(pairs, (small.class_W[document[:-1]], small.class_W[document[1:]]), 1)
        counts_TW[topic] += np.bincount(document, minlength=60)
    frequencies = pairs / pairs.sum(axis=1, keepdims=True)
    assert frequencies == pytest.approx(small.transition_CC, abs=0.02)
    for topic, c in itertools.product(range(N_TOPICS), range(N_CLASSES)):
        members = np.flatnonzero(small.class_W == c)
        expected = np.array([word_probability(small, word, topic) for word in members])
        found = counts_TW[topic, members]
        assert stats.chisquare(found, expected * found.sum()).pvalue > 1e-5


def test_the_likelihood_is_that_of_the_generator(small: Language) -> None:
    words = np.random.default_rng(0).integers(60, size=(3, 2, 9))
    found = small.log_probability(words)
    for item, choice in itertools.product(range(3), range(2)):
        # The first class is given.
        chosen = words[item, choice].tolist()
        classes = [small.class_W[word] for word in chosen]
        path = math.prod(small.transition_CC[a, b] for a, b in itertools.pairwise(classes))
        of_topics = [
            math.prod(word_probability(small, word, topic) for word in chosen)
            for topic in range(N_TOPICS)
        ]
        expected = math.log(path * sum(of_topics))
        assert found[item, choice] == pytest.approx(expected, rel=1e-10)


def test_word_pairs_are_rated_balanced_and_equally_frequent(demo: Language) -> None:
    pairs = word_pairs(demo)
    assert len({frozenset(pair[:2]) for pair in pairs}) == 1000
    assert Counter(rating for *_, rating in pairs) == {0: 250, 5: 500, 10: 250}
    rank = {name: index for index, name in enumerate(demo.names_W)}
    ranks: dict[int, list[int]] = {0: [], 5: [], 10: []}
    for first, second, rating in pairs:
        a, b = rank[first], rank[second]
        same = (demo.class_W[a] == demo.class_W[b], demo.topic_W[a] == demo.topic_W[b])
        assert rating == 5 * sum(same)
        ranks[rating] += [a, b]
    means = [np.mean(found) for found in ranks.values()]
    assert max(means) - min(means) < 20
    with pytest.raises(ValueError, match="n_word_pairs"):
        word_pairs(language(n_words=50, n_word_pairs=1226))


@pytest.mark.parametrize("task", [TOPIC_ITEMS, GRAMMAR_ITEMS])
@pytest.mark.parametrize("seed", [0, 2])
def test_the_language_solves_its_tasks_and_frequencies_do_not(seed: int, task: int) -> None:
    demo = language(seed=seed)  # with seed 2, words that are there twice give equal orders
    contexts, choices, labels = task_items(demo, task)
    assert (contexts.shape, choices.shape) == ((200, 24), (200, 4, 8))
    whole = np.concatenate([np.repeat(contexts[:, None], 4, axis=1), choices], axis=2)
    score = demo.log_probability(whole)
    assert (score.argmax(axis=1) == labels).all()
    assert all(len({*map(bytes, item)}) == 4 for item in choices)
    ordered = np.sort(score, axis=1)
    assert (ordered[:, -1] - ordered[:, -2]).min() >= MARGIN
    assert np.bincount(labels, minlength=4).min() > 30
    unigram = np.log(demo.zipf_W)[choices].sum(axis=2).round(9)
    assert (unigram.argmax(axis=1) == labels).mean() < 0.4
    # What stays the same in all choices: the classes, or the words.
    same = demo.class_W[choices] if task == TOPIC_ITEMS else np.sort(choices, axis=2)
    assert (same == same[:, :1]).all()
