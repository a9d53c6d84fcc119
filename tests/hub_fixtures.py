"""A small tokenizer of GPT-2's kind and a hub on this machine, for the folders of tests that ask
for them."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hub_server import Here, HubServer, serving
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from coupled_adam_bench.study.settings import Study, parse_study

SAMPLE = (
    "It was the best of times, it wasn't the worst; 1984 was 12,345.67 % better.\n\n\tdef main():\n"
    "    return 'x'\nGrüße aus Köln, où l'été dure; Привет, мир! 漢字かな交じり文 🙂👩‍👩‍👧"
    " a\u0301 \u00a0 \u2028 end.   \r\n"
)


@pytest.fixture(scope="session")
def small_gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small tokenizer of GPT-2's kind: byte-level BPE, ids in the order of merges,
    end-of-text last."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    trained.train_from_iterator([SAMPLE, "the times and the worst of the best " * 20], trainer)
    folder = tmp_path_factory.mktemp("small_gpt2")
    trained.add_special_tokens([AddedToken("<|endoftext|>", special=True, normalized=False)])
    trained.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with serving() as server:
        yield server


@pytest.fixture
def here(hub: HubServer, small_gpt2: Path, tmp_path: Path) -> Here:
    return Here(tmp_path, hub.url, small_gpt2)


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
