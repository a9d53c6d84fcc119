"""Reads the JSON and CSV files of tasks for lm-eval as they stand.

The library `datasets`, by which lm-eval reads them, guesses types anew: texts that look like dates
become times, and in CSV the text ``NA`` becomes nothing and ``007`` the number 7. Here a text of
JSON stays a text and a number a number, and each field of CSV is a text. Parquet and arrow keep
their types by themselves.
"""

import inspect
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

Row = dict[str, Any]
_READERS = ("json", "csv")
_INT64 = range(-(2**63), 2**63)


@contextmanager
def files_as_written() -> Iterator[None]:
    """Have lm-eval, which calls ``datasets.load_dataset``, take files of JSON and CSV as they
    stand; data sets of the hub are left to the library."""
    import datasets
    from datasets.packaged_modules.csv.csv import Csv
    from datasets.packaged_modules.json.json import Json

    usual = datasets.load_dataset
    known = inspect.signature(usual).parameters.keys()
    only_loading = known - inspect.signature(datasets.load_dataset_builder).parameters.keys()

    def load(path: str, name: str | None = None, **options: Any) -> Any:
        if path not in _READERS and not Path(path).exists():
            return usual(path, name, **options)
        # The library finds the files of each split; only their reading is ours.
        kept = {key: value for key, value in options.items() if key not in only_loading}
        builder = datasets.load_dataset_builder(path, name, **kept)
        if not isinstance(builder, Json | Csv) or not builder.config.data_files:
            return usual(path, name, **options)
        rows_of = json_rows if isinstance(builder, Json) else _csv_rows
        manager = datasets.DownloadManager()
        splits = {}
        for split, named in builder.config.data_files.items():
            files = manager.iter_files(manager.download_and_extract(list(named)))
            rows = [row for file in files for row in rows_of(Path(file), builder.config)]
            splits[str(split)] = _dataset(rows)
        return datasets.DatasetDict(splits)

    with patch.object(datasets, "load_dataset", load):
        yield


def json_rows(path: Path, config: Any = None) -> list[Row]:
    """Return the items of a file: an object a line, a list of objects, or one object of columns.

    ``config`` is that of the library's reader, with its ``encoding`` and the ``field`` that holds
    the items. ``ValueError`` with file and line for what is no JSON.
    """
    encoding = "utf-8" if config is None else config.encoding
    # The mark of byte order, with which some editors begin a file, is no text.
    encoding = "utf-8-sig" if encoding.lower() in ("utf-8", "utf8") else encoding
    errors = None if config is None else config.encoding_errors
    text = path.read_text(encoding=encoding, errors=errors).strip()
    field = None if config is None else config.field
    if field is not None:
        found = json.loads(text)[field]
    elif text.startswith("["):
        found = json.loads(text)
    else:
        found = _json_lines(path, text)
    if isinstance(found, dict):
        found = _rows_of_columns(path, found)
    if all(isinstance(row, dict) for row in found):
        return list(found)
    return [{"text": row} for row in found]


def _json_lines(path: Path, text: str) -> Any:
    """Return the values of the lines of a text, or its one value that takes several lines."""
    found = []
    for number, line in enumerate(text.split("\n"), 1):
        try:
            found += [json.loads(line)] if line.strip() else []
        except json.JSONDecodeError as error:
            try:
                return json.loads(text)
            except json.JSONDecodeError:
                raise ValueError(
                    f"{path}:{number}: not JSON ({error}); write one item a line, or a list of"
                    " items"
                ) from None
    return found


def _rows_of_columns(path: Path, columns: Row) -> list[Row]:
    """Return the items of an object whose values are lists of equal length, one for each field."""
    if not all(isinstance(values, list) for values in columns.values()):
        raise ValueError(
            f"{path}: one object over several lines; write one item a line, or a list of items, or"
            " name with dataset_kwargs.field the list that holds them"
        )
    rows = zip(*columns.values(), strict=True)
    return [dict(zip(columns, row, strict=True)) for row in rows]


def _csv_rows(path: Path, config: Any) -> list[Row]:
    """Return the rows of a file of CSV, all of whose fields are texts."""
    import pandas as pd

    options = config.pd_read_csv_kwargs | {
        "chunksize": None,
        "dtype": str,
        "keep_default_na": False,
        "na_filter": config.na_values is not None,  # what the task itself says is missing
    }
    frame = pd.read_csv(path, **options).astype(object)
    frame.columns = frame.columns.map(str)
    rows: list[Row] = frame.where(frame.notna(), None).to_dict("records")
    return rows


def _dataset(rows: list[Row]) -> Any:
    """Return rows as a dataset that gives them back as they are; a field that a row lacks is
    None."""
    import datasets

    columns: dict[str, list[Any]] = {}
    features: dict[str, Any] = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        values = [row.get(name) for row in rows]
        feature = _feature(values)
        # Values of several types, such as 1 and "1", have no type of Arrow in common.
        if feature is None:
            feature = datasets.Json()
            values = list(map(_as_json, values))
        columns[name], features[name] = values, feature
    return datasets.Dataset.from_dict(columns, features=datasets.Features(features))


def _as_json(value: Any) -> str | None:
    """Return a value as the type ``Json`` holds it."""
    return None if value is None else json.dumps(value)


def _feature(values: list[Any]) -> Any:
    """Return the type of `datasets` that holds values unchanged, None if there is none."""
    from datasets import List, Value

    there = [value for value in values if value is not None]
    kinds = {type(value) for value in there}
    if kinds <= {str}:
        return Value("string")
    if kinds == {bool}:
        return Value("bool")
    if kinds == {int} and all(value in _INT64 for value in there):
        return Value("int64")
    if kinds == {float}:
        return Value("float64")
    if kinds == {list}:
        inner = _feature([one for value in there for one in value])
        return None if inner is None else List(inner)
    keys = {tuple(value) for value in there} if kinds == {dict} else set()
    if len(keys) != 1 or len(there) < len(values):
        return None
    fields = {}
    for key in keys.pop():
        fields[key] = _feature([value[key] for value in there])
    return fields if fields and None not in fields.values() else None
