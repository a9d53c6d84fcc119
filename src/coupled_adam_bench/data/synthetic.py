"""A generated language that shows the paper's effect: it has Zipfian words, a grammar and topics.

A word has a rank, a class and a topic. A document has one topic; the classes of its words form a
Markov chain, and given class c and topic t the word w has probability p(w | c, t) proportional to
rank(w)^-s, times ``1 + TOPIC_BOOST`` if the topic of w is t. The chain's stationary distribution is
the Zipfian mass of the classes, so the unigrams stay close to Zipf's law. ``synthetic_sets.py``
makes word pairs and multiple-choice tasks of the same language.

All random numbers are uniform doubles, because numpy keeps these, but not its other distributions,
across versions.

Shapes: W words, C classes, T topics, R runs of ranks, I items, K choices, L positions.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise, product

import numpy as np
import numpy.typing as npt

from coupled_adam_bench.study.settings import SyntheticSource

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

SHARD_WORDS = 2**18
"""Number of words that are generated from one random stream."""
TOPIC_BOOST = 20.0
"""Extra weight of the words of a document's topic; with 10 topics, two words in three are of that
topic."""
GRAMMAR_SHARPNESS = 6.0
"""Log ratio of the likeliest to the least likely pair of classes; two or three successors per class
dominate."""

_SYLLABLES = tuple(consonant + vowel for consonant, vowel in product("bdfghjklmnprstvz", "aeiou"))
# Streams of random numbers that branch off one seed.
LANGUAGE, TEXT, PAIRS, TOPIC_ITEMS, GRAMMAR_ITEMS = range(5)


def stream(seed: int, *branch: int) -> np.random.Generator:
    """Return the random generator of one branch of a seed; branches are independent."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed % 2**64, *branch])))


def _names(n_words: int) -> list[str]:
    """Return distinct pronounceable names; neighbours in rank do not look alike."""
    n_syllables = 2
    while (n_names := len(_SYLLABLES) ** n_syllables) < n_words:
        n_syllables += 1
    # 80 = 2^4 * 5, so a stride ending in 7 visits each name once.
    stride = int(n_names * 0.618) // 10 * 10 + 7
    names = []
    for rank in range(n_words):
        number, syllables = rank * stride % n_names, []
        for _ in range(n_syllables):
            number, digit = divmod(number, len(_SYLLABLES))
            syllables.append(_SYLLABLES[digit])
        names.append("".join(syllables))
    return names


@dataclass(frozen=True)
class Documents:
    """Concatenated documents, without end-of-text tokens."""

    words: Ints
    """Word ids of all documents, shape (n_words,)."""
    ends: Ints
    """End of each document in ``words``, shape (n_documents,)."""
    topics: Ints
    """Topic of each document, shape (n_documents,)."""

    def __iter__(self) -> Iterator[Ints]:
        start = 0
        for end in self.ends.tolist():
            yield self.words[start:end]
            start = end


class Language:
    """The language of a source. Word ids are ranks, 0 is the most frequent word; ``n_words`` is
    end-of-text."""

    def __init__(self, source: SyntheticSource) -> None:
        self.source = source
        rng = stream(source.seed, LANGUAGE)
        self.names = _names(source.n_words)
        self.zipf_W = np.arange(1, source.n_words + 1, dtype=np.float64) ** -source.zipf_exponent
        self.zipf_W /= self.zipf_W.sum()
        self.class_W, self.topic_W = self._attributes(rng)
        self.class_mass_C = np.bincount(self.class_W, self.zipf_W, source.n_classes)
        self.transition_CC = self._grammar(rng)
        self.log_word_TW = self._log_word()

    def _attributes(self, rng: np.random.Generator) -> tuple[Ints, Ints]:
        """Return class and topic of each word, in random order but balanced over the ranks.

        Each run of n_classes ranks has each class once, and the words of a class cycle through all
        topics.
        """
        n_classes, n_topics = self.source.n_classes, self.source.n_topics
        n_runs = math.ceil(self.source.n_words / n_classes)
        class_RC = rng.random((n_runs, n_classes)).argsort(axis=1, kind="stable")
        turns = math.ceil(n_runs / n_topics)
        topic_RC = (
            rng.random((turns, n_topics, n_classes))
            .argsort(axis=1, kind="stable")
            .reshape(-1, n_classes)
        )
        topic_RC = np.take_along_axis(topic_RC[:n_runs], class_RC, axis=1)
        return class_RC.reshape(-1)[: self.source.n_words], topic_RC.reshape(-1)[
            : self.source.n_words
        ]

    def _grammar(self, rng: np.random.Generator) -> Floats:
        """Return p(next class | class), with stationary distribution ``class_mass_C`` (Sinkhorn's
        iteration)."""
        n_classes = self.source.n_classes
        joint_CC = np.exp(GRAMMAR_SHARPNESS * rng.random((n_classes, n_classes)))
        for _ in range(10_000):
            joint_CC *= (self.class_mass_C / joint_CC.sum(axis=0))[None, :]
            row_mass_C = joint_CC.sum(axis=1)
            joint_CC *= (self.class_mass_C / row_mass_C)[:, None]
            if np.abs(row_mass_C - self.class_mass_C).max() < 1e-14:
                break
        transition_CC: Floats = joint_CC / joint_CC.sum(axis=1, keepdims=True)
        return transition_CC

    def _log_word(self) -> Floats:
        """Return log p(w | class of w, topic), shape (T, W)."""
        boosted = np.arange(self.source.n_topics)[:, None] == self.topic_W[None, :]
        weight_TW = self.zipf_W * (1.0 + TOPIC_BOOST * boosted)
        mass_TC = np.stack(
            [np.bincount(self.class_W, weight_W, self.source.n_classes) for weight_W in weight_TW]
        )
        log_word_TW: Floats = np.log(weight_TW / mass_TC[:, self.class_W])
        return log_word_TW

    @cached_property
    def _inverse_cdf(self) -> tuple[Floats, Ints]:
        """Cumulative probabilities of the words of each (topic, class) cell, cell k in (k, k+1],
        and these words."""
        order_W = self.class_W.argsort(kind="stable")
        boundaries_C = np.searchsorted(
            self.class_W[order_W], np.arange(self.source.n_classes), side="left"
        )
        cdf_TW = np.empty((self.source.n_topics, self.source.n_words))
        cell_of_class = np.arange(self.source.n_topics) * self.source.n_classes
        bounds = [*boundaries_C.tolist(), self.source.n_words]
        for c, (start, end) in enumerate(pairwise(bounds)):
            cdf = np.exp(self.log_word_TW[:, order_W[start:end]]).cumsum(axis=1)
            cdf_TW[:, start:end] = cdf / cdf[:, -1:] + (cell_of_class + c)[:, None]
        return cdf_TW.reshape(-1), np.tile(order_W, self.source.n_topics)

    def draw_words(self, rng: np.random.Generator, classes: Ints, topics: Ints) -> Ints:
        """Draw one word for each pair of class and topic; classes, topics and words have the same
        shape."""
        cdf, words = self._inverse_cdf
        uniform = topics * self.source.n_classes + classes + rng.random(classes.shape)
        return words[np.searchsorted(cdf, uniform, side="right")]

    def draw_classes(self, rng: np.random.Generator, n_documents: int, length: int) -> Ints:
        """Draw class paths of the grammar, shape (n_documents, length)."""
        cdf_CC = self.transition_CC.cumsum(axis=1)[:, :-1]
        classes = np.empty((n_documents, length), dtype=np.int64)
        start_cdf_C = self.class_mass_C.cumsum()[:-1]
        classes[:, 0] = np.searchsorted(start_cdf_C, rng.random(n_documents), side="right")
        for position in range(1, length):
            uniform = rng.random((n_documents, 1))
            classes[:, position] = (uniform >= cdf_CC[classes[:, position - 1]]).sum(axis=1)
        return classes

    def shard(self, index: int) -> Documents:
        """Generate shard ``index`` of the text: SHARD_WORDS words, or in the last shard the rest of
        ``n_tokens``."""
        source = self.source
        n_words = min(SHARD_WORDS, source.n_tokens - index * SHARD_WORDS)
        rng = stream(source.seed, TEXT, index)
        # Lengths are uniform in mean * [0.5, 1.5); the last document is cut to give the shard its
        # size.
        shortest, longest = source.document_tokens // 2, math.ceil(1.5 * source.document_tokens)
        lengths = (
            source.document_tokens * (0.5 + rng.random(math.ceil(n_words / shortest)))
        ).astype(np.int64)
        ends = lengths.cumsum()
        n_documents = int(np.searchsorted(ends, n_words)) + 1
        ends = np.minimum(ends[:n_documents], n_words)
        lengths = np.diff(ends, prepend=0)
        topics = (source.n_topics * rng.random(n_documents)).astype(np.int64)
        classes = self.draw_classes(rng, n_documents, longest)
        used = np.arange(longest)[None, :] < lengths[:, None]
        words = self.draw_words(rng, classes[used], np.repeat(topics, lengths))
        return Documents(words, ends, topics)

    @property
    def n_shards(self) -> int:
        """Number of shards of the text."""
        return math.ceil(self.source.n_tokens / SHARD_WORDS)

    def text(self, words: Ints) -> str:
        """Return the words of a document, separated by spaces."""
        return " ".join([self.names[word] for word in words.tolist()])

    def log_likelihood(self, context_IL: Ints, continuation_IKL: Ints) -> Floats:
        """Return the exact log p(continuation | context) of each choice, summed over topics, shape
        (items, choices)."""
        log_topic_IT = self.log_word_TW[:, context_IL].sum(axis=2).T
        log_topic_IT = log_topic_IT - np.logaddexp.reduce(log_topic_IT, axis=1, keepdims=True)
        log_words_IKT = np.moveaxis(self.log_word_TW[:, continuation_IKL].sum(axis=3), 0, 2)
        last_IK1 = np.broadcast_to(context_IL[:, None, -1:], (*continuation_IKL.shape[:2], 1))
        path_IKL = self.class_W[np.concatenate([last_IK1, continuation_IKL], axis=2)]
        log_path_IK = np.log(self.transition_CC)[path_IKL[..., :-1], path_IKL[..., 1:]].sum(axis=2)
        log_likelihood_IK: Floats = log_path_IK + np.logaddexp.reduce(
            log_topic_IT[:, None, :] + log_words_IKT, axis=2
        )
        return log_likelihood_IK


@lru_cache(maxsize=1)
def language(source: SyntheticSource) -> Language:
    """Return the language of ``source``, cached in this process."""
    return Language(source)
