"""Reads the word-similarity sets of a study; it imports nothing heavy."""

from pathlib import Path

from coupled_adam_bench.data.check import WORD_PAIRS
from coupled_adam_bench.study.config import Study, WordSimilaritySet
from embedding_geometry.word_lists import Pair, WordList
from embedding_geometry.word_lists import read_pairs as read_list


def set_files(study: Study, data_folder: Path) -> list[tuple[WordSimilaritySet, Path]]:
    """Return the study's sets and their files; the set of the generated language lies beside the
    token bins."""
    if study.evaluation.word_similarity == "synthetic":
        return [(WordSimilaritySet(name="synthetic", file=WORD_PAIRS), data_folder / WORD_PAIRS)]
    return [
        (spec, Path(study.paths.word_similarity) / spec.file)
        for spec in study.evaluation.word_similarity
    ]


def read_pairs(path: Path, spec: WordSimilaritySet) -> list[Pair]:
    """Read a set; ``ValueError`` with file, line and the settings that lead there for one that
    cannot be read."""
    try:
        return read_list(path, WordList(**spec.model_dump()))
    except ValueError as error:
        raise ValueError(
            f"{error}; the settings are evaluation.word_similarity and paths.word_similarity, and"
            " the target `fetch` downloads the paper's sets"
        ) from None
