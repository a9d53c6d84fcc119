"""Logits and calibration of held-out tokens, against slow formulas of their own."""

import math
from collections import Counter

import numpy as np
import pytest
import torch
from coupled_adam_bench.study.catalogue.bands import BAND_NAMES, BAND_SHARES, BANDS, RAREST
from hypothesis import given, settings
from hypothesis import strategies as st

from coupled_adam_bench.evaluation.calibration import (
    LogitSums,
    calibration,
    calibration_curve,
    pooled_error,
)
from coupled_adam_bench.evaluation.held_out_loss import all_starts, mean_loss, windows_at
from coupled_adam_bench.evaluation.stage import run_stage
from coupled_adam_bench.models.cross_entropy import token_cross_entropy
from coupled_adam_bench.models.export import load_model
from coupled_adam_bench.records.stored import measurement_of
from coupled_adam_bench.store import paths
from coupled_adam_bench.study.catalogue.metrics import of_text
from coupled_adam_bench.study.catalogue.stages import STAGES
from embedding_geometry.frequency import bands_of_tokens, frequency_bins

EVERY = np.ones(4, dtype=bool)


@settings(max_examples=30)
@given(
    st.integers(0, 2**32), st.sampled_from([0.0, -40.0, 1e4]), st.sampled_from([1e-3, 1.0, 30.0])
)
def test_logits_against_their_definition_in_any_chunks(seed, shift, scale):
    rng = np.random.default_rng(seed)
    logits = (shift + scale * rng.normal(size=(rng.integers(1, 30), rng.integers(1, 12)))).astype(
        np.float32
    )
    exact = logits.astype(np.float64)
    log_z = np.logaddexp.reduce(exact, axis=1)
    sums = LogitSums()
    before = logits.copy()
    for chunk in np.array_split(logits, rng.integers(1, len(logits) + 1)):
        sums.add(torch.from_numpy(chunk))
    np.testing.assert_array_equal(logits, before)
    found, probability = sums.statistics()
    size = max(abs(shift), scale)
    assert found["logit_mean"] == pytest.approx(exact.mean(), rel=1e-6, abs=1e-6 * size)
    assert found["logit_sd"] == pytest.approx(exact.std(), rel=1e-5, abs=1e-6 * size)
    assert found["logit_max"] == np.abs(exact).max()
    assert found["log_z_squared"] == pytest.approx((log_z**2).mean(), rel=1e-6, abs=1e-6)
    expected = np.exp(exact - log_z[:, None]).mean(axis=0)
    np.testing.assert_allclose(probability, expected, rtol=1e-3 if size > 1e3 else 1e-5, atol=1e-30)
    assert probability.sum() == pytest.approx(1.0, rel=1e-6)
    sums.add(torch.full((1, logits.shape[1]), math.nan))
    assert all(math.isnan(value) for value in sums.statistics()[0].values())


@pytest.mark.parametrize("autocast", [False, True])
def test_the_probability_of_chosen_rows_is_kept_for_each_token_until_it_is_taken(autocast):
    rng = np.random.default_rng(2)
    logits, chosen = rng.normal(size=(20, 300)).astype(np.float32), rng.random(300) < 0.5
    expected = np.exp(
        logits.astype(float) - np.logaddexp.reduce(logits.astype(float), axis=1)[:, None]
    )
    sums = LogitSums(chosen)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        for first, last in ((0, 7), (7, 20)):
            sums.add(torch.from_numpy(logits[first:last]))
    found = sums.take_masses()
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, expected[:, chosen].sum(axis=1), rtol=1e-6)
    sums.add(torch.from_numpy(logits[:2]))
    np.testing.assert_allclose(sums.take_masses(), found[:2], rtol=1e-6)


def test_the_pass_of_the_loss_shows_the_logits_once(monkeypatch):
    from coupled_adam_bench.models import cross_entropy

    monkeypatch.setitem(cross_entropy.LOGITS_CHUNK, "cpu", 3)
    torch.manual_seed(0)
    hidden, weight = torch.randn(7, 2).bfloat16(), torch.randn(5, 2).bfloat16()
    targets = torch.tensor([0, 1, -100, 3, 4, 0, 1])
    chunks: list[torch.Tensor] = []
    losses = token_cross_entropy(
        hidden, weight, targets, lambda logits: chunks.append(logits.clone())
    )
    assert torch.equal(losses, token_cross_entropy(hidden, weight, targets))
    assert [len(chunk) for chunk in chunks] == [3, 3, 1]
    logits = torch.cat(chunks)
    assert logits.dtype == torch.float32
    kept = targets != -100
    torch.testing.assert_close(
        losses[kept],
        torch.logsumexp(logits, 1)[kept] - logits[kept].gather(1, targets[kept, None])[:, 0],
    )


def test_calibration_by_hand():
    # Of ten targets, token 0 is six, token 1 is four; tokens 2 and 3 are none.
    counts = np.array([6, 4, 0, 0])
    predicted = np.array([0.3, 0.4, 0.2, 0.1])
    found = calibration(predicted, counts, EVERY)
    assert (found.n_tokens, found.n_occurring) == (4, 2)
    assert found.mean_log_ratio == pytest.approx((math.log(0.5) + math.log(1.0)) / 2)
    assert found.pooled_log_ratio == pytest.approx(
        0.0, abs=1e-15
    )  # all of the probability on all of the text
    alone = calibration(predicted, counts, np.array([True, False, True, False]))
    assert alone.mean_log_ratio == pytest.approx(math.log(0.5))
    assert alone.pooled_log_ratio == pytest.approx(math.log(0.5 / 0.6))


def test_tokens_that_do_not_occur_or_have_no_probability():
    counts = np.array([6, 4, 0, 0])
    none = calibration(np.full(4, 0.25), counts, np.array([False, False, True, True]))
    assert (none.n_tokens, none.n_occurring) == (2, 0)
    assert math.isnan(none.mean_log_ratio) and math.isnan(none.pooled_log_ratio)
    zero = calibration(np.array([0.0, 0.5, 0.5, 0.0]), counts, EVERY)
    assert zero.mean_log_ratio == -math.inf
    assert zero.pooled_log_ratio == pytest.approx(0.0)


def test_the_error_over_documents_by_hand_and_where_there_is_none():
    # Pieces of documents 4 and 9: probabilities 1 + 2 and 3, targets 2 and 2; without either 3 / 2
    # each, whole 6 / 4.
    assert (
        pooled_error(np.array([4, 9, 4]), np.array([1.0, 3.0, 2.0]), np.array([2.0, 2.0, 0.0]))
        == 0.0
    )
    # Without one of the two: log 2 and log 1/2, and log(5 / 4) of both.
    two = pooled_error(np.array([0, 1]), np.array([1.0, 4.0]), np.array([2.0, 2.0]))
    assert two == pytest.approx(
        math.sqrt((math.log(2 / 1.25) ** 2 + math.log(0.5 / 1.25) ** 2) / 2)
    )
    one = np.array([1.0, 2.0])
    assert math.isnan(pooled_error(np.array([0, 1]), one, np.array([0.0, 3.0])))
    assert math.isnan(pooled_error(np.array([5, 5]), one, one))
    assert math.isnan(pooled_error(np.array([0, 1]), 0 * one, one))


def test_the_curve_has_the_calibration_of_each_bin_of_the_training_counts():
    rng = np.random.default_rng(1)
    training = np.concatenate([[0, 0, 1, 1], rng.integers(1, 10**6, 60)])
    counts, predicted = rng.integers(0, 3, 64), rng.dirichlet(np.ones(64))
    counts[:2] = 0
    curve = calibration_curve(predicted, counts, training)
    bins = list(frequency_bins(training))
    assert curve["count"] == [count for count, _ in bins] == sorted(curve["count"])
    assert curve["n_tokens"] == [int(chosen.sum()) for _, chosen in bins]
    assert sum(curve["n_tokens"]) == 64
    assert (curve["count"][0], curve["mean_log_ratio"][0], curve["pooled_log_ratio"][0]) == (
        0.0,
        None,
        None,
    )
    for place, (_, chosen) in list(enumerate(bins))[1:]:
        found = calibration(predicted, counts, chosen)
        if found.n_occurring:
            assert curve["mean_log_ratio"][place] == found.mean_log_ratio
            assert curve["pooled_log_ratio"][place] == found.pooled_log_ratio


def test_a_measured_cell_against_its_definition(part):
    """Each probability from the logits in float64, token by token; the pass leaves the loss as it
    is."""
    cell_id = next(iter(part.cells))
    assert run_stage(STAGES["test_loss"], part.of([cell_id]), paths.RUNS / "done") == 0
    record = measurement_of(STAGES["test_loss"], part.study, part.data_id).read(cell_id)
    values = {found["metric"]: found["value"] for found in record["results"]}
    tokens = np.fromfile(paths.data_dir(part.data_id) / "test.bin", dtype="<u2").astype(np.int64)
    model = load_model(paths.run_dir(cell_id) / "model")
    assert (
        values["loss"]
        == mean_loss(model, windows_at(tokens, all_starts(500, 40), 40, 8), "cpu", False)[0]
    )
    model = model.double()
    with torch.no_grad():
        inputs = [inputs for inputs, _ in windows_at(tokens, all_starts(500, 40), 40, 1)]
        logits = torch.cat([model.logits(torch.from_numpy(window))[0] for window in inputs]).numpy()
    log_z = np.logaddexp.reduce(logits, axis=1)
    probability = np.exp(logits - log_z[:, None]).mean(axis=0)
    assert values["logit_mean"] == pytest.approx(logits.mean(), rel=1e-5)
    assert values["logit_sd"] == pytest.approx(logits.std(), rel=1e-5)
    assert values["logit_max"] == pytest.approx(np.abs(logits).max(), rel=1e-5)
    assert values["log_z_squared"] == pytest.approx((log_z**2).mean(), rel=1e-5)
    rarest = bands_of_tokens(np.bincount(tokens, minlength=128), BAND_SHARES) == BAND_NAMES.index(
        RAREST.name
    )
    mass = np.exp(logits - log_z[:, None])[:, rarest].sum(axis=1)
    documents = np.cumsum(tokens[:-1] == 120)
    error = pooled_error(documents, mass, rarest[tokens[1:]].astype(float))
    assert error > 0
    assert values["pooled_calibration_rarest_stderr"] == pytest.approx(error, rel=1e-4)
    counts = Counter(tokens[1:].tolist())
    training = np.bincount(tokens, minlength=128)
    order = np.argsort(training, kind="stable")
    places = {}
    for token in order[training[order] > 0]:
        rarer, equal = (
            training[training < training[token]].sum(),
            training[training == training[token]].sum(),
        )
        places[int(token)] = (rarer + equal / 2) / training.sum()
    low = 0.0
    for band, described in zip(BANDS, record["bands"][1:], strict=True):
        inside = [token for token, place in places.items() if low < place <= band.share]
        low = band.share
        ratios = [
            math.log(probability[token] / (counts[token] / 499))
            for token in inside
            if counts[token]
        ]
        assert described["occurring_tokens"] == len(ratios)
        if not ratios:
            assert math.isnan(values[band.calibration])
            continue
        assert (
            values[band.calibration]
            == described["calibration"]
            == pytest.approx(np.mean(ratios), rel=1e-5)
        )
        share = sum(counts[token] for token in inside) / 499
        pooled = math.log(probability[inside].sum() / share)
        assert (
            values[band.pooled_calibration]
            == described["pooled_calibration"]
            == pytest.approx(pooled, abs=1e-6)
        )
        frequency = training / training.sum()
        ratios = [
            math.log(frequency[token] / (counts[token] / 499)) for token in inside if counts[token]
        ]
        assert values[of_text(band.calibration)] == pytest.approx(np.mean(ratios))
        assert values[of_text(band.pooled_calibration)] == pytest.approx(
            math.log(frequency[inside].sum() / share)
        )
    curve = record["calibration"]
    assert curve["n_tokens"][0] == int((training == 0).sum())
    assert sum(curve["n_occurring"]) == len(counts)
