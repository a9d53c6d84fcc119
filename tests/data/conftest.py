"""Texts of seeded words, a byte-level BPE of them, and studies on such files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from own_text import make_texts, write_jsonl
from tiny import tiny_study
from tokenizers import ByteLevelBPETokenizer

from coupled_adam_bench.study.study import Study, parse_study


@pytest.fixture(scope="session")
def texts() -> list[str]:
    return make_texts(0, 350)


@pytest.fixture(scope="session")
def bpe(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> Path:
    """A tokenizer.json as GPT-2's, of 400 tokens with end-of-text."""
    learned = ByteLevelBPETokenizer()
    learned.train_from_iterator(
        texts, vocab_size=400, special_tokens=["<|endoftext|>"], show_progress=False
    )
    path = tmp_path_factory.mktemp("bpe") / "tokenizer.json"
    learned.save(str(path))
    return path


@pytest.fixture
def files_study(bpe: Path) -> Callable[..., Study]:
    """A function that returns a study on files, ``data`` in place of its own settings."""

    def make(text: Path, source: dict[str, Any] | None = None, **data: Any) -> Study:
        own = {
            "name": "own",
            "source": {"kind": "files", **(source or {})},
            "tokenizer": "file",
            "vocab_size": 512,
            "split": {"val_fraction": 0.1, "test_fraction": 0.2},
        }
        paths = {"text": [str(text)], "tokenizer": str(bpe)}
        return parse_study(tiny_study(data=own | data, paths=paths))

    return make


@pytest.fixture
def jsonl(tmp_path: Path, texts: list[str]) -> Path:
    """The texts in three files."""
    for number in range(3):
        write_jsonl(tmp_path / f"text/{number}.jsonl", texts[number::3])
    return tmp_path / "text"
