"""The frequency bands of ``catalog/bands.py`` in a vocabulary, and the loss of each.

V: tokens of the vocabulary    K: bands, the tokens that were never seen first
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coupled_adam_bench.catalog.bands import BANDS, NEVER_SEEN
from coupled_adam_bench.evaluation.calibration import Calibration

NAMES = (NEVER_SEEN, *(band.name for band in BANDS))
"""Names of the bands by their number."""


def bands_of_tokens(counts_V: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the number of each token's band, shape (V,), given its count in the training text: 0 if it is not in it.

    A token lies at the share of the training text that rarer tokens are, plus half the share of those that are as
    frequent as itself: so equally frequent tokens are in one band. ``ValueError`` if the counts are none.
    """
    total = int(counts_V.sum())
    if total == 0:
        raise ValueError("unigram_counts: all counts are 0; prepare the data again")
    counts, of_token_V, n_tokens = np.unique(counts_V, return_inverse=True, return_counts=True)
    mass = counts * n_tokens
    places = (np.cumsum(mass) - mass / 2) / total
    numbers = 1 + np.searchsorted([band.share for band in BANDS], places)
    numbers[counts == 0] = 0
    bands_V: NDArray[np.int64] = numbers[of_token_V]
    return bands_V


class BandLosses:
    """Losses by the band of the target."""

    def __init__(self, bands_V: NDArray[np.int64]) -> None:
        self._bands_V = bands_V
        self._sums: list[NDArray[np.float64]] = []
        self._counts_K = np.zeros(len(NAMES), dtype=np.int64)

    def add(self, targets_BT: NDArray[np.int64], losses_BT: NDArray[np.float64]) -> None:
        """Add targets and their losses, both of shape (B, T)."""
        bands = self._bands_V[targets_BT].ravel()
        self._counts_K += np.bincount(bands, minlength=len(NAMES))
        self._sums.append(np.asarray(np.bincount(bands, losses_BT.ravel(), len(NAMES)), dtype=np.float64))

    @property
    def n_targets(self) -> dict[str, int]:
        """The number of targets by the name of the band."""
        return dict(zip(NAMES, self._counts_K.tolist(), strict=True))

    def means(self) -> dict[str, float]:
        """Return the mean loss by the name of the band; NaN for a band without a target."""
        totals_K = np.sum(self._sums, axis=0).tolist()
        return {
            name: total / count if count else math.nan
            for (name, count), total in zip(self.n_targets.items(), totals_K, strict=True)
        }

    def to_json(self, counts_V: NDArray[np.int64], calibrations: Mapping[str, Calibration]) -> list[dict[str, Any]]:
        """Return for each band its tokens, the range of their counts in training, its targets, loss and calibration.

        What is not finite is None.
        """
        described = []
        for number, (name, loss) in enumerate(self.means().items()):
            counts, found = counts_V[self._bands_V == number], calibrations[name]
            values = {
                "loss": loss if self.n_targets[name] else math.nan,
                "calibration": found.mean_log_ratio,
                "pooled_calibration": found.pooled_log_ratio,
            }
            described.append(
                {
                    "band": name,
                    "tokens": len(counts),
                    "training_counts": [int(counts.min()), int(counts.max())] if len(counts) else None,
                    "targets": self.n_targets[name],
                    "occurring_tokens": found.n_occurring,
                }
                | {key: value if math.isfinite(value) else None for key, value in values.items()}
            )
        return described
