"""A trained study of two tiny cells on disk, made by hand: bins, tokenizer, evaluation sets and
models."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when huggingface_hub is imported

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from planned import Planned

from coupled_adam_bench.data.bins import Bin, Meta, token_dtype, write_meta
from coupled_adam_bench.data.synthetic import Language
from coupled_adam_bench.data.synthetic_sets import write_evaluation_sets
from coupled_adam_bench.data.tokenizers import save_tokenizer
from coupled_adam_bench.models.base import LanguageModel
from coupled_adam_bench.models.build import build_model
from coupled_adam_bench.models.export import save_model
from coupled_adam_bench.store import paths
from coupled_adam_bench.store.files import sha256_file
from coupled_adam_bench.store.runs import write_run
from coupled_adam_bench.study.plan.cells import Cell
from coupled_adam_bench.study.settings import parse_study

DATA_ID = "tiny-0123456789"
STUDY = {
    "study": "tiny",
    "data": {
        "name": "tiny",
        "source": {
            "kind": "synthetic",
            "n_words": 120,
            "n_word_pairs": 60,
            "n_task_items": 20,
            "n_tokens": 5000,
        },
        "tokenizer": "word",
        "vocab_size": 128,
    },
    "models": [{"name": "m", "n_layer": 1, "n_head": 2, "d_model": 8, "learning_rate": 1e-3}],
    "training": {"seq_len": 40, "batch_sequences": 4, "warmup_steps": 0, "precision": "fp32"},
    "grid": [
        {
            "models": ["m"],
            "tokens": [{"steps": 3}],
            "optimizers": ["adamw", "coupled_adam"],
            "seeds": [1],
        }
    ],
    "evaluation": {"word_similarity": "synthetic", "downstream": {"tasks": "synthetic"}},
}


def write_model(
    part: Planned, cell: Cell, seed: int, eot_id: int, factor: float = 1.0
) -> LanguageModel:
    """Save an untrained model, its weights far from initialisation and times ``factor``, as
    training would."""
    cell_id = cell.id
    model = build_model(cell.model, cell.vocab_size, cell.training.seq_len)
    model.init_weights(seed, 0.5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(factor)
    folder = paths.run_dir(cell_id)
    tokenizer = paths.data_dir(part.data_id) / "tokenizer"
    save_model(model, folder / "model", tokenizer, eot_id)
    write_run(folder, {"cell": cell_id, "status": "completed", "reason": None})
    return model


def write_data(part: Planned, tokens: np.ndarray) -> None:
    """Write bins with ``tokens`` in each split, counts and the generated evaluation sets."""
    folder = paths.data_dir(part.data_id)
    vocab_size = part.study.data.vocab_size
    splits, n_documents = {}, int((tokens == 120).sum())
    for split in ("train", "val", "test"):
        folder.mkdir(parents=True, exist_ok=True)
        tokens.astype(token_dtype(vocab_size)).tofile(folder / f"{split}.bin")
        splits[split] = Bin(
            f"{split}.bin", len(tokens), n_documents, sha256_file(folder / f"{split}.bin")
        )
    np.save(folder / "unigram.npy", np.bincount(tokens, minlength=121))
    language = Language(part.study.data.source)
    others = save_tokenizer(part.study, language.names, folder / "tokenizer")
    others += write_evaluation_sets(language, folder)
    meta = Meta(part.data_id, vocab_size, 121, 120, "<u2", "word", splits, {})
    write_meta(folder, meta, [*others, folder / "unigram.npy"])


@pytest.fixture(scope="session")
def finished_study(tmp_path_factory) -> tuple[Path, Planned]:
    root = tmp_path_factory.mktemp("finished")
    study = parse_study(STUDY)
    part = Planned(study, DATA_ID)
    before = Path.cwd()
    os.chdir(root)
    try:
        write_data(part, np.random.default_rng(0).integers(0, 121, 500))
        for seed, cell in enumerate(part.cells.values()):
            write_model(part, cell, seed, eot_id=120)
    finally:
        os.chdir(before)
    return root, part


@pytest.fixture
def part(finished_study, tmp_path, monkeypatch) -> Planned:
    """The part of a finished study in a working directory of its own."""
    root, part = finished_study
    shutil.copytree(root / "results", tmp_path / "results")
    monkeypatch.chdir(tmp_path)
    return part


@pytest.fixture(scope="session")
def save_cell():
    """The function ``write_model(part, cell, seed, eot_id, factor)``."""
    return write_model
