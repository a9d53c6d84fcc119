"""What the user's files add to ids: their contents, and not where they lie."""

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from tiny import tiny_study

from coupled_adam_bench.study.inputs import code_digest, text_files
from coupled_adam_bench.study.plan import Plan, make_plan
from coupled_adam_bench.study.study import parse_study


def plan_of(text: str = "text", tokenizer: str | None = None, **source: Any) -> Plan:
    data = {"name": "own", "source": {"kind": "files", **source}, "vocab_size": 300}
    data["tokenizer"] = "bpe" if tokenizer is None else "file"
    paths = {"text": text, "tokenizer": tokenizer}
    return make_plan(parse_study(tiny_study(data=data, paths=paths)))


def test_text_is_known_by_its_contents(home: Path) -> None:
    (home / "text/deep").mkdir(parents=True)
    (home / "text/a.jsonl").write_text("one\n")
    (home / "text/deep/b.jsonl.gz").write_bytes(b"two")
    (home / "text/notes.md").write_text("not read")
    files = text_files(("text", "text/*.jsonl"))
    assert [file.name for file in files] == ["a.jsonl", "b.jsonl.gz"]
    before = plan_of()
    (home / "text/notes.md").write_text("still not read")
    shutil.move("text", "moved")
    assert plan_of("moved").data_id == plan_of(str(home / "moved/**/*.*")).data_id == before.data_id
    changed = [plan_of("moved", text_field="body"), plan_of("moved", txt_document="line")]
    (home / "moved/a.jsonl").write_text("One\n")
    changed.append(plan_of("moved"))
    (home / "moved/a.jsonl").rename(home / "moved/c.jsonl")
    changed.append(plan_of("moved"))
    assert len({plan.data_id for plan in (before, *changed)}) == 5
    with pytest.raises(ValueError, match=r"paths\.text: .*nothing"):
        plan_of("nothing")


def test_large_text_is_known_by_its_ends(home: Path) -> None:
    found = set()
    for first, last in (("a", "a"), ("b", "a"), ("a", "b")):
        (home / "large.jsonl").write_text(first + "x" * 2**18 + last)
        found.add(plan_of("large.jsonl").data_id)
    assert len(found) == 3


def test_a_tokenizer_is_known_by_its_contents(home: Path) -> None:
    (home / "a.jsonl").write_text("one\n")
    # The difference lies in the middle, where fingerprints of large text do not look.
    for name, middle in (("one", b"a"), ("two", b"a"), ("three", b"b")):
        (home / f"{name}.json").write_bytes(b" " * 2**17 + middle + b" " * 2**17)
    one, two, three = (plan_of("a.jsonl", f"{name}.json") for name in ("one", "two", "three"))
    assert one.data_id == two.data_id != three.data_id
    with pytest.raises(ValueError, match=r"paths\.tokenizer: .*four"):
        plan_of("a.jsonl", "four.json")


def test_own_files_that_are_missing(home: Path) -> None:
    own = {"name": "own", "file": "own.csv", "separator": ","}
    study = tiny_study(evaluation={"word_similarity": [own], "downstream": {"tasks": "synthetic"}})
    with pytest.raises(ValueError, match=r"paths\.word_similarity: .*own\.csv"):
        make_plan(parse_study(study))
    study["paths"] = {"word_similarity": "lists", "tasks": "tasks", "hub_mirror": "not yet"}
    (home / "lists").mkdir()
    (home / "lists/own.csv").write_text("a,b,1\n")
    with pytest.raises(ValueError, match=r"paths\.tasks: .*tasks"):
        make_plan(parse_study(study))
    (home / "tasks").mkdir()
    make_plan(parse_study(study))
    # The lists of the paper may be fetched later.
    make_plan(parse_study(study | {"evaluation": {}}))


def own_ids(path: str) -> list[str]:
    study = tiny_study()
    own = {"name": "custom", "path": path, "key": "own", "label": "Own"}
    study["grid"] = [study["grid"][0] | {"optimizers": ["adamw", own]}]
    return [cell for cell in make_plan(parse_study(study)).cells if "_own_" in cell]


def test_an_edited_optimizer_is_another_cell(home: Path) -> None:
    package = home / "ownrules/deep"
    package.mkdir(parents=True)
    for file in (home / "ownrules/__init__.py", package / "__init__.py", package / "helper.py"):
        file.write_text("raise RuntimeError('planning imports no code of the user')\n")
    before = own_ids("ownrules.deep.Rule")
    assert own_ids("ownrules.deep.Rule") == before
    other = own_ids("ownrules.deep.Other")
    (package / "helper.py").write_text("# edited\n")
    edited = own_ids("ownrules.deep.Rule")
    (package / "helper.py").rename(package / "renamed.py")
    assert len({*before, *other, *edited, *own_ids("ownrules.deep.Rule")}) == 12
    assert "ownrules" not in sys.modules


def test_an_optimizer_of_one_file_or_of_a_library(home: Path) -> None:
    (home / "one_file.py").write_text("class Rule: pass\n")
    before = code_digest("one_file.Rule")
    (home / "beside.py").write_text("")
    assert code_digest("one_file.Rule") == before
    (home / "one_file.py").write_text("class Rule: ...\n")
    assert code_digest("one_file.Rule") != before
    assert code_digest("coupled_adam.CoupledAdam") == code_digest(
        "coupled_adam.optimizer.CoupledAdam"
    )
    with pytest.raises(ValueError, match="no_such"):
        code_digest("no_such.Rule")
