"""A stated plan: what is refused before the first job, and what is recorded."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from coupled_adam_bench.store.files import write_sealed
from coupled_adam_bench.study.plan import Plan, load_plan, make_plan
from coupled_adam_bench.study.settings import parse_any_study, parse_study

LOSS = {
    "name": "loss",
    "table": "table1",
    "metric": "loss",
    "better": "coupled_adam",
    "than": "adamw",
}


@pytest.fixture
def plan_with(tiny_study: Callable[..., dict[str, Any]], tmp_path: Path) -> Callable[..., Plan]:
    """The tiny study with a stated plan of one hypothesis, and changes of both."""

    def build(hypothesis: dict[str, Any] | None = None, **changes: Any) -> Plan:
        text = {"hypotheses": [LOSS | (hypothesis or {})], "seeds": [1, 2, 3]} | changes
        (tmp_path / "plan.yaml").write_text(yaml.safe_dump(text))
        return make_plan(parse_study(tiny_study(stated=str(tmp_path / "plan.yaml"))))

    return build


def test_a_stated_plan_changes_no_cell(plan_with, tiny_plan, tmp_path):
    plan = plan_with()
    assert list(plan.cells) == list(tiny_plan.cells)
    assert plan.stated is not None
    assert plan.stated.sha256 == hashlib.sha256((tmp_path / "plan.yaml").read_bytes()).hexdigest()
    write_sealed(tmp_path / "plan.json", plan.to_json())
    (tmp_path / "plan.yaml").unlink()  # jobs need the plan only
    assert load_plan(tmp_path / "plan.json") == plan


def test_a_composite_states_its_own(plan_with, tiny_study, tmp_path):
    plan_with()
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(tiny_study(stated="nowhere.yaml")))
    whole = {"study": "whole", "studies": ["tiny"]}
    assert make_plan(parse_any_study(whole), [tmp_path]).stated is None
    plan = make_plan(parse_any_study(whole | {"stated": str(tmp_path / "plan.yaml")}), [tmp_path])
    assert plan.stated is not None


@pytest.mark.parametrize(
    ("hypothesis", "changes", "message"),
    [
        (
            {"table": "table7"},
            {},
            r"hypotheses\.0\.table: 'table7' is no table of the study; there are table1",
        ),
        (
            {"metric": "los"},
            {},
            r"hypotheses\.0\.metric: 'los' is nothing that the study measures; there are loss, ",
        ),
        (
            {"better": "sgd"},
            {},
            r"hypotheses\.0\.better: 'sgd' is not in table1; there are adamw, coupled_adam",
        ),
        (
            {"than": "coupled_adam"},
            {},
            r"hypotheses\.0\.than: 'coupled_adam' is the optimizer that is better",
        ),
        (
            {"tokens": "20B"},
            {},
            r"hypotheses\.0\.tokens: '20B' is not in table1; there are 60 steps",
        ),
        ({"difference": 0.1}, {}, r"hypotheses\.0\.spread: goes with `difference`"),
        ({"test": "trend", "tokens": "60 steps"}, {}, r"hypotheses\.0\.tokens: a trend has none"),
        (
            {"test": "trend"},
            {},
            (
                r"hypotheses\.0\.test: a trend needs several numbers of tokens, and table1 compares"
                r" at one"
            ),
        ),
        ({}, {"seeds": [1]}, r"seeds: only 1; a test needs at least 2"),
        ({}, {"hypotheses": [LOSS, LOSS]}, r"hypotheses: loss is the name of more than one"),
    ],
)
def test_what_is_wrong_is_said_before_the_first_job(
    plan_with,
    hypothesis,
    changes,
    message,
):
    with pytest.raises(ValueError, match=rf"(?s)^stated: .*plan\.yaml.*{message}"):
        plan_with(hypothesis, **changes)


def test_optimizers_that_never_meet_are_refused(tiny_study, tmp_path):
    text = {"hypotheses": [LOSS | {"table": "table7"}], "seeds": [1, 2, 3]}
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(text))
    sgd = {"name": "sgd", "lr_factor": 100}
    blocks = [
        {
            "table": "table7",
            "models": ["nano"],
            "tokens": [{"steps": steps}],
            "optimizers": [optimizer, sgd],
        }
        for steps, optimizer in ((60, "adamw"), (70, "coupled_adam"))
    ]
    with pytest.raises(
        ValueError,
        match=r"than: coupled_adam and adamw are nowhere compared at the model and tokens",
    ):
        make_plan(parse_study(tiny_study(grid=blocks, stated=str(tmp_path / "plan.yaml"))))


@pytest.mark.parametrize("text", [None, "[]"])
def test_a_file_that_states_nothing_is_refused(tiny_study, tmp_path, text):
    path = tmp_path / "plan.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ValueError, match=r"^stated: .*plan\.yaml: "):
        make_plan(parse_study(tiny_study(stated=str(path))))
