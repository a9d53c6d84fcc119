"""Options of the command ``verify``: tolerances, and the paths of a study."""

from collections.abc import Sequence
from typing import Any

import yaml

from coupled_adam_bench.study.settings import Paths


def parse_tolerances(texts: Sequence[str]) -> dict[str, float]:
    """Return tolerances by metric from texts such as ``loss=0.02``; ``ValueError`` for others."""
    found: dict[str, float] = {}
    for text in texts:
        name, _, number = text.partition("=")
        try:
            found[name] = float(number)
        except ValueError:
            found[name] = -1.0
        if not name or not found[name] >= 0:
            raise ValueError(
                f"--tolerance: {text!r} is not METRIC=NUMBER with a number of at least 0, as"
                " loss=0.02"
            )
    return found


def parse_config(texts: Sequence[str]) -> dict[str, Any]:
    """Return the paths of a study from texts as Snakemake takes them, ``paths={text: FOLDER}``;
    ``ValueError`` else."""
    found: dict[str, Any] = {}
    for text in texts:
        name, _, values = text.partition("=")
        try:
            given = yaml.safe_load(values)
        except yaml.YAMLError:
            given = None
        if name != "paths" or not isinstance(given, dict) or given.keys() - Paths.model_fields:
            allowed = ", ".join(f"{one}: PATH" for one in Paths.model_fields)
            raise ValueError(
                f"--config: {text!r} is not paths={{...}} with {allowed}; all else is in the"
                " manifest"
            )
        found |= given
    return found
