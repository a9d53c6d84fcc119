"""Evaluation sets of the generated language: word pairs with graded similarity and multiple-choice tasks.

Shapes: W words, T topics, I items, K choices, L positions, P permutations.
"""

import json
from pathlib import Path

import numpy as np
import yaml

from coupled_adam_bench.data.synthetic import GRAMMAR_ITEMS, PAIRS, TOPIC_ITEMS, Floats, Ints, Language, stream
from coupled_adam_bench.files import write_text

WORD_PAIRS = Path("word_similarity") / "synthetic.tsv"
TASKS = Path("tasks")

CONTEXT_WORDS = 24
CONTINUATION_WORDS = 8
"""Context and continuation fit into the shortest sequences that are trained on, 64 tokens in the demo."""
N_CHOICES = 4
_CANDIDATES = 4
"""Documents drawn per item, so that most items can have a true continuation that is clearly the likeliest."""
MARGIN = 3.0
"""Clearly: by three nats under the language."""
_PERMUTATIONS = 32

_TASK_VERSION = 1.0
_DESCRIPTIONS = {
    "synthetic_topic": "the continuation of the document's topic, among those of other topics with the same grammar",
    "synthetic_grammar": "the continuation in the order of the grammar, among others of its own words",
}


def word_pairs(language: Language) -> list[tuple[str, str, int]]:
    """Return ``n_word_pairs`` pairs and their rating: 5 for the same class plus 5 for the same topic.

    A quarter of the pairs has class and topic in common, a quarter each only one of them, a quarter nothing, as far as
    the words allow; all come from the same most frequent words, so that frequency does not tell the kinds apart.
    Raises ``ValueError`` if there are fewer pairs of words than ``n_word_pairs``.
    """
    source = language.source
    quota = source.n_word_pairs / 4
    kin_W = language.class_W * source.n_topics + language.topic_W
    # Pairs of kin with each further word: as many words, the most frequent first, as give the rarest kind its quota.
    kin_pairs_W = np.array([(kin_W[:rank] == kin_W[rank]).sum() for rank in range(source.n_words)]).cumsum()
    all_pairs_W = np.arange(source.n_words).cumsum()
    n_used = int(np.searchsorted(np.minimum(kin_pairs_W, all_pairs_W // 4), quota)) + 1
    first, second = np.triu_indices(min(n_used, source.n_words), k=1)
    if len(first) < source.n_word_pairs:
        raise ValueError(
            f"data.source.n_word_pairs: {source.n_word_pairs}, but {source.n_words} words have only {len(first)} pairs"
        )
    same_class = language.class_W[first] == language.class_W[second]
    same_topic = language.topic_W[first] == language.topic_W[second]
    rng = stream(source.seed, PAIRS)
    kinds = [np.flatnonzero((same_class == a) & (same_topic == b)) for a in (False, True) for b in (False, True)]
    chosen: list[Ints] = []
    missing = source.n_word_pairs
    for kinds_left, kind in zip(range(4, 0, -1), sorted(kinds, key=len), strict=True):
        n_pairs = min(len(kind), missing // kinds_left)
        chosen.append(kind[rng.random(len(kind)).argsort(kind="stable")[:n_pairs]])
        missing -= n_pairs
    names = language.names
    return [
        (names[first[pair]], names[second[pair]], 5 * int(same_class[pair]) + 5 * int(same_topic[pair]))
        for pair in np.sort(np.concatenate(chosen))
    ]


def topic_items(language: Language) -> tuple[Ints, Ints, Ints]:
    """Return contexts (items, CONTEXT_WORDS), choices (items, N_CHOICES, CONTINUATION_WORDS) and labels (items,).

    The wrong choices have the classes of the true one, so its grammar, and words for another topic.
    """
    source = language.source
    rng = stream(source.seed, TOPIC_ITEMS)
    n_drawn = _CANDIDATES * source.n_task_items
    classes_IL = language.draw_classes(rng, n_drawn, CONTEXT_WORDS + CONTINUATION_WORDS)
    topics_I = (source.n_topics * rng.random(n_drawn)).astype(np.int64)
    words_IL = language.draw_words(rng, classes_IL, np.broadcast_to(topics_I[:, None], classes_IL.shape))
    other_IT = rng.random((n_drawn, source.n_topics - 1)).argsort(axis=1, kind="stable") + topics_I[:, None] + 1
    other_IK = other_IT[:, np.arange(N_CHOICES - 1) % (source.n_topics - 1)] % source.n_topics
    shape_IKL = (n_drawn, N_CHOICES - 1, CONTINUATION_WORDS)
    wrong_IKL = language.draw_words(
        rng,
        np.broadcast_to(classes_IL[:, None, CONTEXT_WORDS:], shape_IKL),
        np.broadcast_to(other_IK[:, :, None], shape_IKL),
    )
    return _clear_items(language, rng, words_IL, wrong_IKL)


def grammar_items(language: Language) -> tuple[Ints, Ints, Ints]:
    """Return contexts (items, CONTEXT_WORDS), choices (items, N_CHOICES, CONTINUATION_WORDS) and labels (items,).

    The wrong choices are the true one's words in orders that the grammar makes unlikely.
    """
    source = language.source
    rng = stream(source.seed, GRAMMAR_ITEMS)
    n_drawn = _CANDIDATES * source.n_task_items
    classes_IL = language.draw_classes(rng, n_drawn, CONTEXT_WORDS + CONTINUATION_WORDS)
    topics_I = (source.n_topics * rng.random(n_drawn)).astype(np.int64)
    words_IL = language.draw_words(rng, classes_IL, np.broadcast_to(topics_I[:, None], classes_IL.shape))
    order_IPL = rng.random((n_drawn, _PERMUTATIONS, CONTINUATION_WORDS)).argsort(axis=2, kind="stable")
    shuffled_IPL = np.take_along_axis(words_IL[:, None, CONTEXT_WORDS:], order_IPL, axis=2)
    unclear_IP = _margin(language, words_IL, shuffled_IPL) < MARGIN
    wrong_IK = unclear_IP.argsort(axis=1, kind="stable")[:, : N_CHOICES - 1]
    return _clear_items(language, rng, words_IL, np.take_along_axis(shuffled_IPL, wrong_IK[:, :, None], axis=1))


def _margin(language: Language, words_IL: Ints, wrong_IKL: Ints) -> Floats:
    """Return how much likelier the true continuation is than each wrong one, in nats, shape (items, choices)."""
    choices_IKL = np.concatenate([words_IL[:, None, CONTEXT_WORDS:], wrong_IKL], axis=1)
    score_IK = language.log_likelihood(words_IL[:, :CONTEXT_WORDS], choices_IKL)
    return score_IK[:, :1] - score_IK[:, 1:]


def _clear_items(
    language: Language, rng: np.random.Generator, words_IL: Ints, wrong_IKL: Ints
) -> tuple[Ints, Ints, Ints]:
    """Return the first ``n_task_items`` whose true continuation is clearly the likeliest, with the choices shuffled."""
    unclear_I = (_margin(language, words_IL, wrong_IKL) < MARGIN).any(axis=1)
    items = np.sort(unclear_I.argsort(kind="stable")[: language.source.n_task_items])
    context_IL, choices_IKL = np.split(words_IL, [CONTEXT_WORDS], axis=1)
    choices_IKL = np.concatenate([choices_IKL[:, None], wrong_IKL], axis=1)
    order_IK = rng.random((len(items), N_CHOICES)).argsort(axis=1, kind="stable")
    choices_IKL = np.take_along_axis(choices_IKL[items], order_IK[:, :, None], axis=1)
    return context_IL[items], choices_IKL, (order_IK == 0).argmax(axis=1)


def write_evaluation_sets(language: Language, folder: Path) -> None:
    """Write the word pairs, ``word1 <tab> word2 <tab> rating``, and the lm-eval tasks, YAML and JSON lines."""
    pairs = "".join(f"{first}\t{second}\t{rating}\n" for first, second, rating in word_pairs(language))
    write_text(folder / WORD_PAIRS, pairs)
    items = {"synthetic_topic": topic_items(language), "synthetic_grammar": grammar_items(language)}
    for name, (contexts, choices, labels) in items.items():
        rows = [
            {"context": language.text(context), "choices": [language.text(c) for c in item], "label": int(label)}
            for context, item, label in zip(contexts, choices, labels, strict=True)
        ]
        write_text(folder / TASKS / f"{name}.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        write_text(folder / TASKS / f"{name}.yaml", f"# Choose {_DESCRIPTIONS[name]}.\n" + _task_yaml(name))


def _task_yaml(name: str) -> str:
    """Return a task of the lm-evaluation-harness; ``data_files`` is relative to the YAML file."""
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
