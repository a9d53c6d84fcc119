"""The section ``statistics`` of a study: what it refuses, and that it changes no cell."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coupled_adam_bench.study.config import parse_any_study, parse_study
from coupled_adam_bench.study.plan import Plan, make_plan

Settings = Callable[..., dict[str, Any]]


@pytest.mark.parametrize(
    ("field", "value", "place", "message"),
    [
        ("bold", "bonferroni", "statistics.bold", "must be 'paper', 'paired' or 'holm'"),
        ("bald", "holm", "statistics.bald", "unknown key; did you mean 'bold'?"),
        ("margins", {"loss": 0}, "statistics.margins.loss", "must be greater than 0"),
        ("margins", {"loss": -1}, "statistics.margins.loss", "must be greater than 0"),
        ("margins", {"loss": float("nan")}, "statistics.margins.loss", "must be"),
        ("margins", {"loss": True}, "statistics.margins.loss", "must be a number, not true"),
        ("margins", {"lust_%": 1}, "statistics.margins", "lust_% is nothing that this study measures; there are loss,"),
        ("margins", 0.1, "statistics.margins", "must be a mapping"),
        ("target_loss", 0, "statistics.target_loss", "must be greater than 0"),
        ("target_loss", True, "statistics.target_loss", "must be a number"),
        ("target_loss", "low", "statistics.target_loss", "must be a number"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(
    field: str, value: Any, place: str, message: str, tiny_study: Settings
) -> None:
    with pytest.raises(ValueError, match="1 invalid setting") as raised:
        parse_study(tiny_study(statistics={field: value}))
    assert place in str(raised.value)
    assert message in str(raised.value)


def test_statistics_change_no_cell(tiny_study: Settings, tiny_plan: Plan) -> None:
    assert tiny_plan.statistics.bold == "paper"
    settings = {"bold": "holm", "margins": {"loss": 0.01, "acc": 0.5}, "target_loss": 3.28}
    plan = make_plan(parse_study(tiny_study(statistics=settings)))
    assert list(plan.cells) == list(tiny_plan.cells)
    assert plan.statistics.model_dump() == settings


def test_a_folder_has_one_rule_and_one_margin_of_a_metric(tiny_study: Settings, tmp_path: Path) -> None:
    def plan_of(first: dict[str, Any], second: dict[str, Any], **for_all: Any) -> Plan:
        for name, section, seed in (("a", first, 4), ("b", second, 8)):
            settings = tiny_study(study=name, statistics=section)
            settings["grid"][0]["seeds"] = [seed, 1, 2]
            (tmp_path / f"{name}.yaml").write_text(json.dumps(settings))
        return make_plan(parse_any_study({"study": "both", "studies": ["a", "b"], **for_all}), [tmp_path])

    with pytest.raises(ValueError, match=r"statistics\.bold: a has 'holm', b has 'paper'; a results folder has one"):
        plan_of({"bold": "holm"}, {})
    with pytest.raises(ValueError, match=r"statistics\.margins\.loss: a has 0\.1, b has 0\.2; a results folder"):
        plan_of({"margins": {"loss": 0.1}}, {"margins": {"loss": 0.2}})
    assert plan_of({"margins": {"loss": 0.1}}, {"margins": {"acc": 0.2}}).statistics.margins == {
        "loss": 0.1, "acc": 0.2
    }  # fmt: skip
    given = {"bold": "paired", "margins": {"loss": 0.3}}
    plan = plan_of({"bold": "holm", "margins": {"loss": 0.1}}, {}, statistics=given)
    assert plan.statistics.model_dump() == {**given, "target_loss": None}
