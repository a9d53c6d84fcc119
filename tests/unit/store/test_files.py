import math
import threading
import time

from coupled_adam_bench.store.files import LATENCY_WAIT, await_files, read_sealed, write_sealed

VALUE = {"b": [1, 2.5e-300, {"c": None}], "a": "ä\n", "nan": math.nan, "none": {}}


def test_a_sealed_object_comes_back_without_its_seal(tmp_path):
    write_sealed(tmp_path / "x.json", VALUE)
    found = read_sealed(tmp_path / "x.json")
    assert math.isnan(found.pop("nan"))
    assert found == {key: value for key, value in VALUE.items() if key != "nan"}


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
