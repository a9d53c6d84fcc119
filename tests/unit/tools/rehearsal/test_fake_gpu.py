"""The stand-in for autograd's engine, which gives the gradients of the real one, and what is pretended of a GPU."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

from coupled_adam_bench.models.build import build_model
from coupled_adam_bench.models.gpt2 import GPT2Block
from coupled_adam_bench.study.config import Model
from coupled_adam_bench.tools.rehearsal import fake_gpu

TOKENS = torch.randint(0, 64, (4, 17), generator=torch.Generator().manual_seed(0))


def grads(architecture: str, tied: bool) -> list[torch.Tensor]:
    sizes = Model(name="m", architecture=architecture, n_layer=2, n_head=2, d_model=8, tied=tied, learning_rate=1.0)
    model = build_model(sizes, 64, 16)
    model.init_weights(0, 0.02)
    for micro in (slice(0, 2), slice(2, 4)):  # gradients are added up
        objective, _ = model(TOKENS[micro, :-1], TOKENS[micro, 1:], reduction="objective")
        objective.backward()
    return [parameter.grad for parameter in model.parameters()]


@pytest.fixture
def engine():
    engine = fake_gpu._Engine()
    with fake_gpu.replaced(
        (torch.autograd, "_engine_run_backward", engine.run),
        (torch.autograd.Variable, "_execution_engine", engine),
        (torch.Tensor, "register_hook", engine.register_hook),
    ):
        yield engine


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("architecture", ["gpt2", "stablelm"])
def test_the_engine_gives_the_gradients_of_pytorchs_own(architecture, tied):
    expected = grads(architecture, tied)
    engine = fake_gpu._Engine()
    with fake_gpu.replaced((torch.autograd, "_engine_run_backward", engine.run)):
        found = grads(architecture, tied)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-8)


def test_hooks_and_callbacks_run_as_in_pytorchs_own(engine):
    x = torch.ones(3, requires_grad=True)
    y = x * 2
    y.register_hook(lambda grad: grad * 10)
    seen = []
    torch.autograd.Variable._execution_engine.queue_callback(lambda: seen.append(x.grad.clone()))
    (y * 3).sum().backward()
    assert seen[0].tolist() == x.grad.tolist() == [60.0] * 3


class _WithNumber(torch.autograd.Function):
    @staticmethod
    def forward(ctx, number, x):
        ctx.number = number
        return x * number

    @staticmethod
    def backward(ctx, grad):
        return None, grad * ctx.number


def test_a_function_of_numbers_and_tensors_gives_its_gradient_to_the_tensor(engine):
    x = torch.ones(3, requires_grad=True)
    _WithNumber.apply(4.0, x).sum().backward()
    assert x.grad.tolist() == [4.0] * 3


def test_what_a_step_saved_is_freed_on_the_way(engine):
    x = torch.ones(3, requires_grad=True)
    alive = []

    class Saves(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.marker = torch.zeros(1)
            alive.append(torch._C._WeakTensorRef(ctx.marker))
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            alive.append([ref.expired() for ref in alive if not isinstance(ref, list)])
            return grad * 2

    loss = Saves.apply(Saves.apply(x)).sum()
    loss.backward()
    assert alive[2:] == [[False, False], [False, True]]  # the second function was done when the first one ran


@pytest.mark.parametrize("bf16", [False, True])
def test_attention_takes_what_the_models_give(bf16):
    with (
        FakeTensorMode(),
        torch.autocast("cpu", torch.bfloat16, enabled=bf16),
        fake_gpu.replaced((F, "scaled_dot_product_attention", fake_gpu._attention)),
    ):
        assert GPT2Block(8, 2, 32)(torch.empty(2, 16, 8)).shape == (2, 16, 8)


def test_replaced_attributes_come_back_after_an_error():
    before = torch.Tensor.pin_memory
    with pytest.raises(KeyError), fake_gpu.replaced((torch.Tensor, "pin_memory", None)):
        raise KeyError
    assert torch.Tensor.pin_memory is before
    assert "pin_memory" not in vars(torch.Tensor) or vars(torch.Tensor)["pin_memory"] is before
