"""The models of each family on disk, and a list of word pairs."""

import itertools
import os
import random
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when huggingface_hub is imported

import pytest
from small_models import WORDS, build, byte_level


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a family's model, with a tokenizer, built once; do not write into it."""
    root = tmp_path_factory.mktemp("families")

    def saved(family: str) -> Path:
        folder = root / family
        if not folder.exists():
            build(family).save_pretrained(folder)
            byte_level().save(str(folder / "tokenizer.json"))
        return folder

    return saved


@pytest.fixture(scope="session")
def pairs_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A list of all pairs of the words and one that is no single token; its lines end as on Windows."""
    drawn = random.Random(0)
    pairs = itertools.combinations((*WORDS, "suncat"), 2)
    file = tmp_path_factory.mktemp("lists") / "own.tsv"
    file.write_bytes("".join(f"{a}\t{b}\t{10 * drawn.random():.2f}\r\n" for a, b in pairs).encode())
    return file
