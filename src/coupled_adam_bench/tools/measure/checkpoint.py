"""Finds a model in a folder or on the hub, and its embedding matrices in safetensors; nothing else is read of it."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coupled_adam_bench.store.paths import WEIGHTS

INDEX = f"{WEIGHTS}.index.json"
_PICKLED = "pytorch_model.bin"
_FLOATS = ("F64", "F32", "F16", "BF16")
_OTHER_NAMES = {"lm_head.weight": ("embed_out.weight",)}
"""Names in checkpoints that transformers renames when it loads them: that of GPT-NeoX."""


_SMALL = ("config.json", "*.index.json", "tokenizer*", "special_tokens_map.json", "vocab.*", "merges.txt", "*.model")
"""The files of a model that say what it is, and those of its tokenizer."""

FileOf = Callable[[str], Path | None]
"""A function that returns the path of a file of a model by its name, None if there is none."""


def open_place(name: str) -> tuple[Path, FileOf]:
    """Return the folder of a model with its small files, and a function that gives the path of any of its files.

    ``ValueError`` if there is neither such a folder nor such a model on the hub.
    """
    folder = Path(name)
    if folder.is_dir():
        return folder, lambda file: folder / file if (folder / file).is_file() else None
    if folder.exists() or folder.is_absolute() or name.startswith(".") or name.count("/") > 1:
        raise ValueError(f"{name}: no such folder; give the folder of a model, or a name of the Hugging Face hub")
    downloaded = _download(name, _SMALL)

    def file_of(file: str) -> Path | None:
        path = downloaded / file
        if not path.is_file():
            _download(name, (file,), revision=downloaded.name)  # the commit that the small files are of
        return path if path.is_file() else None

    return downloaded, file_of


def _download(name: str, patterns: tuple[str, ...], revision: str | None = None) -> Path:
    """Download the files of a model that match into the hub's cache; return the folder there."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=list(patterns)))
    except (OSError, ValueError) as error:  # errors without a network, of HTTP, and of names that cannot be
        raise ValueError(
            f"{name}: no folder of this name, and not to be had from the Hugging Face hub ({error}); correct the name, "
            "connect this machine, or set HF_TOKEN for a model whose terms must be accepted"
        ) from None


@dataclass(frozen=True)
class StoredMatrix:
    """A matrix in a file of safetensors."""

    file: Path
    name: str

    def read(self) -> NDArray[np.float64]:
        """Return the matrix (V, D) in float64.

        ``ValueError`` if it is not stored as floats, or has a value that is not finite.
        """
        import torch

        with _opened(self.file) as tensors:
            if (dtype := tensors.get_slice(self.name).get_dtype()) not in _FLOATS:
                raise ValueError(
                    f"{self.file}: {self.name} is stored as {dtype}, not one of {', '.join(_FLOATS)}; "
                    "give a checkpoint that is not quantized"
                )
            matrix_VD: NDArray[np.float64] = tensors.get_tensor(self.name).to(torch.float64).numpy()
        if not (finite_V := np.isfinite(matrix_VD).all(axis=1)).all():
            row = int(np.argmin(finite_V))
            raise ValueError(f"{self.file}: {self.name} has a value that is not finite, first in row {row}")
        return matrix_VD

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape that the file says."""
        with _opened(self.file) as tensors:
            return tuple(tensors.get_slice(self.name).get_shape())


@dataclass(frozen=True)
class Matrices:
    """The input and the output matrix of a model; ``head`` is None if it is tied, or not in the checkpoint."""

    architecture: str
    embeddings: StoredMatrix
    head: StoredMatrix | None
    tied: bool


@dataclass(frozen=True)
class _Wanted:
    """What the architecture says of a matrix: its names, the likely first, and its shape."""

    names: tuple[str, ...]
    shape: tuple[int, ...]


def find_matrices(folder: Path, file_of: FileOf) -> Matrices:
    """Return where the matrices of the model in ``folder`` are.

    ``file_of`` returns the path of a file of the model by its name, None if there is none; it is asked for no more
    files than are needed. ``ValueError`` for a model that is no language model, has only pickled weights, or whose
    matrices are not there or have another shape than its configuration says.
    """
    architecture, embeddings, head, tied = _architecture(folder)
    locate = _locator(folder, file_of)
    found = locate(embeddings)
    if found is None:
        raise ValueError(f"{folder}: {WEIGHTS} has no tensor {' or '.join(embeddings.names)}, its input embedding")
    output = None if head is None else locate(head)
    for wanted, tensor in ((embeddings, found), (head, output)):
        if wanted is not None and tensor is not None and tensor.shape != wanted.shape:
            raise ValueError(
                f"{tensor.file}: {tensor.name} has the shape {tensor.shape}, but config.json says {wanted.shape}; "
                "correct vocab_size and width there, or take another copy of the model"
            )
    if tied and output is not None and _equal(found, output):
        output = None
    return Matrices(architecture, found, output, tied and output is None)


def _architecture(folder: Path) -> tuple[str, _Wanted, _Wanted | None, bool]:
    """Return the class of a model, its input and output matrix, and whether they are tied, without any weights."""
    import torch
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_MASKED_LM_MAPPING, AutoConfig

    try:
        # Another kind of attention could be code of the hub. No model computes anything here.
        config = AutoConfig.from_pretrained(
            folder, trust_remote_code=False, local_files_only=True, attn_implementation="eager"
        )
    except Exception as error:  # many types: a missing file, unknown models, code of the checkpoint's own
        raise ValueError(f"{folder}: config.json cannot be used ({type(error).__name__}: {error})") from None
    mappings = (MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_MASKED_LM_MAPPING)
    classes = [mapping[type(config)] for mapping in mappings if type(config) in mapping]
    if not classes:
        raise ValueError(f"{folder}: {type(config).__name__} is not of a causal or masked language model")
    # BERT's configuration fits both kinds; the checkpoint says which it is.
    said = config.architectures if isinstance(config.architectures, list) else []
    chosen = next((each for each in classes if each.__name__ in said), classes[0])
    try:
        with torch.device("meta"):
            model = chosen(config)
    except Exception as error:  # sizes below zero, too large, or that are no numbers
        raise ValueError(
            f"{folder}: {chosen.__name__} cannot be as config.json says ({type(error).__name__}: {error}); "
            "take another copy of the model"
        ) from None
    text_config = config.get_text_config()
    prefix = f"{model.base_model_prefix}."
    wanted: list[_Wanted | None] = []
    for module in (model.get_input_embeddings(), model.get_output_embeddings()):
        weight = getattr(module, "weight", None)
        if weight is None or weight.ndim != 2:
            wanted.append(None)
            continue
        name = next(name for name, each in model.named_modules() if each is module) + ".weight"
        # A checkpoint of the model without its head has no prefix.
        names = (name, *_OTHER_NAMES.get(name, ()), name.removeprefix(prefix), prefix + name)
        wanted.append(_Wanted(tuple(dict.fromkeys(names)), tuple(weight.shape)))
    embeddings, head = wanted
    if embeddings is None:
        raise ValueError(f"{folder}: {type(model).__name__} has no embedding matrix of tokens")
    return type(model).__name__, embeddings, head, bool(getattr(text_config, "tie_word_embeddings", False))


def _locator(folder: Path, file_of: FileOf) -> Callable[[_Wanted], StoredMatrix | None]:
    """Return a function that finds a matrix in one file, or by the index in one of several."""
    index = file_of(INDEX)
    if index is not None:
        try:
            weight_map: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{index}: not an index of safetensors ({error!r}); fetch it again") from None
    else:
        file = file_of(WEIGHTS)
        if file is None:
            pickled = folder / _PICKLED
            raise ValueError(
                f"{folder}: there is no {WEIGHTS} and no {INDEX}"
                + (f"; {pickled.name} can run code when it is read" if pickled.exists() else "")
                + "; save the model with transformers' save_pretrained, which writes safetensors"
            )
        with _opened(file) as tensors:
            weight_map = dict.fromkeys(tensors.keys(), WEIGHTS)

    def locate(wanted: _Wanted) -> StoredMatrix | None:
        name = next((name for name in wanted.names if name in weight_map), None)
        if name is None:
            return None
        file = file_of(weight_map[name])
        if file is None:
            raise ValueError(f"{folder}: {weight_map[name]} is missing, which has {name}; fetch it again")
        return StoredMatrix(file, name)

    return locate


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt") as tensors:
            yield tensors
    except SafetensorError as error:
        raise ValueError(f"{file}: not a whole file of safetensors ({error}); fetch it again") from None


def _equal(first: StoredMatrix, second: StoredMatrix) -> bool:
    """Tell whether two matrices have the same values."""
    with _opened(first.file) as one, _opened(second.file) as other:
        matrices = one.get_tensor(first.name), other.get_tensor(second.name)
        return matrices[0].shape == matrices[1].shape and bool((matrices[0] == matrices[1]).all())
