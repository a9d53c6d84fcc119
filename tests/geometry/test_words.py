"""Word lists: what is read, what a tokenizer keeps, and the correlation with ratings."""

import math
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import pearsonr
from tokenizers import Tokenizer, models, pre_tokenizers

from coupled_adam_bench.geometry.words import (
    correlation,
    read_pairs,
    similarity,
    token_pairs,
    try_lists,
)
from coupled_adam_bench.study.evaluation import PAPER_LISTS, WordList
from coupled_adam_bench.study.plan import read_plan

LISTS = {
    "MEN_dataset_lemma_form_full": "sun-n sunlight-n 50.0\nrun-v walk-v 30.5\ncat-n dog-n 21\n",
    "rw.txt": "cats\tdogs\t5.88\t7\t7\ncat\tdog\t1.5\t2\t0\nrun\tdog\t3\t1\t1\n",
    "SimLex-999.txt": "word1\tword2\tPOS\tSimLex999\nrun\twalk\tA\t1.58\ncat\tdog\tN\t9.2\n",
    "wordsim_similarity_goldstandard.txt": "cat\tcat\t10\ncat\tdog\t7.35\nrun\tdog\t0\n",
    "wordsim_relatedness_goldstandard.txt": "cat\twalk\t1\ndog\tcat\t2\nrun\tcat\t0\n",
}
"""The paper's lists in small, each in the form that its authors gave it."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in LISTS.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def byte_level(words: list[str]) -> Tokenizer:
    """A byte-level BPE whose longest tokens are ``words``; Ġ is a space."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab, merges = {letter: number for number, letter in enumerate(letters)}, []
    for word in words:
        for end in range(1, len(word)):
            merge = (word[:end], word[end])
            if "".join(merge) not in vocab:
                merges.append(merge)
                vocab["".join(merge)] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return tokenizer


def test_the_papers_lists_with_and_without_the_space(folder: Path) -> None:
    tokenizer = byte_level(["Ġcat", "Ġdog", "Ġrun", "Ġwalk", "cat", "dog"])
    read = [read_pairs(folder, wanted) for wanted in PAPER_LISTS]
    assert read[0] == [("sun", "sunlight", 50), ("run", "walk", 30.5), ("cat", "dog", 21)]
    assert read[2] == [("run", "walk", 1.58), ("cat", "dog", 9.2)]
    assert [len(pairs) for pairs in read] == [3, 3, 2, 3, 3]
    assert [len(token_pairs(pairs, tokenizer).ratings) for pairs in read] == [2, 2, 2, 3, 3]
    without = [token_pairs(pairs, tokenizer, space=False) for pairs in read]
    assert [len(pairs.ratings) for pairs in without] == [1, 1, 1, 2, 1]
    ids = [tokenizer.token_to_id(word) for word in ("cat", "dog")]
    assert without[0].tokens.tolist() == [ids]


@pytest.mark.parametrize("seed", range(3))
def test_correlation_is_that_of_cosines_and_ratings(folder: Path, seed: int) -> None:
    tokenizer = byte_level(["Ġcat", "Ġdog", "Ġrun", "Ġwalk"])
    rng = np.random.default_rng(seed)
    e_VD = rng.normal(size=(tokenizer.get_vocab_size(), 6))
    pairs = read_pairs(folder, PAPER_LISTS[4])
    cosines = []
    for one, two, _ in pairs:
        left, right = (e_VD[tokenizer.token_to_id(f"Ġ{word}")] for word in (one, two))
        cosines.append(left @ right / math.sqrt(left @ left) / math.sqrt(right @ right))
    expected = pearsonr(cosines, [rating for *_, rating in pairs]).statistic
    found = correlation(e_VD, token_pairs(pairs, tokenizer))
    assert found == pytest.approx(expected, rel=1e-12)
    kept, other = (
        token_pairs(pairs, tokenizer),
        token_pairs(read_pairs(folder, PAPER_LISTS[3]), tokenizer),
    )
    *_, r_bar = similarity(e_VD, {"one": kept, "other": other})
    assert r_bar[:2] == ("word_similarity", "r_bar")
    assert r_bar[2] == pytest.approx(50 * (expected + correlation(e_VD, other)))
    # Two points lie on a line.
    few = token_pairs(pairs[:2], tokenizer)
    assert math.isnan(correlation(e_VD, few))
    *_, n_pairs, r_bar = similarity(e_VD, {"one": kept, "few": few})
    assert n_pairs == ("few", "n_pairs", 2)
    assert math.isnan(r_bar[2])


def test_an_unknown_word_is_no_token() -> None:
    vocab = {"[UNK]": 0, "cat": 1, "dog": 2, "##s": 3}
    pieces = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    pieces.pre_tokenizer = pre_tokenizers.Whitespace()
    words = Tokenizer(models.WordLevel({"cat": 1, "dog": 2, "[UNK]": 0}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    pairs = [("cat", "dog", 1.0), ("cat", "cow", 2.0), ("cow", "hen", 3.0), ("cats", "dog", 4.0)]
    for tokenizer in (pieces, words):
        assert token_pairs(pairs, tokenizer).tokens.tolist() == [[1, 2]]
    # This tokenizer puts the space there by itself, and a second one would be another token.
    spaced = Tokenizer(
        models.Unigram([("<unk>", 0.0), ("▁cat", -1.0), ("▁dog", -1.0), ("▁", -2.0)], 0)
    )
    spaced.pre_tokenizer = pre_tokenizers.Metaspace()
    assert token_pairs(pairs, spaced).tokens.tolist() == [[1, 2]]


OWN = "First,Second,Mean\nlove,sex,6.77\ntiger,cat,7.35\n"


def test_a_list_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_text(OWN)
    comma = WordList(name="own", file="own.csv", separator=",")
    assert read_pairs(tmp_path, comma) == [("love", "sex", 6.77), ("tiger", "cat", 7.35)]
    turned = comma.model_copy(update={"columns": (1, 0, 2)})
    assert read_pairs(tmp_path, turned)[0] == ("sex", "love", 6.77)


@pytest.mark.parametrize(
    ("text", "separator", "columns", "line"),
    [
        (OWN, "\t", (0, 1, 2), 1),  # another separator
        (OWN, ",", (0, 1, 3), 1),  # no such column
        (OWN + "a,b,much\n", ",", (0, 1, 2), 4),  # a second line without a number is no header
        ("a,b,c\n", ",", (0, 1, 2), None),  # nothing but a header
        ("caf\xe9,b,1\n", ",", (0, 1, 2), 0),  # not UTF-8
    ],
)
def test_what_is_not_so_is_refused_with_its_line_and_the_form(
    tmp_path: Path, text: str, separator: str, columns: tuple[int, int, int], line: int | None
) -> None:
    (tmp_path / "own.csv").write_bytes(text.encode("latin-1"))
    wanted = WordList(name="own", file="own.csv", separator=separator, columns=columns)
    with pytest.raises(ValueError, match="columns: ") as refused:
        read_pairs(tmp_path, wanted)
    assert line is None or f"line {line}:" in str(refused.value)
    with pytest.raises(ValueError, match=r"none\.csv"):
        read_pairs(tmp_path, WordList(name="none", file="none.csv"))


def test_the_trial_shows_the_first_pair(finished: Path) -> None:
    (found,) = try_lists(read_plan(finished / "results/tiny/plan.json"))
    (file,) = finished.glob("results/data/*/word_lists/synthetic.tsv")
    lines = file.read_text().splitlines()
    one, two, rating = lines[0].split("\t")
    assert found == {
        "list": "synthetic",
        "first": (one, two, float(rating)),
        "pairs": len(lines),
        "kept": len(lines),
        "warning": None,
    }
