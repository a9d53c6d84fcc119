"""The word-similarity sets of a study, which the package embedding-geometry reads."""

import os
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from coupled_adam_bench.evaluation.settings import read_pairs, set_files
from coupled_adam_bench.study.config import WordSimilaritySet, parse_study
from embedding_geometry.word_similarity import single_token_pairs


@pytest.mark.fault(
    "evaluation",
    "the file of a word-similarity set is missing, is a folder, is not UTF-8, or has a line that is"
    " no pair",
    "it is refused before the first job, with its place",
)
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"'s': file s\.txt does not exist"),
        (b"caf\xe9 the 1\n", r"'s': file s\.txt cannot be read as UTF-8"),
        (b"sun moon 1\ncat dog\n", r"s\.txt:2: 2 columns, 's' needs 3"),
    ],
)
def test_a_broken_set_names_the_settings_that_lead_to_it(tmp_path, monkeypatch, content, message):
    monkeypatch.chdir(tmp_path)
    if content is not None:
        Path("s.txt").write_bytes(content)
    settings = (
        "; the settings are evaluation.word_similarity and paths.word_similarity, and the target"
        " `fetch`"
    )
    with pytest.raises(ValueError, match=f"{message}.*{settings}"):
        read_pairs(Path("s.txt"), WordSimilaritySet(name="s", file="s.txt"))


@pytest.mark.skipif("CAB_REAL_DATA" not in os.environ, reason="needs CAB_REAL_DATA")
@pytest.mark.parametrize(
    ("protocol", "expected"),
    [("corrected", [2486, 354, 968, 184, 238]), ("official", [641, 16, 261, 68, 74])],
)
def test_pairs_kept_of_the_real_sets(protocol, expected):
    root = Path(os.environ["CAB_REAL_DATA"])
    study = {
        "study": "s",
        "protocol": protocol,
        "paths": {"text": ".", "word_similarity": str(root / "wordsim")},
        "data": {
            "name": "d",
            "source": {"kind": "files"},
            "tokenizer": "gpt2",
            "vocab_size": 50304,
        },
        "models": ["gpt2-125m"],
        "grid": [{"models": ["gpt2-125m"], "tokens": ["5B"], "optimizers": ["adamw"]}],
    }
    tokenizer = Tokenizer.from_file(str(root / "tokenizer" / "hf_gpt2" / "tokenizer.json"))
    parsed = parse_study(study)
    space = parsed.evaluation.leading_space
    kept = [
        len(single_token_pairs(spec.name, read_pairs(path, spec), tokenizer, False, space).ratings)
        for spec, path in set_files(parsed, Path())
    ]
    assert kept == expected
