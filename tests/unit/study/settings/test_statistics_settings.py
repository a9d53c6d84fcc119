"""The section ``statistics`` of a study: what it refuses, and that it changes no cell."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from coupled_adam_bench.study.plan import make_plan
from coupled_adam_bench.study.settings import parse_any_study, parse_study
from coupled_adam_bench.tools.verify.recorded import known_settings

Settings = Callable[..., dict[str, Any]]


@pytest.mark.parametrize(
    ("field", "value", "place", "message"),
    [
        ("bold", "bonferroni", "statistics.bold", "must be 'paper', 'paired' or 'holm'"),
        ("bald", "holm", "statistics.bald", "unknown key; did you mean 'bold'?"),
        ("margins", {"loss": 0}, "statistics.margins.loss", "must be greater than 0"),
        ("margins", {"loss": True}, "statistics.margins.loss", "must be a number, not true"),
        (
            "margins",
            {"lust_%": 1},
            "statistics.margins",
            "lust_% is nothing that this study measures; there are loss,",
        ),
        ("target_loss", 3.28, "statistics.target_loss", "is a plug-in now; CHANGELOG.md"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(field, value, place, message, tiny_study):
    with pytest.raises(ValueError, match="1 invalid setting") as raised:
        parse_study(tiny_study(statistics={field: value}))
    assert place in str(raised.value)
    assert message in str(raised.value)


def test_statistics_change_no_cell(tiny_study, tiny_plan):
    assert tiny_plan.statistics.bold == "paper"
    settings = {"bold": "holm", "margins": {"loss": 0.01, "acc": 0.5}}
    plan = make_plan(parse_study(tiny_study(statistics=settings)))
    assert list(plan.cells) == list(tiny_plan.cells)
    assert plan.statistics.model_dump() == settings


def test_a_record_of_a_study_from_before_is_read(tiny_study):
    """Records name all settings, also those that were not given and are gone."""
    old = {"bold": "paper", "margins": {}, "target_loss": None, "target_sd": None}
    study = parse_study(known_settings(tiny_study(statistics=old)))
    assert study == parse_study(tiny_study())
    assert study.model_dump()["statistics"] == {"bold": "paper", "margins": {}}


def test_a_folder_has_one_section_of_statistics(tiny_study, tmp_path):
    for name, section in (("a", {"bold": "holm"}), ("b", {"margins": {"loss": 0.1}})):
        (tmp_path / f"{name}.yaml").write_text(
            json.dumps(tiny_study(study=name, statistics=section))
        )
    whole = {"study": "both", "studies": ["a", "b"]}
    with pytest.raises(
        ValueError, match=r"statistics\.bold: a has 'holm', b has 'paper'; a results folder has one"
    ):
        make_plan(parse_any_study(whole), [tmp_path])
    given = {"bold": "paired", "margins": {"loss": 0.3}}
    plan = make_plan(parse_any_study(whole | {"statistics": given}), [tmp_path])
    assert plan.statistics.model_dump() == given
