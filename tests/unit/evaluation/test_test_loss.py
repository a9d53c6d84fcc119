import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coupled_adam_bench import paths
from coupled_adam_bench.evaluation.test_loss import mean_loss, open_evaluator, windows
from coupled_adam_bench.models.export import load_model


@settings(deadline=None)
@given(st.integers(2, 60), st.integers(1, 9), st.integers(1, 5))
def test_each_token_but_the_first_is_a_target_once(n_tokens, seq_len, batch_sequences):
    tokens = np.arange(100, 100 + n_tokens, dtype=np.uint16)
    batches = list(windows(tokens, seq_len, batch_sequences))
    targets = np.concatenate([targets.ravel() for _, targets in batches])
    np.testing.assert_array_equal(targets, tokens[1:])
    for inputs, targets in batches:
        np.testing.assert_array_equal(inputs + 1, targets)
        assert inputs.dtype == targets.dtype == np.int64
        assert 1 <= inputs.shape[0] <= batch_sequences and 1 <= inputs.shape[1] <= seq_len
    assert all(inputs.shape[1] == seq_len for inputs, _ in batches[:-1])


def loss_in_plain_words(model, tokens: np.ndarray) -> float:
    """Each token from its logits in float64, its context cut at multiples of the sequence length."""
    losses = []
    for position in range(1, len(tokens)):
        start = (position - 1) // model.seq_len * model.seq_len
        context = torch.tensor(tokens[start:position].astype(np.int64))[None]
        with torch.no_grad():
            logits = model.double().logits(context)[0, -1].tolist()
        largest = max(logits)
        log_z = largest + math.log(math.fsum(math.exp(x - largest) for x in logits))
        losses.append(log_z - logits[int(tokens[position])])
    return math.fsum(losses) / len(losses)


@pytest.mark.parametrize("n_tokens", [2, 40, 41, 42, 175])  # shorter than, as long as and longer than windows of 40
def test_against_the_definition_for_any_batch_size(plan, n_tokens):
    model = load_model(paths.run_dir(next(iter(plan.cells))) / "model")
    tokens = np.random.default_rng(0).integers(0, 121, n_tokens).astype(np.uint16)
    found = {size: mean_loss(model, tokens, size, "cpu") for size in (1, 2, 3, 16)}
    expected = loss_in_plain_words(model, tokens)
    for loss, n_predicted in found.values():
        assert loss == pytest.approx(expected, rel=1e-6)
        assert n_predicted == n_tokens - 1


def test_a_single_token_cannot_be_predicted(plan):
    model = load_model(paths.run_dir(next(iter(plan.cells))) / "model")
    with pytest.raises(ValueError, match=r"1 token\(s\).*data\.split\.test_fraction"):
        mean_loss(model, np.zeros(1, dtype=np.uint16), 4, "cpu")


def test_evaluator_reads_the_test_split(plan):
    cell_id, cell = next(iter(plan.cells.items()))
    folder = paths.run_dir(cell_id) / "model"
    tokens = np.fromfile(paths.data_dir(plan.data_id) / "test.bin", dtype="<u2")
    with open_evaluator(plan, "auto") as evaluate:
        found = evaluate(cell, folder)
    loss, _ = mean_loss(load_model(folder), tokens, 7, "cpu")
    assert found.results == [
        {"task": "test", "metric": "loss", "value": pytest.approx(loss, rel=1e-6), "unit": "nat/token"}
    ]
    assert found.detail["n_predicted_tokens"] == 499
