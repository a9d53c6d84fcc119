"""Measurements that a study brings: what the history has of them, and that they change no bit."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from planned import only
from safetensors.numpy import load_file

from coupled_adam_bench.study.plan import make_plan
from coupled_adam_bench.study.settings import parse_study
from coupled_adam_bench.training.distributed import WorkerGroup
from coupled_adam_bench.training.jobs import train
from coupled_adam_bench.training.plug_ins import try_measurements

CODE = """
import math
import torch
from coupled_adam_bench.training.plug_ins import MeasurementPlugIn

class Looks(MeasurementPlugIn):
    contract = 1

    def __init__(self, trainer, factor=1.0):
        super().__init__(trainer)
        self.factor = factor

    def before(self):
        self.drawn = torch.randn(3).sum().item()

    def between(self):
        self.norm = self.trainer.model.embedding.weight.grad.norm().item()

    def after(self, step):
        return {"norm": self.factor * self.norm, "grad": self.trainer.model.embedding.weight.sum()
                .requires_grad, "undefined": math.nan}

class EveryFive(Looks):
    def is_due(self, step, last):
        return step % 5 == 0

class Touches(Looks):
    def between(self):
        self.trainer.model.embedding.weight.grad.mul_(2)
        super().between()

class Fails(Looks):
    def after(self, step):
        return {"a": 1 / 0}

class NotNumbers(Looks):
    def after(self, step):
        return 1.5

class AsValueError(Looks):
    def after(self, step):
        return {"a": float("many")}

class Forgetful(Looks):
    def __init__(self, trainer):
        self.factor = 1

class NeverDue(Looks):
    def is_due(self, step, last):
        return {}["due"]

class Incomplete(MeasurementPlugIn):
    contract = 1
"""
STEPS = 12
ALONE = WorkerGroup(torch.device("cpu"))


def history_of(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "history.jsonl").read_text().splitlines()]


@pytest.fixture
def measured(
    tiny_study: Any, tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Any:
    """Return what trains a cell with a measurement of ``CODE``, and gives its folder."""
    name = f"measurements_{tmp_path.parent.name}_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(CODE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)

    def run(kind: str | None, trial: bool = False, **arguments: Any) -> Path:
        settings = tiny_study()
        settings["grid"][0] |= {
            "table": None,
            "tokens": [{"steps": STEPS}],
            "optimizers": ["coupled_adam"],
            "seeds": [1],
        }
        settings["execution"] |= {"log_every": 1, "eval_every": None, "geometry_per_decade": 2}
        if kind is not None:
            entry = {"name": "mine", "path": f"{name}.{kind}", "arguments": arguments}
            settings["execution"]["measurements"] = [entry]
        plan = make_plan(parse_study(settings))
        if trial:
            try_measurements(only(plan).study)
        (cell,) = plan.cells.values()
        folder = tmp_path / f"run {kind}"
        assert train(cell, only(plan).study.execution, tiny_data, folder, ALONE) == 0
        return folder

    return run


def test_a_measurement_changes_no_bit_of_the_run(measured):
    states = []
    folders = []
    for kind in (None, "Looks"):
        torch.manual_seed(3)
        folders.append(measured(kind, **({} if kind is None else {"trial": True, "factor": 2.0})))
        states.append(torch.get_rng_state())
    plain, looked = folders
    assert torch.equal(*states)  # what it draws is not taken from the run
    found = {row["step"]: row for row in history_of(looked)}
    assert [step for step, row in found.items() if "mine.norm" in row] == [1, 3, 10, STEPS]
    assert found[1]["mine.grad"] == 0.0  # nothing is recorded for gradients
    assert not any("mine.undefined" in row for row in found.values())
    own = {name for row in found.values() for name in row if name.startswith("mine.")}
    for row in history_of(plain):
        same = found[row["step"]]
        assert row.keys() == same.keys() - own
        timed = {"time", "seconds_left", "tokens_per_second", "peak_memory_bytes"}
        assert {k: v for k, v in row.items() if k not in timed} == {
            k: v for k, v in same.items() if k not in timed | own
        }
    weights = [load_file(folder / "model/model.safetensors") for folder in (plain, looked)]
    assert weights[0].keys() == weights[1].keys()
    assert all((weights[0][name] == weights[1][name]).all() for name in weights[0])


def test_a_measurement_says_when_it_is_due(measured):
    rows = history_of(measured("EveryFive"))
    assert [row["step"] for row in rows if "mine.norm" in row] == [5, 10]


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("Touches", r"execution\.measurements\.0\.path: .*Touches changes weights, gradients or"),
        ("Forgetful", r"Forgetful has no `trainer`; let its `__init__` begin with `super\(\)"),
        ("NeverDue", r"measurements\.0\.path: is_due\(\) of .*NeverDue fails \(KeyError: 'due'\)"),
        ("Fails", r"execution\.measurements\.0\.path: .*Fails fails \(ZeroDivisionError"),
        (
            "NotNumbers",
            r"\.path: after\(\) of .*NotNumbers must return numbers by name, .*not 1\.5",
        ),
        (
            "AsValueError",
            r"measurements\.0\.path: .*AsValueError fails \(ValueError: .* at line 42",
        ),
    ],
)
def test_one_that_changes_the_run_or_fails_stops_it(measured, kind, said):
    with pytest.raises(ValueError, match=said):
        measured(kind)


def test_one_that_lacks_a_method_is_refused_before_training(measured):
    with pytest.raises(ValueError, match=r"Incomplete lacks the method `after`; the class must"):
        measured("Incomplete", trial=True)
    with pytest.raises(ValueError, match=r"arguments: got an unexpected keyword argument 'least'"):
        measured("Looks", trial=True, least=1)
