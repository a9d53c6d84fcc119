"""A user's own optimizer: from a package, from torch and from a file; and what is said where it
does not work."""

import shutil
import sys
from pathlib import Path

import pytest
import torch

from coupled_adam_bench.optim.custom import build
from coupled_adam_bench.study.settings import CustomSettings, Training
from coupled_adam_bench.training.trial import try_optimizer

FILE = """
import torch

class Plain(torch.optim.Optimizer):
    def __init__(self, params, lr, power=1.0):
        super().__init__(params, {"lr": lr, "power": power})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p -= group["lr"] * p.grad.sign() * p.grad.abs() ** group["power"]

class Fussy(Plain):
    def __init__(self, params, lr, size=1):
        assert size > 2, "too small"
        super().__init__(params, lr)

class NoRate(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, {"rate": lr})

class Modes(Plain):
    def train(self): ...
    def eval(self): ...

def factory(params, lr):
    return Plain(params, lr)
"""


def custom(path, **changes):
    return CustomSettings(name="custom", path=path, key="mine", label="Mine", **changes)


@pytest.fixture
def parameter():
    return torch.nn.Parameter(torch.ones(3, 2))


@pytest.fixture(autouse=True)
def own_file(tmp_path, monkeypatch):
    (tmp_path / "my_optimizers.py").write_text(FILE)
    (tmp_path / "broken_optimizers.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("my_optimizers", None)


def test_a_file_of_the_users_is_enough(parameter):
    built = build(
        custom("my_optimizers.Plain", arguments={"power": 2.0}),
        [parameter],
        lr=0.5,
        weight_decay=0.0,
    )
    parameter.grad = torch.tensor([[1.0, -2.0], [0.0, 0.5], [0.0, 1.0]])
    built.step()
    assert parameter.tolist() == [[0.5, 3.0], [1.0, 0.875], [1.0, 0.5]]


def test_torch_has_some_too(parameter):
    built = build(
        custom("torch.optim.Adagrad", arguments={"lr_decay": 0.1}),
        [parameter],
        lr=0.5,
        weight_decay=0.2,
    )
    assert type(built) is torch.optim.Adagrad
    (group,) = built.param_groups
    assert (group["lr"], group["lr_decay"], group["weight_decay"]) == (0.5, 0.1, 0.2)


def test_a_packages_default_weight_decay_is_not_the_studys(parameter):
    assert torch.optim.AdamW([parameter]).param_groups[0]["weight_decay"] == 0.01
    built = build(custom("torch.optim.AdamW"), [parameter], lr=0.5, weight_decay=0.0)
    assert built.param_groups[0]["weight_decay"] == 0.0


@pytest.mark.parametrize(
    ("path", "changes", "message"),
    [
        (
            "no_such_package.Lion",
            {},
            r"path: cannot import 'no_such_package' \(ModuleNotFoundError.*install the package",
        ),
        ("torch.no_such.Lion", {}, r"path: cannot import 'torch.no_such' \(ModuleNotFoundError"),
        (
            "broken_optimizers.X",
            {},
            r"path: cannot import 'broken_optimizers' \(ZeroDivisionError: division by zero\)",
        ),
        ("my_optimizers.Plane", {}, "path: 'my_optimizers' has no 'Plane'; did you mean 'Plain'?"),
        (
            "my_optimizers.torch",
            {},
            "path: my_optimizers.torch is no subclass of torch.optim.Optimizer",
        ),
        (
            "my_optimizers.factory",
            {},
            "path: my_optimizers.factory is no subclass of torch.optim.Optimizer",
        ),
        (
            "my_optimizers.Modes",
            {},
            r"path: my_optimizers.Modes has two modes, train\(\) and eval\(\)",
        ),
        (
            "my_optimizers.NoRate",
            {},
            "path: my_optimizers.NoRate keeps no learning rate `lr` in its groups",
        ),
        (
            "my_optimizers.Plain",
            {"arguments": {"pover": 2}},
            (
                r"arguments: got an unexpected keyword argument 'pover'; my_optimizers.Plain takes"
                r" \(params, lr, power=1"
            ),
        ),
        (
            "my_optimizers.Fussy",
            {},
            r"arguments: my_optimizers.Fussy refuses them \(AssertionError: too small\)",
        ),
        (
            "torch.optim.SGD",
            {"arguments": {"momentum": -1.0}},
            "arguments: torch.optim.SGD refuses them .*momentum",
        ),
    ],
)
def test_what_is_wrong_is_said_with_its_field(path, changes, message, parameter):
    with pytest.raises(ValueError, match=f"^{message}"):
        build(custom(path, **changes), [parameter], lr=0.5, weight_decay=0.0)


def test_a_weight_decay_that_the_class_does_not_take_is_refused(parameter):
    with pytest.raises(
        ValueError, match=r"^weight_decay: 0\.1, but my_optimizers.Plain takes none; set it to 0"
    ):
        build(custom("my_optimizers.Plain"), [parameter], lr=0.5, weight_decay=0.1)


def test_the_average_of_weights_of_a_shipped_study(tmp_path, parameter):
    """workflow/config/lookahead.py: it goes back to the average, is AdamW if that is the last
    weight, and resumes."""
    shutil.copy(
        Path(__file__).parents[3] / "workflow/config/lookahead.py", tmp_path / "my_average.py"
    )
    own = custom("my_average.Lookahead", arguments={"k": 2, "alpha": 0.25})
    try_optimizer(own, Training(), 0.01)
    ends = []
    for optimizer in (
        custom("torch.optim.AdamW", arguments={"betas": [0.9, 0.95]}),
        custom("my_average.Lookahead", arguments={"k": 1, "alpha": 1.0}),
        own,
    ):
        weight = torch.nn.Parameter(parameter.detach().clone())
        built = build(optimizer, [weight], lr=0.1, weight_decay=0.0)
        for step in (1.0, 2.0):
            weight.grad = torch.full_like(weight, step)
            built.step()
        ends.append(weight.detach())
    plain, same, average = ends
    assert torch.equal(plain, same)
    assert torch.allclose(average, parameter + 0.25 * (plain - parameter))
