"""States of optimizers of all kinds, to named tensors and JSON and back."""

import json
import math
from collections import deque

import pytest
import torch

from coupled_adam_bench.training.optimizer_state import export_state, import_state


class Keeper(torch.optim.Optimizer):
    """Keeps what it is given: a state of any kind for its first parameter, and entries of its first
    group."""

    def __init__(self, parameters, state=(), **group):
        super().__init__(parameters, {"lr": 0.1})
        self.param_groups[0] |= group
        self.state[self.param_groups[0]["params"][0]].update(state)

    def step(self):
        raise NotImplementedError


def parameters():
    return [torch.nn.Parameter(torch.zeros(3, 2)), torch.nn.Parameter(torch.zeros(4))]


def there_and_back(state, **group):
    """Return the state of the first parameter and the first group after a way to disk."""
    first, second = parameters(), parameters()
    tensors, rest = export_state(
        Keeper(first, state, **group), dict(zip(first, ("a", "b.c"), strict=True)), "mine"
    )
    assert all(name.startswith(("mine/a/", "mine/param_groups/0/")) for name in tensors)
    loaded = Keeper(second)
    copies = {
        name: tensor.clone(memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }
    rest = json.loads(json.dumps(rest))
    import_state(loaded, dict(zip(second, ("a", "b.c"), strict=True)), "mine", copies, rest)
    assert set(loaded.state) <= {second[0]}
    return loaded.state[second[0]], loaded.param_groups[0]


def same(one, other):
    if isinstance(one, torch.Tensor):
        return (
            one.dtype == other.dtype
            and one.shape == other.shape
            and torch.equal(one, other)
            and one.stride() == other.stride()
        )
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return type(one) is type(other) and (one == other or (one != one and other != other))


VALUES = {
    "like the parameter": torch.arange(6.0).reshape(3, 2),
    "row": torch.arange(2.0),
    "empty": torch.zeros(0, 2),
    "step": torch.tensor(7.0),
    "counter": torch.tensor(2**40 + 1),
    "mask": torch.tensor([True, False]),
    "half": torch.tensor([0.1, 0.2], dtype=torch.bfloat16),
    "double": torch.tensor(0.1, dtype=torch.float64),
    "bytes": torch.tensor([[0, 255]], dtype=torch.uint8),
    "columns": torch.arange(6.0).reshape(2, 3).T,
    "other order": torch.arange(24.0).reshape(2, 3, 4).permute(2, 0, 1),
    "list of columns": [torch.arange(6.0).reshape(2, 3).T],
    "number": 0.1,
    "large number": 2**70,
    "infinite": [math.inf, -math.inf, math.nan],
    "flag": True,
    "nothing": None,
    "text": "cosine",
    "list": [1, 2.5, "x", None],
    "tuple": (1, (2, [3])),
    "no list": [],
    "list of tensors": [torch.eye(3), None, torch.eye(2, dtype=torch.int64)],
    "mapping": {"q": torch.ones(2), "k": [torch.zeros(1), 3]},
    "mapping by number": {0: torch.zeros(1), 1.5: "x"},
}


def test_values_of_all_kinds_come_back_as_they_were():
    state, group = there_and_back(
        VALUES, d=0.25, k=3, **{name.replace(" ", "_"): VALUES[name] for name in VALUES}
    )
    assert state.keys() == VALUES.keys()
    for name, value in VALUES.items():
        assert same(value, state[name]), name
        assert same(value, group[name.replace(" ", "_")]), name
    assert (group["d"], group["k"], group["lr"], len(group["params"])) == (0.25, 3, 0.1, 1 + 1)


@pytest.mark.parametrize("value", [deque([1]), torch.Generator(), {(1, 2): 3}, object, 1j])
def test_a_state_that_cannot_be_written_is_refused(value):
    with pytest.raises(
        ValueError, match=r"^mine/a/odd: a \w+ in the state of an optimizer cannot be written"
    ):
        there_and_back({"odd": value})


def test_a_state_of_no_parameter_is_refused():
    own = parameters()
    optimizer = Keeper(own)
    optimizer.state["k"] = 3
    with pytest.raises(
        ValueError, match="mine: k in the state of an optimizer belongs to no parameter"
    ):
        export_state(optimizer, dict(zip(own, "ab", strict=True)), "mine")


def test_what_a_group_cannot_write_is_the_constructors():
    own = parameters()
    _, rest = export_state(
        Keeper(own, dtype=torch.bfloat16), dict(zip(own, "ab", strict=True)), "mine"
    )
    assert rest["groups"][0].keys() == {"lr"}


def test_checkpoints_from_before_tuples_were_written_as_such_still_load():
    own = parameters()
    names = dict(zip(own, "ab", strict=True))
    optimizer = torch.optim.AdamW(own, lr=0.1)
    rest = {"numbers": {"mine/a/count": 3}, "groups": [{"lr": 0.2, "betas": [0.5, 0.6]}]}
    import_state(
        optimizer,
        names,
        "mine",
        {"mine/a/step": torch.tensor(3.0), "mine/a/exp_avg": torch.ones(3, 2)},
        rest,
    )
    assert optimizer.state[own[0]].keys() == {"step", "exp_avg", "count"}
    beta1, beta2 = optimizer.param_groups[0]["betas"]
    assert (beta1, beta2) == (0.5, 0.6)
