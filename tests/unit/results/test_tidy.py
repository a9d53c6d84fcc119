"""CSV files with typed columns: what is written is read again bit for bit, and what is wrong is
refused."""

import csv

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coupled_adam_bench.results.tidy import read_csv, typed_frame, write_csv

COLUMNS: dict[str, type] = {"name": str, "count": int, "value": float, "bold": bool, "note": str}
HEADER = ",".join(COLUMNS)


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
        min_size=1,
        max_size=8,
    )
)
def test_what_is_written_is_read_again_bit_for_bit(rows, tmp_path_factory):
    frame = typed_frame([dict(zip(COLUMNS, row, strict=True)) for row in rows], COLUMNS)
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    write_csv(frame, path)
    pd.testing.assert_frame_equal(
        read_csv(path, COLUMNS, ("name", "count")), frame, check_exact=True
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not a CSV file"),
        (f"{HEADER}\na,1.5,0.5,True,x", "int64"),
        (f"{HEADER}\na,1,x,True,x", "float: 'x'"),
        (f"{HEADER}\na,1,0.5,,x", "bool"),
        (f"{HEADER}\na,99999999999999999999,0.5,True,x", "not a CSV file"),
        (f"{HEADER}\na,1,0.5,True,x\na,1,0.6,True,y", "two rows with name=a, count=1"),
        (
            "name,count,value,bold\na,1,0.5,True",
            "its columns are name, count, value, bold; needed are name, ",
        ),
        (f"{HEADER},more\na,1,0.5,True,x,y", "its columns are"),
    ],
)
def test_what_is_wrong_is_refused(text, message, tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as error:
        read_csv(path, COLUMNS, ("name", "count"))
    assert str(path) in str(error.value)


def test_bytes_that_are_no_text_and_a_file_that_is_not_there(tmp_path):
    (tmp_path / "a.csv").write_bytes(HEADER.encode() + b"\n\xff,1,0.5,True,x")
    with pytest.raises(ValueError, match=r"a\.csv: not a CSV file in UTF-8"):
        read_csv(tmp_path / "a.csv", COLUMNS, ("name",))
    with pytest.raises(ValueError, match=r"b\.csv: no such file"):
        read_csv(tmp_path / "b.csv", COLUMNS, ("name",))


FORMULAS = (
    "=1+1",
    "+cmd|' /C calc'!A0",
    "-2+3",
    "@SUM(A1)",
    "\t=1",
    "'=1",
    "''@x",
    "'-0.5",
    '=1,"2"',
)
NO_FORMULAS = ("a=1", "-", "+", "-0.5", "1e-3", "-inf", "'", "'tis", "it's", "", "Adam, f = 9")


@pytest.mark.fault(
    "results",
    "A label begins with `=`, `+`, `-`, `@`, a tab or a carriage return, which a spreadsheet takes"
    " for a formula.",
    "The CSV files have an apostrophe before it, which our readers take away; numbers stay as they"
    " are.",
)
def test_no_cell_is_a_formula(tmp_path):
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
