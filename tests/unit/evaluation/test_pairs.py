"""The word-similarity sets of a study, which the package embedding-geometry reads."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from text_study import text_settings
from tokenizers import Tokenizer

from coupled_adam_bench.cli.start import word_lists
from coupled_adam_bench.evaluation.settings import (
    check_evaluation,
    described_sets,
    embeddings,
    read_pairs,
    set_files,
)
from coupled_adam_bench.study.settings import Study, WordSimilaritySet, parse_study
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
        r"; the settings are evaluation\.word_similarity \(`columns` names .* and"
        r" paths\.word_similarity, and the target `fetch`"
    )
    with pytest.raises(ValueError, match=f"{message}.*{settings}"):
        read_pairs(Path("s.txt"), WordSimilaritySet(name="s", file="s.txt"))


JUDGES = "word1\tword2\tn_judges\tmean\nsun\tmoon\t13\t6.77\n"


def study_with(tmp_path: Path, **spec: object) -> Study:
    (tmp_path / "own.tsv").write_text(JUDGES)
    settings = text_settings(
        paths={"tokenizer": None, "word_similarity": str(tmp_path)},
        data={"tokenizer": "bpe"},
        evaluation={"word_similarity": [{"name": "own", "file": "own.tsv", **spec}]},
    )
    return parse_study(settings)


@pytest.mark.fault(
    "evaluation",
    "a list of word pairs has other numbers, such as a count of judges, before the mean rating",
    "the mean is taken, and the start says which pair has which rating from which column; a list"
    " with two columns that could be it is refused",
)
def test_the_column_of_the_rating_is_found_and_said(tmp_path):
    study = study_with(tmp_path)
    found = embeddings(study, "d")["word_similarity"][0]
    assert found["columns"] == [0, 1, 3]
    said = "own: 1 pair, first sun and moon with {}, from column {}"
    assert described_sets(study) == [said.format("6.77", "4 ('mean')")]
    chosen = study_with(tmp_path, columns=[0, 1, 2])
    assert embeddings(chosen, "d")["word_similarity"][0]["columns"] == [0, 1, 2]
    assert described_sets(chosen) == [said.format("13", "3 ('n_judges')")]
    plan = SimpleNamespace(studies={"a": study, "b": study})
    assert list(word_lists(plan, ["train_cells"])) == [f"word list {described_sets(study)[0]}"]
    assert list(word_lists(plan, ["test_loss"])) == []
    (tmp_path / "own.tsv").write_text("sun\tmoon\t13\t6.77\n")
    for read in (check_evaluation, lambda study: embeddings(study, "d")):
        with pytest.raises(
            ValueError, match=r"could be in column 3 or column 4.*name the rating's"
        ):
            read(study)
    assert "could be in column 3 or column 4" in described_sets(study)[0]


@pytest.mark.parametrize("strip_pos", [None, True, False])
def test_parts_of_speech_are_cut_as_by_measure(tmp_path, strip_pos):
    study = study_with(tmp_path, **({} if strip_pos is None else {"strip_pos": strip_pos}))
    (tmp_path / "own.tsv").write_text("sun-n moon-n 4.5\nold-j new-j 7\n")
    is_cut = strip_pos is not False
    assert embeddings(study, "d")["word_similarity"][0]["strip_pos"] == is_cut
    words = "sun and moon" if is_cut else "sun-n and moon-n"
    assert described_sets(study) == [f"own: 2 pairs, first {words} with 4.5, from column 3"]


@pytest.mark.skipif("CAB_REAL_DATA" not in os.environ, reason="needs CAB_REAL_DATA")
@pytest.mark.parametrize(
    ("protocol", "expected"),
    [("corrected", [2486, 354, 968, 184, 238]), ("official", [641, 16, 261, 68, 74])],
)
def test_pairs_kept_of_the_real_sets(protocol, expected):
    root = Path(os.environ["CAB_REAL_DATA"])
    study = text_settings(
        protocol=protocol,
        paths={"tokenizer": None, "word_similarity": str(root / "wordsim")},
        data={"tokenizer": "gpt2", "vocab_size": 50304},
    )
    tokenizer = Tokenizer.from_file(str(root / "tokenizer" / "hf_gpt2" / "tokenizer.json"))
    parsed = parse_study(study)
    space = parsed.evaluation.leading_space
    kept = [
        len(single_token_pairs(spec.name, read_pairs(path, spec), tokenizer, False, space).ratings)
        for spec, path in set_files(parsed, Path())
    ]
    assert kept == expected
