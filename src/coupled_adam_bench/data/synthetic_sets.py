"""Evaluation sets of the generated language: word pairs with graded similarity and multiple-choice
tasks.

Shapes: W words, T topics, I items, K choices, L positions, P permutations.
"""

import json
from pathlib import Path

import numpy as np
import yaml

from coupled_adam_bench.data.check import TASKS, WORD_PAIRS
from coupled_adam_bench.data.synthetic import (
    GRAMMAR_ITEMS,
    PAIRS,
    TOPIC_ITEMS,
    Floats,
    Ints,
    Language,
    stream,
)
from coupled_adam_bench.store.files import write_text
from coupled_adam_bench.study.settings.data import CONTINUATION_WORDS

CONTEXT_WORDS = 24
"""Words of context of an item; with the continuation they fit into the demo's sequences of 64
tokens."""
N_CHOICES = 4
_CANDIDATES = 4
"""Documents drawn per item, so that the true continuation of most items can be clearly the
likeliest."""
MARGIN = 3.0
"""Nats under the language by which the true continuation must lead to be clearly the likeliest."""
_PERMUTATIONS = 32

_TASK_VERSION = 1.0
_DESCRIPTIONS = {
    "synthetic_topic": (
        "the continuation of the document's topic, among those of other topics with the same"
        " grammar"
    ),
    "synthetic_grammar": (
        "the continuation in the order of the grammar, among others of its own words"
    ),
}


def word_pairs(language: Language) -> list[tuple[str, str, int]]:
    """Return ``n_word_pairs`` pairs and their rating: 5 for the same class plus 5 for the same
    topic.

    As far as the words allow, a quarter of the pairs shares class and topic, a quarter only the
    class, a quarter only the topic, and a quarter neither. All pairs come from the same most
    frequent words, so that frequency does not distinguish the four kinds.
    """
    source = language.source
    quota = source.n_word_pairs / 4
    class_and_topic_W = language.class_W * source.n_topics + language.topic_W
    # Take the fewest of the most frequent words among which the rarest kind, same class and topic,
    # fills its quota.
    new_pairs_W = [
        (class_and_topic_W[:rank] == class_and_topic_W[rank]).sum()
        for rank in range(source.n_words)
    ]
    same_pairs_W = np.array(new_pairs_W).cumsum()
    all_pairs_W = np.arange(source.n_words).cumsum()
    n_used = int(np.searchsorted(np.minimum(same_pairs_W, all_pairs_W // 4), quota)) + 1
    first, second = np.triu_indices(min(n_used, source.n_words), k=1)
    assert len(first) >= source.n_word_pairs, "the config allows no more pairs than there are"
    same_class = language.class_W[first] == language.class_W[second]
    same_topic = language.topic_W[first] == language.topic_W[second]
    rng = stream(source.seed, PAIRS)
    kinds = [
        np.flatnonzero((same_class == a) & (same_topic == b))
        for a in (False, True)
        for b in (False, True)
    ]
    chosen: list[Ints] = []
    missing = source.n_word_pairs
    for kinds_left, kind in zip(range(4, 0, -1), sorted(kinds, key=len), strict=True):
        n_pairs = min(len(kind), missing // kinds_left)
        chosen.append(kind[rng.random(len(kind)).argsort(kind="stable")[:n_pairs]])
        missing -= n_pairs
    names = language.names
    return [
        (
            names[first[pair]],
            names[second[pair]],
            5 * int(same_class[pair]) + 5 * int(same_topic[pair]),
        )
        for pair in np.sort(np.concatenate(chosen))
    ]


def _draw_candidates(language: Language, rng: np.random.Generator) -> tuple[Ints, Ints, Ints]:
    """Return classes (items, words), topics (items,) and words (items, words) of more items than
    are asked for."""
    n_drawn = _CANDIDATES * language.source.n_task_items
    classes_IL = language.draw_classes(rng, n_drawn, CONTEXT_WORDS + CONTINUATION_WORDS)
    topics_I = (language.source.n_topics * rng.random(n_drawn)).astype(np.int64)
    words_IL = language.draw_words(
        rng, classes_IL, np.broadcast_to(topics_I[:, None], classes_IL.shape)
    )
    return classes_IL, topics_I, words_IL


def topic_items(language: Language) -> tuple[Ints, Ints, Ints]:
    """Return contexts (items, CONTEXT_WORDS), choices (items, N_CHOICES, CONTINUATION_WORDS) and
    labels (items,).

    The wrong choices have the true one's word classes, and thus its grammar, but words of another
    topic.
    """
    source = language.source
    rng = stream(source.seed, TOPIC_ITEMS)
    classes_IL, topics_I, words_IL = _draw_candidates(language, rng)
    other_IT = (
        rng.random((len(topics_I), source.n_topics - 1)).argsort(axis=1, kind="stable")
        + topics_I[:, None]
        + 1
    )
    other_IK = other_IT[:, np.arange(N_CHOICES - 1) % (source.n_topics - 1)] % source.n_topics
    shape_IKL = (len(topics_I), N_CHOICES - 1, CONTINUATION_WORDS)
    wrong_IKL = language.draw_words(
        rng,
        np.broadcast_to(classes_IL[:, None, CONTEXT_WORDS:], shape_IKL),
        np.broadcast_to(other_IK[:, :, None], shape_IKL),
    )
    return _clear_items(language, rng, words_IL, wrong_IKL)


def grammar_items(language: Language) -> tuple[Ints, Ints, Ints]:
    """Return contexts (items, CONTEXT_WORDS), choices (items, N_CHOICES, CONTINUATION_WORDS) and
    labels (items,).

    The wrong choices have the true one's words in orders that are unlikely under the grammar.
    """
    rng = stream(language.source.seed, GRAMMAR_ITEMS)
    _, _, words_IL = _draw_candidates(language, rng)
    order_IPL = rng.random((len(words_IL), _PERMUTATIONS, CONTINUATION_WORDS)).argsort(
        axis=2, kind="stable"
    )
    shuffled_IPL = np.take_along_axis(words_IL[:, None, CONTEXT_WORDS:], order_IPL, axis=2)
    unclear_IP = _margin(language, words_IL, shuffled_IPL) < MARGIN
    wrong_IK = unclear_IP.argsort(axis=1, kind="stable")[:, : N_CHOICES - 1]
    return _clear_items(
        language, rng, words_IL, np.take_along_axis(shuffled_IPL, wrong_IK[:, :, None], axis=1)
    )


def _margin(language: Language, words_IL: Ints, wrong_IKL: Ints) -> Floats:
    """Return by how many nats the true continuation is likelier than each wrong one, shape (items,
    choices)."""
    choices_IKL = np.concatenate([words_IL[:, None, CONTEXT_WORDS:], wrong_IKL], axis=1)
    score_IK = language.log_likelihood(words_IL[:, :CONTEXT_WORDS], choices_IKL)
    return score_IK[:, :1] - score_IK[:, 1:]


def _clear_items(
    language: Language, rng: np.random.Generator, words_IL: Ints, wrong_IKL: Ints
) -> tuple[Ints, Ints, Ints]:
    """Return the first ``n_task_items`` items whose true continuation is clearly the likeliest,
    choices shuffled."""
    unclear_I = (_margin(language, words_IL, wrong_IKL) < MARGIN).any(axis=1)
    items = np.sort(unclear_I.argsort(kind="stable")[: language.source.n_task_items])
    context_IL, choices_IKL = np.split(words_IL, [CONTEXT_WORDS], axis=1)
    choices_IKL = np.concatenate([choices_IKL[:, None], wrong_IKL], axis=1)
    order_IK = rng.random((len(items), N_CHOICES)).argsort(axis=1, kind="stable")
    choices_IKL = np.take_along_axis(choices_IKL[items], order_IK[:, :, None], axis=1)
    return context_IL[items], choices_IKL, (order_IK == 0).argmax(axis=1)


def write_evaluation_sets(language: Language, folder: Path) -> list[Path]:
    """Write the word pairs as ``word1 <tab> word2 <tab> rating`` and the lm-eval tasks as YAML and
    JSON lines.

    Returns the paths of the files.
    """
    pairs = "".join(
        f"{first}\t{second}\t{rating}\n" for first, second, rating in word_pairs(language)
    )
    contents = {folder / WORD_PAIRS: pairs}
    items = {"synthetic_topic": topic_items(language), "synthetic_grammar": grammar_items(language)}
    for name, (contexts, choices, labels) in items.items():
        lines = []
        for context, item, label in zip(contexts, choices, labels, strict=True):
            answers = [language.text(words) for words in item]
            row = {"context": language.text(context), "choices": answers, "label": int(label)}
            lines.append(json.dumps(row) + "\n")
        contents[folder / TASKS / f"{name}.jsonl"] = "".join(lines)
        contents[folder / TASKS / f"{name}.yaml"] = (
            f"# Choose {_DESCRIPTIONS[name]}.\n" + _task_yaml(name)
        )
    for path, text in contents.items():
        write_text(path, text)
    return list(contents)


def _task_yaml(name: str) -> str:
    """Return the YAML of an lm-eval task; its ``data_files`` is relative to the YAML file."""
    task = {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": f"{name}.jsonl"}},
        "training_split": None,
        "validation_split": None,
        "test_split": "test",
        "num_fewshot": 0,
        "output_type": "multiple_choice",
        "doc_to_text": "{{context}}",
        "doc_to_choice": "choices",
        "doc_to_target": "label",
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
        "metadata": {"version": _TASK_VERSION},
    }
    return yaml.safe_dump(task, sort_keys=False)
