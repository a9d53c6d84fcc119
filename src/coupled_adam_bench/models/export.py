"""Reads and writes models in the Hugging Face format of transformers' own classes, without
importing transformers."""

import json
import os
import re
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from coupled_adam_bench.models.base import Family, LanguageModel
from coupled_adam_bench.models.build import family_of
from coupled_adam_bench.store.files import ASIDE, read_json, remove, write_json, write_text
from coupled_adam_bench.store.paths import WEIGHTS
from coupled_adam_bench.store.weights import CELL, header_bytes
from coupled_adam_bench.study.catalogue.architectures import ARCHITECTURES
from coupled_adam_bench.study.plan.cells import Cell

CARD = "README.md"
_TOKENIZER_CONFIG = "tokenizer_config.json"


def _config(model: LanguageModel, family: Family, model_type: str, eot_id: int) -> dict[str, Any]:
    config = {"model_type": model_type, **family.fixed}
    config |= {key: getattr(model, argument) for argument, key in family.keys.items()}
    config |= family.more(model)
    if model.soft_cap is not None:
        config["soft_cap"] = model.soft_cap
    return config | {"bos_token_id": eot_id, "eos_token_id": eot_id, "dtype": "float32"}


def save_model(
    model: LanguageModel,
    folder: Path,
    tokenizer: Path,
    eot_id: int,
    state: Mapping[str, Tensor] | None = None,
    cell: Cell | None = None,
) -> None:
    """Write ``folder`` so that ``transformers.AutoModelForCausalLM.from_pretrained(folder)`` gives
    the same logits.

    A model that is not ``in_transformers`` is read only by :func:`load_model`. The classes of
    transformers have no soft cap, so for a model with one they give the logits before it.
    ``tokenizer`` is a folder in Hugging Face format; its files are copied beside the weights. The
    folder appears whole or not at all, and replaces an existing one. For a sharded model, ``state``
    is its state dict with whole tensors. With a ``cell``, the weights carry its id, and a model
    card says how it was trained. The same gives the same bytes.
    """
    names = {family_of(name).model: name for name in ARCHITECTURES}
    # FSDP2 makes a subclass of it.
    model_type = next(names[kind] for kind in type(model).__mro__ if kind in names)
    family = family_of(model_type)
    ours = dict(model.state_dict() if state is None else state)
    theirs: dict[str, Tensor] = {}
    for entry in family.weights(model):
        weight = ours.pop(f"{entry.ours}.weight").detach().to("cpu", torch.float32)
        chunks = [weight] * len(entry.theirs) if entry.shared else weight.chunk(len(entry.theirs))
        for name, chunk in zip(entry.theirs, chunks, strict=True):
            theirs[f"{name}.weight"] = (chunk.T if entry.transposed else chunk).contiguous()
            if entry.bias:
                theirs[f"{name}.bias"] = torch.zeros(chunk.shape[0])
    assert not ours, f"not exported: {sorted(ours)}"

    temporary = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.tmp")
    try:
        shutil.copytree(tokenizer, temporary, ignore=shutil.ignore_patterns(f"*{ASIDE}*"))
        _save_weights(temporary / WEIGHTS, theirs, {} if cell is None else {CELL: cell.id})
        _check_weights(temporary / WEIGHTS, theirs, folder)
        write_json(temporary / "config.json", _config(model, family, model_type, eot_id))
        ends = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), eot_id)
        write_json(temporary / "generation_config.json", ends)
        known = read_json(temporary / _TOKENIZER_CONFIG)
        write_json(temporary / _TOKENIZER_CONFIG, known | {"model_max_length": model.seq_len})
        if cell is not None:
            write_text(temporary / CARD, model_card(cell))
        remove(folder)
        temporary.replace(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _save_weights(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write float32 tensors as safetensors does, but with its metadata in a fixed order."""
    with path.open("wb") as file:
        file.write(
            header_bytes({name: tuple(tensor.shape) for name, tensor in tensors.items()}, metadata)
        )
        for _, tensor in sorted(tensors.items()):
            file.write(tensor.numpy().data)
        file.flush()
        os.fsync(file.fileno())


def _check_weights(path: Path, tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Read written weights back; ``OSError`` with the ``folder`` of the model if they are not the
    same bit for bit."""
    try:
        with safe_open(path, framework="pt") as written:
            same = set(written.keys()) == set(tensors) and all(
                torch.equal(written.get_tensor(name).view(torch.int32), tensor.view(torch.int32))
                for name, tensor in tensors.items()
            )
        problem = "" if same else ": they differ from those in memory"
    except SafetensorError as error:
        same, problem = False, f" ({error})"
    if not same:
        raise OSError(
            f"{folder}: the weights that were written cannot be read back{problem}; see that the"
            " disk has space and is sound, and start again: training goes on from its last"
            " checkpoint"
        )


def load_model(folder: Path, device: str | torch.device = "cpu") -> LanguageModel:
    """Read a model that :func:`save_model` wrote, in float32 and evaluation mode."""
    config = read_json(folder / "config.json")
    family = family_of(config["model_type"])
    with torch.device("meta"):  # no memory for weights that the file's will replace
        model = family.model(
            **{argument: config[key] for argument, key in family.keys.items()},
            soft_cap=config.get("soft_cap"),
        )
    theirs = load_file(folder / WEIGHTS)
    ours = {}
    for entry in family.weights(model):
        # No weight is in memory twice for long.
        chunks = [theirs.pop(f"{name}.weight") for name in entry.theirs]
        weight = chunks[0] if entry.shared or len(chunks) == 1 else torch.cat(chunks)
        ours[f"{entry.ours}.weight"] = weight.T.contiguous() if entry.transposed else weight
    model.load_state_dict(ours, assign=True)
    return model.to(device).eval()


def model_card(cell: Cell) -> str:
    """Return the card of a cell's model as Markdown with a YAML header, the same for the same
    cell."""
    data, training = cell.study.data, cell.training
    header = {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "license": "unknown",
        "model_name": cell.id,
        "tags": ["coupled-adam-bench", cell.model.architecture, cell.optimizer.own_key],
    }
    n_contexts = cell.model.n_contexts
    size = f"{cell.model.n_layer} layers" if n_contexts is None else f"{n_contexts} hidden states"
    # Who opens the folder wants to know first what can read it.
    readers = (
        "`AutoModelForCausalLM.from_pretrained` and `AutoTokenizer.from_pretrained` read this"
        " folder."
    )
    if not cell.model.family.in_transformers:
        readers = (
            "`coupled_adam_bench.models.export.load_model` reads this folder; transformers has no"
            " such model."
        )
    facts = {
        "cell": cell.id,
        "architecture": f"{cell.model.architecture}, {size} and width {cell.model.d_model}",
        "parameters": f"{cell.n_params:,}",
        "training tokens": (
            f"{cell.n_tokens:,}, {cell.steps} steps of {training.batch_sequences} x"
            f" {training.seq_len}"
        ),
        "data": f"{data.name} ({data.source.kind}), {cell.data_id}",
        "tokenizer": f"{data.tokenizer}, {cell.vocab_size:,} tokens",
        "optimizer of the embedding": json.dumps(
            cell.optimizer.model_dump(mode="json"), ensure_ascii=False
        ),
        "seed": str(cell.seed),
        "precision": training.precision,
    }
    rows = "\n".join(f"| {name} | {_plain(text)} |" for name, text in facts.items())
    return f"""---
{yaml.safe_dump(header, sort_keys=False, allow_unicode=True)}---

# {_plain(cell.id)}

A language model that [Coupled Adam Bench](https://arxiv.org/abs/2502.08441) has trained to compare
optimizers of embeddings. It is made for measurements, and not for use: nobody has tuned or checked
what it writes.

| | |
|---|---|
{rows}

{readers} All settings are in
`../cell.json`, how training ended and in which environment in `../run.json`, and the measured
numbers in `../evaluations/` and in the `results.csv` of each study that has the cell.

**License:** unknown. Whoever publishes the model states one, which depends on the license of the
training text.
"""


def _plain(text: str) -> str:
    """Return text on one line, with every character that Markdown or HTML could read as markup
    escaped."""
    return re.sub(r"([\\`*_{}\[\]<>()#|~&$!])", r"\\\1", " ".join(text.split()))
