import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from optimizer_entries import BUILT_IN
from pydantic import TypeAdapter

from coupled_adam_bench.models.gpt2 import GPT2
from coupled_adam_bench.optim.build import build_optimizers
from coupled_adam_bench.study.plan.schedule import learning_rate_factor
from coupled_adam_bench.study.settings import (
    AdamWSettings,
    CoupledAdamSettings,
    CustomSettings,
    EmberSettings,
    SgdSettings,
    SingleOptimizer,
    Training,
)

LION = {"name": "custom", "path": "pytorch_optimizer.Lion", "key": "lion", "label": "Lion"}
TRAINING = Training(seq_len=4, batch_sequences=2, warmup_steps=10)
PEAK = 1e-2


def build(optimizer, training=TRAINING):
    model = GPT2(17, 4, 2, 2, 8, d_ffn=32, tied=True)
    model.init_weights(0, 0.02)
    return model, build_optimizers(model, model.embedding_parameters(), optimizer, training, PEAK)


ALL = [*map(TypeAdapter(SingleOptimizer).validate_python, BUILT_IN), CustomSettings(**LION)]


@pytest.mark.parametrize("core", ["adamw", "muon"])
@pytest.mark.parametrize("optimizer", ALL, ids=lambda optimizer: optimizer.key)
def test_every_parameter_is_in_one_optimizer_and_decays_as_it_should(optimizer, core):
    model, optimizers = build(
        optimizer, TRAINING.model_copy(update={"core_optimizer": core, "weight_decay": 0.2})
    )
    decay = {}
    for part in optimizers.by_name().values():
        for group in part.param_groups:
            for parameter in group["params"]:
                assert parameter not in decay
                decay[parameter] = group["weight_decay"]
    expected = {
        name: 0.0 if name == "embedding.weight" or parameter.ndim < 2 else 0.2
        for name, parameter in model.named_parameters()
    }
    assert {name: decay[parameter] for name, parameter in model.named_parameters()} == expected
    assert expected["positions.weight"] == 0.2  # [C]: the position embedding decays


@pytest.mark.parametrize("optimizer", ALL, ids=lambda optimizer: optimizer.key)
@pytest.mark.parametrize(
    ("own", "default", "expected"), [(None, 0.0, 0.0), (None, 0.3, 0.3), (0.2, 0.3, 0.2), (0, 1, 0)]
)
def test_the_embeddings_weight_decay_is_the_optimizers_own_or_the_studys(
    optimizer, own, default, expected
):
    training = TRAINING.model_copy(update={"embedding_weight_decay": default})
    _, optimizers = build(optimizer.model_copy(update={"weight_decay": own}), training)
    assert [group["weight_decay"] for group in optimizers.embedding.param_groups] == [expected]
    assert optimizers.core.param_groups[0]["weight_decay"] == 0.1


def test_muon_has_the_matrices_of_the_layers_and_adamw_the_rest():
    model, optimizers = build(
        AdamWSettings(name="adamw"), TRAINING.model_copy(update={"core_optimizer": "muon"})
    )
    names = {parameter: name for name, parameter in model.named_parameters()}
    found = {
        part: {
            names[parameter] for group in optimizer.param_groups for parameter in group["params"]
        }
        for part, optimizer in optimizers.by_name().items()
    }
    matrices = {
        f"blocks.{i}.{name}.weight"
        for i in (0, 1)
        for name in ("attn_qkv", "attn_proj", "mlp_fc", "mlp_proj")
    }
    assert found["muon"] == matrices
    assert found["embedding"] == {"embedding.weight"}
    norms = {f"blocks.{i}.{name}.weight" for i in (0, 1) for name in ("ln_1", "ln_2")}
    assert found["core"] == {"positions.weight", "ln_f.weight"} | norms
    assert (type(optimizers.by_name()["muon"]), type(optimizers.core)) == (
        torch.optim.Muon,
        torch.optim.AdamW,
    )


def test_a_step_of_muon_is_orthogonal_and_as_large_as_one_of_adamw():
    """Moonlight, Sec. 2.2: the update's root mean square is 0.2 lr, AdamW's of a trained model, for
    every shape."""
    model, optimizers = build(
        AdamWSettings(name="adamw"), TRAINING.model_copy(update={"core_optimizer": "muon"})
    )
    generator = torch.Generator().manual_seed(0)
    before = {name: parameter.detach().double() for name, parameter in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    optimizers.set_lr(0.5)
    optimizers.step()
    for name, parameter in model.named_parameters():
        decay = 0.1 if parameter.ndim == 2 and name != "embedding.weight" else 0.0
        update = (before[name] * (1 - 0.5 * PEAK * decay) - parameter.detach().double()) / (
            0.5 * PEAK
        )
        if name.startswith("blocks.") and parameter.ndim == 2:
            values = torch.linalg.svdvals(update) / (0.2 * max(update.shape) ** 0.5)
            # The iteration takes singular values to about 1, not to 1 itself.
            assert ((values > 0.5) & (values < 1.5)).all(), name
            assert update.square().mean().sqrt().item() == pytest.approx(0.2, rel=0.2), name
        else:
            torch.testing.assert_close(update, parameter.grad.sign().double(), rtol=1e-3, atol=1e-3)


def test_muon_exact_is_the_orthogonal_factor_times_the_root_of_the_shape():
    """The polar factor by SVD; Nesterov's first step has the gradient's direction."""
    model, optimizers = build(
        AdamWSettings(name="adamw"),
        TRAINING.model_copy(update={"core_optimizer": "muon_exact", "weight_decay": 0.1}),
    )
    generator = torch.Generator().manual_seed(0)
    before = {name: parameter.detach().double() for name, parameter in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    optimizers.step()
    for name, parameter in model.named_parameters():
        if not (name.startswith("blocks.") and parameter.ndim == 2):
            continue
        left, singular, right = torch.linalg.svd(parameter.grad.double(), full_matrices=False)
        expected = left @ right * max(1, parameter.shape[0] / parameter.shape[1]) ** 0.5
        update = (before[name] * (1 - PEAK * 0.1) - parameter.detach().double()) / PEAK
        # Directions with a small singular value have not converged yet, and products are rounded to
        # bfloat16.
        error = (update - expected).norm() / expected.norm()
        assert error < 0.1, (name, error, singular)


def test_norms_have_a_rate_of_their_own():
    _, optimizers = build(
        AdamWSettings(name="adamw"), TRAINING.model_copy(update={"norm_lr_factor": 0.6})
    )
    assert [group["lr"] for group in optimizers.core.param_groups] == pytest.approx(
        [PEAK, 0.6 * PEAK]
    )
    optimizers.set_lr(0.5)
    assert [group["lr"] for group in optimizers.core.param_groups] == pytest.approx(
        [0.5 * PEAK, 0.3 * PEAK]
    )


def test_a_users_own_optimizer_gets_its_arguments():
    arguments = {"betas": (0.95, 0.98), "cautious": True}
    _, optimizers = build(CustomSettings(**LION, arguments=arguments, lr_factor=0.25))
    (group,) = optimizers.embedding.param_groups
    assert type(optimizers.embedding).__name__ == "Lion"
    assert (group["betas"], group["cautious"]) == ((0.95, 0.98), True)
    optimizers.set_lr(0.5)
    assert group["lr"] == 0.5 * 0.25 * PEAK


def test_a_users_own_optimizer_is_its_papers_formula():
    """Lion (arXiv 2302.06675, Alg. 2): w <- w - lr (sign(b1 m + (1 - b1) g) + wd w), m <- b2 m + (1
    - b2) g."""
    model, optimizers = build(
        CustomSettings(**LION, arguments={"betas": [0.9, 0.99]}, lr_factor=0.3, weight_decay=0.1)
    )
    weight, momentum = model.embedding.weight.detach().double().numpy().copy(), np.zeros((17, 8))
    generator = np.random.default_rng(0)
    for step in range(20):
        grad = generator.normal(size=(17, 8))
        model.embedding.weight.grad = torch.tensor(grad, dtype=torch.float32)
        factor = learning_rate_factor(step, 20, TRAINING, 1.0)
        optimizers.set_lr(factor)
        optimizers.embedding.step()
        weight -= factor * 0.3 * PEAK * (np.sign(0.9 * momentum + 0.1 * grad) + 0.1 * weight)
        momentum = 0.99 * momentum + 0.01 * grad
    np.testing.assert_allclose(
        model.embedding.weight.detach().numpy(), weight, rtol=1e-5, atol=1e-6
    )


def test_gradients_are_clipped_to_a_joint_norm():
    model, optimizers = build(AdamWSettings(name="adamw"))
    generator = np.random.default_rng(0)
    grads = {parameter: generator.normal(size=parameter.shape) for parameter in model.parameters()}
    for parameter, grad in grads.items():
        parameter.grad = torch.tensor(grad, dtype=torch.float32)
    norm = math.sqrt(sum((grad**2).sum() for grad in grads.values()))
    assert optimizers.clip_grad_norm_(model.parameters(), 0.5).item() == pytest.approx(
        norm, rel=1e-5
    )
    for parameter, grad in grads.items():
        np.testing.assert_allclose(parameter.grad, grad * 0.5 / norm, rtol=1e-4, atol=1e-7)


def test_learning_rates_follow_the_factor():
    _, optimizers = build(SgdSettings(name="sgd", lr_factor=300))
    optimizers.set_lr(0.5)
    assert optimizers.core.param_groups[0]["lr"] == 0.5 * PEAK
    assert optimizers.embedding.param_groups[0]["lr"] == 0.5 * 300 * PEAK


@pytest.mark.parametrize("kind", [AdamWSettings, CoupledAdamSettings, EmberSettings])
def test_a_factor_multiplies_the_learning_rate_of_the_embedding_alone(kind):
    name = kind.model_fields["name"].annotation.__args__[0]
    for factor in (1.0, 0.3):
        _, optimizers = build(kind(name=name, lr_factor=factor))
        plain = build(kind(name=name))[1]
        assert (
            optimizers.embedding.param_groups[0]["lr"]
            == factor * plain.embedding.param_groups[0]["lr"]
        )
        assert optimizers.core.param_groups[0]["lr"] == plain.core.param_groups[0]["lr"]


def test_scale_exponent_n_is_a_factor_of_two_to_minus_n():
    _, optimizers = build(CoupledAdamSettings(name="coupled_adam", scale_exponent=3))
    assert optimizers.embedding.param_groups[0]["scale"] == 1 / 8


def test_sgd_on_the_embedding_is_algorithm_2():
    # m <- 0.9 m + g, E <- E - f lr m, without dampening and Nesterov.
    model, optimizers = build(SgdSettings(name="sgd", lr_factor=100))
    weight, momentum = model.embedding.weight.detach().double().numpy().copy(), np.zeros((17, 8))
    generator = np.random.default_rng(0)
    for step in range(20):
        grad = generator.normal(size=(17, 8))
        model.embedding.weight.grad = torch.tensor(grad, dtype=torch.float32)
        factor = learning_rate_factor(step, 20, TRAINING, 1.0)
        optimizers.set_lr(factor)
        optimizers.embedding.step()
        momentum = 0.9 * momentum + grad
        weight -= 100 * factor * PEAK * momentum
    np.testing.assert_allclose(
        model.embedding.weight.detach().numpy(), weight, rtol=1e-5, atol=1e-5
    )


def test_adamw_on_the_embedding_is_the_textbook_formula():
    training = TRAINING.model_copy(update={"embedding_weight_decay": 0.1})
    model, optimizers = build(AdamWSettings(name="adamw"), training)
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
    np.testing.assert_allclose(
        model.embedding.weight.detach().numpy(), weight, rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize("kind", [AdamWSettings, CoupledAdamSettings])
@pytest.mark.parametrize(
    ("own", "expected"),
    [({}, (0.9, 0.95)), ({"beta1": 0.0}, (0.0, 0.95)), ({"beta2": 0.999}, (0.9, 0.999))],
)
def test_betas_of_the_embedding_are_the_optimizers_own_or_the_studys(kind, own, expected):
    _, optimizers = build(kind(name=kind.model_fields["name"].annotation.__args__[0], **own))
    assert optimizers.embedding.param_groups[0]["betas"] == expected
    assert optimizers.core.param_groups[0]["betas"] == (0.9, 0.95)


def test_amsgrad_divides_by_the_largest_second_moment_so_far():
    """As in torch, the largest is taken before the correction for the start (arXiv 1904.09237 has
    no correction)."""
    model, optimizers = build(AdamWSettings(name="adamw", amsgrad=True, beta1=0.8, beta2=0.5))
    weight = model.embedding.weight.detach().double().numpy().copy()
    first, second, largest = (np.zeros((17, 8)) for _ in range(3))
    generator = np.random.default_rng(0)
    for step in range(1, 21):
        grad = (
            generator.normal(size=(17, 8)) / step**2
        )  # smaller and smaller, so that the largest stays behind
        model.embedding.weight.grad = torch.tensor(grad, dtype=torch.float32)
        optimizers.embedding.step()
        first, second = 0.8 * first + 0.2 * grad, 0.5 * second + 0.5 * grad**2
        largest = np.maximum(largest, second)
        weight -= PEAK * (first / (1 - 0.8**step)) / (np.sqrt(largest / (1 - 0.5**step)) + 1e-8)
    assert (largest > second).any()
    np.testing.assert_allclose(
        model.embedding.weight.detach().numpy(), weight, rtol=1e-4, atol=1e-6
    )


def test_ember_on_the_embedding_has_its_settings():
    _, optimizers = build(
        EmberSettings(name="ember", beta2=0.99, eps=1e-6, lr_factor=0.5, weight_decay=0.1)
    )
    (group,) = optimizers.embedding.param_groups
    found = {name: group[name] for name in ("lr", "beta2", "eps", "weight_decay")}
    assert found == {"lr": 0.5 * PEAK, "beta2": 0.99, "eps": 1e-6, "weight_decay": 0.1}


def test_schedule_warms_up_linearly_and_ends_at_a_tenth():
    factors = [learning_rate_factor(step, 1000, TRAINING, 1.0) for step in range(1000)]
    assert factors[0] == 1 / 11
    assert factors[9] == 10 / 11
    assert factors[10] == 1.0
    assert factors[505] == pytest.approx(0.55)  # halfway through the cosine: the mean of 1 and 0.1
    assert factors[999] == pytest.approx(0.1, abs=1e-5)
    assert all(a >= b for a, b in pairwise(factors[10:]))
    assert math.isclose(
        learning_rate_factor(0, 1, TRAINING.model_copy(update={"warmup_steps": 0}), 1.0), 1.0
    )
