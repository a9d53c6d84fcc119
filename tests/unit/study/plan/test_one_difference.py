"""Two arms that are compared differ in one setting, so that what a sentence says is due to it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coupled_adam_bench.study.plan.preregistration import read_stated
from coupled_adam_bench.study.settings import Study
from coupled_adam_bench.study.settings.composite import Composite, load_any_study
from coupled_adam_bench.study.settings.optimizers.base import BetaSettings

RESEARCH = Path(__file__).parents[4] / "research"
STUDIES = ("fresh", "ladder", "memory", "tokens")
Arms = dict[str, dict[str, Any]]
"""The settings of a table's optimizers by key."""

DIFFER_IN_MORE = {
    "equal loss of AMSGrad": "two rules that forget less than Adam, each one setting from it",
    "equal loss of Coupled Adam": "whether the memory alone ends where coupling ends, each one"
    " setting from Adam",
    "ratio of the memory": "the memory has the gain without the geometry that coupling has, each"
    " one setting from Adam",
}
"""Hypotheses whose arms differ in more than one setting, with the reason."""


def parts(name: str) -> tuple[Study, ...]:
    file = RESEARCH / name / f"{name}.yaml"
    study = load_any_study(file)
    return study.load_parts((file.parent,)) if isinstance(study, Composite) else (study,)


def tables(name: str) -> dict[str, Arms]:
    """The arms of each table of a study."""
    found: dict[str, Arms] = {}
    for study in parts(name):
        for block in study.grid:
            assert block.table is not None
            arms = found.setdefault(block.table, {})
            for optimizer in block.optimizers:
                assert isinstance(optimizer, BetaSettings), optimizer.key
                arms[optimizer.key] = optimizer.model_dump(exclude_defaults=True) | {
                    "beta2": study.training.betas(optimizer)[1]
                }
    return found


def differing(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    return sorted(
        field for field in one.keys() | other.keys() if one.get(field) != other.get(field)
    )


def hypotheses(name: str) -> Iterator[tuple[str, list[str]]]:
    """The name of each hypothesis of a study, and in what its arms differ."""
    arms = tables(name)
    stated = read_stated(str(RESEARCH / name / "registration.yaml"))
    for each in stated.plan.hypotheses:
        of_table = arms[each.table]
        yield each.name, differing(of_table[each.better], of_table[each.than])


@pytest.mark.parametrize("name", STUDIES)
def test_every_arm_differs_from_a_partner_in_one_setting(name):
    for table, arms in tables(name).items():
        for key, arm in arms.items():
            others = {other: differing(arm, arms[other]) for other in arms if other != key}
            assert min(map(len, others.values())) == 1, f"{table}: {key} has no partner: {others}"


@pytest.mark.parametrize("name", STUDIES)
def test_the_arms_of_a_hypothesis_differ_in_one_setting(name):
    more = {
        hypothesis: fields
        for hypothesis, fields in hypotheses(name)
        if len(fields) != 1 and hypothesis not in DIFFER_IN_MORE
    }
    assert not more, "make them differ in one setting, or add them to DIFFER_IN_MORE with a reason"


def test_no_exception_is_listed_in_vain():
    found = {name: fields for study in STUDIES for name, fields in hypotheses(study)}
    assert {name: found.get(name) for name in DIFFER_IN_MORE} == {
        "equal loss of AMSGrad": ["amsgrad", "beta2"],
        "equal loss of Coupled Adam": ["beta2", "name"],
        "ratio of the memory": ["beta2", "name"],
    }
