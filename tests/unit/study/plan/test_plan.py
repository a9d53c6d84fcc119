"""Plans of several studies: what they share, what they may not, and what is said of a wrong one."""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from planned import studies

from coupled_adam_bench.cli import main
from coupled_adam_bench.results.groups import layout_of
from coupled_adam_bench.store.files import seal, write_sealed
from coupled_adam_bench.study.plan import PLAN_SHA256, Plan, load_plan, make_plan, study_of
from coupled_adam_bench.study.settings import (
    Composite,
    load_any_study,
    parse_any_study,
    parse_study,
)

CONFIGS = Path(__file__).parents[4] / "workflow" / "config"
Make = Callable[..., Plan]


def merged(values: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return ``values`` with values replaced, ``grid__0__seeds=[1]`` for ``grid: [{seeds:
    [1]}]``."""
    values = deepcopy(values)
    for path, value in changes.items():
        *parents, last = (int(key) if key.isdigit() else key for key in path.split("__"))
        target: Any = values
        for key in parents:
            target = target[key] if isinstance(key, int) else target.setdefault(key, {})
        target[last] = value
    return values


@pytest.fixture
def write(tiny_study: Callable[..., dict[str, Any]], tmp_path: Path) -> Callable[..., None]:
    """Write the tiny study, changed, as ``<name>.yaml``."""

    def write(name: str, **changes: Any) -> None:
        values = merged(tiny_study(), {"study": name, **changes})
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(values))

    return write


@pytest.fixture
def plan_of(tmp_path: Path) -> Make:
    """Return the plan of the written studies together; ``given`` is what stands beside
    ``studies``."""

    def plan_of(*names: str, **given: Any) -> Plan:
        return make_plan(
            parse_any_study({"study": "whole", "studies": [*names], **given}), [tmp_path]
        )

    return plan_of


# What a plan is made of.


def test_an_ordinary_study_is_a_plan_of_one_study(tiny_plan, tiny_study):
    (study,) = tiny_plan.studies.values()
    assert study == parse_study(tiny_study())
    assert (tiny_plan.name, tiny_plan.title, tiny_plan.protocol_label) == ("tiny", "", "corrected")
    (planned,) = studies(tiny_plan)
    assert tiny_plan.cells == planned.cells
    assert tiny_plan.data_ids == (planned.data_id,) == (tiny_plan.data_id(study),)
    assert tiny_plan.cells_of(study) == list(tiny_plan.cells.values())
    assert all(cell.study is study for cell in tiny_plan.cells.values())
    assert [cell.id for block in tiny_plan.blocks for cell in block.cells] == list(tiny_plan.cells)


def test_cells_of_all_parts_each_once_and_of_the_first_that_has_them(write, plan_of):
    write("a")  # adamw, coupled_adam; seeds 1, 2, 3
    write("b", grid__0__seeds=[2, 3, 4], grid__0__tokens=[{"steps": 60, "label": "another label"}])
    write("c", training__seq_len=32, grid__0__seeds=[1, 2])
    plan = plan_of("a", "b", "c", title="All")
    first, second, _ = studies(plan)
    assert (plan.name, plan.title) == ("whole", "All")
    assert list(plan.studies) == ["a", "b", "c"]
    places = [
        (cell.optimizer.key, cell.seed, cell.training.seq_len) for cell in plan.cells.values()
    ]
    assert places == [
        *(("adamw", seed, 16) for seed in (1, 2, 3)),
        *(("coupled_adam", seed, 16) for seed in (1, 2, 3)),
        ("adamw", 4, 16),
        ("coupled_adam", 4, 16),
        *(("adamw", seed, 32) for seed in (1, 2)),
        *(("coupled_adam", seed, 32) for seed in (1, 2)),
    ]
    assert [len(planned.cells) for planned in studies(plan)] == [6, 6, 4]
    assert [len(plan.cells_of(study)) for study in plan.studies.values()] == [6, 2, 4]
    assert [cell for study in plan.studies.values() for cell in plan.cells_of(study)] == list(
        plan.cells.values()
    )
    shared = next(cell for cell in second.cells.values() if cell.seed == 2)
    assert plan.cells[shared.id].study is first.study
    assert plan.cells[shared.id].tokens_label == "60 steps"


def test_the_study_of_cells_and_of_data(write, plan_of):
    write("a")
    write("b", training__seq_len=32)
    write("c", data__source__seed=5, training__seq_len=64)
    plan = plan_of("a", "b", "c")
    first, second, third = studies(plan)
    assert study_of(plan.find(second.cells)) is second.study
    with pytest.raises(ValueError, match="cells: of c and a; give those of one study at a time"):
        plan.find([next(iter(third.cells)), next(iter(first.cells))])
    with pytest.raises(ValueError, match="cells: x, y not in study 'whole'"):
        plan.find(["x", next(iter(first.cells)), "y"])
    with pytest.raises(ValueError, match="cells: of no study"):
        plan.find([])
    assert plan.data_ids == (first.data_id, third.data_id)
    assert first.data_id == second.data_id
    assert (
        plan.study_with_data(first.data_id) is second.study
    )  # a split must hold the longer of two windows
    with pytest.raises(
        ValueError, match=f"data: 'x' is not of study 'whole', which has {first.data_id}, "
    ):
        plan.study_with_data("x")


def test_the_command_line_finds_the_parts_beside_the_file(write, plan_of, tmp_path):
    write("a")
    write("b", training__seq_len=32)
    (tmp_path / "whole.yaml").write_text("study: whole\nstudies: [a, b]\n")
    arguments = [
        "plan",
        "--study",
        str(tmp_path / "whole.yaml"),
        "--out",
        str(tmp_path / "plan.json"),
    ]
    assert main(arguments) == 0
    assert load_plan(tmp_path / "plan.json") == plan_of("a", "b")


@pytest.mark.fault(
    "results",
    "`plan.json` is edited while jobs run, or written anew while jobs of a killed start wait",
    "a job refuses any plan but that of its own start",
)
def test_a_job_takes_no_plan_but_its_own(write, plan_of, tmp_path, monkeypatch):
    write("a")
    path, plan, other = tmp_path / "plan.json", plan_of("a"), plan_of("a", title="Another")
    write_sealed(path, plan.to_json())
    monkeypatch.setenv(PLAN_SHA256, seal(plan.to_json()))
    assert load_plan(path) == plan
    write_sealed(path, other.to_json())
    with pytest.raises(
        ValueError, match=r"plan\.json: not the plan of the start that this job belongs to; start"
    ):
        load_plan(path)
    monkeypatch.delenv(PLAN_SHA256)
    assert load_plan(path) == other
    path.write_text(path.read_text().replace("Another", "A third"))
    with pytest.raises(
        ValueError,
        match=r"plan\.json: its contents do not match .*; start again: it is written anew",
    ):
        load_plan(path)


def test_a_plan_of_an_earlier_version_is_refused(tmp_path):
    write_sealed(tmp_path / "plan.json", {"study": {}, "data_id": "x", "cells": []})
    with pytest.raises(ValueError, match=r"plan\.json: not a plan of this version; write it anew"):
        load_plan(tmp_path / "plan.json")


# What cannot stand in one results folder.


@pytest.mark.parametrize(
    "changes",
    [
        {"data__source__seed": 5},
        {"training__warmup_steps": 6},
        {"training__warmup_steps": 6, "grid__0__tokens": ["5K"], "grid__0__seeds": [7, 8]},
        {"evaluation__downstream__limit": 3, "grid__0__seeds": [7, 8]},
        {"models__0__learning_rate": 0.02},
        {"models__0__name": "other", "models__0__n_head": 4, "grid__0__models": ["other"]},
    ],
    ids=str,
)
def test_two_texts_recipes_or_models_of_one_size_are_told_apart(changes, write, plan_of):
    write("a")
    write("b", **changes)
    plan = plan_of("a", "b")
    assert len(plan.cells) == sum(len(planned.cells) for planned in studies(plan))
    groups = layout_of(plan).groups["table1"]
    assert len({group.place for group in groups}) == len(groups) == 2
    assert len({(group.model_label, group.tokens_label) for group in groups}) == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"evaluation__downstream__limit": 3},
        {"paths__hub_mirror": "elsewhere"},
        {"paths__tasks": "t", "paths__word_similarity": "w"},
    ],
    ids=str,
)
def test_a_shared_cell_is_not_measured_in_two_ways(changes, write, plan_of):
    write("a")
    write("b", **changes)
    with pytest.raises(
        ValueError, match=r"a and b share cells, such as .*, and evaluate them in different ways"
    ):
        layout_of(plan_of("a", "b"))


def test_one_folder_has_one_protocol(write, plan_of):
    write("a")
    write("b", protocol="official", training__seq_len=32)
    with pytest.raises(
        ValueError,
        match=r"^protocol: a has 'corrected', b has 'official'; a results folder has one",
    ):
        plan_of("a", "b")
    plan = plan_of("a", "b", protocol="official")
    assert plan.protocol_label == "official"
    assert {cell.training.warmup_from for cell in plan.cells.values()} == {"zero"}
    write("b", training__embedding_weight_decay=0.1, training__seq_len=32)
    with pytest.raises(
        ValueError, match=r"b has 'corrected; training\.embedding_weight_decay = 0\.1'"
    ):
        plan_of("a", "b")


# The file of a composite study.


def test_settings_given_for_all_win_and_leave_the_others(write, plan_of):
    write("a", paths__word_similarity="own", paths__tasks="tasks", execution__checkpoint_every=7)
    write("b", training__seq_len=32)
    plan = plan_of("a", "b", paths={"word_similarity": "given"}, execution={"train_threads": 3})
    first, second = plan.studies.values()
    assert (first.paths.word_similarity, second.paths.word_similarity) == ("given", "given")
    assert (first.paths.tasks, second.paths.tasks) == ("tasks", None)
    assert (first.execution.train_threads, second.execution.train_threads) == (3, 3)
    assert (first.execution.checkpoint_every, second.execution.checkpoint_every) == (7, 10)


def test_a_part_that_is_not_there_is_named_with_those_that_are(write, plan_of, tmp_path):
    write("a")
    write("b")
    write("whole")
    with pytest.raises(ValueError, match=r"^whole: studies: no c\.yaml in .*; there are a, b$"):
        plan_of("a", "c")
    with pytest.raises(ValueError, match="there are none"):
        parse_any_study({"study": "x", "studies": ["a"]}).load_parts([tmp_path / "none"])  # type: ignore[union-attr]


def test_a_part_made_of_parts_is_refused(write, plan_of, tmp_path):
    write("a")
    (tmp_path / "b.yaml").write_text("study: b\nstudies: [a]\n")
    with pytest.raises(
        ValueError,
        match=r"^whole: studies: .*b\.yaml is made of studies itself; name those instead$",
    ):
        plan_of("a", "b")


@pytest.mark.fault(
    "settings",
    "Text, tokenizers and stated plans of several studies are missing.",
    "Each is named at once, and once.",
)
def test_all_files_that_are_missing_are_named(write, plan_of, tmp_path):
    source = {"name": "a", "source": {"kind": "files"}, "tokenizer": "file", "vocab_size": 64}
    nothing = {"word_similarity": [], "downstream": None}
    for name in "abc":
        paths = {"text": str(tmp_path / f"text-{name}"), "tokenizer": str(tmp_path / "t.json")}
        write(name, data=source, evaluation=nothing, paths=paths)
    with pytest.raises(ValueError) as raised:
        plan_of("a", "b", "c", stated=str(tmp_path / "stated.yaml"))
    lines = str(raised.value).splitlines()
    for name in "abc":
        assert (
            sum(
                line.startswith(f"paths.text: '{tmp_path}/text-{name}' matches no text")
                for line in lines
            )
            == 1
        )
    assert (
        sum(line.startswith(f"paths.tokenizer: {tmp_path}/t.json does not exist") for line in lines)
        >= 1
    )
    assert any("stated.yaml: no such file" in line for line in lines)


def test_wrong_settings_of_all_parts_are_listed_with_their_files(write, plan_of, tmp_path):
    write("a", training__momentum=1)
    write("b", grid__0__seeds=[-1], titel="x")
    (tmp_path / "c.yaml").write_text("study: [")
    (tmp_path / "d.yaml").write_text("[]")
    with pytest.raises(ValueError) as raised:
        plan_of("a", "b", "c", "d", paths={"text": "x"})
    text = str(raised.value)
    assert (
        f"whole: {tmp_path / 'a.yaml'}: 1 invalid setting(s)\n  training.momentum: unknown key"
        in text
    )
    assert f"whole: {tmp_path / 'b.yaml'}: 2 invalid setting(s)\n  grid.0.seeds.0: must be" in text
    assert f"{tmp_path / 'c.yaml'}: not valid YAML" in text
    assert (
        f"whole: {tmp_path / 'd.yaml'}: 1 invalid setting(s)\n  (whole study): must be a mapping"
        in text
    )


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"studies": []}, "studies: must have at least one entry"),
        ({"studies": "a"}, "studies: must be a list (got 'a')"),
        ({"studies": ["a", "b", "a"]}, "studies: a given more than once"),
        (
            {"studies": ["../a"]},
            "studies.0: must consist of letters, digits, '_', '.' and '-', and begin",
        ),
        ({"study": "runs"}, "study: runs is taken; results/ also holds data, runs,"),
        ({"study": "a/b"}, "study: must consist of letters"),
        (
            {"training": {}},
            "training: unknown key; allowed: study, title, studies, protocol, paths, execution",
        ),
        ({"protocol": "none"}, "protocol: must be 'official', 'paper' or 'corrected' (got 'none')"),
        ({"paths": {"texts": "x"}}, "paths.texts: unknown key; did you mean 'text'?"),
        (
            {"execution": {"gpus": -1}},
            "execution.gpus: must be greater than or equal to 0 (got -1)",
        ),
    ],
    ids=str,
)
def test_a_wrong_setting_of_a_composite_study_is_one_line(changes, line):
    with pytest.raises(ValueError) as raised:
        parse_any_study({"study": "whole", "studies": ["a"]} | changes, "my.yaml")
    heading, first, *more = str(raised.value).splitlines()
    assert heading == "my.yaml: 1 invalid setting(s)"
    assert not more
    assert first.strip().startswith(line)


# The paper.


def test_the_paper_in_one_study_has_each_of_its_runs_once():
    study = load_any_study(CONFIGS / "paper.yaml")
    plan = make_plan(study, [CONFIGS])
    small, large, sgd, scale = studies(plan)
    assert [len(planned.cells) for planned in studies(plan)] == [54, 8, 72, 33]
    # Of Table 7, both Adams at 5B, 10B and 20B with three seeds are in Table 1; of Sec. 6.1, n = 0
    # with three seeds is.
    assert len(small.cells.keys() & sgd.cells.keys()) == 2 * 3 * 3
    assert len(small.cells.keys() & scale.cells.keys()) == 3
    assert sgd.cells.keys() & scale.cells.keys() <= small.cells.keys()
    assert not large.cells.keys() & (small.cells.keys() | sgd.cells.keys() | scale.cells.keys())
    assert len(plan.cells) == 54 + 8 + (72 - 18) + (33 - 3) == 146
    assert [name.rsplit("-", 1)[0] for name in plan.data_ids] == ["openwebtext", "slimpajama"]
    assert {study.training.seq_len for study in plan.studies.values()} == {1024, 2048}


def test_parts_are_searched_in_one_folder_after_the_other(write, tmp_path):
    write("a", title="here")
    (tmp_path / "there").mkdir()
    for name in ("a", "b"):
        text = (
            (tmp_path / "a.yaml")
            .read_text()
            .replace("here", "there")
            .replace("seq_len: 16", "seq_len: 32")
        )
        (tmp_path / "there" / f"{name}.yaml").write_text(text.replace("study: a", f"study: {name}"))
    (tmp_path / "whole.yaml").write_text("study: whole\nstudies: [a, b]\n")
    study = load_any_study(tmp_path / "whole.yaml")
    assert isinstance(study, Composite)
    assert [part.title for part in study.load_parts([tmp_path, tmp_path / "there"])] == [
        "here",
        "there",
    ]


def test_two_studies_of_one_name_are_refused(write, plan_of, tmp_path):
    write("a")
    (tmp_path / "b.yaml").write_text((tmp_path / "a.yaml").read_text())
    with pytest.raises(ValueError, match="studies: two of them have the name 'a'"):
        plan_of("a", "b")
