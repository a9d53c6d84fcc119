"""Measures one model: the geometry of its matrices, and word similarity with its own tokenizer.

Beside the model it takes the counts of its tokens in a text, and word lists.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from embedding_geometry.checkpoint import find_matrices
from embedding_geometry.matrix import EMBEDDINGS, matrix_geometry, variant_rows
from embedding_geometry.place import MATRIX_ENDING, Place, open_place
from embedding_geometry.rows import HEAD, ResultRow
from embedding_geometry.stored import Matrices, NumpyMatrix
from embedding_geometry.tokenizer import count_tokens, read_tokenizer, whole_text
from embedding_geometry.user_files import is_hidden
from embedding_geometry.word_lists import WordLists, read_word_lists
from embedding_geometry.word_similarity import (
    TokenPairs,
    similarities,
    single_token_pairs,
    subword_pairs,
    word_similarity_rows,
)

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_TOKENIZER = "tokenizer.json"
_OLDER_TOKENIZERS = ("vocab.*", "*.model")


@dataclass(frozen=True)
class Known:
    """Files that belong to a model and lie outside its folder."""

    counts: Path | None = None
    """How often each token is in the training text, as ``numpy.save`` writes it."""
    word_list: Path | None = None
    """A list of word pairs in the language of the training text."""


def nothing_known(folder: Path) -> Known:  # noqa: ARG001 - in the place of a function that looks
    """Return no files, for any model."""
    return Known()


@dataclass
class Measured:
    """The numbers of a model, the reasons for what is missing, and the similarities of its word
    pairs by set."""

    model: str
    matrices: Matrices
    n_vocab: int | None
    """Number of tokens of the tokenizer; None if there is none, or none that fits."""
    results: list[ResultRow] = field(default_factory=list)
    undefined: list[str] = field(default_factory=list)
    detail: dict[str, Any] = field(default_factory=dict)
    """Shape, spectrum and norm-frequency curve of each matrix."""
    pairs: dict[str, tuple[TokenPairs, dict[str, NDArray[np.float64]]]] = field(
        default_factory=dict
    )

    def value(self, task: str, metric: str) -> float | None:
        """Return a number, None if it was not measured."""
        found = (
            row["value"] for row in self.results if (row["task"], row["metric"]) == (task, metric)
        )
        return next(found, None)

    def to_json(self) -> dict[str, Any]:
        """Return everything as a JSON value."""
        head = self.matrices.head
        return {
            "model": self.model,
            "architecture": self.matrices.architecture,
            "tied": self.matrices.tied,
            "tensors": (
                {EMBEDDINGS: self.matrices.embeddings.name}
                | ({} if head is None else {HEAD: head.name})
            ),
            "n_vocab": self.n_vocab,
            "results": self.results,
            "undefined": self.undefined,
            "matrices": self.detail,
        }


def measure_model(
    name: str,
    lists: WordLists,
    text: list[Path],
    given: Path | None = None,
    known_of: Callable[[Path], Known] = nothing_known,
) -> Measured:
    """Measure the model of a folder or of the hub, or a matrix of NumPy, whose tokenizer can be
    ``given``.

    How often each token occurs is counted in ``text``. ``known_of`` is given the folder of the
    model and returns what else is known of it: its counts are taken without a text, and its list of
    word pairs if no ``lists`` were given by the user. Without counts, what needs them is left out.
    No more than one matrix is in memory. ``ValueError`` with the name of what cannot be measured.
    """
    if name.endswith(MATRIX_ENDING):
        matrices = Matrices("only a matrix", NumpyMatrix(Path(name)), None, tied=None)
        place, file, known = None, _TOKENIZER, Known()
        # The tokenizer that goes with a matrix is a file, or lies in a folder under its usual name.
        if given is not None and given.is_dir():
            place = Place(str(given), given, None)
        elif given is not None:
            place, file = Place(str(given), given.parent, None), given.name
    else:
        place = open_place(name)
        matrices, file, known = find_matrices(place), _TOKENIZER, known_of(place.folder)
    tokenizer, n_vocab, reasons = _tokenizer(place, file, matrices.embeddings.shape[0])
    counts = None
    if text and tokenizer is not None and n_vocab is not None:
        counts, n_unknown = count_tokens(text, tokenizer, n_vocab)
        if n_unknown:
            reasons.append(
                f"--text: {n_unknown} words that the tokenizer does not know are left out of the"
                " counts"
            )
    elif known.counts is not None:
        counts = np.load(known.counts)
    if counts is None:
        reasons.append(
            "rho, the curve and the rows of seen tokens: no counts of tokens; give --text"
        )
    if known.word_list is not None and not lists.are_given:
        lists = read_word_lists(known.word_list)
    reasons += _wide(matrices)
    found = Measured(name, matrices, n_vocab)
    matrix_VD = matrices.embeddings.read()
    similarity_rows, similarity_reasons = _word_similarity(found, matrix_VD, lists, tokenizer)
    parts = [matrix_geometry(EMBEDDINGS, matrix_VD, counts, n_vocab, "both_signs")]
    del matrix_VD
    if matrices.head is not None:
        parts.append(matrix_geometry(HEAD, matrices.head.read(), counts, n_vocab, "both_signs"))
    elif matrices.tied is False:
        reasons.append(f"{HEAD}: the checkpoint has no output matrix")
    found.results = [row for part in parts for row in part.results]
    found.results += variant_rows(
        matrices.embeddings.read, [pairs for pairs, _ in found.pairs.values()], "both_signs"
    )
    found.results += similarity_rows
    undefined = [reason for part in parts for reason in part.undefined]
    found.undefined = reasons + undefined + similarity_reasons
    found.detail = {matrix: detail for part in parts for matrix, detail in part.detail.items()}
    return found


def _wide(matrices: Matrices) -> list[str]:
    """Return a sentence for each matrix with fewer rows than columns, as one has that is stored the
    other way round."""
    said = []
    for task, matrix in ((EMBEDDINGS, matrices.embeddings), (HEAD, matrices.head)):
        if matrix is not None and matrix.shape[0] < matrix.shape[1]:
            said.append(
                f"{task}: {matrix.shape[0]:,} rows of width {matrix.shape[1]:,} are measured as"
                f" {matrix.shape[0]:,} tokens; if a token is a column of {matrix.name}, give the"
                " transposed matrix"
            )
    return said


def _word_similarity(
    found: Measured, matrix_VD: NDArray[np.float64], lists: WordLists, tokenizer: "Tokenizer | None"
) -> tuple[list[ResultRow], list[str]]:
    if tokenizer is None or not lists.sets:
        return [], list(lists.missing)
    from tokenizers import models

    how = (tokenizer, isinstance(tokenizer.model, models.WordLevel), True)
    sets = [single_token_pairs(name, pairs, *how) for name, pairs in lists.sets.items()]
    subword_sets = [subword_pairs(name, pairs, *how) for name, pairs in lists.sets.items()]
    found.pairs = {pairs.name: (pairs, similarities(matrix_VD, pairs)) for pairs in sets}
    rows, reasons = word_similarity_rows(matrix_VD, sets, subword_sets)
    return rows, lists.missing + reasons


def _tokenizer(
    place: Place | None, file: str, n_rows: int
) -> tuple["Tokenizer | None", int | None, list[str]]:
    """Return the tokenizer of a model and its number of tokens, or the reason why there is none
    that fits."""
    if place is None:
        return None, None, ["word similarity: a matrix has no tokenizer; give --tokenizer"]
    try:
        path = place.local(file)
        tokenizer = _converted(place) if path is None else read_tokenizer(path)
    except Exception as error:  # the libraries raise bare Exceptions
        problem = f"no tokenizer in {place.folder} can be read ({type(error).__name__}: {error})"
        return None, None, [f"word similarity: {problem}"]
    n_vocab = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
    if n_vocab > n_rows:
        return (
            None,
            None,
            [
                f"word similarity: the tokenizer has {n_vocab} tokens, the embedding only {n_rows}"
                " rows"
            ],
        )
    return tokenizer, n_vocab, []


def _converted(place: Place) -> "Tokenizer":
    """Return the tokenizer of a model that has older files than ``tokenizer.json``; ``ValueError``
    without any."""
    # Without files, transformers returns a tokenizer of nothing and no error.
    if not any(
        place.local(file.name)
        for pattern in _OLDER_TOKENIZERS
        for file in place.folder.glob(pattern)
        if not is_hidden(file.name)
    ):
        raise ValueError("there is none")
    from transformers import AutoTokenizer

    loaded = AutoTokenizer.from_pretrained(
        place.folder, trust_remote_code=False, local_files_only=True
    )
    return whole_text(loaded.backend_tokenizer)
