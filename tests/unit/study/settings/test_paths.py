"""Paths as users type them: one rule for every setting that is a path."""

import json
from pathlib import Path

import pytest

from coupled_adam_bench.cli import parser
from coupled_adam_bench.study.plan import make_plan, plan_from_json
from coupled_adam_bench.study.settings import Paths, parse_any_study, parse_study
from coupled_adam_bench.tools.verify.options import parse_config

ROOT_HOME = Path("~root").expanduser()


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SCRATCH", str(tmp_path / "scratch"))
    monkeypatch.setenv("EMPTY", "")
    monkeypatch.delenv("UNSET", raising=False)


@pytest.mark.parametrize("name", Paths.model_fields)
@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("~/a b/*.txt", "{0}/home/a b/*.txt"),
        ("~", "{0}/home"),
        ("~root/a", f"{ROOT_HOME}/a"),
        ("$SCRATCH/a", "{0}/scratch/a"),
        ("${SCRATCH}_2/$SCRATCH", "{0}/scratch_2/{0}/scratch"),
        ("a/~/b~", "a/~/b~"),
        ("./~", "./~"),
        ("100$/a", "100$/a"),
    ],
)
def test_every_path_is_expanded_at_the_door(name, typed, meant, tmp_path):
    given = getattr(Paths.model_validate({name: typed}), name)
    expected = meant.format(tmp_path)
    assert given == ((expected,) if name == "text" else expected)


@pytest.mark.fault(
    "settings",
    "A path names a variable that is not set or is empty, or the home of nobody (`$UNSET/hub` would"
    " be `/hub`).",
    "One line names setting and variable, and what to write; nothing is looked for in a folder `~`"
    " or in `/`.",
)
@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (
            "$UNSET/hub",
            "the variable $UNSET is not set, or is empty; set it, or write the folder itself",
        ),
        ("a/${UNSET}", "the variable ${UNSET} is not set, or is empty"),
        ("$EMPTY/hub", "the variable $EMPTY is not set, or is empty"),
        (
            "~nobody-of-this-name/hub",
            "~nobody-of-this-name is the home of no user here; write the folder itself",
        ),
    ],
)
@pytest.mark.parametrize("setting", ["paths.hub_mirror", "paths.text.1", "stated"])
def test_a_path_that_leads_nowhere_is_refused(setting, typed, said, tiny_study):
    changes = {
        "paths.hub_mirror": {"paths": {"hub_mirror": typed}},
        "paths.text.1": {"paths": {"text": ["a", typed]}},
        "stated": {"stated": typed},
    }[setting]
    with pytest.raises(ValueError, match="1 invalid setting") as raised:
        parse_study(tiny_study(**changes))
    assert f"  {setting}: {said}" in str(raised.value)


@pytest.mark.parametrize("file", ["~/men.csv", "$SCRATCH/men.csv"])
def test_a_file_of_a_folder_is_not_looked_for_elsewhere(file, tiny_study):
    study = tiny_study(
        evaluation={"word_similarity": [{"name": "men", "file": file}], "downstream": None}
    )
    with pytest.raises(
        ValueError, match=r"word_similarity\.0\.file: must be the name of a file in that folder"
    ):
        parse_study(study)


def test_a_plan_has_whole_paths_and_ids_none(tiny_study, tmp_path, monkeypatch):
    plan = make_plan(
        parse_study(tiny_study(paths={"hub_mirror": "~/hub", "tasks": "$SCRATCH/tasks"}))
    )
    written = json.loads(json.dumps(plan.to_json()))
    assert written["studies"][0]["study"]["paths"]["hub_mirror"] == f"{tmp_path}/home/hub"
    assert plan.cells.keys() == make_plan(parse_study(tiny_study())).cells.keys()
    monkeypatch.setenv("HOME", "/nobody")  # as on another node
    monkeypatch.delenv("SCRATCH")
    assert plan_from_json(written, "plan").to_json() == written


def test_a_composite_and_verify_give_whole_paths(tiny_study, tmp_path):
    (tmp_path / "tiny.yaml").write_text(json.dumps(tiny_study(paths={"tasks": "~/tasks"})))
    whole = parse_any_study(
        {"study": "whole", "studies": ["tiny"], "paths": {"hub_mirror": "~/hub"}}
    )
    (part,) = whole.load_parts([tmp_path])
    assert (part.paths.hub_mirror, part.paths.tasks) == (
        f"{tmp_path}/home/hub",
        f"{tmp_path}/home/tasks",
    )
    assert Paths(**parse_config(["paths={hub_mirror: ~/hub}"])).hub_mirror == f"{tmp_path}/home/hub"


@pytest.mark.parametrize("text", ["paths={hub_mirror: [}", "paths", "title=a", "paths={hub: a}"])
def test_verify_takes_nothing_but_paths(text):
    with pytest.raises(ValueError, match="is not paths="):
        parse_config([text])


@pytest.mark.parametrize("option", ["--out=~/plan.json", "--out=~nobody-of-this-name/plan.json"])
def test_an_option_with_a_path_knows_the_home(option, tmp_path):
    given = parser().parse_args(["plan", "--study", "~/study.yaml", option])
    assert given.study == tmp_path / "home/study.yaml"
    assert given.out == Path(option.removeprefix("--out=").replace("~/", f"{tmp_path}/home/"))
