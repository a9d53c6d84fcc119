"""The two sides of a gradient: against autograd on an untied copy with the same weights."""

import numpy as np
import pytest
import torch
from torch import Tensor

from coupled_adam_bench.models.base import LanguageModel
from coupled_adam_bench.models.build import build_model
from coupled_adam_bench.study.config import Model
from coupled_adam_bench.tools.theory.gradients import (
    mean_square,
    relative_sum,
    side_gradients,
    whole_gradients,
)

VOCAB_SIZE, SEQ_LEN = 23, 6


def make_model(architecture: str, tied: bool) -> LanguageModel:
    """Return a model in float64, far from its initialisation."""
    config = Model(
        name="m",
        architecture=architecture,
        n_layer=2,
        n_head=2,
        d_model=8,
        tied=tied,
        learning_rate=1,
    )
    model = build_model(config, VOCAB_SIZE, SEQ_LEN)
    model.init_weights(3, 0.5)
    return model.double()


def batch(seed: int = 0, sequences: int = 5) -> tuple[Tensor, Tensor]:
    windows = torch.randint(
        VOCAB_SIZE, (sequences, SEQ_LEN + 1), generator=torch.Generator().manual_seed(seed)
    )
    return windows[:, :-1], windows[:, 1:]


def gradients(model: LanguageModel, found: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
    """Return autograd's gradients of the mean cross-entropy from the whole logits."""
    names, parameters = zip(*model.named_parameters(), strict=True)
    loss = torch.nn.functional.cross_entropy(
        model.logits(found[0]).flatten(0, 1), found[1].flatten()
    )
    return dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))


@pytest.mark.parametrize("architecture", ["gpt2", "stablelm"])
def test_the_sides_of_a_tied_model_are_the_gradients_of_its_untied_copy(architecture):
    tied, untied = make_model(architecture, True), make_model(architecture, False)
    untied.load_state_dict(tied.state_dict() | {"head.weight": tied.embedding.weight.detach()})
    expected = gradients(untied, batch())
    whole = gradients(tied, batch())["embedding.weight"]
    for model in (tied, untied):
        sides = side_gradients(model, batch(), micro_batch_sequences=5)
        torch.testing.assert_close(
            sides.input, expected["embedding.weight"], rtol=1e-10, atol=1e-14
        )
        torch.testing.assert_close(sides.output, expected["head.weight"], rtol=1e-10, atol=1e-14)
        torch.testing.assert_close(sides.input + sides.output, whole, rtol=1e-10, atol=1e-14)
        assert model.embedding.weight.grad is None


def test_micro_batches_change_nothing():
    model = make_model("gpt2", True)
    whole = side_gradients(model, batch(), 5)
    for size in (1, 2, 3, 100):
        sides = side_gradients(model, batch(), size)
        torch.testing.assert_close(sides.input, whole.input, rtol=1e-12, atol=1e-15)
        torch.testing.assert_close(sides.output, whole.output, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("tied", [True, False])
def test_the_output_s_gradients_sum_to_zero_and_the_input_s_do_not(tied):
    model = make_model("gpt2", tied)
    exact = side_gradients(model, batch(), 5)
    assert relative_sum(exact.output) < 1e-15
    assert relative_sum(exact.input) > 0.01
    single = side_gradients(model.float(), batch(), 5)
    assert 1e-10 < relative_sum(single.output) < 1e-6
    rounded = side_gradients(model, batch(), 5, bf16=True)
    assert relative_sum(single.output) < relative_sum(rounded.output) < 0.05


def test_relative_sum_by_hand():
    assert relative_sum(torch.tensor([[3.0, 0.0], [-3.0, 0.0]])) == 0
    assert relative_sum(torch.tensor([[3.0, 4.0], [6.0, 8.0]])) == 1
    assert relative_sum(torch.tensor([[3.0, 0.0], [0.0, 4.0]])) == pytest.approx(5 / 7)


@pytest.mark.parametrize("tied", [True, False])
def test_mean_square_is_that_of_the_gradient_which_the_optimizer_sees(tied):
    model = make_model("gpt2", tied)
    found = [batch(seed) for seed in range(3)]
    matrix = "embedding.weight" if tied else "head.weight"
    expected = np.mean([gradients(model, one)[matrix].numpy() ** 2 for one in found], axis=(0, 2))
    squares = mean_square(whole_gradients(model, found, 2, bf16=False))
    assert squares.shape == (VOCAB_SIZE,)
    np.testing.assert_allclose(squares, expected, rtol=1e-10)
