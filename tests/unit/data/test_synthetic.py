import itertools
import math
from hashlib import sha256

import numpy as np
import pytest
from scipy import stats

from coupled_adam_bench.data import synthetic
from coupled_adam_bench.data.synthetic import TOPIC_BOOST, Language
from coupled_adam_bench.study.settings import SyntheticSource

SMALL = SyntheticSource(n_words=60, n_classes=4, n_topics=3, n_tokens=400_000, document_tokens=30)


@pytest.fixture(scope="module")
def small() -> Language:
    return Language(SMALL)


def word_probability(language: Language, word: int, topic: int) -> float:
    """p(w | class of w, topic) from its definition."""

    def weight(w: int) -> float:
        return (w + 1.0) ** -language.source.zipf_exponent * (
            1 + TOPIC_BOOST * (language.topic_W[w] == topic)
        )

    peers = [
        w for w in range(language.source.n_words) if language.class_W[w] == language.class_W[word]
    ]
    return weight(word) / sum(weight(w) for w in peers)


def test_same_seed_same_text_on_any_machine_and_numpy() -> None:
    """A change here changes the numbers of every study on generated text: raise versions.DATA."""
    words = Language(SyntheticSource()).shard(1).words
    assert (
        sha256(words.astype("<u2").tobytes()).hexdigest()
        == "bfce23b3ef99aca43dfd27d6c67fb1c09b86a435fa7da905fc0667cac92bb7d4"
    )


def test_the_seed_changes_language_and_text(small: Language) -> None:
    other = Language(SMALL.model_copy(update={"seed": 1}))
    assert (other.class_W != small.class_W).any()
    assert (other.topic_W != small.topic_W).any()
    assert (other.transition_CC != small.transition_CC).any()
    same_language = small.shard(0).words
    assert (small.shard(1).words[:1000] != same_language[:1000]).any()
    assert Language(SMALL).shard(0).words.tolist() == same_language.tolist()
    assert Language(SMALL.model_copy(update={"seed": -1})).shard(0).words.size


def test_size_of_the_text(small: Language) -> None:
    shards = [small.shard(index) for index in range(small.n_shards)]
    assert [len(shard.words) for shard in shards] == [2**18, 400_000 - 2**18]
    for shard in shards:
        documents = list(shard)
        assert np.concatenate(documents).tolist() == shard.words.tolist()
        lengths = np.array([len(document) for document in documents])
        assert len(shard.topics) == len(documents)
        assert lengths[:-1].min() == 15
        assert lengths.max() == 44
        assert lengths.mean() == pytest.approx(30, rel=0.02)
    longer = Language(SMALL.model_copy(update={"n_tokens": 2**19}))
    assert longer.shard(0).words.tolist() == shards[0].words.tolist()


@pytest.mark.parametrize(
    "changes", [{}, {"n_words": 10_000}, {"n_words": 50, "n_classes": 50, "n_topics": 60}]
)
def test_classes_and_topics_are_balanced(changes: dict[str, int]) -> None:
    language = Language(SyntheticSource(**changes))
    source = language.source
    assert len(set(language.names)) == source.n_words
    assert all(name.isalpha() and name.isascii() for name in language.names)
    assert (
        np.bincount(language.class_W, minlength=source.n_classes).min()
        == source.n_words // source.n_classes
    )
    for first in range(0, source.n_words - source.n_classes, source.n_classes):
        assert len(set(language.class_W[first : first + source.n_classes])) == source.n_classes
    run = source.n_classes * source.n_topics
    kin = language.class_W * source.n_topics + language.topic_W
    assert len(set(kin[:run].tolist())) == min(run, source.n_words)


def test_more_classes_than_words() -> None:
    with pytest.raises(ValueError, match="n_classes: 51 exceeds n_words 50"):
        SyntheticSource(n_words=50, n_classes=51)


@pytest.mark.parametrize(
    "source", [SyntheticSource(), SMALL, SyntheticSource(n_words=500, n_classes=40)]
)
def test_the_grammar_keeps_the_mass_of_the_classes(source: SyntheticSource) -> None:
    language = Language(source)
    zipf = np.array([1 / rank**source.zipf_exponent for rank in range(1, source.n_words + 1)])
    mass = [zipf[language.class_W == c].sum() / zipf.sum() for c in range(source.n_classes)]
    assert language.class_mass_C == pytest.approx(mass)
    assert language.transition_CC.sum(axis=1) == pytest.approx(1, abs=1e-12)
    assert mass @ language.transition_CC == pytest.approx(mass, abs=1e-12)
    # The grammar tells something: the next class is much less open than without it.
    entropy = -(
        np.array(mass)[:, None] * language.transition_CC * np.log(language.transition_CC)
    ).sum()
    assert entropy < 0.85 * stats.entropy(mass)


def test_the_text_follows_the_grammar_and_the_topics(small: Language) -> None:
    shard = small.shard(0)
    pairs = np.zeros((4, 4))
    for words in shard:
        np.add.at(pairs, (small.class_W[words[:-1]], small.class_W[words[1:]]), 1)
    assert pairs / pairs.sum(axis=1, keepdims=True) == pytest.approx(small.transition_CC, abs=0.01)
    topics = np.repeat(shard.topics, np.diff(shard.ends, prepend=0))
    for topic in range(3):
        counts = np.bincount(shard.words[topics == topic], minlength=60)
        for c in range(4):
            members = np.flatnonzero(small.class_W == c)
            expected = np.array([word_probability(small, word, topic) for word in members])
            assert np.exp(small.log_word_TW[topic, members]) == pytest.approx(expected, rel=1e-12)
            assert stats.chisquare(counts[members], expected * counts[members].sum()).pvalue > 1e-4


def test_unigrams_are_zipfian() -> None:
    language = Language(SyntheticSource())
    counts = np.bincount(
        np.concatenate([language.shard(k).words for k in range(language.n_shards)]), minlength=1000
    )
    log_rank, log_count = np.log(np.arange(1, 1001)), np.log(np.sort(counts)[::-1])
    assert stats.linregress(log_rank, log_count).slope == pytest.approx(-1, abs=0.05)
    assert stats.pearsonr(np.log(language.zipf_W), np.log(counts)).statistic > 0.95


def test_log_likelihood_is_that_of_the_generator(small: Language) -> None:
    rng = np.random.default_rng(0)
    contexts, continuations = rng.integers(60, size=(3, 5)), rng.integers(60, size=(3, 2, 4))
    result = small.log_likelihood(contexts, continuations)

    def joint(words: list[int]) -> float:
        """p(words), the first class given, the topic summed over."""
        classes = [small.class_W[word] for word in words]
        path = math.prod(small.transition_CC[a, b] for a, b in itertools.pairwise(classes))
        return (
            path
            * sum(
                math.prod(word_probability(small, word, topic) for word in words)
                for topic in range(3)
            )
            / 3
        )

    for item, choice in itertools.product(range(3), range(2)):
        context = contexts[item].tolist()
        expected = joint(context + continuations[item, choice].tolist()) / joint(context)
        assert result[item, choice] == pytest.approx(math.log(expected), rel=1e-10)
    one_word = small.log_likelihood(contexts[:1], np.arange(60)[None, :, None])
    assert np.exp(one_word).sum() == pytest.approx(1, abs=1e-10)


def test_the_language_is_built_once() -> None:
    assert synthetic.language(SMALL) is synthetic.language(SMALL.model_copy())
