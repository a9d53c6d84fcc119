"""Study files as they are read: what YAML would take in another way than it looks is refused with its line."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from coupled_adam_bench.study.config import load_any_study, load_study
from coupled_adam_bench.study.config.reading import read_study_file

BOMB = "a0: &a0 [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10)
)


def message(path: Path, text: str | bytes) -> str:
    """Return what is said of a study file with these contents."""
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError) as raised:
        read_study_file(path)
    assert type(raised.value) is ValueError
    assert str(raised.value).startswith(f"{path}: ")
    return str(raised.value).removeprefix(f"{path}: ")


@pytest.mark.fault(
    "settings",
    "a study's YAML gives a key twice, such as `grid:`",
    "it is refused with the key and both lines; YAML itself would take the last one",
)
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("study: a\ngrid: []\ntitle: b\ngrid: [1]\n", "lines 2 and 4: the key 'grid' is given 2 times in one mapping"),
        ("a:\n  - b: 1\n    c: 1\n    'b': 2\n    \"b\": 3\n", "lines 2 and 4 and 5: the key 'b' is given 3 times"),
        ("a: {b: 1, b: 1}", "lines 1 and 1: the key 'b' is given 2 times"),
        ("a: &x {b: 1}\nc:\n  <<: *x\n  <<: *x\n", "lines 3 and 4: the key '<<' is given 2 times"),
        ('{"a": {"b": 1, "b": 2}}', "lines 1 and 1: the key 'b' is given 2 times"),
    ],
)
def test_a_key_that_is_given_twice(text: str, expected: str, tmp_path: Path) -> None:
    assert message(tmp_path / "study.yaml", text).startswith(expected)
    with pytest.raises(ValueError, match="the last one would win"):
        read_study_file(tmp_path / "study.yaml")
    for load in (load_study, load_any_study):
        with pytest.raises(ValueError, match="the last one would win"):
            load(tmp_path / "study.yaml")


def test_a_part_of_a_composite_study_is_read_as_strictly(tmp_path: Path) -> None:
    (tmp_path / "part.yaml").write_text("study: part\nstudy: other\n")
    (tmp_path / "whole.yaml").write_text("study: whole\nstudies: [part]\n")
    whole = load_any_study(tmp_path / "whole.yaml")
    with pytest.raises(ValueError, match="lines 1 and 2: the key 'study'"):
        whole.load_parts([tmp_path])  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", ["yaml", "json"])
def test_what_is_right_is_read_as_before(kind: str, tiny_study: Any, tmp_path: Path) -> None:
    values = tiny_study()
    path = tmp_path / f"study.{kind}"
    path.write_text(yaml.safe_dump(values) if kind == "yaml" else json.dumps(values, indent="\t"))
    assert read_study_file(path) == values
    shared = "a: &x {k: 1, l: -2.5}\nb: {<<: *x, k: 1_000}\nc: [*x, 0, .5, null, true, 'on', 1e-8, 1.0e-8]\n"
    path.write_text("\ufeff" + shared)
    assert read_study_file(path) == yaml.safe_load(shared)


@pytest.mark.parametrize("path", sorted(Path("workflow/config").glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_studies_are_read_as_before(path: Path) -> None:
    assert read_study_file(path) == yaml.safe_load(path.read_text())


@pytest.mark.fault(
    "settings",
    "a study's YAML is empty, broken, a bomb of aliases, or has values that YAML takes for something else (010 is 8)",
    "it is refused with file, line and what to write",
)
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (BOMB, "its aliases expand to 12,345,679,021 values, and at most 100,000 can be"),
        ("a: &a {b: [*a]}", "line 1: an alias makes this value a part of itself"),
        ("[" * 5000, "nested too deeply"),
        ('{"a": ' * 5000, "nested too deeply"),
        ("a:\n\t- 1", "not valid YAML: .*indent with spaces, not with tabs"),
        ("a: 1\nseeds: [010]", "line 2: 010 is 8 to YAML; write 8, or put it in quotes"),
        ("limit: 1:30", "line 1: 1:30 is 90 to YAML"),
        ("limit: 0x1f", "line 1: 0x1f is 31 to YAML"),
        ("label: 2024-01-01", "line 1: 2024-01-01 is a date to YAML; put it in quotes"),
        ("try_tasks: yes", "line 1: yes is true to YAML; write true, or put it in quotes"),
        ("a: [on, off]", "line 1: on is true to YAML"),
        ("arguments: {on: 1}", "line 1: the key on is of the kind 'bool' to YAML; keys must be text"),
        ("? [a]\n: 1", "line 1: the key here is of the kind 'seq' to YAML"),
        ("models: !!set {a, b}", "line 1: a study has no values of the kind 'set'"),
        ("a: !!python/object/apply:os.system [ls]", "line 1: a study has no values of the kind 'python/object/apply:"),
        ("a: !function x.y", "line 1: a study has no values of the kind '!function'"),
        ("__use_yte__: true\na: 1", "line 1: __use_yte__ makes a program of a file: Snakemake runs the Python in it"),
        ("a: *b", "not valid YAML: found undefined alias"),
        ("a: 1\n---\nb: 1", "not valid YAML: expected a single document"),
        ("a: \x00", "not valid YAML: unacceptable character"),
        (b"a: \xff", "not UTF-8 .*invalid start byte at byte 3.; save it as UTF-8"),
        ("a: " + "9" * 5000, "Exceeds the limit"),
        (b"# " + b"x" * 2**20, "1,048,578 bytes; a study file has at most 1,048,576"),
    ],
    ids=lambda text: repr(text[:20]),
)
def test_files_that_are_not_what_they_seem(text: str | bytes, expected: str, tmp_path: Path) -> None:
    assert re.match(expected, message(tmp_path / "study.yaml", text), re.DOTALL)


@pytest.mark.parametrize("text", ["", "# nothing", "- a\n- b", "text", "3", "null"])
def test_files_that_are_no_mapping(text: str, tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(text)
    for load in (load_study, load_any_study):
        with pytest.raises(
            ValueError, match=r"study\.yaml: .*\n  \(whole study\): must be a mapping of keys to values"
        ):
            load(tmp_path / "study.yaml")


def test_files_that_are_none(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("link")
    for name, expected in (("pipe", "no such"), ("", "no such"), ("none", "no such"), ("link", "no such")):
        with pytest.raises(ValueError, match=expected):
            read_study_file(tmp_path / name)
    with pytest.raises(ValueError, match="cannot be read: File name too long"):
        read_study_file(tmp_path / ("x" * 300))
