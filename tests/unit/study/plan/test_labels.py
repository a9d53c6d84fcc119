"""What tables and figures print tells optimizers, models and counts of tokens apart."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from coupled_adam_bench.study.plan import make_plan
from coupled_adam_bench.study.settings import parse_any_study, parse_study

TinyStudy = Callable[..., dict[str, Any]]


def custom(key: str, label: str) -> dict[str, Any]:
    return {"name": "custom", "path": "torch.optim.Adagrad", "key": key, "label": label}


def block(**changes: Any) -> dict[str, Any]:
    return {
        "models": ["nano"],
        "tokens": [{"steps": 60}],
        "optimizers": ["adamw"],
        "seeds": [1],
        **changes,
    }


def model(name: str, **changes: Any) -> dict[str, Any]:
    return {"name": name, "n_layer": 1, "n_head": 2, "d_model": 8, "learning_rate": 0.01, **changes}


CLASHES: dict[str, tuple[dict[str, Any], str]] = {
    "optimizers of two blocks": (
        {
            "grid": [
                block(optimizers=[custom("a", "Lion")]),
                block(optimizers=["adamw", custom("b", " Lion")]),
            ]
        },
        "grid.0.optimizers.0 and grid.1.optimizers.1: both are printed as ' Lion'",
    ),
    "letters that look the same": (
        {"grid": [block(optimizers=[custom("a", "Lion 2"), custom("b", "Lion ②")])]},
        "grid.0.optimizers.0 and grid.0.optimizers.1: both are printed as 'Lion ②'",
    ),
    "models": (
        {
            "models": [model("nano", label="small"), model("wide", d_model=16, label="small")],
            "grid": [block(), block(models=["wide"])],
        },
        "grid.0.models.0 and grid.1.models.0: both are printed as 'small'",
    ),
    "tokens": (
        {"grid": [block(tokens=[{"steps": 60, "label": "x"}, {"steps": 61, "label": "x"}])]},
        "grid.0.tokens.0 and grid.0.tokens.1: both are printed as 'x'",
    ),
    "tokens that are rounded alike": (
        {"grid": [block(tokens=["1M"]), block(tokens=[1_000_400])]},
        "grid.0.tokens.0 and grid.1.tokens.0: both are printed as '1M'",
    ),
}


@pytest.mark.fault(
    "settings",
    "two optimizers, models or counts of tokens of a grid have one label",
    "it is refused with both places: tables and figures could not tell them apart",
)
@pytest.mark.parametrize("case", CLASHES)
def test_one_label_for_two_things(case, tiny_study):
    changes, expected = CLASHES[case]
    with pytest.raises(ValueError) as raised:
        make_plan(parse_study(tiny_study(**changes)))
    assert str(raised.value).startswith(
        f"{expected}, so tables and figures could not tell them apart; give one of them"
    )


def test_parts_of_a_composite_study(tiny_study, tmp_path):
    for name, key in (("a", "one"), ("b", "two")):
        values = tiny_study(study=name, grid=[block(optimizers=["adamw", custom(key, "Lion")])])
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(values))
    with pytest.raises(
        ValueError,
        match=r"^a: grid\.0\.optimizers\.1 and b: grid\.0\.optimizers\.1: both are printed",
    ):
        make_plan(parse_any_study({"study": "whole", "studies": ["a", "b"]}), [tmp_path])


@pytest.mark.parametrize(
    ("key", "label", "field"),
    [
        ("adamw", "Mine", "key: 'adamw'"),
        ("AdamW", "Mine", "key: 'AdamW'"),
        ("coupled_adam_f0.1", "Mine", "key: 'coupled_adam_f0.1'"),
        ("mine", "Adam", "label: 'Adam'"),
        ("mine", "coupled  adam", "label: 'coupled  adam'"),
        ("mine", "Adam (tuned)", "label: 'Adam (tuned)'"),
        ("mine", "Ember, f = 3", "label: 'Ember, f = 3'"),
        ("mine", "\uff21dam", "label: '\uff21dam'"),
    ],
)
def test_the_names_of_built_in_optimizers_are_theirs(key, label, field, tiny_study):
    settings = tiny_study()
    settings["grid"][0]["optimizers"] = ["coupled_adam", custom(key, label)]
    with pytest.raises(
        ValueError,
        match=rf"{re.escape(field)} is a name of the built-in optimizer \w+; give yours an",
    ):
        parse_study(settings)


@pytest.mark.parametrize(
    ("key", "label"), [("adamw2", "Adam2"), ("sgdm", "SGD with a memory"), ("adam", "Adamax")]
)
def test_other_names_are_free(key, label, tiny_study):
    settings = tiny_study()
    settings["grid"][0]["optimizers"] = ["coupled_adam", custom(key, label)]
    parse_study(settings)
