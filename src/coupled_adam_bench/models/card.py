"""The model card of an exported model, ``README.md``: what it is, how it was trained, and where its numbers are."""

import json
import re

import yaml

from coupled_adam_bench.study.cells import Cell

CARD = "README.md"


def model_card(cell: Cell) -> str:
    """Return the card of a cell's model as Markdown with a YAML header, the same for the same cell."""
    data, training = cell.study.data, cell.training
    header = {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "license": "unknown",
        "model_name": cell.id,
        "tags": ["coupled-adam-bench", cell.model.architecture, cell.optimizer.own_key],
    }
    facts = {
        "cell": cell.id,
        "architecture": f"{cell.model.architecture}, {cell.model.n_layer} layers, width {cell.model.d_model}",
        "parameters": f"{cell.n_params:,}",
        "training tokens": f"{cell.n_tokens:,}, {cell.steps} steps of {training.batch_sequences} x {training.seq_len}",
        "data": f"{data.name} ({data.source.kind}), {cell.data_id}",
        "tokenizer": f"{data.tokenizer}, {cell.vocab_size:,} tokens",
        "optimizer of the embedding": json.dumps(cell.optimizer.model_dump(mode="json"), ensure_ascii=False),
        "seeds of weights and data": f"{cell.seed} and {cell.data_seed}",
        "precision": training.precision,
    }
    rows = "\n".join(f"| {name} | {_plain(text)} |" for name, text in facts.items())
    return f"""---
{yaml.safe_dump(header, sort_keys=False, allow_unicode=True)}---

# {_plain(cell.id)}

A language model that [Coupled Adam Bench](https://arxiv.org/abs/2502.08441) has trained to compare optimizers of
embeddings. It is made for measurements, and not for use: nobody has tuned or checked what it writes.

| | |
|---|---|
{rows}

`AutoModelForCausalLM.from_pretrained` and `AutoTokenizer.from_pretrained` read this folder. All settings are in
`../cell.json`, how training ended and in which environment in `../run.json`, and the measured numbers in
`../evaluations/` and in the `results.csv` of each study that has the cell.

**License:** unknown. Whoever publishes the model states one, which depends on the license of the training text.
"""


def _plain(text: str) -> str:
    """Return text on one line, with every character that Markdown or HTML could read as markup escaped."""
    return re.sub(r"([\\`*_{}\[\]<>()#|~&$!])", r"\\\1", " ".join(text.split()))
