from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hub_fixtures import SAMPLE, here, hub, small_gpt2  # noqa: F401 (fixtures)

from coupled_adam_bench.study.settings import Study, parse_study


@pytest.fixture(scope="session")
def sample() -> str:
    """Text with what tokenizers treat in different ways."""
    return SAMPLE


@pytest.fixture
def files_study() -> Callable[..., Study]:
    """A study on text files; further keywords replace fields of its ``data``."""

    def make(
        text: Path | str, tokenizer_path: Path | None = None, seq_len: int = 8, **data: Any
    ) -> Study:
        values = {
            "study": "files",
            "paths": {
                "text": str(text),
                "tokenizer": None if tokenizer_path is None else str(tokenizer_path),
            },
            "data": {
                "name": "files",
                "source": {"kind": "files"},
                "tokenizer": "file" if tokenizer_path is not None else "gpt2",
                "vocab_size": 50304,
                "split": {"val_fraction": 0.2, "test_fraction": 0.2},
            }
            | data,
            "models": ["gpt2-2x32"],
            "training": {"seq_len": seq_len, "batch_sequences": 2, "warmup_steps": 5},
            "grid": [{"models": ["gpt2-2x32"], "tokens": [{"steps": 10}], "optimizers": ["adamw"]}],
        }
        return parse_study(values)

    return make
