"""A study of models without layers: its default, and what does not go with them."""

from typing import Any

import pytest

from coupled_adam_bench.study.plan import make_plan
from coupled_adam_bench.study.settings import parse_study


@pytest.fixture
def settings(tiny_study) -> dict[str, Any]:
    values = tiny_study()
    del values["evaluation"]["downstream"]
    (model,) = values["models"]
    model = {key: value for key, value in model.items() if key not in ("n_layer", "n_head")}
    values["models"] = [model | {"architecture": "contexts", "n_contexts": 8}]
    return values


def test_downstream_tasks_are_off_unless_they_are_asked_for(settings, tiny_study):
    study = parse_study(settings)
    assert not [stage.name for stage in study.stages if stage.optional]
    assert "acc" not in study.metrics
    assert parse_study(study.model_dump(mode="json")) == study  # as in a plan
    settings["evaluation"]["downstream"] = tiny_study()["evaluation"]["downstream"]
    assert "downstream" in [stage.name for stage in parse_study(settings).stages]


def test_the_contexts_are_a_part_of_the_identity_of_a_cell(settings):
    first = next(iter(make_plan(parse_study(settings)).cells))
    settings["models"][0]["n_contexts"] = 16
    assert next(iter(make_plan(parse_study(settings)).cells)) != first


def test_the_flops_of_a_step_do_not_grow_with_the_batch(settings):
    cell = next(iter(make_plan(parse_study(settings)).cells.values()))
    settings["training"]["batch_sequences"] *= 8
    assert next(iter(make_plan(parse_study(settings)).cells.values())).flops / cell.flops == 1


@pytest.mark.parametrize(
    ("section", "changes", "message"),
    [
        ("training", {"core_optimizer": "muon"}, "core_optimizer: muon is for matrices of layers"),
        ("execution", {"parallel": "fsdp"}, "execution.parallel: fsdp shards layers"),
        ("data", {}, "n_contexts: 4096 previous tokens"),
    ],
)
def test_what_does_not_go_with_them_is_refused(settings, section, changes, message):
    if section == "data":
        settings["models"][0]["n_contexts"] = 4096
    else:
        settings[section] |= changes
    with pytest.raises(ValueError, match=message):
        parse_study(settings)


def test_a_head_of_its_own_is_refused(settings):
    settings["models"][0]["tied"] = False
    settings["grid"][0]["optimizers"] = [{"embedding": "adamw", "head": "adamw"}, "coupled_adam"]
    with pytest.raises(
        ValueError, match="adamw_head-adamw is for models whose head has a matrix of its own"
    ):
        parse_study(settings)
