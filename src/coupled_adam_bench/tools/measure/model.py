"""Measures one model: the geometry of its matrices, and word similarity with its own tokenizer."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from coupled_adam_bench.evaluation.embedding_geometry import EMBEDDINGS, matrix_geometry, variant_rows
from coupled_adam_bench.evaluation.word_similarity import (
    TokenPairs,
    similarities,
    single_token_pairs,
    subword_pairs,
    word_similarity_rows,
)
from coupled_adam_bench.store.stored import ResultRow
from coupled_adam_bench.study.catalog.names import HEAD
from coupled_adam_bench.tools.measure.checkpoint import Matrices, find_matrices
from coupled_adam_bench.tools.measure.inputs import WordLists, count_tokens
from coupled_adam_bench.tools.measure.places import open_place

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_OLDER_TOKENIZERS = ("vocab.*", "*.model")
Counts = NDArray[np.integer[Any]]


@dataclass
class Measured:
    """The numbers of a model, the reasons for what is missing, and the similarities of its word pairs by set."""

    model: str
    matrices: Matrices
    n_vocab: int | None
    """Number of tokens of the tokenizer; None if there is none, or none that fits."""
    results: list[ResultRow] = field(default_factory=list)
    undefined: list[str] = field(default_factory=list)
    detail: dict[str, Any] = field(default_factory=dict)
    """Shape, spectrum and norm-frequency curve of each matrix."""
    pairs: dict[str, tuple[TokenPairs, dict[str, NDArray[np.float64]]]] = field(default_factory=dict)

    def value(self, task: str, metric: str) -> float | None:
        """Return a number, None if it was not measured."""
        found = (row["value"] for row in self.results if (row["task"], row["metric"]) == (task, metric))
        return next(found, None)

    def to_json(self) -> dict[str, Any]:
        """Return everything as a JSON value."""
        head = self.matrices.head
        return {
            "model": self.model,
            "architecture": self.matrices.architecture,
            "tied": self.matrices.tied,
            "tensors": {EMBEDDINGS: self.matrices.embeddings.name} | ({} if head is None else {HEAD: head.name}),
            "n_vocab": self.n_vocab,
            "results": self.results,
            "undefined": self.undefined,
            "matrices": self.detail,
        }


def measure_model(name: str, lists: WordLists, text: list[Path], counts: Counts | None) -> Measured:
    """Measure the model of a folder or of the hub; ``ValueError`` with the name of one that cannot be measured.

    ``text`` or ``counts`` say how often each token occurs; without both, what needs it is left out. No more than one
    matrix is in memory.
    """
    folder, file_of = open_place(name)
    matrices = find_matrices(folder, file_of)
    n_rows = matrices.embeddings.shape[0]
    tokenizer, n_vocab, reasons = _tokenizer(folder, n_rows)
    if text and tokenizer is not None and n_vocab is not None:
        counts, n_unknown = count_tokens(text, tokenizer, n_vocab)
        if n_unknown:
            reasons.append(f"--text: {n_unknown} words that the tokenizer does not know are left out of the counts")
    if counts is None:
        reasons.append("rho, the curve and the rows of seen tokens: no counts of tokens; give --text or --counts")
    elif len(counts) > n_rows:
        raise ValueError(
            f"{name}: --counts has {len(counts)} tokens, the embedding {n_rows} rows; give those of its text"
        )
    found = Measured(name, matrices, n_vocab)
    matrix_VD = matrices.embeddings.read()
    similarity_rows, similarity_reasons = _word_similarity(found, matrix_VD, lists, tokenizer)
    parts = [matrix_geometry(EMBEDDINGS, matrix_VD, counts, n_vocab, "both_signs")]
    del matrix_VD
    if matrices.head is not None:
        parts.append(matrix_geometry(HEAD, matrices.head.read(), counts, n_vocab, "both_signs"))
    elif not matrices.tied:
        reasons.append(f"{HEAD}: the checkpoint has no output matrix")
    found.results = [row for part in parts for row in part.results]
    found.results += variant_rows(matrices.embeddings.read, [pairs for pairs, _ in found.pairs.values()], "both_signs")
    found.results += similarity_rows
    undefined = [reason for part in parts for reason in part.undefined]
    found.undefined = reasons + undefined + similarity_reasons
    found.detail = {matrix: detail for part in parts for matrix, detail in part.detail.items()}
    return found


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


def _tokenizer(folder: Path, n_rows: int) -> tuple["Tokenizer | None", int | None, list[str]]:
    """Return the tokenizer of a model and its number of tokens, or the reason why there is none that fits."""
    from tokenizers import Tokenizer

    file = folder / "tokenizer.json"
    try:
        tokenizer = Tokenizer.from_file(str(file)) if file.is_file() else _converted(folder)
    except Exception as error:  # the library raises bare Exceptions
        return None, None, [f"word similarity: no tokenizer in {folder} can be read ({type(error).__name__}: {error})"]
    n_vocab = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
    if n_vocab > n_rows:
        return None, None, [f"word similarity: the tokenizer has {n_vocab} tokens, the embedding only {n_rows} rows"]
    return tokenizer, n_vocab, []


def _converted(folder: Path) -> "Tokenizer":
    """Return the tokenizer of a model that has older files than ``tokenizer.json``; ``ValueError`` without any."""
    # Without files, transformers returns a tokenizer of nothing and no error.
    if not any(file for pattern in _OLDER_TOKENIZERS for file in folder.glob(pattern)):
        raise ValueError("there is none")
    from transformers import AutoTokenizer

    loaded = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    converted: Tokenizer = loaded.backend_tokenizer
    return converted
