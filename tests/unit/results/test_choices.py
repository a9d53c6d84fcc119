"""What a tuning chooses, from validation losses made by hand, and the table of all of them."""

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from coupled_adam_bench.results.choices import (
    choose,
    read_losses,
    validation_measurement,
    write_choice,
)
from coupled_adam_bench.statistics.candidates import STATISTIC
from coupled_adam_bench.statistics.declared import Material
from coupled_adam_bench.store.files import read_sealed, write_sealed
from coupled_adam_bench.study.plan import Plan, make_plan
from coupled_adam_bench.study.plan.tuning import Tuning, choice_file
from coupled_adam_bench.study.settings import parse_study

NAN = math.nan
SPIKE = "loss or gradient not finite in step 3 of 60"


@pytest.fixture
def plan(tiny_study: Callable[..., dict[str, Any]]) -> Plan:
    """Four candidates with two seeds for each of two optimizers, whose learning rates do not
    ascend."""
    grid = {"learning_rate": [0.1, 0.01], "lr_factor": [2, 0.5]}
    study = tiny_study()
    study["grid"][0]["tune"] = {"seeds": [11, 12], "grids": {"adamw": grid, "coupled_adam": grid}}
    return make_plan(parse_study(study))


def measure(tuning: Tuning, losses: Sequence[Sequence[float]], runs: Path) -> None:
    """Write runs and validation losses; a cell whose loss is NaN has diverged."""
    for candidate, of_seeds in zip(tuning.candidates, losses, strict=True):
        for cell, loss in zip(candidate.cells, of_seeds, strict=True):
            diverged = math.isnan(loss)
            sha256 = None if diverged else "ab" * 32
            status = "diverged" if diverged else "completed"
            write_sealed(
                runs / cell.id / "run.json",
                {"cell": cell.id, "status": status, "model_sha256": sha256},
            )
            measurement = validation_measurement(tuning, runs)
            record = {
                "cell": cell.id,
                "stage": "validation_loss",
                "status": "diverged" if diverged else "ok",
                "reason": SPIKE if diverged else None,
                "version": measurement.stage.version,
                "settings": measurement.settings,
                "model_sha256": sha256,
                "results": [{"task": "val", "metric": "loss", "value": loss, "unit": "nat/token"}],
            }
            write_sealed(measurement.path(cell.id, sha256), record)


# The candidates are (0.1, 2), (0.1, 0.5), (0.01, 2) and (0.01, 0.5): the embedding has 0.2, 0.05,
# 0.02 and 0.005.
@pytest.mark.parametrize(
    ("losses", "chosen"),
    [
        ([(4, 4), (3, 3.1), (3, 3.2), (5, 5)], 1),  # the least mean
        ([(1, 9), (4, 4), (5, 5), (6, 6)], 1),  # of all seeds, not of the best one
        ([(3, 3), (3, 3), (3, 3), (3, 3)], 3),  # of equal ones the smaller learning rate
        ([(2, 4), (4, 2), (3, 3), (9, 9)], 2),
        ([(1, NAN), (NAN, 1), (9, 9), (NAN, NAN)], 2),  # a candidate that diverges once loses
        ([(NAN, NAN), (NAN, NAN), (NAN, NAN), (50, 50)], 3),
        ([(3, 3), (3 - 1e-15, 3), (4, 4), (4, 4)], 1),  # nothing is rounded
    ],
)
def test_the_least_mean_loss_is_chosen(losses, chosen, plan, tmp_path):
    for tuning in plan.tunings.values():
        measure(tuning, losses, tmp_path)
        tried = read_losses(tuning, tmp_path)
        assert choose(tuning, tried) == chosen
        assert [one.losses for one in tried] == [
            pytest.approx(of_seeds, nan_ok=True) for of_seeds in losses
        ]


@pytest.mark.fault(
    "results",
    "all candidates of a tuning diverge",
    "its job names them; the other optimizers go on, and partial tables have a gap",
)
def test_a_tuning_whose_candidates_have_all_diverged_names_them(plan, tmp_path):
    tuning = next(iter(plan.tunings.values()))
    measure(tuning, [(NAN, 3)] * 4, tmp_path)
    with pytest.raises(ValueError, match="no candidate can be chosen") as error:
        write_choice(tuning, tmp_path / "choice.json", tmp_path)
    message = str(error.value)
    assert message.startswith(tuning.id)
    assert message.count(SPIKE) == 4
    for settings in ("learning_rate 0.1, lr_factor 2:", "learning_rate 0.01, lr_factor 0.5:"):
        assert settings in message
    assert not (tmp_path / "choice.json").exists()


def test_a_candidate_that_is_not_measured_is_no_reason_to_choose_another(plan, tmp_path):
    tuning = next(iter(plan.tunings.values()))
    measure(tuning, [(3, 3)] * 4, tmp_path)
    cell = tuning.candidates[2].cells[1]
    validation_measurement(tuning, tmp_path).find(cell.id).unlink()
    with pytest.raises(ValueError, match=cell.id):
        read_losses(tuning, tmp_path)


def test_the_loss_of_other_settings_is_not_found(plan, tmp_path):
    tuning = next(iter(plan.tunings.values()))
    measure(tuning, [(3, 3)] * 4, tmp_path)
    measurement = validation_measurement(tuning, tmp_path)
    assert measurement.settings == {"split": "val", "windows": "all", "precision": "fp32"}
    path = measurement.find(tuning.first.id)
    write_sealed(path, read_sealed(path) | {"settings": {"split": "test"}})
    with pytest.raises(ValueError, match="settings is"):
        read_losses(tuning, tmp_path)


def test_the_table_has_every_candidate_and_seed(plan, tmp_path):
    losses = [(4.25, 4.5), (3.0, 3.1), (NAN, 2.0), (5.0, 5.0)]
    for tuning in plan.tunings.values():
        measure(tuning, losses, tmp_path)
        assert write_choice(tuning, choice_file(tmp_path / "tuning", tuning.id), tmp_path) == 1
    material = Material(SimpleNamespace(plan=plan), tmp_path, tmp_path)  # type: ignore[arg-type]
    frame = material.frame(STATISTIC)
    assert len(frame) == 2 * 4 * 2
    adam = frame[frame["optimizer"] == "adamw"]
    assert adam["val_loss"].to_list() == pytest.approx(
        [x for of_seeds in losses for x in of_seeds], nan_ok=True
    )
    assert adam["mean_val_loss"].to_list()[:4] == [4.375, 4.375, 3.05, 3.05]
    assert adam["chosen"].to_list() == [False, False, True, True, False, False, False, False]
    assert adam["embedding_learning_rate"].to_list()[::2] == [0.2, 0.05, 0.02, 0.005]
    assert adam["reason"].to_list()[4:6] == [SPIKE, ""]
    assert json.loads(adam["settings"].to_list()[2]) == {"learning_rate": 0.1, "lr_factor": 0.5}
