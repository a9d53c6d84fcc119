"""The declarations of built-in optimizers, against the folder that they lie in and the page that
lists them."""

import re
from pathlib import Path
from pkgutil import iter_modules, resolve_name
from typing import ClassVar, Literal

import pytest
import yaml
from pydantic import TypeAdapter

from coupled_adam_bench.study.settings import SingleOptimizer
from coupled_adam_bench.study.settings import optimizers as folder
from coupled_adam_bench.study.settings.optimizers.base import (
    BuiltInSettings,
    FactorSettings,
    MomentumSettings,
)
from coupled_adam_bench.study.settings.optimizers.built_in import BY_NAME
from coupled_adam_bench.study.settings.per_matrix import Optimizer

PAGE = (Path(__file__).parents[4] / "docs" / "optimizers.md").read_text(encoding="utf-8")


def test_each_file_of_the_folder_is_in_the_union():
    modules = [
        resolve_name(f"{folder.__name__}.{module.name}") for module in iter_modules(folder.__path__)
    ]
    values = [value for module in modules for value in vars(module).values()]
    declared = {
        value for value in values if isinstance(value, type) and issubclass(value, BuiltInSettings)
    }
    assert {kind for kind in declared if "name" in kind.model_fields} == set(BY_NAME.values())


@pytest.mark.parametrize("name", BY_NAME)
def test_the_examples_are_entries_of_this_optimizer(name):
    read = [TypeAdapter(SingleOptimizer).validate_python(entry) for entry in BY_NAME[name].examples]
    assert read
    assert {optimizer.name for optimizer in read} == {name}
    assert len({optimizer.n_states(100, 10) for optimizer in read}) == len(read), (
        "one example for each size of states"
    )


def test_the_page_has_the_names_of_its_entries_and_lacks_no_optimizer():
    table = PAGE.partition("| in the study |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| `(.+?)` \| `(.+?)` \| (.+?) \|", table, re.MULTILINE)
    entries = [
        TypeAdapter(Optimizer).validate_python(yaml.safe_load(entry)) for entry, _, _ in rows
    ]
    assert [(entry.key, entry.label) for entry in entries] == [
        (key, label) for _, key, label in rows
    ]
    assert {entry.name for entry in entries} == {*BY_NAME, "per_matrix"}
    family = PAGE.partition("| | rule of a step |")[2].partition("\n\n")[0]
    assert {kind.title for kind in BY_NAME.values()} <= set(
        re.findall(r"^\| (.+?) \|", family, re.MULTILINE)
    )


def test_a_setting_that_no_name_tells_is_refused():
    """Two optimizers would have one key and label, and tables would print the changed one under the
    plain name."""
    with pytest.raises(AssertionError, match="Forgetful: add alpha, offset to `named`"):

        class Forgetful(MomentumSettings):
            title = "Forgetful"
            name: Literal["forgetful"]
            alpha: float = 0.9
            offset: float | None = None

    class Telling(FactorSettings):
        title = "Telling"
        named: ClassVar = {**FactorSettings.named, "alpha": ("_a{:g}", ", alpha = {:g}")}
        name: Literal["telling"]
        alpha: float = 0.9

        def n_states(self, rows, width):
            return 0

        def keywords(self, training):
            return {}

    assert Telling(name="telling", alpha=0.5).names() == ("telling_a0.5", "Telling, alpha = 0.5")
