"""Tunings: grids and what is wrong with them, the slots of cells that wait, and what keeps its
id."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coupled_adam_bench.store.files import write_sealed
from coupled_adam_bench.study.plan import Plan, load_plan, make_plan
from coupled_adam_bench.study.plan.tuning import choice_file, read_choice
from coupled_adam_bench.study.settings import (
    AdamWSettings,
    CoupledAdamSettings,
    CustomSettings,
    EmberSettings,
    SgdSettings,
    parse_study,
)
from coupled_adam_bench.training.checks import custom_optimizers

RATES = [0.001, 0.01, 0.1]
Settings = Callable[..., dict[str, Any]]


@pytest.fixture
def tuned(tiny_study: Settings) -> Settings:
    """Return the tiny study with a trial of three learning rates for both optimizers; ``changes``
    are of ``tune``."""

    def tuned(block: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
        grids = {key: {"learning_rate": RATES} for key in ("adamw", "coupled_adam")}
        study = tiny_study()
        study["grid"][0] |= {"tune": {"seeds": [11, 12], "grids": grids} | changes} | (block or {})
        return study

    return tuned


def choose_all(plan: Plan, index: int) -> Plan:
    return plan.with_choices(
        {name: tuning.candidates[index].settings for name, tuning in plan.tunings.items()}
    )


def write_choices(plan: Plan, folder: Path, index: int) -> None:
    """Write choices as the command ``choose`` does."""
    for tuning in plan.tunings.values():
        tried = [{"cells": [{"cell": cell.id} for cell in one.cells]} for one in tuning.candidates]
        write_sealed(
            choice_file(folder, tuning.id),
            {"tuning": tuning.id, "candidates": tried, "chosen": index},
        )


# Names, and what an id hashes.


@pytest.mark.parametrize(
    ("optimizer", "key", "label"),
    [
        (
            AdamWSettings(name="adamw", lr_factor=0.5, weight_decay=0.1),
            "adamw_f0.5_wd0.1",
            "Adam, f = 0.5, wd = 0.1",
        ),
        (
            CoupledAdamSettings(name="coupled_adam", scale_exponent=-2, lr_factor=3),
            "coupled_adam_n-2_f3",
            "Coupled Adam, n = -2, f = 3",
        ),
        (
            AdamWSettings(name="adamw", amsgrad=True, beta1=0, beta2=0.999),
            "adamw_amsgrad_b1-0_b2-0.999",
            "Adam, AMSGrad, beta1 = 0, beta2 = 0.999",
        ),
        (
            EmberSettings(name="ember", beta2=0.99, eps=1e-6),
            "ember_b2-0.99_eps1e-06",
            "Ember, beta2 = 0.99, eps = 1e-06",
        ),
        (
            SgdSettings(name="sgd", lr_factor=1, mu_loss=0.1, z_loss=1e-4, soft_cap=30),
            "sgd_f1_mu0.1_z0.0001_cap30",
            "SGD, f = 1, mu-loss = 0.1, z-loss = 0.0001, soft cap = 30",
        ),
    ],
)
def test_names_tell_what_differs_from_the_defaults(optimizer, key, label):
    assert (optimizer.key, optimizer.own_key, optimizer.label) == (key, key, label)


@pytest.mark.parametrize(
    ("optimizer", "dump"),
    [
        (
            AdamWSettings(
                name="adamw", lr_factor=1, mu_centering=False, mu_loss=0, z_loss=0, soft_cap=None
            ),
            {"name": "adamw"},
        ),
        (
            CoupledAdamSettings(name="coupled_adam", beta1=None),
            {"name": "coupled_adam", "scale_exponent": 0},
        ),
        (
            SgdSettings(name="sgd", lr_factor=2, mu_loss=0.0),
            {"name": "sgd", "lr_factor": 2.0, "momentum": 0.9},
        ),
        (
            CustomSettings(
                name="custom", path="torch.optim.Adagrad", key="a", label="A", mu_centering=False
            ),
            {
                "name": "custom",
                "path": "torch.optim.Adagrad",
                "key": "a",
                "label": "A",
                "arguments": {},
                "lr_factor": 1.0,
                "weight_decay": None,
            },
        ),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_an_id_hashes_what_it_did_before_the_rivals_had_settings(optimizer, dump):
    assert optimizer.model_dump() == dump


# What is wrong with a trial.

GRID = {"learning_rate": RATES}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seeds": [11, 11]}, "grid.0.tune.seeds: 11 given more than once"),
        ({"seeds": [11, 3, 1]}, "grid.0.tune.seeds: 1, 3 is a seed of the grid too"),
        ({"grids": {"adamw": {}, "coupled_adam": GRID}}, "grid.0.tune.grids.adamw: no field"),
        (
            {"grids": {"adam": GRID}},
            (
                "grid.0.tune.grids: adam is no key of the block's optimizers, which are adamw,"
                " coupled_adam"
            ),
        ),
        (
            {"grids": {"adamw": {"learning_rate": 0.1}}},
            "grid.0.tune.grids.adamw.learning_rate: must be a list of values (got 0.1)",
        ),
        (
            {"grids": {"adamw": {"learning_rate": [0.1, -1]}}},
            "grid.0.tune.grids.adamw.learning_rate: must be greater than 0 (got -1)",
        ),
        (
            {"grids": {"adamw": {"learning_rate": [0.1, "1e-1"]}}},
            "grid.0.tune.grids.adamw.learning_rate: 0.1 given more than once",
        ),
        (
            {"grids": {"adamw": {"<script>_&%": [1]}}},
            (
                "adamw has no such setting to tune; allowed: learning_rate, mu_centering, mu_loss,"
                " z_loss, soft_cap, weight_decay, width_scale, lr_factor, beta1, beta2, amsgrad"
            ),
        ),
        (
            {"grids": {"adamw": GRID, "coupled_adam": {"scale_exponent": [0.5]}}},
            "grid.0.tune.grids.coupled_adam.scale_exponent: must be a whole number",
        ),
        (
            {"grids": {"adamw": GRID}},
            (
                "grid.0.tune.grids: adamw has 3, coupled_adam has 0 candidates; in a fair trial all"
                " optimizers have the"
            ),
        ),
        (
            {"tokens": {"steps": 61}},
            "grid.0.tune.tokens: 61 steps are more than the 60 of the block's shortest cells",
        ),
        ({"tokens": 63}, "grid.0.tune.tokens: 63 is smaller than one batch of 64 tokens"),
        ({"model": "large"}, "grid.0.tune.model: large is not among the study's models nano"),
    ],
)
def test_what_is_wrong_with_a_trial_is_said_before_the_first_job(changes, message, tuned):
    with pytest.raises(ValueError, match="invalid setting") as error:
        parse_study(tuned(**changes))
    assert message in str(error.value)


def test_a_fixed_and_a_tuned_row_of_one_name_are_told_apart(tuned):
    study = tuned()
    study["grid"].append(
        {"models": ["nano"], "tokens": [{"steps": 30}], "optimizers": ["adamw"], "seeds": [1]}
    )
    with pytest.raises(
        ValueError, match=r"grid\.1\.optimizers: adamw stands for two different settings"
    ):
        parse_study(study)


def test_blocks_with_other_rows_share_the_choice_of_a_row(tuned):
    study = tuned()
    (first,) = study["grid"]
    tune = first["tune"] | {"tokens": {"steps": 20}}
    first["tune"] = tune
    alone = tune | {"grids": {"adamw": tune["grids"]["adamw"]}}
    second = {
        "models": ["nano"],
        "tokens": [{"steps": 30}],
        "optimizers": ["adamw"],
        "seeds": [1],
        "tune": alone,
    }
    study["grid"].append(second)
    plan = make_plan(parse_study(study))
    assert len(plan.tunings) == 2
    assert {cell.tuning for cell in plan.cells.values() if cell.optimizer.key == "adamw"} == {
        name for name in plan.tunings if "_adamw_" in name
    }
    second["tune"] = alone | {"seeds": [99]}
    with pytest.raises(
        ValueError, match=r"grid\.1\.optimizers: adamw stands for two different settings"
    ):
        parse_study(study)


# Candidates, slots and choices.


def test_candidates_are_all_combinations_with_the_seeds_of_the_trial(tuned):
    grids = {
        "adamw": {"learning_rate": [0.1, 0.2], "lr_factor": [1, 2]},
        "coupled_adam": {"scale_exponent": [0, 1, 2, 3]},
    }
    plan = make_plan(parse_study(tuned(grids=grids, tokens={"steps": 30})))
    adam, coupled = plan.tunings.values()
    assert [one.settings for one in adam.candidates] == [
        {"learning_rate": rate, "lr_factor": factor} for rate in (0.1, 0.2) for factor in (1.0, 2.0)
    ]
    assert [one.embedding_lr for one in adam.candidates] == [0.1, 0.2, 0.2, 0.4]
    assert [one.model_lr for one in coupled.candidates] == 4 * [0.01]
    assert [cell.seed for cell in adam.candidates[0].cells] == [11, 12]
    assert {cell.steps for cell in adam.cells} == {30}
    assert adam.n_tokens == coupled.n_tokens == 4 * 2 * 30 * 64


def test_a_filled_slot_is_the_cell_that_a_study_without_a_trial_has(tuned, tiny_study):
    plan = make_plan(parse_study(tuned()))
    study = tiny_study()
    study["models"][0]["learning_rate"] = 0.1
    filled = choose_all(plan, 2)
    assert list(filled.cells) == list(make_plan(parse_study(study)).cells)
    assert {cell.optimizer.label for cell in filled.cells.values()} == {
        "Adam (tuned)",
        "Coupled Adam (tuned)",
    }
    assert [cell.job_name for cell in filled.cells.values()] == list(plan.cells)


@pytest.mark.parametrize(
    "changes",
    [
        {"seeds": [11, 13]},
        {"tokens": {"steps": 30}},
        {
            "grids": {
                key: {"learning_rate": [0.001, 0.01, 0.2]} for key in ("adamw", "coupled_adam")
            }
        },
        {"grids": {key: {"learning_rate": RATES[::-1]} for key in ("adamw", "coupled_adam")}},
    ],
)
def test_another_trial_has_other_slots_and_choices(changes, tuned):
    one, other = (make_plan(parse_study(tuned(**each))) for each in ({}, changes))
    assert set(one.cells).isdisjoint(other.cells)
    assert set(one.tunings).isdisjoint(other.tunings)


def test_a_trial_with_a_smaller_model(tuned):
    study = tuned(model="pico")
    study["models"].append(
        {"name": "pico", "n_layer": 1, "n_head": 2, "d_model": 4, "learning_rate": 0.01}
    )
    plan = make_plan(parse_study(study))
    assert {cell.model.name for cell in plan.tuning_cells.values()} == {"pico"}
    filled = choose_all(plan, 0)
    assert {(cell.model.name, cell.model.learning_rate) for cell in filled.cells.values()} == {
        ("nano", 0.001)
    }


def test_tuned_cells_share_no_trunk_and_candidates_do(tuned):
    study = tuned({"tokens": [{"steps": 60, "label": "a"}, {"steps": 90, "label": "b"}]})
    study["training"] |= {"schedule": "wsd", "decay_fraction": 0.2}
    plan = make_plan(parse_study(study))
    sharing = {cell for trunk in plan.trunks.values() for cell in trunk.prefixes}
    assert sharing == set(plan.tuning_cells)
    assert set(choose_all(plan, 0).trunks) == set(plan.trunks)


def test_arguments_of_a_custom_optimizer(tuned):
    lion = {
        "name": "custom",
        "path": "torch.optim.Adagrad",
        "key": "ada",
        "label": "A_$&%<script>",
        "arguments": {"eps": 1.0e-9, "lr_decay": 0.1},
    }
    grids = {"adamw": {"lr_factor": [1, 2]}, "ada": {"arguments.eps": [1.0e-8, 1.0e-6]}}
    study = parse_study(tuned({"optimizers": ["adamw", lion]}, grids=grids))
    tried = [(field, optimizer.arguments["eps"]) for field, optimizer in custom_optimizers(study)]
    assert tried == [
        ("grid.0.optimizers.1", 1e-9),
        ("grid.0.tune.grids.ada", 1e-8),
        ("grid.0.tune.grids.ada", 1e-6),
    ]
    cell = list(choose_all(make_plan(study), 1).cells.values())[-1]
    assert (cell.optimizer.arguments, cell.optimizer.key) == ({"eps": 1e-6, "lr_decay": 0.1}, "ada")
    assert cell.optimizer.label == "A_$&%<script> (tuned)"
    with pytest.raises(ValueError, match="text to YAML"):
        parse_study(
            tuned(
                {"optimizers": ["adamw", lion]},
                grids=grids | {"ada": {"arguments.eps": ["1e-8", 2]}},
            )
        )


# Choices on disk.


def test_a_plan_that_is_loaded_knows_the_choices_beside_it(tuned, tmp_path):
    plan = make_plan(parse_study(tuned()))
    write_sealed(tmp_path / "plan.json", plan.to_json())
    assert list(load_plan(tmp_path / "plan.json").cells) == list(plan.cells)
    write_choices(plan, tmp_path / "tuning", 1)
    assert list(load_plan(tmp_path / "plan.json").cells) == list(choose_all(plan, 1).cells)


def test_cells_that_wait_for_a_choice_are_not_worked_on(tuned):
    plan = make_plan(parse_study(tuned()))
    name = next(iter(plan.cells))
    with pytest.raises(ValueError, match=f"{name} waits for the choice of nano_3.84K_adamw_"):
        plan.find([name])
    assert plan.with_choices({}) is plan
    (cell,) = choose_all(plan, 0).find([name])
    assert cell.job_name == name != cell.id


@pytest.mark.fault(
    "results",
    "the choice of a tuning is damaged, edited, or of other candidates",
    "the next start sets it aside and chooses again; the table is byte for byte the same",
)
def test_choices_of_other_candidates_and_damaged_ones_are_found(tuned, tmp_path):
    plan, other = (make_plan(parse_study(tuned(seeds=seeds))) for seeds in ([11], [12]))
    write_choices(plan, tmp_path, 0)
    for tuning in plan.tunings.values():
        assert read_choice(choice_file(tmp_path, tuning.id), tuning)["chosen"] == 0
    first, second = (choice_file(tmp_path, name) for name in plan.tunings)
    theirs = next(iter(other.tunings.values()))
    write_choices(other, tmp_path, 0)
    choice_file(tmp_path, theirs.id).rename(first)
    second.write_text(second.read_text().replace('"chosen": 0', '"chosen": 1'))
    for path, tuning, said in zip(
        (first, second), plan.tunings.values(), ("not the choice of", "do not match"), strict=True
    ):
        with pytest.raises(ValueError, match=f"{path.name}: .*{said}"):
            read_choice(path, tuning)
    write_sealed(tmp_path / "plan.json", plan.to_json())
    (tmp_path / "tuning").mkdir()
    second.rename(tmp_path / "tuning" / second.name)
    with pytest.raises(ValueError, match="do not match its own SHA-256"):
        load_plan(tmp_path / "plan.json")


def test_the_split_by_which_a_tuning_chooses_is_not_the_one_that_is_reported(tuned):
    study = tuned()
    study["evaluation"]["test_loss"] = {"split": "val"}
    with pytest.raises(
        ValueError, match=r"grid\.0\.tune: chooses by the split val, on which evaluation\.test_loss"
    ):
        parse_study(study)


def test_a_fixed_cell_keeps_its_job_if_a_choice_is_the_same_cell(tuned):
    study = tuned(grids={"adamw": {"weight_decay": [0.0, 0.1]}})
    study["grid"][0] |= {"optimizers": ["adamw"], "table": None}
    fixed = {"name": "adamw", "weight_decay": 0.1}
    (first,) = study["grid"]
    study["grid"].append(
        {name: first[name] for name in ("models", "tokens", "seeds")} | {"optimizers": [fixed]}
    )
    plan = make_plan(parse_study(study))
    cell = plan.blocks[1].cells[0]
    filled = choose_all(plan, 1)
    assert any(each.id == cell.id for each in filled.blocks[0].cells)
    assert filled.find([cell.id]) == [cell]
    assert filled.by_job_name.keys() == plan.by_job_name.keys()
