import json
import math
import threading
import time

import pytest

from coupled_adam_bench.store.files import LATENCY_WAIT, await_files, read_sealed, write_json, write_sealed

VALUE = {"b": [1, 2.5e-300, {"c": None}], "a": "ä\n", "nan": math.nan, "none": {}}


def test_a_sealed_object_comes_back_without_its_seal(tmp_path):
    write_sealed(tmp_path / "x.json", VALUE)
    found = read_sealed(tmp_path / "x.json")
    assert math.isnan(found.pop("nan"))
    assert found == {key: value for key, value in VALUE.items() if key != "nan"}


def test_layout_and_order_of_keys_are_not_part_of_the_seal(tmp_path):
    write_sealed(tmp_path / "x.json", VALUE)
    found = json.loads((tmp_path / "x.json").read_text())
    (tmp_path / "x.json").write_text(json.dumps(dict(reversed(found.items()))))
    assert read_sealed(tmp_path / "x.json")["a"] == "ä\n"


def test_every_changed_byte_is_found(tmp_path):
    path = tmp_path / "x.json"
    write_sealed(path, {"loss": 3.25, "tasks": ["a"]})
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        try:
            found = read_sealed(path)
        except ValueError as error:
            assert str(path) in str(error)
        else:  # a space became another white space, or the like
            assert found == {"loss": 3.25, "tasks": ["a"]}


def test_every_missing_line_is_found(tmp_path):
    path = tmp_path / "x.json"
    write_sealed(path, {"loss": 3.25, "tasks": ["a", "b"]})
    lines = path.read_text().splitlines(keepends=True)
    for number in range(len(lines)):
        path.write_text("".join(lines[:number] + lines[number + 1 :]))
        with pytest.raises(ValueError, match=r"x\.json"):
            read_sealed(path)


@pytest.mark.parametrize("content", [[], {}, {"sha256": ""}, {"a": 1}, 3])
def test_what_has_no_seal_is_refused(tmp_path, content):
    write_json(tmp_path / "x.json", content)
    with pytest.raises(ValueError, match="do not match"):
        read_sealed(tmp_path / "x.json")


def test_late_files_are_waited_for(tmp_path, monkeypatch):
    early, late, never = (tmp_path / name for name in ("early", "folder/late", "never"))
    early.touch()
    begun = time.monotonic()
    await_files([early, late])  # nobody has said how long
    assert time.monotonic() - begun < 0.2
    monkeypatch.setenv(LATENCY_WAIT, "60")
    threading.Timer(0.5, lambda: (late.parent.mkdir(), late.touch())).start()
    await_files([early, late])
    assert late.exists() and time.monotonic() - begun < 50
    monkeypatch.setenv(LATENCY_WAIT, "0.5")
    begun = time.monotonic()
    await_files([never])
    assert 0.5 <= time.monotonic() - begun < 50
