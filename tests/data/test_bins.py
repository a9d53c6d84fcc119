"""Token bins: the windows of a step are a pure function of seed, step and position."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from coupled_adam_bench.data.bins import (
    META,
    Bin,
    Meta,
    load_meta,
    open_tokens,
    sample_offsets,
    token_dtype,
)
from coupled_adam_bench.store.files import sha256_file, write_json
from coupled_adam_bench.study.data import SPLITS


def philox4x64(key: int, counter: list[int]) -> Iterator[int]:
    """Philox-4x64-10 by Salmon et al. 2011, figure 2, with Python's integers."""
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


@pytest.mark.parametrize(("seed", "step"), [(0, 0), (1, 7), (3, 199_999), (-1, 2)])
def test_offsets_are_the_philox_stream_of_seed_and_step(seed: int, step: int) -> None:
    stream = philox4x64(seed % 2**64, [0, 0, step, 0])
    expected = [next(stream) % (10_000 - 64) for _ in range(10)]
    for batch_sequences in (1, 7, 10):
        found = sample_offsets(10_000, 64, batch_sequences, seed, step)
        assert found.tolist() == expected[:batch_sequences]


def test_offsets_are_uniform_and_independent() -> None:
    draws = np.concatenate([sample_offsets(74, 64, 100, 1, step) for step in range(1000)])
    assert (draws.min(), draws.max()) == (0, 74 - 64 - 1)
    assert stats.chisquare(np.bincount(draws)).pvalue > 1e-3
    wide = np.array(
        [[sample_offsets(2**40, 64, 96, seed, step) for step in range(300)] for seed in (1, 2)]
    )
    assert np.unique(wide).size == wide.size  # even one repetition has probability 0.002
    assert stats.kstest(wide.ravel() / 2**40, "uniform").pvalue > 1e-3
    assert stats.pearsonr(wide[0].ravel(), wide[1].ravel()).pvalue > 1e-3


def test_a_window_needs_a_target() -> None:
    assert sample_offsets(65, 64, 3, 1, 0).tolist() == [0, 0, 0]
    with pytest.raises(ValueError, match=r"training\.seq_len"):
        sample_offsets(64, 64, 1, 0, 0)


@pytest.mark.parametrize("vocab_size", [1024, 65536, 65537])
def test_bins_are_opened_whole_or_not_at_all(vocab_size: int, tmp_path: Path) -> None:
    dtype = token_dtype(vocab_size)
    assert dtype.itemsize == (2 if vocab_size <= 65536 else 4)
    tokens = np.arange(vocab_size - 10, vocab_size).astype(dtype)
    for split in SPLITS:
        (tmp_path / f"{split}.bin").write_bytes(tokens.tobytes())
    bins = {split: Bin(10, 2, sha256_file(tmp_path / f"{split}.bin")) for split in SPLITS}
    meta = Meta("x-1", vocab_size, 9, dtype.str, bins)
    write_json(tmp_path / META, asdict(meta))
    assert load_meta(tmp_path) == meta
    assert open_tokens(tmp_path, "val").tolist() == tokens.tolist()
    (tmp_path / "val.bin").write_bytes(tokens.tobytes()[:-1] + b"x")
    with pytest.raises(ValueError, match=r"val\.bin"):
        open_tokens(tmp_path, "val")
