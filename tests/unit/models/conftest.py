"""Tiny transformers of every architecture, tied and untied."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from coupled_adam_bench.models.base import LanguageModel
from coupled_adam_bench.models.build import build_model
from coupled_adam_bench.study.catalogue.architectures import ARCHITECTURES
from coupled_adam_bench.study.settings import Model

VOCAB_SIZE, SEQ_LEN = 97, 16
SIZES = {"name": "m", "n_layer": 3, "n_head": 2, "d_model": 8, "ffn_dim": 20, "learning_rate": 1e-3}

MakeModel = Callable[..., LanguageModel]


TRANSFORMERS = [name for name, family in ARCHITECTURES.items() if family.in_transformers]


@pytest.fixture(params=[*TRANSFORMERS, "stablelm, rope_fraction, qk_norm"])
def kind(request) -> str:
    return request.param


@pytest.fixture
def architecture(kind) -> str:
    return kind.partition(",")[0]


@pytest.fixture(params=[True, False], ids=["tied", "untied"])
def tied(request) -> bool:
    return request.param


@pytest.fixture
def settings(kind, architecture, tied) -> Model:
    more = {"rope_fraction": 0.5, "qk_norm": "shared"} if "qk_norm" in kind else {}
    return Model(architecture=architecture, tied=tied, **more, **SIZES)


@pytest.fixture
def make_model(settings) -> MakeModel:
    """Return a function that makes an initialised model; ``std`` is large, so that nothing is zero
    by chance."""

    def make(seed: int = 0, std: float = 0.3, **changes: Any) -> LanguageModel:
        model = build_model(settings.model_copy(update=changes), VOCAB_SIZE, SEQ_LEN)
        model.init_weights(seed, std)
        return model

    return make


@pytest.fixture
def tokens() -> torch.Tensor:
    return torch.randint(0, VOCAB_SIZE, (4, SEQ_LEN), generator=torch.Generator().manual_seed(2))


@pytest.fixture
def tokenizer_folder(tmp_path) -> Path:
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    Tokenizer(WordLevel({f"w{i}": i for i in range(VOCAB_SIZE)}, unk_token="w0")).save(
        str(folder / "tokenizer.json")
    )
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    return folder
