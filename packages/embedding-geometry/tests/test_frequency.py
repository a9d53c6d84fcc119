import math

import numpy as np
import pytest

from embedding_geometry import frequency
from embedding_geometry.frequency import keep_rows, norm_frequency_curve, seen_rows


def test_seen_rows_by_hand():
    assert seen_rows(np.array([3, 0, 1]), 5).tolist() == [True, False, True, False, False]


@pytest.mark.parametrize("kept", ["all", "none", "some"])
def test_rows_are_kept_in_their_order_across_blocks(kept, monkeypatch):
    monkeypatch.setattr(frequency, "_ROWS", 7)
    rng = np.random.default_rng(0)
    embeddings = rng.normal(size=(50, 3))
    mask = {"all": np.ones(50, bool), "none": np.zeros(50, bool), "some": rng.random(50) < 0.4}[
        kept
    ]
    expected = embeddings[mask].copy()
    found = keep_rows(embeddings, mask)
    np.testing.assert_array_equal(found, expected)
    assert found.base is embeddings


def test_the_curve_against_loops():
    rng = np.random.default_rng(1)
    counts = np.concatenate([[0, 0, 1, 10, 100], rng.integers(0, 5000, 200)])
    lengths = rng.random(210)  # five rows more than counts: they never occur
    bins: dict[int, list[tuple[int, float]]] = {}
    for token, length in enumerate(lengths.tolist()):
        count = int(counts[token]) if token < len(counts) else 0
        index = -1 if count == 0 else math.floor(frequency.BINS_PER_DECADE * math.log10(count))
        bins.setdefault(index, []).append((count, length))
    curve = norm_frequency_curve(lengths, counts)
    assert curve["n_tokens"] == [len(bins[index]) for index in sorted(bins)]
    assert sum(curve["n_tokens"]) == 210
    for place, index in enumerate(sorted(bins)):
        norms = [length for _, length in bins[index]]
        mean = math.fsum(norms) / len(norms)
        assert curve["mean_norm"][place] == pytest.approx(mean, rel=1e-12)
        sd = math.sqrt(math.fsum((norm - mean) ** 2 for norm in norms) / len(norms))
        assert curve["sd_norm"][place] == pytest.approx(sd, rel=1e-9, abs=1e-15)
        if index >= 0:
            geometric = math.exp(
                math.fsum(math.log(count) for count, _ in bins[index]) / len(norms)
            )
            assert curve["count"][place] == pytest.approx(geometric, rel=1e-12)
    assert curve["count"][0] == 0.0
    assert curve["count"] == sorted(curve["count"])


def test_one_token():
    assert norm_frequency_curve(np.array([2.0]), np.array([10])) == {
        "count": [pytest.approx(10.0)],
        "mean_norm": [2.0],
        "sd_norm": [0.0],
        "n_tokens": [1],
    }
