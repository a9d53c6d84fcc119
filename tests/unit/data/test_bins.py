import os
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from coupled_adam_bench.data import check
from coupled_adam_bench.data.bins import (
    Bin,
    Meta,
    load_meta,
    open_tokens,
    sample_offsets,
    token_dtype,
    write_meta,
)
from coupled_adam_bench.store.files import read_sealed, sha256_file, write_sealed


def philox4x64(key: int, counter: list[int]) -> Iterator[int]:
    """Philox-4x64-10 by Salmon et al. 2011, figure 2, with Python's integers; yields the stream
    after ``counter``."""
    mask = 2**64 - 1
    while True:
        counter = [(counter[0] + 1) & mask, *counter[1:]]
        x0, x1, x2, x3 = counter
        k0, k1 = key, 0
        for _ in range(10):
            p0, p1 = 0xD2E7470EE14C6C93 * x0, 0xCA5A826395121157 * x2
            x0, x1, x2, x3 = (p1 >> 64) ^ x1 ^ k0, p1 & mask, (p0 >> 64) ^ x3 ^ k1, p0 & mask
            k0, k1 = (k0 + 0x9E3779B97F4A7C15) & mask, (k1 + 0xBB67AE8584CAA73B) & mask
        yield from (x0, x1, x2, x3)


@pytest.mark.parametrize(("seed", "step"), [(0, 0), (1, 0), (1, 7), (3, 199_999), (-1, 2)])
def test_offsets_are_the_philox_stream_of_seed_and_step(seed, step):
    stream = philox4x64(seed % 2**64, [0, 0, step, 0])
    expected = [next(stream) % (10_000 - 64) for _ in range(10)]
    assert sample_offsets(10_000, 64, 10, seed, step).tolist() == expected


def test_offset_does_not_depend_on_batch_size():
    whole = sample_offsets(10**9, 1024, 96, seed=1, step=5)
    assert whole.dtype == np.int64
    for batch_sequences in (1, 2, 7, 95):
        assert (
            sample_offsets(10**9, 1024, batch_sequences, 1, 5).tolist()
            == whole[:batch_sequences].tolist()
        )


def test_seed_and_step_act():
    draws = [
        sample_offsets(10**9, 64, 4, seed, step).tolist()
        for seed in (1, 2, 3)
        for step in (0, 1, 2)
    ]
    assert len({tuple(draw) for draw in draws}) == 9


def test_offsets_are_uniform_over_all_starts():
    draws = np.concatenate([sample_offsets(74, 64, 100, 1, step) for step in range(1000)])
    assert draws.min() == 0
    assert draws.max() == 74 - 64 - 1
    assert stats.chisquare(np.bincount(draws)).pvalue > 1e-3
    assert sample_offsets(65, 64, 3, 1, 0).tolist() == [0, 0, 0]


def test_seeds_steps_and_positions_are_independent():
    draws = np.array(
        [[sample_offsets(2**40, 64, 96, seed, step) for step in range(300)] for seed in (1, 2, 3)]
    )
    for a, b in (
        (draws[0], draws[1]),
        (draws[0, :-1], draws[1, 1:]),
        (draws[0, :-1], draws[0, 1:]),
    ):
        assert stats.pearsonr(a.ravel(), b.ravel()).pvalue > 1e-3
    assert stats.pearsonr(draws[..., :-1].ravel(), draws[..., 1:].ravel()).pvalue > 1e-3
    # No stream is a shifted copy of another: among 86,400 draws of 2^40 even one repetition has
    # probability 0.003.
    assert np.unique(draws).size == draws.size
    assert stats.kstest(draws.ravel() / 2**40, "uniform").pvalue > 1e-3


def test_too_few_tokens_for_a_window():
    with pytest.raises(
        ValueError, match=r"training\.seq_len: 64, but a window needs 65 tokens and there are 64"
    ):
        sample_offsets(64, 64, 1, 0, 0)


@pytest.mark.parametrize(("vocab_size", "dtype"), [(1024, "<u2"), (65536, "<u2"), (65537, "<u4")])
def test_token_dtype_holds_every_id(vocab_size, dtype):
    assert token_dtype(vocab_size) == np.dtype(dtype)
    assert np.iinfo(token_dtype(vocab_size)).max >= vocab_size - 1


@pytest.fixture(params=["<u2", "<u4"])
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    tokens = np.arange(10, dtype=request.param)
    part = Bin("x.bin", 10, 2, sha256(tokens.tobytes()).hexdigest())
    (tmp_path / "x.bin").write_bytes(tokens.tobytes())
    meta = Meta(
        "x-1", 16, 11, 10, request.param, "word", dict.fromkeys(("train", "val", "test"), part), {}
    )
    write_meta(tmp_path, meta, [])
    assert load_meta(tmp_path) == meta
    return tmp_path


def test_open_tokens(folder):
    tokens = open_tokens(folder, "val")
    assert tokens.tolist() == list(range(10))
    assert not tokens.flags.writeable


@pytest.mark.fault(
    "text and data",
    "a byte of the token bins changes, or a bin is cut or lost",
    "the job stops with the name of the file, and the next start prepares the data anew",
)
def test_open_tokens_finds_damage(folder):
    path, meta = folder / "x.bin", (folder / "meta.json").read_bytes()
    data = path.read_bytes()

    def again() -> None:
        assert (folder / "meta.json.damaged").read_bytes() == meta
        (folder / "meta.json.damaged").rename(folder / "meta.json")

    path.write_bytes(data[:-1] + b"x")
    assert open_tokens(folder, "train", verify=False)[0] == 0
    with pytest.raises(
        ValueError,
        match=r"x\.bin: SHA-256 .* but meta\.json says .*start again: it will be prepared",
    ):
        open_tokens(folder, "train")
    with pytest.raises(ValueError, match=r"meta\.json: no such file; run the data stage"):
        open_tokens(folder, "train")
    again()
    path.write_bytes(data[:-1])
    with pytest.raises(
        ValueError, match=rf"x\.bin: {len(data) - 1} bytes, but meta\.json says {len(data)}"
    ):
        open_tokens(folder, "train", verify=False)
    again()
    path.unlink()
    with pytest.raises(ValueError, match=r"x\.bin: missing"):
        open_tokens(folder, "train")
    again()
    path.write_bytes(data)
    assert open_tokens(folder, "train").tolist() == list(range(10))


def test_a_large_file_is_read_once_for_all_processes_while_it_stays_the_same(folder, monkeypatch):
    read = []
    monkeypatch.setattr(check, "SMALL_BYTES", 0)
    monkeypatch.setattr(
        check, "sha256_file", lambda path: read.append(path.name) or sha256_file(path)
    )

    def opened() -> int:
        """Open the tokens as another process does, and return how often they were read whole."""
        read.clear()
        check._sha256.cache_clear()
        assert open_tokens(folder, "train").tolist() == list(range(10))
        return len(read)

    assert [opened(), opened()] == [1, 0]
    assert list(read_sealed(folder / check.VERIFIED)) == ["x.bin"]
    (folder / "x.bin").touch()
    assert [opened(), opened()] == [1, 0]
    (folder / check.VERIFIED).write_text("{}")
    assert [opened(), opened()] == [1, 0]
    data, status = (folder / "x.bin").read_bytes(), (folder / "x.bin").stat()
    (folder / "x.bin").write_bytes(data[:-1] + b"x")
    os.utime(folder / "x.bin", ns=(status.st_atime_ns, status.st_mtime_ns))  # as `cp -p` does
    with pytest.raises(ValueError, match=r"x\.bin: SHA-256"):
        opened()


def test_a_description_that_is_none(folder):
    (folder / "meta.json").write_text('{"data_id": "x"}')
    with pytest.raises(
        ValueError,
        match=r"meta\.json: its contents do not match .*start again: it will be prepared",
    ):
        load_meta(folder)
    assert (folder / "meta.json.damaged").exists()
    write_sealed(folder / "meta.json", {"data_id": "x", "files": {}})
    with pytest.raises(ValueError, match=r"meta\.json: not the description of token bins"):
        load_meta(folder)
    with pytest.raises(ValueError, match="no such file"):
        load_meta(folder / "nowhere")
