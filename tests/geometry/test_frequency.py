"""Bands of frequency against their definition, token by token."""

import numpy as np
import pytest

from coupled_adam_bench.geometry.frequency import bands_of_tokens
from coupled_adam_bench.study.catalogue.bands import BAND_SHARES


@pytest.mark.parametrize("seed", range(4))
def test_bands_are_shares_of_the_text(seed: int) -> None:
    rng = np.random.default_rng(seed)
    counts_V = np.floor(2000 / np.arange(1, 400) ** rng.uniform(0.8, 1.4)).astype(np.int64)
    rng.shuffle(counts_V)
    bands_V = bands_of_tokens(counts_V, BAND_SHARES)
    total = counts_V.sum()
    for token, count in enumerate(counts_V):
        if count == 0:
            assert bands_V[token] == 0
            continue
        place = (counts_V[counts_V < count].sum() + counts_V[counts_V == count].sum() / 2) / total
        assert bands_V[token] == 1 + sum(share < place for share in BAND_SHARES)
    rarest = counts_V[bands_V == 1].sum() / total
    assert rarest == pytest.approx(BAND_SHARES[0], abs=0.01)
