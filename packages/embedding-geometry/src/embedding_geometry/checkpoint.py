"""Finds the embedding matrices of a model among its stored tensors, by the names that transformers
gives them.

Which parameter is the embedding, under which names it is stored and which file is read are asked of
transformers. Where transformers or torch is not installed, the usual names have to do.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from embedding_geometry.place import SAVED_FOLDER, SAVED_MATRIX, Place
from embedding_geometry.stored import Matrices, StoredMatrix, tensors_in
from embedding_geometry.user_files import check_no_pointer
from embedding_geometry.usual_names import find_by_name

WEIGHTS = "model.safetensors"
INDEX = f"{WEIGHTS}.index.json"
_PICKLED = "pytorch_model.bin"
_CONFIG = "config.json"
_MOST_JSON_BYTES = 2**26
_PARTS = re.compile(r"layer|block|head|expert|label|depth|stage|group|codebook", re.IGNORECASE)
"""Settings of a configuration that can be numbers of parts, for each of which an object is made."""
_MOST_PARTS = 10**6


@dataclass(frozen=True)
class _Wanted:
    """What the architecture says of a matrix: the parameters that are this matrix, its own first,
    and its shape."""

    parameters: tuple[str, ...]
    shape: tuple[int, ...]


def find_matrices(place: Place) -> Matrices:
    """Return where the matrices of the model at ``place`` are.

    ``ValueError`` for a model that is no language model, has only pickled weights, or whose
    matrices are not there or have another shape than its configuration says.
    """
    values = _configured(place)
    if find_spec("transformers") is None or find_spec("torch") is None:
        named = values.get("transformers_weights")
        names, tensor_of = _stored(place, named if isinstance(named, str) else None)
        return find_by_name(place.name, values, names, tensor_of)
    config = _configuration(place)
    names, tensor_of = _stored(place, getattr(config, "transformers_weights", None))
    model = _skeleton(place, config, len(names))
    loaded = _loaded_as(model, names)
    try:
        wanted = [
            _wanted(model, module)
            for module in (model.get_input_embeddings(), model.get_output_embeddings())
        ]
    except NotImplementedError:  # a class that has none
        wanted = [None, None]
    if wanted[0] is None:
        raise ValueError(
            f"{place.name}: {type(model).__name__} has no embedding matrix of tokens;"
            f" {SAVED_MATRIX}"
        )
    embeddings = _located(place, wanted[0], loaded, tensor_of)
    head = None if wanted[1] is None else _located(place, wanted[1], loaded, tensor_of)
    if embeddings is None:
        raise ValueError(
            f"{place.name}: no tensor {wanted[0].parameters[0]} in its safetensors, its input"
            f" embedding; take another copy of the model, or {SAVED_MATRIX}"
        )
    # Transformers ties only what is not stored twice, or stored twice with the same values.
    tied = wanted[1] is not None and set(wanted[1].parameters) == set(wanted[0].parameters)
    if tied and head is not None and (head == embeddings or head.equals(embeddings)):
        head = None
    return Matrices(type(model).__name__, embeddings, head, tied and head is None)


def _configured(place: Place) -> dict[str, Any]:
    """Return what the configuration of a model says; ``ValueError`` for one that cannot be read, or
    not in bounds."""
    try:
        values = _read_object(place, _CONFIG)
        for problem in _sizes_that_cannot_be(values):
            raise ValueError(problem)
    except (ValueError, OSError, RecursionError) as error:
        raise _unusable(place, error) from None
    return values


def _unusable(place: Place, error: Exception) -> ValueError:
    reason = str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}"
    return ValueError(f"{place.name}: {_CONFIG} cannot be used: {reason}")


def _configuration(place: Place) -> Any:
    """Return the configuration of a model; ``ValueError`` for one that transformers cannot use."""
    from transformers import AutoConfig

    try:
        # Another kind of attention could be code of the hub. No model computes anything here.
        return AutoConfig.from_pretrained(
            place.folder,
            trust_remote_code=False,
            local_files_only=True,
            attn_implementation="eager",
        )
    except (
        Exception
    ) as error:  # many types: a missing file, unknown models, code of the checkpoint's own
        raise _unusable(place, error) from None


def _read_object(place: Place, file: str) -> dict[str, Any]:
    path = place.local(file)
    if path is None:
        raise ValueError(f"there is none; {SAVED_FOLDER}, or {SAVED_MATRIX}")
    check_no_pointer(path)
    if path.stat().st_size > _MOST_JSON_BYTES:
        raise ValueError(f"it is larger than {_MOST_JSON_BYTES:,} bytes")
    values = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(values, dict):
        raise ValueError(f"it holds a {type(values).__name__}, not an object")
    return values


def _sizes_that_cannot_be(values: Mapping[str, Any]) -> Iterator[str]:
    """Find in a configuration, and in those in it, numbers of parts that no machine could build."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _sizes_that_cannot_be(value)
        elif isinstance(value, int | float) and _PARTS.search(key) and value > _MOST_PARTS:
            yield f"{key} is {value}, and at most {_MOST_PARTS} can be"


def _stored(place: Place, named: str | None) -> tuple[list[str], Callable[[str], StoredMatrix]]:
    """Return the names of the stored tensors, and a function that finds one of them.

    The files are tried in the order of transformers: what ``config.json`` names, one file, the
    index of several.
    """
    for file in (named, WEIGHTS, INDEX) if named else (WEIGHTS, INDEX):
        if file.endswith(".index.json") and place.local(file) is not None:
            return _of_shards(place, file)
        if (found := place.weights(file)) is not None:
            tensors = tensors_in(found)
            return list(tensors), tensors.__getitem__
    raise ValueError(
        f"{place.name}: there is no {WEIGHTS} and no {INDEX}"
        + (
            f"; {_PICKLED} can run code when it is read"
            if place.weights(_PICKLED) is not None
            else ""
        )
        + "; save the model with transformers' save_pretrained, which writes safetensors"
    )


def _of_shards(place: Place, index: str) -> tuple[list[str], Callable[[str], StoredMatrix]]:
    try:
        weight_map: dict[str, str] = _read_object(place, index)["weight_map"]
        if not all(isinstance(file, str) for file in weight_map.values()):
            raise ValueError("a name of a file is no text")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"{place.name}: {index} is not an index of safetensors ({error!r}); fetch it again"
        ) from None

    def tensor_of(name: str) -> StoredMatrix:
        shard = place.weights(weight_map[name])
        if shard is None:
            raise ValueError(
                f"{place.name}: {weight_map[name]} is missing, which has {name}; fetch it again"
            )
        tensors = tensors_in(shard)
        if name not in tensors:
            raise ValueError(f"{shard}: has no {name}, though {index} says so; fetch both again")
        return tensors[name]

    return list(weight_map), tensor_of


def _skeleton(place: Place, config: Any, n_stored: int) -> Any:
    """Return the model of a configuration without values; ``ValueError`` for one that is none of
    language."""
    import torch

    classes = _classes(config)
    if not classes:
        raise ValueError(
            f"{place.name}: {type(config).__name__} is not of a causal or masked language model;"
            f" {SAVED_MATRIX}"
        )
    chosen = classes[0]
    try:
        with torch.device("meta"), _at_most(10 * n_stored + 1000):
            return chosen(config)
    except Exception as error:  # sizes below zero, too large, or that are no numbers
        raise ValueError(
            f"{place.name}: {chosen.__name__} cannot be as {_CONFIG} says ({type(error).__name__}:"
            f" {error}); take another copy of the model"
        ) from None


def _classes(config: Any) -> list[Any]:
    """Return the classes of causal and masked language models for a configuration, the likeliest
    first."""
    import transformers
    from transformers.models.auto import modeling_auto

    mappings = (transformers.MODEL_FOR_CAUSAL_LM_MAPPING, transformers.MODEL_FOR_MASKED_LM_MAPPING)
    names = (
        modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    )
    known = {name for each in names for name in each.values() if isinstance(name, str)}
    # BERT's configuration fits both kinds, and Mllama's text model is not found by its own; the
    # checkpoint says which.
    said = config.architectures if isinstance(config.architectures, list) else []
    stated = [
        getattr(transformers, name) for name in said if isinstance(name, str) and name in known
    ]
    fitting = [each for each in stated if each.config_class is type(config)]
    return fitting + [mapping[type(config)] for mapping in mappings if type(config) in mapping]


@contextmanager
def _at_most(n_modules: int) -> Iterator[None]:
    """Raise ``ValueError`` if a model is built of more modules, as one with more layers than are
    stored would be."""
    from torch.nn.modules.module import register_module_module_registration_hook

    n_built = 0

    def count(*_: object) -> None:
        nonlocal n_built
        n_built += 1
        if n_built > n_modules:
            raise ValueError(
                f"it has more than {n_modules:,} modules, far more than the weights are for"
            )

    hook = register_module_module_registration_hook(count)
    try:
        yield
    finally:
        hook.remove()


def _wanted(model: Any, module: Any) -> _Wanted | None:
    """Return what the weight of a module of the model is called; None for a module without a
    matrix."""
    weight = getattr(module, "weight", None)
    if weight is None or weight.ndim != 2:
        return None
    own = next(name for name, each in model.named_modules() if each is module) + ".weight"
    same = [name for name, each in model.named_parameters(remove_duplicate=False) if each is weight]
    return _Wanted(tuple(dict.fromkeys((own, *same))), tuple(weight.shape))


def _loaded_as(model: Any, stored: Iterable[str]) -> dict[str, str | None]:
    """Return for each parameter of a model the stored tensor that transformers loads into it.

    None stands for a parameter that is computed from stored tensors. As in
    ``convert_and_load_state_dict_in_model``, a name that the model has itself is not renamed to one
    that it has not.
    """
    try:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import (
            WeightConverter,
            dot_natural_key,
            rename_source_key,
        )
    except ImportError:
        raise ValueError(
            "measure: transformers 5 or newer is needed, which can say how it names weights"
        ) from None

    # Renamings give a tensor another name, and converters compute one from several.
    transforms = get_model_conversion_mapping(model)
    converters = [each for each in transforms if isinstance(each, WeightConverter)]
    renamings = [each for each in transforms if not isinstance(each, WeightConverter)]
    parameters = model.state_dict()
    prefix = model.base_model_prefix
    loaded: dict[str, str | None] = {}
    for name in sorted(stored, key=dot_natural_key):
        renamed, computed = rename_source_key(name, renamings, converters, prefix, parameters)
        if renamed not in parameters and name in parameters:
            renamed, computed = rename_source_key(name, [], [], prefix, parameters)
        loaded.setdefault(renamed, name if computed is None else None)
    return loaded


def _located(
    place: Place,
    wanted: _Wanted,
    loaded: Mapping[str, str | None],
    tensor_of: Callable[[str], StoredMatrix],
) -> StoredMatrix | None:
    """Return the stored tensor of a matrix, None if there is none.

    A matrix that is tied can be stored under the name of any of its parameters.
    """
    parameter = next((name for name in wanted.parameters if name in loaded), None)
    if parameter is None:
        return None
    name = loaded[parameter]
    if name is None:
        raise ValueError(
            f"{place.name}: {parameter} is computed while transformers loads it, and no stored"
            f" tensor is this matrix; {SAVED_MATRIX}"
        )
    tensor = tensor_of(name)
    if tensor.shape != wanted.shape:
        raise ValueError(
            f"{tensor.file}: {tensor.name} has the shape {tensor.shape}, but {_CONFIG} says"
            f" {wanted.shape}; correct vocab_size and width there, or take another copy of the"
            " model"
        )
    return tensor
