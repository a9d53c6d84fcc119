"""The test loss against direct sums over windows."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from coupled_adam_bench.evaluation.test_loss import batches, losses, window_starts
from coupled_adam_bench.geometry.frequency import bands_of_tokens
from coupled_adam_bench.models.base import LanguageModel
from coupled_adam_bench.models.build import build_model
from coupled_adam_bench.study.catalogue.bands import BAND_SHARES, BANDS
from coupled_adam_bench.study.evaluation import TestLoss as Settings
from coupled_adam_bench.study.model import Model

T, V = 12, 40


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    settings = Model(name="small", n_layer=1, n_head=2, d_model=8, learning_rate=0.1)
    built = build_model(settings, V, T)
    built.init_weights(0, 0.5)
    return built.eval()


def tokens(n: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).zipf(1.3, size=n).clip(max=V - 4).astype(np.uint16)


def token_losses(model: LanguageModel, window: np.ndarray) -> np.ndarray:
    """The cross-entropy of each target of one window, from its logits."""
    inputs, targets = (
        torch.from_numpy(part.astype(np.int64)) for part in (window[:-1], window[1:])
    )
    with torch.no_grad():
        logits_TV = model.hidden(inputs[None])[0] @ model.head_weight.T
    return F.cross_entropy(logits_TV.double(), targets, reduction="none").numpy()


# 97 = 8 windows of 12 targets and their first token; others leave a shorter last window.
@pytest.mark.parametrize("n", [97, 96, 92, 8])
@pytest.mark.parametrize("at_once", [1, 3, 100])
def test_loss_and_bands_are_sums_over_all_windows(
    model: LanguageModel, n: int, at_once: int
) -> None:
    text, counts_V = tokens(n, n), np.bincount(tokens(400, 7), minlength=V)
    starts = window_starts(n, T, Settings(), 12, seed=1)
    found = losses(model, batches(text, starts, T, at_once), counts_V, bf16=True)
    windows = [text[start : start + T + 1] for start in range(0, n - 1, T)]
    losses_N = np.concatenate([token_losses(model, window) for window in windows])
    assert len(losses_N) == n - 1
    assert found["loss"] == pytest.approx(losses_N.mean(), rel=1e-6)
    bands_N = bands_of_tokens(counts_V, BAND_SHARES)[text[1:]]
    for number, band in enumerate(BANDS, 1):
        of_band = losses_N[bands_N == number]
        if len(of_band):
            assert found[band.metric] == pytest.approx(of_band.mean(), rel=1e-6)
        else:
            assert math.isnan(found[band.metric])


def test_random_windows_are_nanogpts(model: LanguageModel) -> None:
    n, chosen = 300, Settings(windows="random", n_batches=5)
    starts = window_starts(n, T, chosen, 4, seed=3)
    torch.manual_seed(3)
    theirs = [torch.randint(n - T, (4,)) for _ in range(5)]  # get_batch of nanoGPT's train.py [C]
    assert starts.tolist() == torch.cat(theirs).tolist()
    text, counts_V = tokens(n, 1), np.ones(V, np.int64)
    found = losses(model, batches(text, starts, T, 3), counts_V)
    expected = np.mean([token_losses(model, text[start : start + T + 1]) for start in starts])
    assert found["loss"] == pytest.approx(expected, rel=1e-6)
