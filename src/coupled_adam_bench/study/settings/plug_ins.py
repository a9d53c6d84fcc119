"""A plug-in as a study names it: what it is called, its class, and what that is given."""

from functools import partial
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from coupled_adam_bench.study.settings.base import (
    OWN_NAME_PATTERN,
    DottedPath,
    Scalar,
    Settings,
    checked_arguments,
    duplicates,
)


class PlugIn(Settings):
    """A class of the study's own for one of the three kinds of plug-ins (docs/plugins.md)."""

    name: Annotated[str, Field(pattern=OWN_NAME_PATTERN)]
    """Name of the file of a statistic or a figure, without its ending; and what the names of a
    measurement begin with in the history."""
    path: DottedPath
    """Module and class, of an installed package or of a file in the folder in which the study is
    started."""
    arguments: Annotated[
        dict[str, Any],
        BeforeValidator(
            partial(checked_arguments, refused={}),
            json_schema_input_type=dict[str, Scalar | tuple[Scalar, ...]],
        ),
    ] = Field(default_factory=dict)
    """Keyword arguments of the class; lists become tuples."""


def _names_differ(entries: tuple[PlugIn, ...]) -> tuple[PlugIn, ...]:
    if twice := duplicates(entry.name for entry in entries):
        raise ValueError(
            f"{', '.join(map(repr, twice))} is the name of several plug-ins; give each its own"
        )
    return entries


PlugIns = Annotated[tuple[PlugIn, ...], AfterValidator(_names_differ)]
"""The plug-ins of one kind, whose names differ."""
