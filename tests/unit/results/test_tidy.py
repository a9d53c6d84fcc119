"""CSV files with typed columns: what pandas reads at once is what is read line by line, or is refused by both."""

import csv
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coupled_adam_bench.results import tidy
from coupled_adam_bench.results.tidy import read_csv, typed_frame, write_csv

COLUMNS: dict[str, type] = {"name": str, "count": int, "value": float, "bold": bool, "note": str}
HEADER = ",".join(COLUMNS)


def read(path: Path, monkeypatch: pytest.MonkeyPatch, at_once: bool) -> Any:
    with monkeypatch.context() as patched:
        if not at_once:
            patched.setattr(tidy, "_read_at_once", lambda *_: None)
        try:
            return tidy.read_csv(path, COLUMNS, ("name", "count"))
        except ValueError as error:
            return str(error)


def check_both(path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    fast, slow = (read(path, monkeypatch, at_once) for at_once in (True, False))
    if isinstance(slow, str):
        assert fast == slow
    else:
        pd.testing.assert_frame_equal(fast, slow, check_exact=True)
    return slow


@given(
    rows=st.lists(
        st.tuples(
            st.text(st.characters(codec="utf-8", exclude_characters="\r\0"), max_size=5),
            st.integers(-(2**63), 2**63 - 1),
            st.floats(),
            st.booleans(),
            st.sampled_from(["", "NaN", "nan", "None", "a,b", '"', "line\nbreak", " x "]),
        ),
        unique_by=lambda row: row[:2],
        max_size=8,
    )
)
def test_what_is_written_is_read_again_bit_for_bit(rows: list[tuple[Any, ...]], tmp_path_factory: Any) -> None:
    frame = tidy.typed_frame([dict(zip(COLUMNS, row, strict=True)) for row in rows], COLUMNS)
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    tidy.write_csv(frame, path)
    with pytest.MonkeyPatch.context() as monkeypatch:
        pd.testing.assert_frame_equal(check_both(path, monkeypatch), frame, check_exact=True)


@pytest.mark.parametrize(
    "text",
    [
        "", HEADER, f"{HEADER}\na,1,0.5,True,x", f"{HEADER}\na,1,,True,x", f"{HEADER}\na,1,nan,True,x",
        f"{HEADER}\na,1,0.5,True", f"{HEADER}\na,1,0.5,True,x,y", f"{HEADER}\n\na,1,0.5,True,x", f"{HEADER}\na",
        f"{HEADER}\na,1.0,0.5,True,x", f"{HEADER}\na,,0.5,True,x", f"{HEADER}\na,1,x,True,x",
        f"{HEADER}\na,1,0.5,true,x", f"{HEADER}\na,1,0.5,TRUE,x", f"{HEADER}\na,1,0.5,,x",
        f"{HEADER}\na,1_0,1_0,True,x",
        f"{HEADER}\na,1, 0.5 ,True,x", f"{HEADER}\na, 1,0.5,True,x", f"{HEADER}\na,1,1e999,True,x",
        f"{HEADER}\na,99999999999999999999,0.5,True,x", f"{HEADER}\na,1,0.5,True,x\na,1,0.6,True,y",
        "name,count,value,bold\na,1,0.5,True", f"{HEADER},more\na,1,0.5,True,x,y", f"{HEADER},name\na,1,0.5,True,x,y",
        "note,name,count,bold,value\nx,a,1,True,0.5", "note,name,count,bold,value\nx,a,1,True",
        f"{HEADER}\nx,a,1,0.5,True,x\ny,b,2,0.5,True,y", f'{HEADER}\n"a,1,0.5,True,x', f"{HEADER}\na,1,Infinity,True,x",
    ],
)  # fmt: skip
def test_what_is_wrong_or_unusual_is_read_or_refused_alike(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.csv").write_text(text)
    check_both(tmp_path / "a.csv", monkeypatch)


def test_bytes_that_are_no_text_and_a_file_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.csv").write_bytes(HEADER.encode() + b"\n\xff,1,0.5,True,x")
    assert "not a CSV file in UTF-8" in check_both(tmp_path / "a.csv", monkeypatch)
    assert "no such file" in check_both(tmp_path / "b.csv", monkeypatch)


def test_a_regular_file_is_read_at_once(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"{HEADER}\na,1,0.5,True,x\nb,2,NaN,False,\n")
    assert tidy._read_at_once(tmp_path / "a.csv", COLUMNS) is not None


FORMULAS = ("=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "'=1", "''@x", "'-0.5", '=1,"2"')
NO_FORMULAS = ("a=1", "-", "+", "-0.5", "1e-3", "-inf", "'", "'tis", "it's", "", "Adam, f = 9")


@pytest.mark.fault(
    "results",
    "A label begins with `=`, `+`, `-`, `@`, a tab or a carriage return, which a spreadsheet takes for a formula.",
    "The CSV files have an apostrophe before it, which our readers take away; numbers stay as they are.",
)
def test_no_cell_is_a_formula(tmp_path: Path) -> None:
    columns = {"label": str, "value": float}
    texts = [*FORMULAS, *NO_FORMULAS]
    frame = typed_frame([{"label": text, "value": -0.5} for text in texts], columns)
    write_csv(frame, tmp_path / "a.csv")
    with (tmp_path / "a.csv").open(newline="") as file:
        header, *rows = csv.reader(file)
    assert header == ["label", "value"]
    assert [row[0] for row in rows] == [f"'{text}" for text in FORMULAS] + list(NO_FORMULAS)
    assert {row[1] for row in rows} == {"-0.5"}
    assert read_csv(tmp_path / "a.csv", columns, ("label",))["label"].tolist() == texts
    write_csv(typed_frame([{"label": "=1", "value": 1.0}], columns), tmp_path / "b.csv")  # without a quote in it
    assert read_csv(tmp_path / "b.csv", columns, ("label",))["label"].tolist() == ["=1"]
