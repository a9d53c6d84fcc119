"""Bins of files of token ids in the format of llm.c and modded-nanogpt, by a plug-in."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coupled_adam_bench.data.bins import load_meta, open_tokens
from coupled_adam_bench.data.prepare import prepare
from coupled_adam_bench.study.plan.cells import data_digest, data_id
from coupled_adam_bench.study.plan.inputs import with_code
from coupled_adam_bench.study.settings import Own, Study

FilesStudy = Callable[..., Study]
PATH = "research.plugins.token_files.TokenFiles"
EOT = 398
"""End-of-text of the small tokenizer."""


def write(
    path: Path, tokens: Any, magic: int = 20240520, version: int = 1, claimed: int | None = None
) -> None:
    """Write a file as data/fineweb.py of modded-nanogpt does: 256 int32, then uint16."""
    header = np.zeros(256, np.int32)
    header[:3] = magic, version, len(tokens) if claimed is None else claimed
    path.write_bytes(header.tobytes() + np.asarray(tokens, np.uint16).tobytes())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two files to train on and one that is held out: documents of 9 tokens behind end-of-text."""
    folder = tmp_path / "fineweb10B"
    folder.mkdir()
    for index, (name, n) in enumerate(
        (("train_000002", 900), ("train_000001", 1000), ("val_000000", 500))
    ):
        tokens = np.random.default_rng(index).integers(0, EOT, n)
        tokens[::10] = EOT
        write(folder / f"fineweb_{name}.bin", tokens)
    return folder


@pytest.fixture
def study_of(files_study: FilesStudy, small_gpt2: Path, folder: Path) -> Callable[..., Study]:
    def make(**arguments: Any) -> Study:
        source = {"kind": "own", "path": PATH, "arguments": {"val_tokens": 80} | arguments}
        return files_study(folder, small_gpt2, vocab_size=512, source=source)

    return make


def make(study: Study, out: Path) -> None:
    prepare(study, data_id(study, data_digest(study)), out, workers=1)


def tokens_of(folder: Path, name: str) -> Any:
    return np.fromfile(folder / f"fineweb_{name}.bin", np.uint16)[512:]


def test_the_bins_are_the_tokens_of_the_files_in_order(study_of, folder, tmp_path):
    study = with_code(study_of())
    make(study, tmp_path / "out")
    bins = {
        split: np.array(open_tokens(tmp_path / "out", split)) for split in ("train", "val", "test")
    }
    first, second, held_out = (
        tokens_of(folder, name) for name in ("train_000001", "train_000002", "val_000000")
    )
    assert np.array_equal(bins["train"], np.concatenate((first, second)))
    assert np.array_equal(bins["val"], held_out[:81])  # 80 targets
    assert np.array_equal(bins["test"], held_out[81:])
    meta = load_meta(tmp_path / "out")
    assert {split: part.n_documents for split, part in meta.splits.items()} == {
        "train": 190,
        "val": 9,
        "test": 41,
    }
    assert (meta.dtype, meta.eot_id, meta.source["n_files"]) == ("<u2", EOT, 3)
    counts = np.load(tmp_path / "out" / "unigram.npy")
    assert (counts[EOT], counts.sum(), len(counts)) == (190, 1900, 512)


def test_the_id_follows_the_files(study_of, folder):
    before = data_digest(study_of())
    assert data_digest(study_of(train="fineweb_train_000001.bin")) != before
    write(folder / "fineweb_train_000001.bin", np.arange(1000) % EOT)
    changed = data_digest(study_of())
    assert changed != before
    for file in folder.iterdir():
        file.unlink()
    assert data_digest(study_of()) not in (before, changed)  # a plan needs no files


@pytest.mark.parametrize(
    ("name", "tokens", "changes", "message"),
    [
        (
            "train_000001",
            [1] * 50,
            {"magic": 20240801},
            r"begins with \[20240801, 1\], but .* magic number 20240520",
        ),
        ("train_000001", [1] * 50, {"version": 2}, r"begins with \[20240520, 2\]"),
        ("val_000000", [1] * 500, {"claimed": 501}, "has 2,024 bytes, but 501 tokens take 2,026"),
        (
            "train_000001",
            [1, 400, 1],
            {},
            r"data\.source\.path: .*TokenFiles must give whole numbers from 0 to 398, the tokens of",
        ),
        ("val_000001", [1] * 500, {}, "has 2 files 'fineweb_train_.*' and 2 'fineweb_val_.*'"),
        ("val_000000", [1] * 85, {}, r"test has 4 tokens .* needs training\.seq_len \+ 1 = 9"),
    ],
)
def test_files_that_are_refused(name, tokens, changes, message, study_of, folder, tmp_path):
    write(folder / f"fineweb_{name}.bin", tokens, **changes)
    with pytest.raises(ValueError, match=message):
        make(study_of(), tmp_path / "out")


def test_a_folder_without_files(study_of, folder, tmp_path):
    for file in folder.iterdir():
        file.unlink()
    with pytest.raises(
        ValueError, match=r"paths\.text has 0 files 'fineweb_train_.*at least one to train on"
    ):
        make(study_of(), tmp_path / "out")


def test_settings_that_do_not_go_with_it(files_study, small_gpt2, tmp_path):
    source = {"kind": "own", "path": PATH}
    with pytest.raises(ValueError, match="max_tokens: a source of your own gives as many tokens"):
        files_study(tmp_path, small_gpt2, source=source, max_tokens=1000)
    with pytest.raises(ValueError, match="tokenizer: 'bpe' is learned from text"):
        files_study(tmp_path, small_gpt2, source=source, tokenizer="bpe")


def test_the_id_follows_the_code(study_of):
    study = study_of()
    coded = with_code(study)
    assert data_digest(coded) != data_digest(study)
    source = coded.data.source
    assert isinstance(source, Own) and source.code
    other = source.model_copy(update={"code": dict.fromkeys(source.code, "0" * 64)})
    changed = coded.model_copy(update={"data": coded.data.model_copy(update={"source": other})})
    assert data_digest(changed) != data_digest(coded)
