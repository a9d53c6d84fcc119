"""A class of a study's own, as a study names it: where it is, and what it is given."""

from functools import partial
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BeforeValidator, Field

from coupled_adam_bench.store.files import digest
from coupled_adam_bench.study.settings.base import (
    OWN_NAME_PATTERN,
    DottedPath,
    LaterSettings,
    Scalar,
    checked_arguments,
    duplicates,
)


class Own(LaterSettings):
    """A class of the study's own in the place of what the program has (docs/plugins.md)."""

    later: ClassVar[tuple[str, ...]] = ("code",)

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
    code: dict[str, str] | None = None
    """What identifies the code of the class: by module the SHA-256 of its file, or by package its
    version. By default it is that of the code which is there when the study is started; other code
    than one that is given is refused."""

    def __hash__(self) -> int:
        """Return a hash, so that settings with a class of the study's own can be the key of a
        cache."""
        return hash(digest(self.model_dump()))

    @property
    def code_name(self) -> str:
        """The path, and a short hash of the code."""
        return f"{self.path}, code {digest(self.code) if self.code else 'unknown'}"


class PlugIn(Own):
    """A class of the study's own that makes something that has a name."""

    name: Annotated[str, Field(pattern=OWN_NAME_PATTERN)]
    """Name of the file of a statistic or a figure, without its ending; and what the names of a
    measurement begin with in the history."""


def _names_differ(entries: tuple[PlugIn, ...]) -> tuple[PlugIn, ...]:
    if twice := duplicates(entry.name for entry in entries):
        raise ValueError(
            f"{', '.join(map(repr, twice))} is the name of several plug-ins; give each its own"
        )
    return entries


PlugIns = Annotated[tuple[PlugIn, ...], AfterValidator(_names_differ)]
"""The plug-ins of one kind, whose names differ."""
