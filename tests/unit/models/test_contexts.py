"""The head without a transformer: its contexts, and its loss against the plain cross-entropy over
all tokens."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.unit.models.conftest import VOCAB_SIZE
from torch.nn import functional as F

from coupled_adam_bench.evaluation.calibration import LogitSums
from coupled_adam_bench.models.build import build_model
from coupled_adam_bench.models.contexts import contexts_of_tokens, most_frequent
from coupled_adam_bench.models.cross_entropy import IGNORED, cap
from coupled_adam_bench.models.export import load_model, model_card, save_model
from coupled_adam_bench.study.settings import Model

COUNTS = np.random.default_rng(0).permutation(VOCAB_SIZE)


@pytest.fixture
def settings(tied) -> Model:
    return Model(
        name="c", architecture="contexts", n_contexts=8, d_model=6, tied=tied, learning_rate=1
    )


@pytest.fixture
def make_model(settings):
    def make(soft_cap=None):
        model = build_model(settings, VOCAB_SIZE, 16, soft_cap, COUNTS)
        model.init_weights(0, 0.5)
        return model

    return make


@pytest.fixture
def targets(tokens):
    targets = tokens.roll(-1, 1).clone()
    targets[0, :5] = IGNORED
    return targets


def plain(model, tokens, targets, z_loss):
    """What is minimized, and the cross-entropy, with a row of logits for each token and torch's own
    functions."""
    logits = cap(model.hidden(tokens).flatten(0, 1) @ model.head_weight.T, model.soft_cap)
    targets = targets.flatten()
    loss = F.cross_entropy(logits, targets, reduction="sum", ignore_index=IGNORED)
    return loss + z_loss * (logits.logsumexp(1) ** 2)[targets != IGNORED].sum(), loss


@pytest.mark.parametrize(("z_loss", "soft_cap"), [(0.0, None), (0.3, None), (0.0, 2.0), (0.3, 2.0)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 3e-5)])
def test_loss_and_gradients_are_those_of_the_plain_cross_entropy(
    z_loss, soft_cap, dtype, tolerance, make_model, tokens, targets
):
    ours, theirs = make_model(soft_cap).to(dtype), make_model(soft_cap).double()
    found = ours(tokens, targets, reduction="objective", z_loss=z_loss)
    expected = plain(theirs, tokens, targets, z_loss)
    for mine, other in zip(found, expected, strict=True):
        torch.testing.assert_close(mine.double(), other, rtol=tolerance, atol=0)
    (found[0] / 59).backward()
    (expected[0] / 59).backward()
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine.grad.double(), other.grad, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("soft_cap", [None, 2.0])
def test_losses_and_logits_of_single_tokens(soft_cap, make_model, tokens, targets):
    model, rarest = make_model(soft_cap).double(), COUNTS < 20
    by_context, by_token = LogitSums(rarest), LogitSums(rarest)
    losses = model(tokens, targets, reduction="none", observe=by_context.add)
    logits = model.logits(tokens).flatten(0, 1).detach()
    by_token.add(logits)
    expected = F.cross_entropy(logits, targets.flatten(), reduction="none", ignore_index=IGNORED)
    torch.testing.assert_close(losses.flatten(), expected)
    np.testing.assert_allclose(by_context.take_masses(), by_token.take_masses())
    (found, probability), (expected, expected_probability) = (
        by_context.statistics(),
        by_token.statistics(),
    )
    np.testing.assert_allclose(probability, expected_probability)
    assert found == pytest.approx(expected)


def test_frequent_tokens_have_their_own_context_and_the_others_share():
    frequent = most_frequent(np.array([5, 9, 9, 0, 7]), 4)
    assert frequent == [1, 2, 4, 0]
    assert most_frequent(np.array([3, 4]), 4) == [
        1,
        0,
        2,
        3,
    ]  # padding of the vocabulary has no count
    assert contexts_of_tokens(frequent, 7).tolist() == [3, 0, 1, 3, 2, 3, 3]
    # Own: 6, 5, 4, 3, 2, 1. The others, 0, 7, 8 and 9, take turns.
    assert contexts_of_tokens([6, 5, 4, 3, 2, 1, 0, 7], 10).tolist() == [
        6,
        5,
        4,
        3,
        2,
        1,
        0,
        7,
        6,
        7,
    ]


def test_tied_contexts_are_made_of_rows_of_the_head(make_model, tied):
    model = make_model()
    names = {name for name, _ in model.named_parameters()}
    assert names == {"embedding.weight", "ln_f.weight", "map.weight" if tied else "contexts.weight"}
    rows = (
        model.embedding.weight[model.frequent_tokens] @ model.map.weight.T
        if tied
        else model.contexts.weight
    )
    torch.testing.assert_close(model.vectors(), rows)
    assert [id(p) for p in model.embedding_parameters()] == [id(model.embedding.weight)]


def test_the_parameters_are_counted(make_model, settings):
    assert sum(p.numel() for p in make_model().parameters()) == settings.n_params(VOCAB_SIZE, 16)
    assert not settings.has_own_head


def test_a_model_comes_back_as_it_was_saved(
    make_model, tokens, tmp_path, tokenizer_folder, tiny_plan, settings
):
    model = make_model()
    cell = replace(next(iter(tiny_plan.cells.values())), model=settings)
    save_model(model, tmp_path / "model", tokenizer_folder, eot_id=5, cell=cell)
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["frequent_tokens"] == most_frequent(COUNTS, 8)
    again = load_model(tmp_path / "model")
    with torch.no_grad():
        assert torch.equal(again.logits(tokens), model.logits(tokens))
    assert "transformers has no such model" in model_card(cell)
