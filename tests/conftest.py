import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coupled_adam_bench.config import parse_study
from coupled_adam_bench.plan import Plan, make_plan

# Tests run on whole machines and beside each other: a fixed, small number of threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")

ROOT = Path(__file__).parent.parent


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
        "models": [{"name": "nano", "n_layer": 1, "n_head": 2, "d_model": 8, "learning_rate": 0.01}],
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
        "execution": {"checkpoint_every": 10, "log_every": 5, "evaluation_cells_per_job": 6, "data_threads": 1},
    } | changes


@pytest.fixture(scope="session")
def tiny_study() -> Callable[..., dict[str, Any]]:
    return tiny_settings


@pytest.fixture
def tiny_plan() -> Plan:
    return make_plan(parse_study(tiny_settings()))


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data folder of :func:`tiny_plan`, prepared once; do not write into it."""
    from coupled_adam_bench.data.prepare import prepare

    plan = make_plan(parse_study(tiny_settings()))
    folder = tmp_path_factory.mktemp("data") / plan.parts[0].data_id
    prepare(plan.parts[0], folder, workers=1)
    return folder
