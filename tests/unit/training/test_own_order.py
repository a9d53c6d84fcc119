"""A study's own order of the data, and its own optimizer of the layers' matrices: what the trial
refuses."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coupled_adam_bench.study.plan import make_plan
from coupled_adam_bench.study.settings import Study, Training, parse_study
from coupled_adam_bench.training.order import checked, order_of, positions_of, try_data_order
from coupled_adam_bench.training.trial import try_optimizers

CODE = """
import numpy as np
import torch
from coupled_adam_bench.training.order import DataOrderPlugIn

class Backwards(DataOrderPlugIn):
    contract = 1
    def __init__(self, n_tokens, training, seed, first=0):
        self.shape = training.batch_sequences, training.seq_len
        self.last, self.first, self.calls = n_tokens - 2, first, 0
    def positions(self, step):
        return np.full(self.shape, self.last - self.first - step, np.int64)

class Counts(Backwards):
    def positions(self, step):
        self.calls += 1
        return np.full(self.shape, self.calls, np.int64)

class Behind(Backwards):
    def positions(self, step):
        return np.full(self.shape, self.last + 1, np.int64)

class Below(Backwards):
    def positions(self, step):
        return np.full(self.shape, -1, np.int64)

class Real(Backwards):
    def positions(self, step):
        return np.zeros(self.shape)

class Flat(Backwards):
    def positions(self, step):
        return np.zeros(3, np.int64)

class Tensor(Backwards):
    def positions(self, step):
        return torch.zeros(self.shape, dtype=torch.int64)

class Raises(Backwards):
    def positions(self, step):
        return {}["lost"]

class RaisesLate(Backwards):
    def positions(self, step):
        return super().positions(step) if step < 5 else {}["late"]
"""
TRAINING = {"seq_len": 8, "batch_sequences": 2}


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"orders_{tmp_path.parent.name}_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(CODE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    return name


def test_an_order_of_one_s_own_is_read(module):
    entry = {"path": f"{module}.Backwards", "arguments": {"first": 2}}
    training = Training.model_validate(TRAINING | {"data_order": entry})
    try_data_order(training)
    assert set(order_of(100, training, 1).positions(3).flat) == {98 - 2 - 3}
    assert training.held_out("val") == "val"


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("Counts", "Counts reads something else at a step if it did not do the steps before"),
        ("Behind", r"must return int64 from 0 to 47 of the shape \(2, 8\) .*, not 48 to 48$"),
        ("Below", r"must return int64 from 0 to 47 .*, not -1 to -1$"),
        ("Real", r"must return int64 from 0 to 47 .*, not float64 of the shape \(2, 8\)$"),
        ("Flat", r"must return int64 from 0 to 47 .*, not int64 of the shape \(3,\)$"),
        ("Tensor", r"must return int64 from 0 to 47 .* in a NumPy array, not Tensor$"),
        ("Raises", r"Raises fails at step 0 \(KeyError: 'lost'\) at line 41 of orders_.*\.py$"),
        ("Lost", r"training\.data_order\.path: .* has no 'Lost'"),
    ],
)
def test_an_order_that_breaks_the_contract_is_refused(module, kind, said):
    entry = {"path": f"{module}.{kind}"}
    with pytest.raises(ValueError, match=said):
        try_data_order(Training.model_validate(TRAINING | {"data_order": entry}))


def test_an_order_that_fails_later_is_named_with_its_step(module):
    entry = {"path": f"{module}.RaisesLate"}
    training = Training.model_validate(TRAINING | {"data_order": entry})
    try_data_order(training)
    order = order_of(100, training, 1)
    with pytest.raises(
        ValueError, match=r"order\.path: .*RaisesLate fails at step 5 \(KeyError: 'late'\)"
    ):
        positions_of(order, 5, 100, training)


def test_the_orders_of_the_program_pass_the_same_check():
    for name in ("with_replacement", "shuffled", "per_rank", "pairs"):
        training = Training(seq_len=8, batch_sequences=4, data_order=name)
        positions = order_of(100, training, 1).positions(7)
        assert np.array_equal(checked(positions, 100, training), positions)


def of_core(tiny_study: Callable[..., dict[str, Any]], path: str, **arguments: Any) -> Study:
    values = tiny_study()
    values["training"]["core_optimizer"] = {"path": path, "arguments": arguments}
    return parse_study(values)


@pytest.mark.parametrize(
    ("path", "arguments", "said"),
    [
        ("torch.optim.Muon", {"ns_steps": -1}, ""),
        ("torch.optim.Muon", {"steps": 3}, r"core_optimizer\.arguments: .*'steps'; torch\.optim"),
        (
            "torch.optim.LBFGS",
            {},
            r"^training\.weight_decay: 0\.1, but .* takes none; set it to 0, or let the class",
        ),
        ("torch.nn.Linear", {}, r"core_optimizer\.path: torch\.nn\.Linear is no subclass of torch"),
        ("torch.optim.Lost", {}, r"core_optimizer\.path: 'torch\.optim' has no 'Lost'"),
    ],
)
def test_a_core_optimizer_is_tried(tiny_study, path, arguments, said):
    study = of_core(tiny_study, path, **arguments)
    if not said:
        try_optimizers(of_core(tiny_study, path))
        return
    with pytest.raises(ValueError, match=said):
        try_optimizers(study)


def test_a_core_optimizer_that_ruins_weights_names_no_setting_that_it_lacks(
    tiny_study,
):
    study = of_core(tiny_study, "torch.optim.SGD", momentum=1e30)
    said = r"^training\.core_optimizer\.path: the class makes weights that are not finite in 20"
    with pytest.raises(ValueError, match=said):
        try_optimizers(study)


def test_a_core_optimizer_is_in_the_ids(tiny_study):
    ids = [
        list(make_plan(of_core(tiny_study, "torch.optim.Muon", **arguments)).cells)
        for arguments in ({}, {"ns_steps": 6})
    ]
    assert not set(ids[0]) & set(ids[1])
