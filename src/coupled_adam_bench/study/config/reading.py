"""Strict reading of study files: what YAML reads differently from how it looks is refused, with its line."""

import json
import re
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

MAX_BYTES = 2**20
"""Largest size of a study file; the paper's studies have about 2 KB."""
_MAX_VALUES = 100_000
"""Largest number of values with all aliases expanded; a few lines of nested aliases can expand to billions."""
_TAG = "tag:yaml.org,2002:"
_FORMS = {
    "str": re.compile(r".*", re.DOTALL),
    "int": re.compile(r"[-+]?(0|[1-9][0-9_]*)"),
    "float": re.compile(r"[-+]?([0-9_]*\.[0-9_]*([eE][-+]?[0-9]+)?|\.(inf|Inf|INF)|\.(nan|NaN|NAN))"),
    "bool": re.compile(r"true|True|TRUE|false|False|FALSE"),
    "null": re.compile(r"(null|Null|NULL|~)?"),
    "merge": re.compile(r"<<"),
}
"""How the plain values of each kind look to a reader: 010, 1:30 and yes look otherwise."""
_TEMPLATE_KEY = "__use_yte__"


def read_study_file(path: Path) -> Any:
    """Read a study's YAML or JSON file, without validation of its settings.

    Raises a ``ValueError`` with file and line for a key that is given twice, for a key or a value that YAML reads
    differently from how it looks, and for aliases that expand to too many values.
    """
    text = _text_of(path)
    try:
        return _parse(text)
    except yaml.YAMLError as error:
        tab = "; indent with spaces, not with tabs" if r"'\t'" in str(error) else ""
        raise ValueError(f"{path}: not valid YAML: {error}{tab}") from None
    except RecursionError:
        raise ValueError(f"{path}: nested too deeply") from None
    except ValueError as error:  # from a check below, or from Python for a number that it cannot read
        raise ValueError(f"{path}: {error}") from None


def _text_of(path: Path) -> str:
    try:
        if not path.is_file():
            raise ValueError(f"{path}: no such file; give a study's YAML file")
        if (size := path.stat().st_size) > MAX_BYTES:
            raise ValueError(f"{path}: {size:,} bytes; a study file has at most {MAX_BYTES:,}")
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 ({error.reason} at byte {error.start}); save it as UTF-8") from None
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}") from None


def _parse(text: str) -> Any:
    with suppress(ValueError):  # what is no JSON, or has a key twice, is read as YAML, which says the line
        return json.loads(text, object_pairs_hook=_object)
    loader = yaml.SafeLoader(text)
    node = loader.get_single_node()
    if node is None:
        return None
    check_size(node)
    _check(node)
    return loader.construct_document(node)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(values := dict(pairs)) < len(pairs):
        raise ValueError
    return values


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [child for pair in node.value for child in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def check_size(root: yaml.Node) -> None:
    """Raise ``ValueError`` if an alias makes a value contain itself, or if aliases expand to too many values."""
    sizes: dict[int, int | None] = {}

    def size(node: yaml.Node) -> int:
        if id(node) not in sizes:
            sizes[id(node)] = None  # until all that it holds is counted
            sizes[id(node)] = 1 + sum(map(size, _children(node)))
        if (n_values := sizes[id(node)]) is None:
            raise ValueError(f"line {_line(node)}: an alias makes this value a part of itself; write it out")
        return n_values

    if (n_values := size(root)) > _MAX_VALUES:
        raise ValueError(f"its aliases expand to {n_values:,} values, and at most {_MAX_VALUES:,} can be")


def _check(node: yaml.Node) -> None:
    """Raise ``ValueError`` for a key given twice and for a value that YAML reads differently from how it looks."""
    kind = node.tag.removeprefix(_TAG)
    if kind == "timestamp":
        raise ValueError(f"line {_line(node)}: {node.value} is a date to YAML; put it in quotes")
    if kind not in (*_FORMS, "map", "seq"):
        raise ValueError(f"line {_line(node)}: a study has no values of the kind {kind!r}")
    if isinstance(node, yaml.ScalarNode) and kind in _FORMS and not _FORMS[kind].fullmatch(node.value):
        value = str(yaml.safe_load(node.value)).lower()
        raise ValueError(f"line {_line(node)}: {node.value} is {value} to YAML; write {value}, or put it in quotes")
    if isinstance(node, yaml.MappingNode):
        _check_keys([key for key, _ in node.value])
    for child in _children(node):
        _check(child)


def _check_keys(keys: list[yaml.Node]) -> None:
    for key in keys:
        if key.value == _TEMPLATE_KEY:
            raise ValueError(
                f"line {_line(key)}: {_TEMPLATE_KEY} makes a program of a file: Snakemake runs the Python in it "
                "when it reads it, before this program does; write the values themselves"
            )
        if (kind := key.tag.removeprefix(_TAG)) not in ("str", "merge"):
            shown = f"{key.value} is" if isinstance(key, yaml.ScalarNode) else "here is"
            raise ValueError(f"line {_line(key)}: the key {shown} of the kind {kind!r} to YAML; keys must be text")
    for name, count in Counter(key.value for key in keys).items():
        if count > 1:
            lines = " and ".join(str(_line(key)) for key in keys if key.value == name)
            raise ValueError(
                f"lines {lines}: the key {name!r} is given {count} times in one mapping; the last one would win; keep "
                "one"
            )
