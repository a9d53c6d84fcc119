"""Measures one model: the geometry of its matrices, and word similarity with its own tokenizer.

Beside the model it takes the counts of its tokens in a text, and word lists.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from coupled_adam_bench.data.bins import UNIGRAM
from coupled_adam_bench.data.check import WORD_PAIRS
from coupled_adam_bench.data.tokenizers import read_tokenizer, whole_text
from coupled_adam_bench.evaluation.embedding_geometry import EMBEDDINGS, matrix_geometry, variant_rows
from coupled_adam_bench.evaluation.pairs import Pair, read_pairs, recognised_set
from coupled_adam_bench.evaluation.word_similarity import (
    TokenPairs,
    similarities,
    single_token_pairs,
    subword_pairs,
    word_similarity_rows,
)
from coupled_adam_bench.records.stored import ResultRow
from coupled_adam_bench.store import paths
from coupled_adam_bench.store.files import read_sealed
from coupled_adam_bench.store.paths import RunFiles
from coupled_adam_bench.study.catalog.names import HEAD
from coupled_adam_bench.study.config import WordSimilaritySet
from coupled_adam_bench.study.presets import PAPER_WORD_SIMILARITY
from coupled_adam_bench.tools.measure.checkpoint import Matrices, find_matrices
from coupled_adam_bench.tools.measure.place import Place, open_place
from coupled_adam_bench.tools.measure.stored import NumpyMatrix

if TYPE_CHECKING:
    from tokenizers import Tokenizer

NUMPY_ENDING = ".npy"
_TOKENIZER = "tokenizer.json"
_OLDER_TOKENIZERS = ("vocab.*", "*.model")
_BLOCK_CHARACTERS = 2**20


@dataclass(frozen=True)
class WordLists:
    """Sets of word pairs by name, and what is missing of them."""

    sets: dict[str, list[Pair]]
    missing: list[str]
    are_given: bool = False
    """Whether the user has said which; else the list of the generated language is taken for a cell trained on it."""


def read_word_lists(path: Path | None, default: Path) -> WordLists:
    """Read a list, or the paper's lists in a folder; without a ``path`` those in the folder ``default``.

    Lists that are not there are named in ``missing``. ``ValueError`` for a path that does not exist, or a damaged list.
    """
    if path is not None and path.is_file():
        spec = recognised_set(path)
        return WordLists({spec.name: read_pairs(path, spec)}, [], are_given=True)
    folder = default if path is None else path
    if path is not None and not path.is_dir():
        raise ValueError(f"--word-similarity: {path} does not exist; give a list or a folder with the paper's lists")
    specs = [WordSimilaritySet(**fields) for fields in PAPER_WORD_SIMILARITY]
    there = {spec.name: read_pairs(folder / spec.file, spec) for spec in specs if (folder / spec.file).is_file()}
    absent = ", ".join(spec.file for spec in specs if spec.name not in there)
    missing = [f"word similarity: not in {folder}: {absent}"] if absent else []
    return WordLists(there, missing, are_given=path is not None)


def data_of(folder: Path) -> Path | None:
    """Return the data of the cell whose trained model lies in ``folder``; None for any other model, or without data."""
    run = RunFiles(folder.resolve().parent)
    try:
        data = paths.data_dir(read_sealed(run.cell)["data_id"], run.folder.parents[1])
    except (ValueError, OSError, KeyError, IndexError):
        return None
    return data if data.is_dir() else None


def _lists_for(data: Path | None, lists: WordLists) -> WordLists:
    """Return the list of the generated language for a cell that was trained on it, else ``lists``."""
    if lists.are_given or data is None or not (data / WORD_PAIRS).is_file():
        return lists
    return read_word_lists(data / WORD_PAIRS, data)


def count_tokens(files: Sequence[Path], tokenizer: "Tokenizer", n_vocab: int) -> tuple[NDArray[np.int64], int]:
    """Return how often each token (n_vocab,) is in the text of files, and how many words have no token.

    Files are read in blocks of whole lines. ``ValueError`` for a file that is not UTF-8 or cannot be split into tokens,
    or if there are none.
    """
    tokenizer = _with_unknown_words(tokenizer, n_vocab)
    counts = np.zeros(n_vocab + 1, dtype=np.int64)
    for file in files:
        try:
            with file.open(encoding="utf-8-sig") as lines:
                while block := lines.readlines(_BLOCK_CHARACTERS):
                    for encoding in tokenizer.encode_batch_fast(["".join(block)], add_special_tokens=False):
                        counts += np.bincount(np.array(encoding.ids, dtype=np.int64), minlength=n_vocab + 1)
        except UnicodeDecodeError as error:
            raise ValueError(f"--text: {file} is not UTF-8 ({error})") from None
        except OSError:
            raise
        except Exception as error:  # the library raises bare Exceptions
            raise ValueError(f"--text: {file} has what the model's tokenizer has no token for ({error})") from None
    if not counts[:n_vocab].any():
        raise ValueError(f"--text: no tokens of the model's tokenizer in {', '.join(map(str, files))}")
    return counts[:n_vocab], int(counts[n_vocab])


def _with_unknown_words(tokenizer: "Tokenizer", n_vocab: int) -> "Tokenizer":
    """Return a tokenizer of words that has the token ``n_vocab`` for unknown ones, which it would refuse."""
    from tokenizers import Tokenizer, models

    model = tokenizer.model
    vocab = tokenizer.get_vocab(with_added_tokens=False)
    if not isinstance(model, models.WordLevel) or model.unk_token in vocab:
        return tokenizer
    unknown = f"{max(vocab, key=len, default='')}?"  # longer than all others
    completed = Tokenizer.from_str(tokenizer.to_str())
    completed.model = models.WordLevel(vocab | {unknown: n_vocab}, unknown)
    return completed


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


def measure_model(name: str, lists: WordLists, text: list[Path], given: Path | None = None) -> Measured:
    """Measure the model of a folder or of the hub, or a matrix of NumPy, whose tokenizer can be ``given``.

    How often each token occurs is counted in ``text``, or without one known of a cell whose data are there; without
    both, what needs it is left out. No more than one matrix is in memory. ``ValueError`` with the name of what cannot
    be measured.
    """
    if name.endswith(NUMPY_ENDING):
        matrices = Matrices("a matrix alone", NumpyMatrix(Path(name)), None, tied=None)
        place = None if given is None else Place(str(given), given if given.is_dir() else given.parent, None)
        file, data = _TOKENIZER if given is None or given.is_dir() else given.name, None
    else:
        place = open_place(name)
        matrices, file, data = find_matrices(place), _TOKENIZER, data_of(place.folder)
    tokenizer, n_vocab, reasons = _tokenizer(place, file, matrices.embeddings.shape[0])
    counts = None
    if text and tokenizer is not None and n_vocab is not None:
        counts, n_unknown = count_tokens(text, tokenizer, n_vocab)
        if n_unknown:
            reasons.append(f"--text: {n_unknown} words that the tokenizer does not know are left out of the counts")
    elif data is not None and (data / UNIGRAM).is_file():
        counts = np.load(data / UNIGRAM)
    if counts is None:
        reasons.append("rho, the curve and the rows of seen tokens: no counts of tokens; give --text")
    found = Measured(name, matrices, n_vocab)
    matrix_VD = matrices.embeddings.read()
    similarity_rows, similarity_reasons = _word_similarity(found, matrix_VD, _lists_for(data, lists), tokenizer)
    parts = [matrix_geometry(EMBEDDINGS, matrix_VD, counts, n_vocab, "both_signs")]
    del matrix_VD
    if matrices.head is not None:
        parts.append(matrix_geometry(HEAD, matrices.head.read(), counts, n_vocab, "both_signs"))
    elif matrices.tied is False:
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


def _tokenizer(place: Place | None, file: str, n_rows: int) -> tuple["Tokenizer | None", int | None, list[str]]:
    """Return the tokenizer of a model and its number of tokens, or the reason why there is none that fits."""
    if place is None:
        return None, None, ["word similarity: a matrix alone has no tokenizer; give --tokenizer"]
    try:
        path = place.local(file)
        tokenizer = _converted(place) if path is None else read_tokenizer(path)
    except Exception as error:  # the libraries raise bare Exceptions
        problem = f"no tokenizer in {place.folder} can be read ({type(error).__name__}: {error})"
        return None, None, [f"word similarity: {problem}"]
    n_vocab = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
    if n_vocab > n_rows:
        return None, None, [f"word similarity: the tokenizer has {n_vocab} tokens, the embedding only {n_rows} rows"]
    return tokenizer, n_vocab, []


def _converted(place: Place) -> "Tokenizer":
    """Return the tokenizer of a model that has older files than ``tokenizer.json``; ``ValueError`` without any."""
    # Without files, transformers returns a tokenizer of nothing and no error.
    if not any(place.local(file.name) for pattern in _OLDER_TOKENIZERS for file in place.folder.glob(pattern)):
        raise ValueError("there is none")
    from transformers import AutoTokenizer

    loaded = AutoTokenizer.from_pretrained(place.folder, trust_remote_code=False, local_files_only=True)
    return whole_text(loaded.backend_tokenizer)
