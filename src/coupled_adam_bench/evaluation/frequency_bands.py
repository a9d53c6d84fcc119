"""The loss of each frequency band of ``catalog/bands.py``.

V: tokens of the vocabulary    K: bands, the tokens that were never seen first
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coupled_adam_bench.evaluation.calibration import Calibration
from coupled_adam_bench.study.catalog.bands import BAND_NAMES


class BandLosses:
    """Losses by the band of the target."""

    def __init__(self, bands_V: NDArray[np.int64]) -> None:
        self._bands_V = bands_V
        self._sums: list[NDArray[np.float64]] = []
        self._counts_K = np.zeros(len(BAND_NAMES), dtype=np.int64)

    def add(self, targets_BT: NDArray[np.int64], losses_BT: NDArray[np.float64]) -> None:
        """Add targets and their losses, both of shape (B, T)."""
        bands = self._bands_V[targets_BT].ravel()
        self._counts_K += np.bincount(bands, minlength=len(BAND_NAMES))
        self._sums.append(np.asarray(np.bincount(bands, losses_BT.ravel(), len(BAND_NAMES)), dtype=np.float64))

    @property
    def n_targets(self) -> dict[str, int]:
        """The number of targets by the name of the band."""
        return dict(zip(BAND_NAMES, self._counts_K.tolist(), strict=True))

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
