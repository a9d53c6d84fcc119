import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from coupled_adam_bench.config import AdamW, CoupledAdam, Sgd, Training
from coupled_adam_bench.models.gpt2 import GPT2
from coupled_adam_bench.optim.registry import build_optimizers
from coupled_adam_bench.optim.schedule import learning_rate_factor

TRAINING = Training(seq_len=4, batch_sequences=2, warmup_steps=10)
PEAK = 1e-2


def build(optimizer, training=TRAINING):
    model = GPT2(17, 4, 2, 2, 8, d_ffn=32, tied=True)
    model.init_weights(0, 0.02)
    return model, build_optimizers(model, model.embedding_parameters(), optimizer, training, PEAK)


@pytest.mark.parametrize(
    "optimizer",
    [AdamW(name="adamw"), CoupledAdam(name="coupled_adam"), Sgd(name="sgd", lr_factor=100)],
    ids=lambda optimizer: optimizer.key,
)
def test_every_parameter_is_in_one_optimizer_and_decays_as_it_should(optimizer):
    model, optimizers = build(optimizer)
    decay = {}
    for part in (optimizers.core, optimizers.embedding):
        for group in part.param_groups:
            for parameter in group["params"]:
                assert parameter not in decay
                decay[parameter] = group["weight_decay"]
    expected = {
        name: 0.0 if name == "embedding.weight" or parameter.ndim < 2 else 0.1
        for name, parameter in model.named_parameters()
    }
    assert {name: decay[parameter] for name, parameter in model.named_parameters()} == expected
    assert expected["positions.weight"] == 0.1  # [C]: the position embedding decays


def test_learning_rates_follow_the_factor():
    _, optimizers = build(Sgd(name="sgd", lr_factor=300))
    optimizers.set_lr(0.5)
    assert optimizers.core.param_groups[0]["lr"] == 0.5 * PEAK
    assert optimizers.embedding.param_groups[0]["lr"] == 0.5 * 300 * PEAK


def test_scale_exponent_n_is_a_factor_of_two_to_minus_n():
    _, optimizers = build(CoupledAdam(name="coupled_adam", scale_exponent=3))
    assert optimizers.embedding.param_groups[0]["scale"] == 1 / 8


def test_sgd_on_the_embedding_is_algorithm_2():
    # m <- 0.9 m + g, E <- E - f lr m, without dampening and Nesterov.
    model, optimizers = build(Sgd(name="sgd", lr_factor=100))
    weight, momentum = model.embedding.weight.detach().double().numpy().copy(), np.zeros((17, 8))
    generator = np.random.default_rng(0)
    for step in range(20):
        grad = generator.normal(size=(17, 8))
        model.embedding.weight.grad = torch.tensor(grad, dtype=torch.float32)
        factor = learning_rate_factor(step, 20, TRAINING)
        optimizers.set_lr(factor)
        optimizers.embedding.step()
        momentum = 0.9 * momentum + grad
        weight -= 100 * factor * PEAK * momentum
    np.testing.assert_allclose(model.embedding.weight.detach().numpy(), weight, rtol=1e-5, atol=1e-5)


def test_adamw_on_the_embedding_is_the_textbook_formula():
    training = TRAINING.model_copy(update={"embedding_weight_decay": 0.1})
    model, optimizers = build(AdamW(name="adamw"), training)
    weight = model.embedding.weight.detach().double().numpy().copy()
    first, second = np.zeros((17, 8)), np.zeros((17, 8))
    generator = np.random.default_rng(0)
    for step in range(1, 21):
        grad = generator.normal(size=(17, 8))
        model.embedding.weight.grad = torch.tensor(grad, dtype=torch.float32)
        optimizers.embedding.step()
        first, second = 0.9 * first + 0.1 * grad, 0.95 * second + 0.05 * grad**2
        weight -= PEAK * 0.1 * weight
        weight -= PEAK * (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.95**step)) + 1e-8)
    np.testing.assert_allclose(model.embedding.weight.detach().numpy(), weight, rtol=1e-4, atol=1e-6)


def test_schedule_warms_up_linearly_and_ends_at_a_tenth():
    factors = [learning_rate_factor(step, 1000, TRAINING) for step in range(1000)]
    assert factors[0] == 1 / 11
    assert factors[9] == 10 / 11
    assert factors[10] == 1.0
    assert factors[505] == pytest.approx(0.55)  # halfway through the cosine: the mean of 1 and 0.1
    assert factors[999] == pytest.approx(0.1, abs=1e-5)
    assert all(a >= b for a, b in pairwise(factors[10:]))
    assert math.isclose(learning_rate_factor(0, 1, TRAINING.model_copy(update={"warmup_steps": 0})), 1.0)
