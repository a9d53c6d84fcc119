"""A study that trains in seconds, for tests: a generated language and models of a few thousand weights."""

from copy import deepcopy
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[1]

_STUDY: dict[str, Any] = {
    "study": "tiny",
    "title": "A tiny study",
    "data": {
        "name": "tiny",
        "source": {
            "kind": "synthetic",
            "n_words": 100,
            "n_tokens": 60_000,
            "document_tokens": 40,
            "n_word_pairs": 60,
            "n_task_items": 20,
        },
        "tokenizer": "word",
        "vocab_size": 128,
        "split": {"val_fraction": 0.05, "test_fraction": 0.05},
    },
    "models": [
        {"name": "small", "n_layer": 1, "n_head": 2, "d_model": 16, "learning_rate": 3e-3},
    ],
    "training": {"seq_len": 32, "batch_sequences": 8, "warmup_steps": 4, "precision": "fp32"},
    "grid": [
        {
            "table": "table1",
            "models": ["small"],
            "tokens": [{"steps": 30}],
            "optimizers": ["adamw", "coupled_adam"],
            "seeds": [1, 2, 3],
        },
        {
            "table": "table2",
            "models": ["small"],
            "tokens": [{"steps": 40}],
            "optimizers": ["adamw", "coupled_adam"],
            "seeds": [1],
        },
        {
            "table": "table7",
            "models": ["small"],
            "tokens": [{"steps": 30}],
            # The last one diverges, which is a result.
            "optimizers": [
                "adamw",
                {"name": "sgd", "lr_factor": 100},
                {"name": "sgd", "lr_factor": 1e36},
            ],
            "seeds": [1, 2, 3],
        },
    ],
    "evaluation": {"word_similarity": "synthetic", "downstream": {"tasks": "synthetic"}},
    "execution": {
        "data_threads": 1,
        "checkpoint_every": 10,
        "eval_every": 10,
        "train_cells_per_job": 14,
        "evaluation_cells_per_job": 14,
    },
}


def tiny_study(**sections: Any) -> dict[str, Any]:
    """Return the study as a mapping; each section that is given takes the place of its own."""
    return deepcopy(_STUDY) | sections


def changed(study: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """Return a study with another value at a path such as ``data.source.seed``."""
    study = deepcopy(study)
    *above, last = path.split(".")
    section: Any = study
    for name in above:
        section = section[int(name)] if isinstance(section, list) else section[name]
    section[int(last) if isinstance(section, list) else last] = value
    return study
