"""The door to the package ``coupled-adam-registry``, which stands above this one: the only module
that imports it, and all that others here ask of it.

Where it is not installed, its commands are there and say so.
"""

import argparse
from typing import TYPE_CHECKING

from coupled_adam_bench.cli.command import AddCommand

if TYPE_CHECKING:
    from pydantic import BaseModel

_COMMANDS = ("bundle", "registry", "export")


def add_commands(add: AddCommand) -> None:
    """Add the commands of the package to the command line, or in their place what raises that it is
    missing."""
    try:
        from coupled_adam_registry import commands
    except ModuleNotFoundError as error:
        for name in _COMMANDS:
            _add_missing(name, add, error)
    else:
        commands.add_commands(add)


def _add_missing(name: str, add: AddCommand, error: ModuleNotFoundError) -> None:
    def refuse(_: argparse.Namespace) -> None:
        raise error

    sub = add(name, refuse, "needs the package coupled-adam-registry", plan=False)
    # Nothing that is typed is an option, so that in all cases what is missing is said.
    sub.prefix_chars = ""
    sub.add_argument("given", nargs="*", help=argparse.SUPPRESS)


def bundle_form() -> "type[BaseModel]":
    """Return the class of ``bundle.json``, for its schema."""
    from coupled_adam_registry.form import Bundle

    return Bundle
