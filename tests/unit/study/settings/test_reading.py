"""Study files as they are read: what YAML would take in another way than it looks is refused with
its line."""

import json
import re
from pathlib import Path

import pytest
import yaml

from coupled_adam_bench.cli.arguments import check_studies
from coupled_adam_bench.study.settings import load_any_study, load_study
from coupled_adam_bench.study.settings.reading import NestingError, check_files, read_study_file


@pytest.mark.fault(
    "settings",
    "a study's YAML gives a key twice, such as `grid:`",
    "it is refused with the key and both lines; YAML itself would take the last one",
)
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "study: a\ngrid: []\ntitle: b\ngrid: [1]\n",
            "lines 2 and 4: the key 'grid' is given 2 times in one mapping",
        ),
        (
            "a:\n  - b: 1\n    c: 1\n    'b': 2\n    \"b\": 3\n",
            "lines 2 and 4 and 5: the key 'b' is given 3 times",
        ),
        ("{a: {b: 1, b: 2}}", "lines 1 and 1: the key 'b' is given 2 times"),
        ('{"a": {"b": 1, "b": 2}}', "the key 'b' is given 2 times in one object"),
    ],
)
def test_a_key_that_is_given_twice(text, expected, tmp_path):
    path = tmp_path / "study.yaml"
    path.write_text(text)
    (tmp_path / "whole.yaml").write_text("study: whole\nstudies: [study]\n")
    whole = load_any_study(tmp_path / "whole.yaml")
    for load in (
        read_study_file,
        load_study,
        load_any_study,
        lambda path: whole.load_parts([path.parent]),
    ):
        with pytest.raises(ValueError, match=rf"study\.yaml: {expected}.*; the last one would win"):
            load(path)


def test_what_is_right_is_read_as_before(tiny_study, tmp_path):
    path = tmp_path / "study.yaml"
    shipped = [*Path("workflow/config").glob("*.yaml"), *Path("research").glob("*/*.yaml")]
    for text in (
        yaml.safe_dump(tiny_study()),
        json.dumps(tiny_study(), indent=1),
        (
            "\ufeffa: &x {k: 1, l: -2.5}\nb: {<<: *x, k: 1_000}\nc: [*x, 0, .5, null, True, 'on',"
            " 1e-8, 1.0e-8]\nd:\n"
        ),
        *(file.read_text() for file in shipped),
    ):
        path.write_text(text)
        assert read_study_file(path) == yaml.safe_load(text)


@pytest.mark.fault(
    "settings",
    "a study's YAML is broken, or has values that YAML takes for something else (010 is 8)",
    "it is refused with file, line and what to write",
)
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a:\n\t- 1", "not valid YAML: .*indent with spaces, not with tabs"),
        ("a: 1\nseeds: [010]", "line 2: 010 is the int 8 to YAML; put it in quotes, or write 8"),
        ("limit: 1:30", "line 1: 1:30 is the int 90 to YAML"),
        ("limit: 0x1f", "line 1: 0x1f is the int 31 to YAML"),
        (
            "label: 2024-01-01",
            "line 1: 2024-01-01 is the date 2024-01-01 to YAML; put it in quotes",
        ),
        ("compile: yes", "line 1: yes is the bool true to YAML; put it in quotes, or write true"),
        ("arguments: {on: 1}", "line 1: on is the bool true to YAML"),
        ("a: {1: 2}", "line 1: the key 1 is no text to YAML; put it in quotes"),
        (
            "a: !!python/object/apply:os.system [ls]",
            "not valid YAML: could not determine a constructor",
        ),
        (
            "__use_yte__: true\na: 1",
            "line 1: __use_yte__ makes a program of a file: Snakemake runs the Python in it",
        ),
        (b"a: \xff", "not UTF-8 .*invalid start byte at byte 3.; save it as UTF-8"),
    ],
    ids=lambda text: repr(text[:20]),
)
def test_files_that_are_not_what_they_seem(text, expected, tmp_path):
    path = tmp_path / "study.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError) as raised:
        read_study_file(path)
    assert re.match(f"{re.escape(str(path))}: {expected}", str(raised.value), re.DOTALL)


def test_json_is_read_as_snakemake_reads_it(tmp_path):
    text = (
        '{\n\t"a": [1e-8, 1E5, true, null, "010", "\\ud83d\\ude00 \\/"],\n\t"b": {"yes": "no"}\n}\n'
    )
    path = tmp_path / "study.json"
    path.write_text(text)
    assert read_study_file(path) == json.loads(text)


DEEP = 3000


@pytest.mark.fault(
    "settings",
    "a study's file contains itself (`models: &m [*m]`), or has 3,000 levels of lists",
    "one sentence names the file and the line; Snakemake and its libraries would end with a"
    " traceback",
)
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("study: s\nmodels: &m [*m]", r"line 2: \*m stands within &m, which so contains itself"),
        ("&s\nstudy: s\ndata: {a: [*s]}", r"line 3: \*s stands within &s"),
        ("&s\nstudy: s\n<<: *s", r"line 3: \*s stands within &s"),
        ("&s\na: &t [1]\nb: [*t, {c: *s}]", r"line 3: \*s stands within &s"),
        (f"study: {'[' * DEEP}{']' * DEEP}", "line 1: more than 50 levels of lists and mappings"),
        ("".join(f"{' ' * level}a:\n" for level in range(DEEP)), "line 51: more than 50 levels"),
        (f'{{"study": {"[" * DEEP}{"]" * DEEP}}}', "more than 50 levels"),
        ('{"a":' * DEEP + "1" + "}" * DEEP, "more than 50 levels"),
    ],
    ids=lambda text: repr(text[:20]),
)
def test_files_that_contain_themselves_or_have_thousands_of_levels(text, expected, tmp_path):
    path = tmp_path / "study.yaml"
    path.write_text(text)
    for read in (
        read_study_file,
        lambda path: check_studies(["snakemake", "--configfile", str(path), "-n"]),
    ):
        with pytest.raises(NestingError, match=rf"study\.yaml: {expected}"):
            read(path)


def test_what_an_alias_may_be(tmp_path):
    path = tmp_path / "study.yaml"
    path.write_text("a: &a [1]\nb: &b [*a, *a]\nc: [*b, {d: *b}]\n")
    assert read_study_file(path)["c"] == [[[1], [1]], {"d": [[1], [1]]}]


@pytest.mark.fault(
    "settings",
    "Several of the files of a start are wrong.",
    "All are named at once, each on its line.",
)
def test_all_files_that_are_wrong_are_named(tmp_path):
    (tmp_path / "a.yaml").write_text("a: [")
    (tmp_path / "b.yaml").write_text("b: 1\nb: 2")
    (tmp_path / "c.yaml").write_text("c: 1")
    with pytest.raises(
        ValueError, match=r"not valid YAML(.|\n)*b\.yaml: lines 1 and 2(.|\n)*d\.yaml: no such"
    ) as raised:
        check_files([tmp_path / f"{name}.yaml" for name in "abcd"])
    assert "c.yaml" not in str(raised.value)


@pytest.mark.parametrize("text", ["", "- a\n- b", "text", None])
def test_files_that_are_no_study(text, tmp_path):
    if text is not None:
        (tmp_path / "study.yaml").write_text(text)
    said = (
        "no such file"
        if text is None
        else r"[^\n]*\n  \(whole study\): must be a mapping of keys to values"
    )
    for load in (load_study, load_any_study):
        with pytest.raises(ValueError, match=rf"study\.yaml: {said}"):
            load(tmp_path / "study.yaml")
