"""Strict reading of study files: what YAML reads differently from how it looks is refused, with its
line."""

import json
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from yaml.composer import Composer

from coupled_adam_bench.study.settings.errors import for_each

_AS_THEY_LOOK = re.compile(
    r"[-+]?(0|[1-9][0-9_]*)|[-+]?([0-9_]*\.[0-9_]*([eE][-+]?[0-9]+)?|\.inf|\.nan)|(?i:true|false|null)|~|<<|"
)
"""The plain values that YAML takes for what they look like; ``010``, ``1:30``, ``yes`` and dates
are others."""
_TEMPLATE_KEY = "__use_yte__"
DEEPEST = 50
"""Levels of lists and mappings in a file; the settings of a study have six."""


class NestingError(ValueError):
    """A file has more levels than any study, or contains itself; Snakemake would end with a
    traceback."""


class EachKeyOnce(Composer):
    """What a loader of YAML inherits to refuse a mapping that has a key more than once.

    Nodes are looked at, since of two equal keys a mapping itself has only the last, and when they
    are made, since ``<<`` adds keys to them later.
    """

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Return the node of a mapping; ``ValueError`` with the lines of a key that is there more
        than once."""
        node = super().compose_mapping_node(anchor)
        lines: dict[str, list[str]] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                lines.setdefault(key.value, []).append(str(_line(key)))
        for name, found in lines.items():
            if len(found) > 1:
                raise ValueError(
                    f"lines {' and '.join(found)}: the key {name!r} is given {len(found)} times in"
                    " one mapping; the last one would win; keep one"
                )
        return node


class _StrictLoader(EachKeyOnce, yaml.SafeLoader):
    """A safe loader that refuses keys that are given twice, values that are not what they look
    like, and nesting."""

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self._open: list[str | None] = []
        """The anchors of the lists and mappings that are being read, from the outermost on."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent) and event.anchor in self._open:
            raise NestingError(
                f"line {line}: *{event.anchor} stands within &{event.anchor}, which so contains"
                " itself"
            )
        if len(self._open) > DEEPEST:
            raise NestingError(
                f"line {line}: more than {DEEPEST} levels of lists and mappings, which no study has"
            )
        self._open.append(getattr(event, "anchor", None))
        node = super().compose_node(parent, index)
        self._open.pop()
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        value = super().construct_object(node, deep)
        plain = (
            isinstance(node, yaml.ScalarNode) and node.style is None and not isinstance(value, str)
        )
        if plain and not _AS_THEY_LOOK.fullmatch(node.value):
            shown = str(value).lower()
            kind = type(value).__name__
            raise ValueError(
                f"line {_line(node)}: {node.value} is the {kind} {shown} to YAML; put it in quotes,"
                f" or write {shown}"
            )
        return value

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        for key, _ in node.value:
            if key.value == _TEMPLATE_KEY:
                raise ValueError(
                    f"line {_line(key)}: {_TEMPLATE_KEY} makes a program of a file: Snakemake runs"
                    " the Python in it when it reads it, before this program does; write the"
                    " values themselves"
                )
        mapping = super().construct_mapping(node, deep)
        if wrong := [str(key) for key in mapping if not isinstance(key, str)]:
            raise ValueError(
                f"line {_line(node)}: the key {wrong[0]} is no text to YAML; put it in quotes"
            )
        return mapping


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _json_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object; ``ValueError`` for a key that is given twice."""
    for name, count in Counter(key for key, _ in pairs).items():
        if count > 1:
            raise ValueError(
                f"the key {name!r} is given {count} times in one object; the last one would win;"
                " keep one"
            )
    return dict(pairs)


def read_text(text: str) -> Any:
    """Return what a text holds: JSON as such, as Snakemake does, and all else as strict YAML."""
    try:
        return json.loads(text, object_pairs_hook=_json_object)
    except json.JSONDecodeError:
        return yaml.load(text, _StrictLoader)
    except RecursionError:
        raise NestingError(
            f"more than {DEEPEST} levels of lists and mappings, which no study has"
        ) from None


def read_study_file(path: Path) -> Any:
    """Read a study's YAML or JSON file, without validation of its settings.

    Raises a ``ValueError`` with file and line for a key that is given twice, and for a key or a
    value that YAML reads differently from how it looks; a :class:`NestingError` for a file that
    contains itself or has too many levels.
    """
    if not path.is_file():
        raise ValueError(f"{path}: no such file; give a study's YAML file")
    try:
        return read_text(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        tab = "; indent with spaces, not with tabs" if r"'\t'" in str(error) else ""
        raise ValueError(f"{path}: not valid YAML: {error}{tab}") from None
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path}: not UTF-8 ({error.reason} at byte {error.start}); save it as UTF-8"
        ) from None
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise type(error)(f"{path}: {error}") from None


def check_files(files: Iterable[Path]) -> None:
    """Read studies' files as :func:`read_study_file`; the ``ValueError`` has a line for each that
    is wrong."""
    for_each(read_study_file, files)
