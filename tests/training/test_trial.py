"""The trial of own optimizers: rules of a temporary module, each with one fault or none."""

import sys
from pathlib import Path

import pytest

from coupled_adam_bench.study.optimizers import Optimizer
from coupled_adam_bench.study.training import Training
from coupled_adam_bench.training.trial import try_optimizer

RULES = '''
import torch


class Rule(torch.optim.Optimizer):
    """Gradient descent in a form that each class below changes in one point."""

    def __init__(self, params, lr=1e-3, weight_decay=0.0):
        super().__init__(params, dict(lr=lr, weight_decay=weight_decay))

    def rate(self, group, state):
        return group["lr"]

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.add_(self.direction(p.grad, self.state[p]), alpha=-self.rate(group, self.state[p]))

    def direction(self, grad, state):
        return grad


class RateSquared(Rule):
    def rate(self, group, state):
        return group["lr"] ** 2


class LateStart(Rule):
    def rate(self, group, state):
        state["n"] = state.get("n", 0) + 1
        return group["lr"] if state["n"] > 12 else 0.0


class RateInState(Rule):
    def rate(self, group, state):
        return state.setdefault("lr", group["lr"])


class RateInAttribute(Rule):
    kept = None

    def rate(self, group, state):
        if self.kept is None:
            self.kept = group["lr"]
        return self.kept


class RateInGroup(Rule):
    def rate(self, group, state):
        return group.setdefault("base", group["lr"])


class RateInDecayAlone(Rule):
    def __init__(self, params, lr=1e-3, weight_decay=0.0):
        super().__init__(params, lr, weight_decay)
        self.first = lr

    def rate(self, group, state):
        for p in group["params"]:
            p.mul_(1 - group["lr"] * group["weight_decay"])
        return self.first


class Idle(Rule):
    def rate(self, group, state):
        return 0.0


class HiddenMomentum(Rule):
    def __init__(self, params, lr=1e-3, weight_decay=0.0):
        super().__init__(params, lr, weight_decay)
        self.sums = {}

    def direction(self, grad, state):
        self.sums[grad.shape] = self.sums.get(grad.shape, 0) + grad
        return self.sums[grad.shape]


class NotSaved(Rule):
    def direction(self, grad, state):
        state["self"] = Rule
        return grad


class NotFinite(Rule):
    def rate(self, group, state):
        return float("inf")


class NeedsClosure(Rule):
    def step(self, closure):
        closure()


class NoOptimizer:
    def __init__(self, params, lr, weight_decay):
        self.param_groups = []

    def step(self):
        pass
'''
GOOD = ("Rule", "RateSquared", "LateStart")
WRONG = ("RateInState", "RateInAttribute", "RateInGroup", "RateInDecayAlone", "Idle")
WRONG += ("HiddenMomentum", "NotSaved", "NotFinite", "NeedsClosure", "NoOptimizer", "Missing")


@pytest.fixture
def rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of rules, found as a user's own."""
    (tmp_path / "own_rules.py").write_text(RULES)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_rules", raising=False)
    return "own_rules"


def own(path: str) -> Optimizer:
    return Optimizer(name="custom", path=path, key="own", label="Own", weight_decay=0.1)


@pytest.mark.parametrize("name", GOOD)
def test_a_right_rule_is_accepted(rules: str, name: str) -> None:
    found = try_optimizer(own(f"{rules}.{name}"), Training())
    assert found["steps"] == 20
    assert found["rms_change"] > 0


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_rule_is_refused_in_one_sentence(rules: str, name: str) -> None:
    with pytest.raises(ValueError, match=rf"^path: {rules}\.{name}") as refused:
        try_optimizer(own(f"{rules}.{name}"), Training())
    assert "\n" not in str(refused.value)


def test_the_rules_of_the_bench_pass_their_own_trial() -> None:
    for name in ("adamw", "coupled_adam", "sgd"):
        assert try_optimizer(Optimizer(name=name), Training())["rms_change"] > 0


def test_libraries_optimizers_are_accepted() -> None:
    for name in ("NAdam", "Adafactor", "Muon", "RMSprop", "Adagrad"):
        assert try_optimizer(own(f"torch.optim.{name}"), Training())["rms_change"] > 0
