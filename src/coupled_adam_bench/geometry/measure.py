"""Measure anybody's embeddings: a folder of a model, a name on the hub, or a matrix of NumPy.

V: rows of a matrix    D: its width
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from datasets import load_dataset
from pandas import DataFrame
from safetensors import safe_open
from tokenizers import Tokenizer

from coupled_adam_bench.geometry.metrics import Array, Counts, geometry
from coupled_adam_bench.geometry.tokenizer import count_tokens, read_tokenizer, whole
from coupled_adam_bench.geometry.words import MIN_PAIRS, read_pairs, similarity, token_pairs
from coupled_adam_bench.study.base import of
from coupled_adam_bench.study.evaluation import PAPER_LISTS, WordList
from coupled_adam_bench.study.inputs import text_format

INPUT = ("wte", "embed_tokens", "word_embeddings", "embed_in", "tok_embeddings", "shared")
"""How the names of matrices end that turn tokens into embeddings."""
OUTPUT = ("lm_head", "embed_out", "cls.predictions.decoder", "output_projection")


class Model(NamedTuple):
    """The matrices of a model by name, and its tokenizer."""

    matrices: dict[str, Array]
    tokenizer: Tokenizer | None = None


def tensor_named(folder: Path, endings: Sequence[str]) -> Array | None:
    """Return the one matrix of a folder whose name ends so, in float64; no other one is read."""
    ends = tuple(f"{ending.removesuffix('.weight')}.weight" for ending in endings)
    found: dict[str, Any] = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as tensors:  # NumPy has no bfloat16
            names = [name for name in tensors.keys() if name.endswith(ends)]  # noqa: SIM118
            found |= {name: tensors.get_tensor(name) for name in names}
    if len(found) > 1:
        raise ValueError(f"{folder}: which of {', '.join(found)}? name it with --tensor")
    return next((tensor.double().numpy() for tensor in found.values()), None)


def read_folder(folder: Path, tensor: str | None = None) -> Model:
    """Read a model in the form of transformers; ``tensor`` names its input matrix."""
    endings = INPUT if tensor is None else (tensor,)
    embeddings_VD = tensor_named(folder, endings)
    if embeddings_VD is None:
        raise ValueError(
            f"{folder}: in no .safetensors is a tensor that ends in {' or '.join(endings)}; name it"
            " with --tensor, or save the model with model.save_pretrained(folder)"
        )
    matrices = {"embeddings": embeddings_VD}
    head_VD = tensor_named(folder, OUTPUT)
    if head_VD is not None and not np.array_equal(head_VD, embeddings_VD):
        matrices["head"] = head_VD
    file = folder / "tokenizer.json"
    return Model(matrices, read_tokenizer(file) if file.is_file() else None)


def read_hub(name: str) -> Model:
    """Read a model of the hub with the class of transformers that its configuration names."""
    import transformers

    config = transformers.AutoConfig.from_pretrained(name)
    loaded = getattr(transformers, config.architectures[0]).from_pretrained(name, dtype="auto")
    parts = {"embeddings": loaded.get_input_embeddings(), "head": loaded.get_output_embeddings()}
    weights = {task: part.weight for task, part in parts.items() if part is not None}
    if weights.get("head") is weights["embeddings"]:
        del weights["head"]
    matrices = {task: weight.detach().double().numpy() for task, weight in weights.items()}
    tokenizer = transformers.AutoTokenizer.from_pretrained(name, use_fast=True)
    return Model(matrices, whole(tokenizer.backend_tokenizer))


def read_model(name: str, tensor: str | None = None) -> Model:
    """Read a ``.npy`` file, a folder, or else a model of the hub."""
    if Path(name).is_dir():
        return read_folder(Path(name), tensor)
    if name.endswith(".npy"):
        matrix_VD = np.load(name, allow_pickle=False)
        if matrix_VD.ndim != 2:
            raise ValueError(f"{name}: shape {matrix_VD.shape}; give a matrix, a token per row")
        return Model({"embeddings": matrix_VD.astype(np.float64)})
    if name.startswith((".", "/", "~")) or name.count("/") > 1:  # no name that a hub can have
        raise ValueError(f"{name}: no such folder")
    with of(f"{name}, which is no folder here"):
        return read_hub(name)


def counts_of(files: Sequence[Path], tokenizer: Tokenizer, n_rows: int) -> Counts:
    """Return how often each token is in texts: .txt, or the field ``text`` of .jsonl or .parquet.

    ``ValueError`` for a file that is missing or cannot be read.
    """
    if missing := [str(file) for file in files if not file.is_file()]:
        raise ValueError(f"--text: {', '.join(missing)} is missing")
    with of("--text"):
        kind, names = text_format(files), [*map(str, files)]
        options = {"sample_by": "document"} if kind == "text" else {}
        rows = load_dataset(kind, data_files=names, split="train", streaming=True, **options)
        return count_tokens((row["text"] for row in rows), tokenizer, n_rows)


def measure(
    model: str,
    tokenizer: Path | None = None,
    text: Sequence[Path] = (),
    counts: Path | str | None = None,
    words: Path | None = None,
    lists: Sequence[WordList] = PAPER_LISTS,
    tensor: str | None = None,
) -> DataFrame:
    """Return the metrics of a model's matrices and word pairs: columns task, metric and value.

    ``text`` are files in which tokens are counted, ``counts`` a ``.npy`` of such counts, ``words``
    the folder of the ``lists``. ``attrs["notes"]`` says what was left out, and why. ``ValueError``
    for what cannot be measured.
    """
    found = read_model(model, tensor)
    if tokenizer is not None:
        found = found._replace(tokenizer=read_tokenizer(tokenizer))
    n_rows, counts_V = len(found.matrices["embeddings"]), None
    notes: list[str] = []
    if found.tokenizer is not None:
        n_tokens = found.tokenizer.get_vocab_size()
        if n_tokens > n_rows:
            raise ValueError(
                f"{model}: {n_rows} embeddings, but the tokenizer has {n_tokens} tokens"
            )
    elif text or words:
        raise ValueError(f"{model}: no tokenizer.json for text or words; name it with --tokenizer")
    if counts is not None:
        counts_V = np.load(counts, allow_pickle=False)
    elif text and found.tokenizer is not None:
        counts_V = counts_of(text, found.tokenizer, n_rows)
    else:
        notes.append("without --text or --counts, nothing is said of frequency")
    rows: list[tuple[str, str, float]] = []
    for task, matrix_VD in found.matrices.items():
        if len(matrix_VD) < len(matrix_VD.T):
            said = "{} rows and {} columns".format(*matrix_VD.shape)
            notes.append(f"{task}: {said}; a token is a row, so give the transpose?")
        rows += [(task, *metric) for metric in geometry(matrix_VD, counts_V).items()]
    if words is not None and found.tokenizer is not None:
        there = [wanted for wanted in lists if (words / wanted.file).is_file()]
        notes += [f"{words} lacks {wanted.file}" for wanted in lists if wanted not in there]
        kept = {
            wanted.name: token_pairs(read_pairs(words, wanted), found.tokenizer) for wanted in there
        }
        few = [name for name, pairs in kept.items() if len(pairs.ratings) < MIN_PAIRS]
        notes += [f"{name}: too few pairs of single tokens for r, so no r_bar" for name in few]
        rows += similarity(found.matrices["embeddings"], kept)
    frame = DataFrame(rows, columns=["task", "metric", "value"])
    frame.attrs["notes"] = notes
    return frame
