import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from tokenizers import Tokenizer, models, pre_tokenizers

from embedding_geometry.word_lists import (
    PAPER_LISTS,
    Pair,
    WordList,
    describe_list,
    read_pairs,
    recognised_set,
)
from embedding_geometry.word_similarity import (
    TokenPairs,
    set_correlations,
    single_token_pairs,
    subword_pairs,
    word_similarity_rows,
    word_vectors,
)

SPEC = WordList("s", "s.txt")


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "s.txt"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("sun\tmoon\t4.5\ncat\tdog\t7\n", SPEC),
        ("sun moon 4.5\r\n\r\ncat  dog\t7", SPEC),
        ("\ufeffsun moon 4.5\ncat dog 7 9 9\n", SPEC),
        ("sun-n moon-n 4.5\ncat-n dog-n 7.000\n", replace(SPEC, strip_pos=True)),
        ("4.5 sun x moon\n7 cat x dog\n", replace(SPEC, columns=(1, 3, 0))),
        ("word1\tword2\tscore\nsun\tmoon\t4.5\ncat\tdog\t7\n", SPEC),
    ],
)
def test_read(tmp_path, text, spec):
    assert read_pairs(write(tmp_path, text), spec) == [
        Pair("sun", "moon", 4.5),
        Pair("cat", "dog", 7.0),
    ]


PUBLISHED = {
    "MEN_dataset_lemma_form_full": ("men", "sun-n moon-n 4.500000\ncat-n dog-n 7.000000\n"),
    "rw.txt": ("rw", "sun\tmoon\t4.5\t7\t7\t6\t1\ncat\tdog\t7\t10\t9\t6\t5\n"),
    "SimLex-999.txt": (
        "simlex999",
        "word1\tword2\tPOS\tSimLex999\tconc(w1)\r\nsun\tmoon\tN\t4.5\t2.72\r\ncat\tdog\tN\t7\t1.75\r\n",
    ),
    "wordsim_similarity_goldstandard.txt": (
        "wordsim353-similarity",
        "sun\tmoon\t4.5\ncat\tdog\t7.00\n",
    ),
    "wordsim_relatedness_goldstandard.txt": (
        "wordsim353-relatedness",
        "sun\tmoon\t4.5\ncat\tdog\t7.00\n",
    ),
    "My list (v2).txt": ("My-list-v2", "sun moon 4.5\ncat dog 7\n"),
}
"""The name of the set, and two pairs in the form in which the authors publish theirs."""


@pytest.mark.parametrize("file", PUBLISHED)
def test_a_list_is_recognised_from_its_lines(tmp_path, file):
    name, text = PUBLISHED[file]
    path = tmp_path / file
    path.write_bytes(text.encode())
    spec = recognised_set(path)
    assert (spec.name, spec.file) == (name, file)
    assert read_pairs(path, spec) == [Pair("sun", "moon", 4.5), Pair("cat", "dog", 7.0)]
    paper = {spec.file: spec for spec in PAPER_LISTS}
    assert spec == paper.get(file, spec)


AS_PUBLISHED = {
    "a header with numbers, and judges behind the mean": (
        "Word 1\tWord 2\tHuman (mean)\t1\t2\t\nsun\tmoon\t4.5\t9\t0\t\ncat\tdog\t7\t7\t7\t\n",
        "column 3 ('Human (mean)')",
    ),
    "commas": (
        "Word 1,Word 2,Human (mean)\nsun,moon,4.5\ncat,dog,7\n",
        "column 3 ('Human (mean)')",
    ),
    "commas and no header": ("sun,moon,4.50\ncat,dog,7\n", "column 3"),
    "semicolons": ("sun;moon;4.5\ncat;dog;7\n", "column 3"),
    "quotes": ('"sun","moon","4.5"\n"cat","dog","7"\n', "column 3"),
    "comments above": (
        "# Pairs of words (https://somewhere.example)\n# Word 1\tWord 2\tHuman (mean)\n"
        "sun\tmoon\t4.5\ncat\tdog\t7\n",
        "column 3 ('Human (mean)')",
    ),
    "numbered rows": (
        "\tword1\tword2\tmean\n0\tsun\tmoon\t4.5\n1\tcat\tdog\t7\n",
        "column 4 ('mean')",
    ),
    "a count of judges before the mean": (
        "word1\tword2\tn_judges\tmean\nsun\tmoon\t13\t4.5\ncat\tdog\t12\t7\n",
        "column 4 ('mean')",
    ),
    "a rating among norms of the words": (
        "word1\tword2\tPOS\tSimLex999\tconc(w1)\tSimAssoc333\tSD(SimLex)\n"
        "sun\tmoon\tN\t4.5\t4.8\t1\t0.4\ncat\tdog\tN\t7\t4.9\t1\t0.7\n",
        "column 4 ('SimLex999')",
    ),
    "a relation behind the rating": (
        "sun\tmoon\tN\t4.5\tCOHYPONYMS\ncat\tdog\tN\t7\tCOHYPONYMS\n",
        "column 4",
    ),
    "parts of speech, contexts and a number": (
        "1\tsun\tn\tmoon\tn\tthe sun of 2 days\ta moon\t4.5\n"
        "2\tcat\tn\tdog\tn\tmy cat\tyour dog, 3\t7\n",
        "column 8",
    ),
    "quotes between tabs": (
        '"word1"\t"word2"\t"mean"\n"sun"\t"moon"\t4.5\n"cat"\t"dog"\t7\n',
        "column 3 ('mean')",
    ),
    "R's numbers of rows, which have no name": (
        '"word1" "word2" "mean"\n"1" "sun" "moon" 4.5\n"2" "cat" "dog" 7\n',
        "column 4 ('mean')",
    ),
    "R's numbers of rows, under other names": (
        '"a" "b" "sim"\n"1" "sun" "moon" 4.5\n"2" "cat" "dog" 7\n',
        "column 4 ('sim')",
    ),
    "a pair that a comment leaves out": (
        "sun\tmoon\t4.5\n# old\tnew\t1.5\ncat\tdog\t7\n",
        "column 3",
    ),
    "the mean of the ratings behind it": (
        "1\tsun\tn\tmoon\tn\tthe sun of 2\ta moon\t4.5\t9\t0\n"
        "2\tcat\tn\tdog\tn\tmy cat\tdog, 3\t7.0\t7\t7\n",
        "column 8",
    ),
    "parts of speech of a treebank": ("sun\tNN\tmoon\tNNS\t4.5\ncat\tNN\tdog\tNN\t7\n", "column 5"),
    "a language": (
        "language\tone\tother\tsim\nen\tsun\tmoon\t4.5\nen\tcat\tdog\t7\n",
        "column 4 ('sim')",
    ),
    "the rating first": (
        "score\tword1\tword2\n4.5\tsun\tmoon\n7\tcat\tdog\n",
        "column 1 ('score')",
    ),
    "decimals behind a comma": ("sun\tmoon\t4,5\ncat\tdog\t7,0\n", "column 3"),
}
"""Shapes in which lists are published, and where their rating is found."""


@pytest.mark.parametrize("shape", AS_PUBLISHED)
def test_the_rating_is_the_mean_and_the_header_no_pair(tmp_path, shape):
    text, column = AS_PUBLISHED[shape]
    path = write(tmp_path, text)
    spec = recognised_set(path)
    assert read_pairs(path, spec) == [Pair("sun", "moon", 4.5), Pair("cat", "dog", 7.0)]
    assert describe_list(path, spec) == f"s: 2 pairs, first sun and moon with 4.5, from {column}"


def test_words_may_be_phrases(tmp_path):
    path = write(tmp_path, "coffee\tespresso martini\t1.5\nsix-pack\tabs\t3.44\n")
    assert read_pairs(path, recognised_set(path)) == [
        Pair("coffee", "espresso martini", 1.5),
        Pair("six-pack", "abs", 3.44),
    ]


TWO_COLUMNS = {
    "sun\tmoon\t4.5\t9\ncat\tdog\t7\t7\n": "column 3 or column 4",
    "word1\tword2\tjudge 1\tjudge 2\nsun\tmoon\t4\t9\n": (
        r"column 3 \('judge 1'\) or column 4 \('judge 2'\)"
    ),
    "word1\tword2\tmean of men\tmean of women\nsun\tmoon\t4\t9\n": r"column 3 \('mean of men'\)",
    "1\tsun\tmoon\tthe sun\t4.5\t9\n2\tcat\tdog\tmy cat\t7\t7\n": "column 5 or column 6",
}


@pytest.mark.parametrize("text", TWO_COLUMNS)
def test_two_columns_that_could_be_the_rating_are_refused(tmp_path, text):
    path = write(tmp_path, text)
    *_, last = text.strip().split("\n")
    n_columns = len(last.split("\t"))
    advice = (
        rf"a name for each of its {n_columns} columns.*word1 and word2.*name the rating's 'mean'"
    )
    with pytest.raises(ValueError, match=rf"could be in {TWO_COLUMNS[text]}.*{advice}"):
        recognised_set(path)
    # What the message says ends the refusal.
    names = ["id"] * (n_columns == 6) + ["word1", "word2"] + ["context"] * (n_columns == 6)
    header = "\t".join([*names, "first", "mean"])
    write(tmp_path, f"{header}\n{last}\n")
    pair = read_pairs(path, recognised_set(path))[0]
    assert pair.rating == float(last.split("\t")[-1])
    assert {pair.word1, pair.word2} <= {"sun", "moon", "cat", "dog"}


MISLEADING = {
    "word1\tword2\tmean\n1\tsun\tn\tmoon\tn\t4.5\n2\tcat\tn\tdog\tn\t7\n": (
        "names for 3 of 6 columns.*give each column a name",
        "id\tword1\tpos\tword2\tpos\tmean",
    ),
    "word1 word2 mean\nhot sun\tmoon\t4.5\nred cat\tdog\t7\n": (
        r"s\.txt:1: a tab separates .* write it in this way too",
        "word1\tword2\tmean",
    ),
    "x\tx\tx\n4.5\tsun\tmoon\n7\tcat\tdog\n": (
        "no column of numbers stands behind the words.*name the rating's 'mean'",
        "mean\tword1\tword2",
    ),
}
"""Lists with a first line that would mislead, what is said of it, and one that ends the refusal."""


@pytest.mark.parametrize("text", MISLEADING)
def test_a_first_line_that_would_mislead_is_refused(tmp_path, text):
    message, mended = MISLEADING[text]
    path = write(tmp_path, text)
    with pytest.raises(ValueError, match=message):
        recognised_set(path)
    below = text.split("\n", 1)[1]
    write(tmp_path, f"{mended}\n{below}")
    pairs = read_pairs(path, recognised_set(path))
    assert [pair.rating for pair in pairs] == [4.5, 7.0]
    assert [pair.word2 for pair in pairs] == ["moon", "dog"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, r"'s': .*s\.txt does not exist; put it there"),
        (b"caf\xe9 the 1\n", r"'s': .*s\.txt cannot be read as UTF-8"),
        ("", r"s\.txt has no pairs"),
        ("sun moon 1\ncat dog\n", r"s\.txt:2: 2 columns, 's' needs 3"),
        ("word1 word2 score\n", r"s\.txt has no pairs"),
        ("word1 word2 score\nsun moon high\n", r"s\.txt:2: rating 'high' is not a number"),
        ("sun moon NA\ncat dog 1\n", r"s\.txt:1: rating 'NA' is not a number; correct the line"),
        ("sun moon -\ncat dog 1\n", r"s\.txt:1: rating '-' is not a number; correct the line"),
        ("sun moon 1_5\n", r"s\.txt:1: rating '1_5' is not a number"),
        ("sun\tmoon\t1\nmean\t\t1\n", r"s\.txt:2: a word is missing; correct the line"),
        ("sun moon 1\n\ncat dog nan\n", r"s\.txt:3: rating 'nan' is not a number"),
    ],
)
def test_broken_sets(tmp_path, text, message):
    path = tmp_path / "s.txt"
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=message):
        read_pairs(path, SPEC)


def tokens_of(kept: TokenPairs) -> list[list[int]]:
    """The single tokens of both words of each pair."""
    assert kept.starts.tolist() == list(range(len(kept.pieces)))
    return kept.pieces[kept.words].tolist()


def byte_level_tokenizer() -> Tokenizer:
    """GPT-2's form: a word inside a sentence starts with the sign for a space."""
    words = ["Ġsun", "Ġmoon", "cat", "Ġ", "Ġdog"]
    letters = sorted({letter for word in words for letter in word})
    merges = [(word[:end], word[end]) for word in words for end in range(1, len(word))]
    symbols = dict.fromkeys([*letters, *(a + b for a, b in merges)])
    tokenizer = Tokenizer(
        models.BPE({symbol: index for index, symbol in enumerate(symbols)}, merges)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return tokenizer


def test_subword_tokens_are_those_behind_a_space_if_there_is_one():
    tokenizer = byte_level_tokenizer()
    pairs = [
        Pair("sun", "moon", 1.0),
        Pair("sun", "cat", 2.0),
        Pair("dog", "sun", 3.0),
        Pair("cat", "cat", 4.0),
    ]
    kept = single_token_pairs("s", pairs, tokenizer, word_level=False, leading_space=True)
    ids = {word: tokenizer.token_to_id(f"Ġ{word}") for word in ("sun", "moon", "dog")}
    assert tokens_of(kept) == [[ids["sun"], ids["moon"]], [ids["dog"], ids["sun"]]]
    assert (kept.ratings.tolist(), kept.n_read) == ([1.0, 3.0], 4)
    bare = single_token_pairs("s", pairs, tokenizer, word_level=False, leading_space=False)
    assert tokens_of(bare) == [[tokenizer.token_to_id("cat")] * 2]
    spaced = Tokenizer(
        models.Unigram([("<unk>", 0.0), ("▁sun", -1.0), ("▁moon", -1.0), ("▁", -2.0)], unk_id=0)
    )
    spaced.pre_tokenizer = pre_tokenizers.Metaspace(
        prepend_scheme="always"
    )  # adds the space itself
    for leading_space in (True, False):
        kept = single_token_pairs(
            "s", pairs[:1], spaced, word_level=False, leading_space=leading_space
        )
        assert tokens_of(kept) == [[1, 2]]


def test_words_of_a_word_level_vocabulary():
    tokenizer = Tokenizer(models.WordLevel({"sun": 0, "moon": 1, "cat": 2}))
    pairs = [Pair("moon", "sun", 1.0), Pair("sun", "elephant", 2.0)]
    kept = single_token_pairs("s", pairs, tokenizer, word_level=True, leading_space=True)
    assert tokens_of(kept) == [[1, 0]]
    bare = single_token_pairs("s", pairs, tokenizer, word_level=True, leading_space=False)
    assert tokens_of(bare) == tokens_of(kept)
    none = single_token_pairs("s", pairs[1:], tokenizer, word_level=True, leading_space=True)
    assert (none.words.shape, none.n_pairs, none.coverage) == ((0, 2), 0, 0.0)


def some_pairs(n_pairs: int = 30, n_rows: int = 20):
    rng = np.random.default_rng(0)
    vocabulary = {f"w{i}": i for i in range(n_rows)}
    drawn = rng.integers(0, n_rows, (n_pairs, 2))
    pairs = [Pair(f"w{a}", f"w{b}", float(rng.integers(0, 10))) for a, b in drawn]
    return pairs, single_token_pairs(
        "s", pairs, Tokenizer(models.WordLevel(vocabulary)), word_level=True, leading_space=True
    )


def test_correlations_against_plain_loops_and_scipy():
    embeddings = np.random.default_rng(1).normal(0.2, 1.0, (20, 6))
    pairs, kept = some_pairs()
    dots = [
        sum(
            float(x * y)
            for x, y in zip(embeddings[int(p.word1[1:])], embeddings[int(p.word2[1:])], strict=True)
        )
        for p in pairs
    ]
    lengths = [math.sqrt(sum(float(x) ** 2 for x in row)) for row in embeddings]
    cosines = [
        dot / lengths[int(p.word1[1:])] / lengths[int(p.word2[1:])]
        for dot, p in zip(dots, pairs, strict=True)
    ]
    ratings = [p.rating for p in pairs]
    found = set_correlations(embeddings, kept)
    assert found["pearson_cosine"] == pytest.approx(
        scipy.stats.pearsonr(cosines, ratings).statistic, abs=1e-12
    )
    assert found["spearman_cosine"] == pytest.approx(
        scipy.stats.spearmanr(cosines, ratings).statistic, abs=1e-12
    )
    assert found["pearson_dot"] == pytest.approx(
        scipy.stats.pearsonr(dots, ratings).statistic, abs=1e-12
    )
    assert found["spearman_dot"] == pytest.approx(
        scipy.stats.spearmanr(dots, ratings).statistic, abs=1e-12
    )
    assert list(found) == ["pearson_cosine", "spearman_cosine", "pearson_dot", "spearman_dot"]
    scaled = set_correlations(embeddings * np.linspace(1, 9, 20)[:, None], kept)
    assert scaled["pearson_cosine"] == pytest.approx(found["pearson_cosine"], abs=1e-12)


def test_a_word_is_the_mean_of_its_pieces():
    tokenizer = byte_level_tokenizer()
    pairs = [Pair("sun", "moon", 1.0), Pair("suncat", "dog", 2.0), Pair("moon", "cat", 3.0)]
    kept = subword_pairs("s", pairs, tokenizer, word_level=False, leading_space=True)
    assert (kept.n_pairs, kept.coverage, kept.places.tolist()) == (3, 1.0, [0, 1, 2])
    rng = np.random.default_rng(0)
    embeddings = rng.normal(size=(tokenizer.get_vocab_size(), 4))
    for pair, (first, second) in zip(
        pairs, word_vectors(embeddings, kept)[kept.words], strict=True
    ):
        for word, vector in ((pair.word1, first), (pair.word2, second)):
            ids = tokenizer.encode(f" {word}").ids
            mean = [
                math.fsum(column) / len(ids)
                for column in zip(*embeddings[ids].tolist(), strict=True)
            ]
            np.testing.assert_allclose(vector, mean, rtol=1e-14)
    single = single_token_pairs("s", pairs, tokenizer, word_level=False, leading_space=True)
    assert single.places.tolist() == [0]
    assert len(tokenizer.encode(" suncat").ids) > 1


def test_a_word_with_an_unknown_part_is_no_word():
    tokenizer = Tokenizer(
        models.WordPiece({"[UNK]": 0, "sun": 1, "moon": 2, "##s": 3}, unk_token="[UNK]")
    )
    pairs = [
        Pair("sun", "moon", 1.0),
        Pair("suns", "moon", 2.0),
        Pair("sun", "xyz", 3.0),
        Pair("qq", "zz", 4.0),
    ]
    single = single_token_pairs("s", pairs, tokenizer, word_level=False, leading_space=False)
    assert (single.places.tolist(), single.n_read, single.coverage) == ([0], 4, 0.25)
    subwords = subword_pairs("s", pairs, tokenizer, word_level=False, leading_space=False)
    assert subwords.places.tolist() == [0, 1]
    unigram = Tokenizer(models.Unigram([("<unk>", 0.0), ("sun", -1.0), ("moon", -1.0)], unk_id=0))
    assert subword_pairs(
        "s", pairs, unigram, word_level=False, leading_space=False
    ).places.tolist() == [0]


def test_intervals_are_of_the_pairs_and_always_the_same():
    embeddings = np.random.default_rng(1).normal(size=(20, 6))
    _, kept = some_pairs()
    correlations = set_correlations(embeddings, kept)
    rows, reasons = rows_of(embeddings, [kept, replace(kept, name="again")])
    for name, value in correlations.items():
        assert (
            -1
            <= rows["s", f"{name}_low"]
            < value
            == rows["s", name]
            < rows["s", f"{name}_high"]
            <= 1
        )
        assert (
            rows["s", f"{name}_low"] != rows["again", f"{name}_low"]
        )  # each set has resamples of its own
    r_bar = [rows["word_similarity", f"r_bar{end}"] for end in ("_low", "", "_high")]
    assert r_bar[1] == pytest.approx(100 * correlations["pearson_cosine"], rel=1e-14)
    assert (
        100 * rows["s", "pearson_cosine_low"] < r_bar[0] < r_bar[1] < r_bar[2]
    )  # of two sets it is narrower
    assert (
        rows_of(embeddings, [kept, replace(kept, name="again")]) == (rows, reasons)
        and reasons == []
    )
    assert (rows["s", "n_pairs"], rows["s", "coverage"]) == (30, 1.0)


def rows_of(embeddings, sets):
    rows, reasons = word_similarity_rows(embeddings, sets, [])
    return {(row["task"], row["metric"]): row["value"] for row in rows}, reasons


@pytest.mark.parametrize("n_pairs", [0, 2])
def test_too_few_pairs_are_nan_with_a_reason(n_pairs):
    pairs, _ = some_pairs()
    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(20)}))
    kept = single_token_pairs(
        "s",
        [*pairs[:n_pairs], Pair("no", "such", 1.0)],
        tokenizer,
        word_level=True,
        leading_space=True,
    )
    rows, reasons = rows_of(np.random.default_rng(1).normal(size=(20, 6)), [kept])
    assert rows["s", "n_pairs"] == n_pairs
    assert math.isnan(rows["s", "pearson_cosine"]) and math.isnan(rows["word_similarity", "r_bar"])
    assert reasons == [f"s: {n_pairs} of {n_pairs + 1} pairs are single tokens, 3 are needed"]


@pytest.mark.parametrize(
    "change",
    [lambda e: e * 0 + 1, lambda e: e * (np.arange(20) > 3)[:, None], lambda e: e * np.nan],
)
def test_undefined_similarities_are_nan_with_a_reason(change):
    _, kept = some_pairs()
    rows, reasons = rows_of(change(np.random.default_rng(1).normal(size=(20, 6))), [kept])
    assert math.isnan(rows["s", "pearson_cosine"]) and math.isnan(rows["word_similarity", "r_bar"])
    assert len(reasons) == 1 and reasons[0].startswith("s: ")


@pytest.mark.fault(
    "evaluation",
    "a study has no word-similarity sets",
    "r-bar is missing with this reason, and all else is measured",
)
def test_no_sets_are_nan_with_a_reason():
    rows, reasons = rows_of(np.random.default_rng(1).normal(size=(20, 6)), [])
    names = [("word_similarity", name) for name in ("r_bar", "r_bar_low", "r_bar_high")]
    assert list(rows) == [*names, ("word_similarity_subwords", "r_bar")]
    assert math.isnan(rows["word_similarity", "r_bar"])
    assert reasons == ["r_bar: there are no word-similarity sets"]
