"""A plan cut to a size that a CPU trains in seconds: its optimizers, token counts and tables, on a small language."""

from typing import Any

from coupled_adam_bench.study.cells import data_digest
from coupled_adam_bench.study.config import Model, Study, parse_study
from coupled_adam_bench.study.plan import Plan

_STEPS = 2
"""Steps of the shortest cells; each larger number of tokens has one more, so that the tables have the same rows."""
_VALUES = 1  # of each field of a grid that is tuned: every optimizer has one candidate
_LAYERS, _WIDTH = 2, 12  # this many layers, of a twelfth of the width
_CONTEXTS = 16
_SEQ_LEN, _SEQUENCES = 16, 4
_PROCESSES = 2  # of a study that has several, so that its way of sharing is rehearsed
_LANGUAGE = {
    "kind": "synthetic",
    "n_words": 60,
    "n_classes": 4,
    "n_topics": 4,
    "n_tokens": 40_000,
    "document_tokens": 40,
    "n_word_pairs": 40,
    "n_task_items": 10,
}
_VOCAB_SIZE = 64


def miniature(plan: Plan) -> dict[str, Any]:
    """Return the miniature of a plan as a JSON value (see ``Plan.to_json``).

    It has the plan's cells, but tiny, and only as many of their seeds as the tables need.
    """
    steps = {count: _STEPS + index for index, count in enumerate(sorted({cell.steps for cell in plan.cells.values()}))}
    cut = [_cut(study, steps, plan.data_ids.index(plan.data_id(study))) for study in plan.studies.values()]
    studies = [parse_study(values, f"the miniature of {values['study']}") for values in cut]
    return {
        "name": plan.name,
        "title": plan.title,
        "studies": [{"study": study.model_dump(mode="json"), "data": data_digest(study)} for study in studies],
        "stated": None,
    }


def _cut(study: Study, steps: dict[int, int], data: int) -> dict[str, Any]:
    """Return the settings of a study's miniature; ``data`` is the number of its data among those of the plan."""
    values: dict[str, Any] = study.model_dump(mode="json")
    values["data"] = {
        "name": study.data.name,
        "source": _LANGUAGE | {"seed": data},  # what differs stays different
        "tokenizer": "word",
        "vocab_size": _VOCAB_SIZE,
        "split": {"val_fraction": 0.05, "test_fraction": 0.05},
    }
    values["paths"] = {}
    values["models"] = _models(study)
    training, several = study.training, study.execution.processes > 1
    sequences = _SEQUENCES * (training.data_ranks if training.data_order == "per_rank" else 1)
    values["training"] |= {"seq_len": _SEQ_LEN, "batch_sequences": sequences, "warmup_fraction": None}
    values["training"]["warmup_steps"] = int(training.schedule != "wsd" and training.warmup(_STEPS) > 0)
    batch_tokens = training.batch_sequences * training.seq_len
    tables = study.tables_of_blocks
    for block, written in zip(study.grid, values["grid"], strict=True):
        written["seeds"] = block.seeds[: tables[block.table].min_seeds if block.table else 1]
        written["tokens"] = [
            {"steps": steps[count], "label": None if isinstance(tokens, int) else tokens.label}
            for tokens, count in zip(block.tokens, block.steps(batch_tokens), strict=True)
        ]
        if block.tune is not None:
            least = min(entry["steps"] for entry in written["tokens"])
            written["tune"] |= {
                "seeds": block.tune.seeds[:1],
                "tokens": {"steps": least, "label": None} if block.tune.tokens is not None else None,
                "grids": {key: {f: v[:_VALUES] for f, v in grid.items()} for key, grid in block.tune.grids.items()},
                "equal_budgets": False,
            }
    evaluation = values["evaluation"]
    evaluation["word_similarity"] = "synthetic"
    if evaluation["downstream"] is not None:
        evaluation["downstream"] |= {"tasks": "synthetic", "limit": None}
    evaluation["test_loss"] |= {"n_batches": 2, "batch_sequences": 2, "batch_sequences_of": {}}
    if evaluation["theory"] is not None:
        evaluation["theory"] |= {"n_batches": 2, "record_every": 1}
    values["execution"] |= {
        "gpus": 0,
        "train_processes": _PROCESSES if several else None,
        "train_threads": 1,
        "evaluation_threads": 1,
        "data_threads": 1,
        "compile": False,
        "log_every": 1,
        "checkpoint_every": _STEPS,
    }
    return values


def _models(study: Study) -> list[dict[str, Any]]:
    """Return the models with a twelfth of their width, even in each of two heads, and two layers."""
    cut: list[dict[str, Any]] = []
    sizes: set[tuple[Any, ...]] = set()
    for model in study.models:
        width = _even_heads(model.d_model // _WIDTH)
        while (size := _size(model, width)) in sizes:
            width += 4
        sizes.add(size)
        smaller = {"d_model": width}
        if model.n_contexts is None:
            smaller |= {"n_layer": min(_LAYERS, model.n_layer), "n_head": 2}
        else:
            smaller["n_contexts"] = min(_CONTEXTS, model.n_contexts)
        if model.ffn_dim is not None:
            smaller["ffn_dim"] = max(8, model.ffn_dim // _WIDTH)
        cut.append(model.model_dump(mode="json") | smaller)
    return cut


def _even_heads(width: int) -> int:
    return max(8, width // 4 * 4)


def _size(model: Model, width: int) -> tuple[Any, ...]:
    return model.architecture, model.tied, model.ffn_dim, width
