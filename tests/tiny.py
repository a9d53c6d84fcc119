"""The settings of a study that trains in seconds, for the tests of the bench and of its packages."""

from collections.abc import Callable
from typing import Any

import pytest


def tiny_settings(**changes: Any) -> dict[str, Any]:
    """A study whose cells train in about a second: six of them, two optimizers and three seeds."""
    return {
        "study": "tiny",
        "data": {
            "name": "tiny",
            "source": {
                "kind": "synthetic",
                "n_words": 60,
                "n_classes": 4,
                "n_topics": 4,
                "n_tokens": 40_000,
                "document_tokens": 40,
                "n_word_pairs": 40,
                "n_task_items": 12,
            },
            "tokenizer": "word",
            "vocab_size": 64,
            "split": {"val_fraction": 0.02, "test_fraction": 0.02},
        },
        "models": [
            {"name": "nano", "n_layer": 1, "n_head": 2, "d_model": 8, "learning_rate": 0.01}
        ],
        "training": {"seq_len": 16, "batch_sequences": 4, "warmup_steps": 5, "precision": "fp32"},
        "grid": [
            {
                "table": "table1",
                "models": ["nano"],
                "tokens": [{"steps": 60, "label": "60 steps"}],
                "optimizers": ["adamw", "coupled_adam"],
                "seeds": [1, 2, 3],
            }
        ],
        "evaluation": {"word_similarity": "synthetic", "downstream": {"tasks": "synthetic"}},
        "execution": {
            "checkpoint_every": 10,
            "log_every": 5,
            "evaluation_cells_per_job": 6,
            "data_threads": 1,
        },
    } | changes


@pytest.fixture(scope="session")
def tiny_study() -> Callable[..., dict[str, Any]]:
    return tiny_settings
