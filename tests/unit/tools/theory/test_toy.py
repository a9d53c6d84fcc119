import numpy as np

from coupled_adam_bench.tools.theory.figures import toy


def test_only_adam_moves_the_mean():
    drawn = toy()
    assert list(drawn.updates) == list(drawn.sums) == ["SGD", "Adam", "Coupled Adam"]
    for name, updates in drawn.updates.items():
        np.testing.assert_allclose(drawn.sums[name], updates.sum(axis=0))
        np.testing.assert_allclose(np.linalg.norm(updates, axis=1).mean(), 1)
    assert np.linalg.norm(drawn.sums["SGD"]) < 1e-14
    assert np.linalg.norm(drawn.sums["Coupled Adam"]) < 1e-14
    assert np.linalg.norm(drawn.sums["Adam"]) > 0.5
    assert (
        drawn.sums["Adam"] @ drawn.hidden_2 < 0
    )  # away from the hidden state: rare tokens move too far
    np.testing.assert_allclose(drawn.embeddings_V2.sum(axis=0), 0, atol=1e-15)


def test_moments_are_those_of_drawn_targets():
    drawn = toy()
    logits = drawn.embeddings_V2 @ drawn.hidden_2
    softmax = np.exp(logits) / np.exp(logits).sum()
    targets = np.random.default_rng(0).choice(4, size=400_000, p=drawn.probabilities_V)
    gradients = (
        -(np.eye(4)[targets] - softmax)[:, :, None] * drawn.hidden_2
    )  # targets, tokens, coordinates
    update = -gradients.mean(axis=0) / np.sqrt((gradients**2).mean(axis=(0, 2)))[:, None]
    update /= np.linalg.norm(update, axis=1).mean()
    np.testing.assert_allclose(drawn.updates["Adam"], update, atol=0.01)
    plain = -gradients.mean(axis=0)
    np.testing.assert_allclose(
        drawn.updates["SGD"], plain / np.linalg.norm(plain, axis=1).mean(), atol=0.01
    )
