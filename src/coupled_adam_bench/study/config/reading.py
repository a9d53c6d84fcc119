"""Strict reading of study files: what YAML reads differently from how it looks is refused, with its line."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

_AS_THEY_LOOK = re.compile(
    r"[-+]?(0|[1-9][0-9_]*)|[-+]?([0-9_]*\.[0-9_]*([eE][-+]?[0-9]+)?|\.inf|\.nan)|(?i:true|false|null)|~|<<|"
)
"""The plain values that YAML takes for what they look like; ``010``, ``1:30``, ``yes`` and dates are others."""
_TEMPLATE_KEY = "__use_yte__"


class _StrictLoader(yaml.SafeLoader):
    """A safe loader that refuses keys that are given twice, and values that are not what they look like."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        value = super().construct_object(node, deep)
        plain = isinstance(node, yaml.ScalarNode) and node.style is None and not isinstance(value, str)
        if plain and not _AS_THEY_LOOK.fullmatch(node.value):
            shown = str(value).lower()
            kind = type(value).__name__
            raise ValueError(
                f"line {_line(node)}: {node.value} is the {kind} {shown} to YAML; put it in quotes, or write {shown}"
            )
        return value

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key for key, _ in node.value]
        for name, count in Counter(key.value for key in keys if isinstance(key, yaml.ScalarNode)).items():
            lines = " and ".join(str(_line(key)) for key in keys if key.value == name)
            if count > 1:
                raise ValueError(
                    f"lines {lines}: the key {name!r} is given {count} times in one mapping; the last one would win; "
                    "keep one"
                )
            if name == _TEMPLATE_KEY:
                raise ValueError(
                    f"line {lines}: {_TEMPLATE_KEY} makes a program of a file: Snakemake runs the Python in it when it "
                    "reads it, before this program does; write the values themselves"
                )
        mapping = super().construct_mapping(node, deep)
        if wrong := [str(key) for key in mapping if not isinstance(key, str)]:
            raise ValueError(f"line {_line(node)}: the key {wrong[0]} is no text to YAML; put it in quotes")
        return mapping


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def read_study_file(path: Path) -> Any:
    """Read a study's YAML or JSON file, without validation of its settings.

    Raises a ``ValueError`` with file and line for a key that is given twice, and for a key or a value that YAML reads
    differently from how it looks.
    """
    if not path.is_file():
        raise ValueError(f"{path}: no such file; give a study's YAML file")
    try:
        return yaml.load(path.read_text(encoding="utf-8"), _StrictLoader)
    except yaml.YAMLError as error:
        tab = "; indent with spaces, not with tabs" if r"'\t'" in str(error) else ""
        raise ValueError(f"{path}: not valid YAML: {error}{tab}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 ({error.reason} at byte {error.start}); save it as UTF-8") from None
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
