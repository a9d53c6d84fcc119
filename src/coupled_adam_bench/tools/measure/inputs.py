"""What is measured beside a model: the counts of its tokens in a text, and word lists."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from coupled_adam_bench.evaluation.pairs import Pair, read_pairs
from coupled_adam_bench.study.config import WordSimilaritySet
from coupled_adam_bench.study.presets import PAPER_WORD_SIMILARITY

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_BLOCK_CHARACTERS = 2**20


@dataclass(frozen=True)
class WordLists:
    """Sets of word pairs by name, and what is missing of them."""

    sets: dict[str, list[Pair]]
    missing: list[str]


def read_word_lists(path: Path | None, default: Path) -> WordLists:
    """Read a list, or the paper's lists in a folder; without a ``path`` those in the folder ``default``.

    Lists that are not there are named in ``missing``. ``ValueError`` for a path that does not exist, or a damaged list.
    """
    if path is not None and path.is_file():
        spec = WordSimilaritySet(name=path.stem, file=path.name)
        return WordLists({spec.name: read_pairs(path, spec)}, [])
    folder = default if path is None else path
    if path is not None and not path.is_dir():
        raise ValueError(f"--word-similarity: {path} does not exist; give a list or a folder with the paper's lists")
    specs = [WordSimilaritySet(**fields) for fields in PAPER_WORD_SIMILARITY]
    there = {spec.name: read_pairs(folder / spec.file, spec) for spec in specs if (folder / spec.file).is_file()}
    missing = [f"{spec.name}: {folder / spec.file} is not there" for spec in specs if spec.name not in there]
    return WordLists(there, missing)


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


def read_counts(file: Path) -> NDArray[np.integer[Any]]:
    """Read counts of tokens, as the stage ``prepare`` writes them; ``ValueError`` for anything else."""
    try:
        counts = np.load(file, allow_pickle=False)
    except ValueError as error:
        raise ValueError(f"--counts: {file} is not an array of NumPy ({error})") from None
    if not isinstance(counts, np.ndarray) or counts.ndim != 1 or counts.dtype.kind not in "iu" or not counts.any():
        raise ValueError(f"--counts: {file} must be one row of whole numbers that are not all zero, as unigram.npy is")
    if counts.min() < 0:
        raise ValueError(f"--counts: {file} has a count below 0")
    return counts
