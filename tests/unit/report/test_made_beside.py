"""A report is made beside the last one, and moved in at its end; what was edited since is noticed
and kept."""

from pathlib import Path
from typing import Any

import pytest

from coupled_adam_bench.cli.guard import outdated_report
from coupled_adam_bench.report import make
from coupled_adam_bench.report.make import Places, move_in, report
from coupled_adam_bench.report.manifest import made_before, write_manifest

FILES = {
    "results.csv": "a,1\n",
    "tests.csv": "b,2\n",
    "tables/table1.tex": "3",
    "figures/plane.svg": "4",
    "report/index.html": "5",
}


def write_files(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    write_manifest({"made_for": "plan", "value": float("nan")}, folder)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """The folder of a study whose report is made."""
    study_dir = tmp_path / "study"
    study_dir.mkdir()
    move_in(write_files(tmp_path / "first", FILES), study_dir, is_whole=True)
    return study_dir


def test_a_report_that_is_whole(made):
    assert contents(made).keys() == FILES.keys() | {"manifest.json", "report.done"}
    assert list(outdated_report(made, "plan")) == []
    assert (made / "report.done").exists()
    assert list(outdated_report(made, "another plan")) == []
    assert not (made / "report.done").exists()
    assert contents(made).keys() == FILES.keys() | {"manifest.json"}


@pytest.mark.fault(
    "results",
    "A digit of results.csv, tests.csv, a table, a figure, the page or the manifest is changed"
    " after the report was made.",
    "The next start names the file, makes all of it anew, and keeps the changed one as"
    " `NAME.damaged-1`.",
)
@pytest.mark.parametrize("name", [*FILES, "manifest.json"])
def test_an_edited_file_is_made_anew_and_kept(made, name, tmp_path):
    before = contents(made)
    edited = before[name].replace(b"1", b"8").replace(b"2", b"8").replace(b"3", b"8")
    edited = edited.replace(b"4", b"8").replace(b"5", b"8")
    (made / name).write_bytes(edited)
    (said,) = outdated_report(made, "plan")
    assert said.startswith(
        f"{made}: edited or damaged since the report was made: {name}; all of it is made anew"
    )
    assert not (made / "report.done").exists()
    move_in(write_files(tmp_path / "again", FILES), made, is_whole=True)
    assert contents(made) == before | {f"{name}.damaged-1": edited}
    assert list(outdated_report(made, "plan")) == []


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"sha256": 1, "made_for": ""}'])
def test_a_manifest_that_is_none_counts_as_edited(made, text):
    (made / "manifest.json").write_text(text)
    assert made_before(made).edited == ("manifest.json",)


def test_what_no_longer_belongs_to_a_study_goes_and_what_is_the_users_stays(made, tmp_path):
    (made / "tables" / "mine.tex").write_text("mine")
    (made / "figures" / "plane.svg").write_text("edited")
    fewer = {
        name: text
        for name, text in FILES.items()
        if name not in ("tables/table1.tex", "figures/plane.svg")
    }
    move_in(write_files(tmp_path / "fewer", fewer), made, is_whole=True)
    assert contents(made).keys() == fewer.keys() | {
        "tables/mine.tex",
        "figures/plane.svg.damaged-1",
        "manifest.json",
        "report.done",
    }


def test_a_part_leaves_the_rest(made, tmp_path):
    (tmp_path / "part" / "tables").mkdir(parents=True)
    (tmp_path / "part" / "tables" / "table1.tex").write_text("new")
    before = contents(made)
    move_in(tmp_path / "part", made, is_whole=False)
    del before["report.done"]
    assert contents(made) == before | {"tables/table1.tex": b"new"}


@pytest.mark.fault(
    "results",
    "The reporting is killed while its files are moved to their places.",
    "What is there never passes for one report: a start finds files that are not the manifest's,"
    " and makes all anew.",
)
@pytest.mark.parametrize("n_moved", range(6))
def test_a_kill_while_files_are_moved(made, n_moved, tmp_path, monkeypatch):
    before, new = contents(made), {name: f"{text}{text}" for name, text in FILES.items()}
    replace, moved = Path.replace, []

    def killed(path: Path, target: Path) -> Path:
        if len(moved) == n_moved:
            raise KeyboardInterrupt
        moved.append(target)
        return replace(path, target)

    first = write_files(tmp_path / "new", new)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            move_in(first, made, is_whole=True)
    assert not (made / "report.done").exists()
    assert len(made_before(made).edited) == n_moved
    assert {
        name: contents(made)[name] for name in before if name in FILES or name == "manifest.json"
    } == {
        name: new[name].encode() if made / name in moved else content
        for name, content in before.items()
        if name != "report.done"
    }
    # The next report is the same again, so nothing of it passes for the work of a user.
    move_in(write_files(tmp_path / "again", new), made, is_whole=True)
    assert not list(made.rglob("*.damaged-*"))
    assert made_before(made).edited == ()


def test_a_report_that_fails_leaves_the_last_one(tiny_plan, tmp_path, templates, monkeypatch):
    places = Places(templates, tmp_path / "tiny", tmp_path / "runs")
    monkeypatch.setattr(make, "write_figures", lambda material, folder, endings: None)
    monkeypatch.setattr(make, "write_report", lambda material, folder: None)

    def fails(*arguments: Any) -> None:
        raise ValueError("no room")

    (tmp_path / "tiny" / ".report").mkdir(parents=True)
    (tmp_path / "tiny" / ".report" / "results.csv").write_text("of a report that was killed")
    report(tiny_plan, places, partial=True, made_for="plan")
    before = contents(tmp_path / "tiny")
    assert {"results.csv", "tables/table1.tex", "manifest.json", "report.done"} <= before.keys()
    assert not (tmp_path / "tiny" / ".report").exists()
    monkeypatch.setattr(make, "write_report", fails)
    with pytest.raises(ValueError, match="no room"):
        report(tiny_plan, places, partial=True, made_for="another")
    assert contents(tmp_path / "tiny") == before
