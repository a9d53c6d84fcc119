import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import yaml

from coupled_adam_bench.data.synthetic import Language
from coupled_adam_bench.data.synthetic_sets import (
    MARGIN,
    grammar_items,
    topic_items,
    word_pairs,
    write_evaluation_sets,
)
from coupled_adam_bench.study.settings import SyntheticSource

DEMO = SyntheticSource()
TINY = SyntheticSource(
    n_words=50, n_classes=2, n_topics=2, n_tokens=20_000, n_word_pairs=20, n_task_items=10
)
# As many pairs of class and topic as words: no two words are kin in both.
NO_KIN = SyntheticSource(n_words=50, n_classes=8, n_topics=10, n_word_pairs=100, n_task_items=10)


@pytest.fixture(scope="module")
def demo() -> Language:
    return Language(DEMO)


@pytest.mark.parametrize("source", [DEMO, TINY, NO_KIN])
def test_word_pairs_are_rated_by_what_they_share(source: SyntheticSource) -> None:
    language = Language(source)
    pairs = word_pairs(language)
    assert len({frozenset(pair[:2]) for pair in pairs}) == len(pairs) == source.n_word_pairs
    rank = {name: index for index, name in enumerate(language.names)}
    for first, second, rating in pairs:
        a, b = rank[first], rank[second]
        assert a != b
        shared = (
            language.class_W[a] == language.class_W[b],
            language.topic_W[a] == language.topic_W[b],
        )
        assert rating == {0: 0, 1: 5, 2: 10}[sum(shared)]


def test_word_pairs_are_balanced_and_frequent(demo: Language) -> None:
    pairs = word_pairs(demo)
    assert Counter(rating for *_, rating in pairs) == {0: 250, 5: 500, 10: 250}
    rank = {name: index for index, name in enumerate(demo.names)}
    ranks = {
        rating: [rank[w] for a, b, r in pairs if r == rating for w in (a, b)]
        for rating in (0, 5, 10)
    }
    assert max(map(max, ranks.values())) < 250
    # Kinds of pairs do not differ in frequency, on which similarities of embeddings also depend.
    means = [np.mean(values) for values in ranks.values()]
    assert max(means) - min(means) < 20


def test_the_seed_draws_other_pairs(demo: Language) -> None:
    assert word_pairs(demo) == word_pairs(Language(DEMO))
    assert word_pairs(demo) != word_pairs(Language(DEMO.model_copy(update={"seed": 1})))


def test_more_word_pairs_than_there_are() -> None:
    assert len(word_pairs(Language(TINY.model_copy(update={"n_word_pairs": 1225})))) == 50 * 49 // 2
    with pytest.raises(ValueError, match="n_word_pairs: 1226, but 50 words have only 1225 pairs"):
        SyntheticSource(**TINY.model_dump() | {"n_word_pairs": 1226})


@pytest.mark.parametrize("make_items", [topic_items, grammar_items])
def test_the_language_itself_solves_its_tasks(demo: Language, make_items: type) -> None:
    contexts, choices, labels = make_items(demo)
    assert contexts.shape == (200, 24)
    assert choices.shape == (200, 4, 8)
    score = demo.log_likelihood(contexts, choices)
    assert (score.argmax(axis=1) == labels).mean() == 1.0
    ordered = np.sort(score, axis=1)
    assert (ordered[:, -1] - ordered[:, -2]).min() >= MARGIN
    # Chance is 1/4, and word frequencies alone do not help.
    assert np.bincount(labels, minlength=4).min() > 30
    unigram = np.log(demo.zipf_W)[choices].sum(axis=2).round(9)
    assert ((unigram.argmax(axis=1)) == labels).mean() < 0.4


def test_items_differ_only_in_what_they_test(demo: Language) -> None:
    _contexts, choices, labels = topic_items(demo)
    classes = demo.class_W[choices]
    assert (classes == classes[:, :1]).all()
    _, choices, labels = grammar_items(demo)
    words = np.sort(choices, axis=2)
    assert (words == words[:, :1]).all()
    for item, label in zip(choices, labels, strict=True):
        assert all((wrong != item[label]).any() for wrong in np.delete(item, label, axis=0))


@pytest.mark.parametrize("source", [TINY, NO_KIN])
def test_small_languages_have_solvable_tasks(source: SyntheticSource) -> None:
    language = Language(source)
    for make_items in (topic_items, grammar_items):
        contexts, choices, labels = make_items(language)
        assert len(labels) == 10
        assert (language.log_likelihood(contexts, choices).argmax(axis=1) == labels).mean() >= 0.9


def test_files_of_the_evaluation_sets(tmp_path: Path) -> None:
    language = Language(TINY)
    write_evaluation_sets(language, tmp_path)
    rows = [
        line.split("\t")
        for line in (tmp_path / "word_similarity" / "synthetic.tsv").read_text().splitlines()
    ]
    assert [(a, b, int(rating)) for a, b, rating in rows] == word_pairs(language)
    training_text = " ".join(language.text(language.shard(0).words))
    for name in ("synthetic_topic", "synthetic_grammar"):
        task = yaml.safe_load((tmp_path / "tasks" / f"{name}.yaml").read_text())
        assert task["task"] == name
        assert task["dataset_kwargs"]["data_files"] == {"test": f"{name}.jsonl"}
        assert task["metric_list"] == [
            {"metric": "acc", "aggregation": "mean", "higher_is_better": True}
        ]
        items = [
            json.loads(line)
            for line in (tmp_path / "tasks" / f"{name}.jsonl").read_text().splitlines()
        ]
        assert len(items) == 10
        for item in items:
            assert set(item) == {"context", "choices", "label"}
            assert len(item["context"].split()) == 24
            assert [len(choice.split()) for choice in item["choices"]] == [8] * 4
            assert item["context"] not in training_text
    write_evaluation_sets(Language(TINY), tmp_path / "again")
    for file in (
        "word_similarity/synthetic.tsv",
        "tasks/synthetic_topic.jsonl",
        "tasks/synthetic_grammar.yaml",
    ):
        assert (tmp_path / file).read_bytes() == (tmp_path / "again" / file).read_bytes()
