"""Tiny models of both architectures, tied and untied."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from coupled_adam_bench.models.base import LanguageModel
from coupled_adam_bench.models.build import FAMILIES, build_model
from coupled_adam_bench.study.model import Model

VOCAB_SIZE, SEQ_LEN = 97, 16
SIZES = {"name": "m", "n_layer": 3, "n_head": 2, "d_model": 8, "learning_rate": 1e-3}


@pytest.fixture(params=FAMILIES)
def architecture(request) -> str:
    return request.param


@pytest.fixture(params=[True, False], ids=["tied", "untied"])
def settings(request, architecture) -> Model:
    return Model(architecture=architecture, tied=request.param, **SIZES)


@pytest.fixture
def make(settings) -> Callable[..., LanguageModel]:
    """A function that makes a model with initial values so large that nothing is 0 by chance."""

    def make(seed: int = 0, std: float = 0.3, **changes: Any) -> LanguageModel:
        model = build_model(settings.model_copy(update=changes), VOCAB_SIZE, SEQ_LEN)
        model.init_weights(seed, std)
        return model

    return make


@pytest.fixture
def tokens() -> torch.Tensor:
    return torch.randint(0, VOCAB_SIZE, (4, SEQ_LEN), generator=torch.Generator().manual_seed(2))


@pytest.fixture
def tokenizer(tmp_path) -> Path:
    """A folder with a tokenizer that transformers reads."""
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    words = {f"w{i}": i for i in range(VOCAB_SIZE)}
    made = Tokenizer(WordLevel(words, unk_token="w0"))
    made.pre_tokenizer = Whitespace()
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    return folder
