"""Every field of a study in turn is given values that no one should give: it is refused by name, or it is planned."""

import json
import math
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from coupled_adam_bench.evaluation.settings import check_evaluation
from coupled_adam_bench.results.groups import layout_of
from coupled_adam_bench.study.config import Composite, Study, parse_any_study, parse_study
from coupled_adam_bench.study.plan import make_plan

Place = tuple[str | int, ...]

HOSTILE: tuple[Any, ...] = (
    None, "", [], {}, [None], {"": None}, -1, 0, 10**30, 10**4000, 1e400, math.nan, 5e-324, True, "x" * 300,
    "../../etc", "a\x00b", "a\nb", "\ud800", "$\\frac{$", "1e-8", "[", "**/*",
)  # fmt: skip


# The studies that are varied, and the sections of each.
BASES: dict[str, tuple[Place, ...]] = {
    "tiny": ((),),
    "files": (("paths",), ("data",), ("evaluation", "word_similarity"), ("evaluation", "downstream")),
    "hub": (("data", "source"),),
}


def fields(annotation: Any, seen: set[type[BaseModel]]) -> Iterator[tuple[str, str]]:
    """Yield (class, field) of all classes of settings that an annotation allows, and of those below them."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel) and annotation not in seen:
        seen.add(annotation)
        for name, field in annotation.model_fields.items():
            yield annotation.__name__, name
            yield from fields(field.annotation, seen)
    for argument in get_args(annotation):
        yield from fields(argument, seen)


def given(value: Any) -> Iterator[tuple[str, str]]:
    """Yield (class, field) of all settings that a study has."""
    if isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield type(value).__name__, name
            yield from given(getattr(value, name))
    if isinstance(value, tuple | dict):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from given(inner)


def places(values: Any, place: Place = ()) -> Iterator[Place]:
    """Yield the place of every mapping, list and value within a study; of a list the first entry."""
    if place:
        yield place
    if isinstance(values, dict):
        for key, inner in values.items():
            yield from places(inner, (*place, key))
    if isinstance(values, list | tuple):
        for index, inner in enumerate(values):
            if index == 0 or isinstance(inner, dict):
                yield from places(inner, (*place, index))


def replaced(values: Any, place: Place, value: Any) -> Any:
    values = deepcopy(values)
    target = values
    for key in place[:-1]:
        target = target[key]
    target[place[-1]] = value
    return values


def full(value: Any) -> Any:
    """Return settings written out, those at their defaults too."""
    if isinstance(value, BaseModel):
        return {name: full(getattr(value, name)) for name in type(value).model_fields}
    if isinstance(value, dict):
        return {name: full(inner) for name, inner in value.items()}
    return [full(inner) for inner in value] if isinstance(value, tuple) else value


@pytest.fixture
def bases(tiny_study: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, Any]]:
    """Valid studies that have between them every section and every kind of source and optimizer."""
    monkeypatch.chdir(tmp_path)
    Path("text").mkdir()
    Path("text/a.txt").write_text("text")
    Path("tokenizer.json").write_text("{}")
    Path("pairs").write_text("a b 1\n")
    settings = tiny_study()
    settings["evaluation"]["theory"] = {}
    settings["evaluation"]["metrics"] = [
        {"name": "own", "path": "numpy.median", "symbol": "m", "higher_is_better": True}
    ]
    columns = ["loss", "isotropy", "r_bar"]
    settings["tables"] = {"mine": {"title": "Mine", "comparison": "each_other", "columns": columns, "min_seeds": 2}}
    settings["grid"][0] |= {
        "table": "mine",
        "optimizers": [
            "adamw", "coupled_adam", "ember", {"name": "sgd", "lr_factor": 100},
            {"name": "custom", "path": "torch.optim.Adagrad", "key": "ada", "label": "Ada", "arguments": {"eps": 0.1}},
        ],
        "tune": {
            "seeds": [11], "tokens": {"steps": 30}, "grids": {"ada": {"lr_factor": [1, 2]}}, "equal_budgets": False,
        },
    }  # fmt: skip
    files = deepcopy(settings)
    files["paths"] = {"text": ["text"], "tokenizer": "tokenizer.json", "word_similarity": "."}
    files["data"] |= {"source": {"kind": "files"}, "tokenizer": "file"}
    files["evaluation"] = {"word_similarity": [{"name": "a", "file": "pairs"}], "downstream": {"tasks": ["hellaswag"]}}
    hub = deepcopy(files)
    hub["data"]["source"] = {"kind": "hub", "preset": "openwebtext"}
    return {name: full(parse_study(base)) for name, base in (("tiny", settings), ("files", files), ("hub", hub))}


def test_the_bases_have_every_field(bases: dict[str, dict[str, Any]]) -> None:
    assert set(fields(Study, set())) == {each for base in bases.values() for each in given(parse_study(base))}


def names(said: str, place: Place) -> bool:
    """Say whether a message names the field at a place, or for the name of a model what the grid then lacks."""
    keys = [key for key in place if isinstance(key, str)]
    return keys[-1] in said or (keys == ["models", "name"] and "is not among the study's models" in said)


def outcome(values: Any) -> str | None:
    """Return what is said of a study before its first job, or None if it is planned."""
    try:
        study = parse_any_study(values, "my.yaml")
        plan = make_plan(study, [Path()])
        layout_of(plan)
        for study in plan.studies.values():
            check_evaluation(study)
    except ValueError as error:
        assert type(error) is ValueError, f"{error!r} is no sentence of ours"
        return str(error)
    planned = json.loads(json.dumps(plan.to_json(), allow_nan=False))
    for entry in planned["studies"]:
        parse_study(entry["study"])
    assert max(len(cell.encode()) for cell in plan.cells) <= 200
    assert all(0 <= cell.seed < 2**63 and cell.n_tokens < 2**63 for cell in plan.cells.values())
    return None


@pytest.mark.fault(
    "settings",
    "every field of a study is given hostile values in turn: nothing, wrong types, huge, tiny and negative numbers, "
    "NaN, control characters, paths, formulas, text of 300 letters",
    "the study is refused with the name of the field before the first job, or it is planned",
)
@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.nightly)])
def test_every_hostile_value_is_refused_by_name_or_planned(every: int, bases: dict[str, dict[str, Any]]) -> None:
    wrong = []
    for name, base in bases.items():
        assert outcome(base) is None
        varied = [place for place in places(base) if any(place[: len(part)] == part for part in BASES[name])]
        for number, place in enumerate(varied):
            for value in HOSTILE[number % every :: every]:  # by day a quarter of them at each place, all somewhere
                try:
                    said = outcome(replaced(base, place, value))
                except BaseException as error:
                    said = repr(error)
                if said is not None and not (names(said, place) and len(said) < 20_000):
                    wrong.append((name, place, repr(value)[:40], said[:200]))
    assert not wrong, "\n".join(map(str, wrong[:40])) + f"\n{len(wrong)}"


def test_every_hostile_value_of_a_composite_study(tiny_study: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    Path("part.yaml").write_text(json.dumps(tiny_study()))
    base = full(Composite(study="whole", studies=("part",))) | {"paths": {}, "execution": {}, "budget": {}}
    assert outcome(base) is None
    for place in places(base):
        for value in HOSTILE:
            said = outcome(replaced(base, place, value))
            assert said is None or names(said, place), (place, value, said)
