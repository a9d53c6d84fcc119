"""Measure anybody's embeddings: those of a model of transformers, or a matrix of NumPy.

V: rows of a matrix    D: its width
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from pandas import DataFrame
from tokenizers import Tokenizer

from coupled_adam_bench.data.documents import read_documents
from coupled_adam_bench.geometry.metrics import Array, Counts, geometry
from coupled_adam_bench.geometry.tokenizer import read_tokenizer
from coupled_adam_bench.geometry.words import MIN_PAIRS, read_pairs, similarity, token_pairs
from coupled_adam_bench.study.base import of
from coupled_adam_bench.study.evaluation import PAPER_LISTS, WordList


def matrices_of(model: str) -> dict[str, Array]:
    """Return the matrix of a ``.npy`` file, or those of a model of transformers, a folder or a name
    on the hub: its embeddings, and its head if that is another matrix.

    ``ValueError`` for what is no matrix, and for what transformers cannot read.
    """
    if model.endswith(".npy"):
        matrix_VD = np.load(model, allow_pickle=False)
        if matrix_VD.ndim != 2:
            raise ValueError(f"{model}: shape {matrix_VD.shape}; give a matrix, a token per row")
        return {"embeddings": matrix_VD.astype(np.float64)}
    import transformers  # takes seconds

    with of(model):
        config = transformers.AutoConfig.from_pretrained(model)
        read = getattr(transformers, config.architectures[0]).from_pretrained
        loaded = read(model, dtype="auto")
    parts = {"embeddings": loaded.get_input_embeddings(), "head": loaded.get_output_embeddings()}
    weights = {task: part.weight for task, part in parts.items() if part is not None}
    if weights.get("head") is weights["embeddings"]:
        del weights["head"]
    return {task: weight.detach().double().numpy() for task, weight in weights.items()}


def counts_of(files: Sequence[Path], tokenizer: Tokenizer, n_rows: int) -> Counts:
    """Return how often each token is in texts: .txt, or the field ``text`` of .jsonl or .parquet.

    ``ValueError`` for a file that is missing or cannot be read.
    """
    counts_V = np.zeros(n_rows, np.int64)
    for row in read_documents(files, "--text", field="text", unit="document"):
        ids = tokenizer.encode(row["text"], add_special_tokens=False).ids
        counts_V += np.bincount(np.array(ids, np.int64), minlength=n_rows)
    return counts_V


def measure(
    model: str,
    tokenizer: Path | None = None,
    text: Sequence[Path] = (),
    counts: Path | str | None = None,
    words: Path | None = None,
    lists: Sequence[WordList] = PAPER_LISTS,
) -> DataFrame:
    """Return the metrics of a model's matrices and word pairs: columns task, metric and value.

    ``text`` are files in which tokens are counted, ``counts`` a ``.npy`` of such counts, ``words``
    the folder of the ``lists``. ``attrs["notes"]`` says what was left out, and why. ``ValueError``
    for what cannot be measured.
    """
    if text and counts:
        raise ValueError("--text and --counts: give one of them")
    if words and not words.is_dir():
        raise ValueError(f"--words: there is no folder {words}")
    matrices = matrices_of(model)
    for task, matrix_VD in matrices.items():
        n_rows, width = matrix_VD.shape
        # A transpose has as many directions as a vocabulary has tokens, which fill the memory.
        if n_rows < width:
            said = f"{n_rows} rows and {width} columns"
            raise ValueError(f"{model}: {task}: {said}; a token is a row: give the transpose")
    n_rows = len(matrices["embeddings"])
    counts_V = None if counts is None else np.load(counts, allow_pickle=False)
    kept, notes = {}, []
    if text or words:
        own = read_tokenizer(tokenizer or Path(model))
        if (n_tokens := own.get_vocab_size()) > n_rows:
            raise ValueError(
                f"{model}: {n_rows} embeddings, but the tokenizer has {n_tokens} tokens"
            )
        if text:
            counts_V = counts_of(text, own, n_rows)
        if words:
            there = [wanted for wanted in lists if (words / wanted.file).is_file()]
            notes += [f"{words} lacks {wanted.file}" for wanted in lists if wanted not in there]
            kept = {wanted.name: token_pairs(read_pairs(words, wanted), own) for wanted in there}
    if counts_V is not None and len(counts_V) > n_rows:
        raise ValueError(f"--counts: {len(counts_V)} numbers, but {model} has {n_rows} embeddings")
    if counts_V is None:
        notes.append("without --text or --counts, nothing is said of frequency")
    few = [name for name, pairs in kept.items() if len(pairs.ratings) < MIN_PAIRS]
    notes += [f"{name}: too few pairs of single tokens for r, so no r_bar" for name in few]
    rows: list[tuple[str, str, float]] = []
    for task, matrix_VD in matrices.items():
        rows += [(task, *metric) for metric in geometry(matrix_VD, counts_V).items()]
    rows += similarity(matrices["embeddings"], kept)
    frame = DataFrame(rows, columns=["task", "metric", "value"])
    frame.attrs["notes"] = notes
    return frame
