from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hub_fixtures import SAMPLE, here, hub, small_gpt2  # noqa: F401 (fixtures)
from text_study import text_settings

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
        paths = {
            "text": str(text),
            "tokenizer": None if tokenizer_path is None else str(tokenizer_path),
        }
        brought = {"tokenizer": "gpt2"} if tokenizer_path is None else {}
        data = {"vocab_size": 50304} | brought | data
        return parse_study(text_settings(paths=paths, data=data, training={"seq_len": seq_len}))

    return make
