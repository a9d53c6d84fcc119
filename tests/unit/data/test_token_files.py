"""Bins of files of token ids in the format of llm.c and modded-nanogpt."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coupled_adam_bench.data.bins import load_meta, open_tokens
from coupled_adam_bench.data.prepare import prepare
from coupled_adam_bench.store.files import sha256_file
from coupled_adam_bench.study.plan.cells import data_digest, data_id
from coupled_adam_bench.study.settings import Study

FilesStudy = Callable[..., Study]
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
    def make(**source: Any) -> Study:
        return files_study(
            folder, small_gpt2, vocab_size=512, source={"kind": "bins", "val_tokens": 80} | source
        )

    return make


def make(study: Study, out: Path) -> None:
    prepare(study, data_id(study, data_digest(study)), out, workers=1)


def tokens_of(folder: Path, name: str) -> Any:
    return np.fromfile(folder / f"fineweb_{name}.bin", np.uint16)[512:]


def test_the_bins_are_the_tokens_of_the_files_in_order(
    study_of: Any, folder: Path, tmp_path: Path
) -> None:
    study = study_of()
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


def test_the_id_follows_the_files(study_of: Any, folder: Path) -> None:
    before = data_digest(study_of())
    assert data_digest(study_of(train="fineweb_train_000001.bin")) != before
    write(folder / "fineweb_train_000001.bin", np.arange(1000) % EOT)
    changed = data_digest(study_of())
    assert changed != before
    for file in folder.iterdir():
        file.unlink()
    assert data_digest(study_of()) not in (before, changed)  # a plan needs no files


def test_a_stated_checksum(study_of: Any, folder: Path, tmp_path: Path) -> None:
    name = "fineweb_val_000000.bin"
    make(study_of(sha256={name: sha256_file(folder / name)}), tmp_path / "out")
    with pytest.raises(
        ValueError, match=rf"data\.source\.sha256: {name} must have 00, but it is [0-9a-f]{{64}}"
    ):
        make(study_of(sha256={name: "00"}), tmp_path / "other")
    with pytest.raises(
        ValueError, match=r"sha256: b\.bin must have 00, but there is no such file in"
    ):
        make(study_of(sha256={"b.bin": "00"}), tmp_path / "other")


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
            r"data\.tokenizer: it has 399 tokens, but a file has token 400",
        ),
        ("val_000001", [1] * 500, {}, "has 2 files 'fineweb_train_.*' and 2 'fineweb_val_.*'"),
        ("val_000000", [1] * 85, {}, r"test has 4 tokens .* needs training\.seq_len \+ 1 = 9"),
    ],
)
def test_files_that_are_refused(
    name: str,
    tokens: list[int],
    changes: dict[str, int],
    message: str,
    study_of: Any,
    folder: Path,
    tmp_path: Path,
) -> None:
    write(folder / f"fineweb_{name}.bin", tokens, **changes)
    with pytest.raises(ValueError, match=message):
        make(study_of(), tmp_path / "out")


def test_a_folder_without_files(study_of: Any, folder: Path, tmp_path: Path) -> None:
    for file in folder.iterdir():
        file.unlink()
    with pytest.raises(
        ValueError, match=r"paths\.text: .*fineweb10B has 0 files 'fineweb_train_.*at least one"
    ):
        make(study_of(), tmp_path / "out")


def test_settings_that_do_not_go_with_it(
    files_study: FilesStudy, small_gpt2: Path, tmp_path: Path
) -> None:
    source = {"kind": "bins"}
    with pytest.raises(ValueError, match="token files are taken whole"):
        files_study(tmp_path, small_gpt2, source=source, max_tokens=1000)
    with pytest.raises(ValueError, match="ids of 16 bits"):
        files_study(tmp_path, small_gpt2, source=source, vocab_size=2**16 + 1)
