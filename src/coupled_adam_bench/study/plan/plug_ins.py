"""Finds and imports the classes of a study's plug-ins, and checks them against the contract
(docs/plugins.md)."""

import inspect
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Self

from coupled_adam_bench.study.plan import Plan
from coupled_adam_bench.study.plan.dotted import Code, changed_code, code_of, failure, import_object
from coupled_adam_bench.study.plan.inputs import own_code
from coupled_adam_bench.study.settings import CustomSettings, Own

CONTRACT = 1
"""The version of what a plug-in is given and gives: it changes if plug-ins of before would fail."""


class Contract:
    """What every plug-in declares, and how its class is found; each kind adds its own names to
    these."""

    contract: ClassVar[int]
    """The version of the contract that the class is written for."""

    @classmethod
    def imported(cls, place: str, entry: Own, *given: Any, **named: Any) -> type[Self]:
        """Import the class of a plug-in of this kind, which can be called with what is given and
        its arguments.

        ``ValueError`` names the field, and what the class lacks, or the code that is no longer that
        with which the study was started.
        """
        try:
            kind = import_object(entry.path)
        except ValueError as error:
            raise ValueError(f"{place}.{error}") from None
        # After the import: a file that is edited now was read before.
        changed = changed_code(entry.path, entry.code) if entry.code else None
        if changed:
            raise ValueError(
                f"{place}.path: {entry.path} is not the code with which the study was started"
                f" ({changed}); start the workflow again, which works with the code that is here"
                " now"
            )
        if not (isinstance(kind, type) and issubclass(kind, cls)):
            raise ValueError(
                f"{place}.path: {entry.path} is no subclass of {cls.__name__}; derive it from"
                f" {cls.__module__}.{cls.__name__}"
            )
        if missing := list(_missing(kind, cls)):
            raise ValueError(
                f"{place}.path: {entry.path} lacks {', '.join(missing)}; the class must have"
                " all that docs/plugins.md lists for its kind"
            )
        if kind.contract != CONTRACT:
            raise ValueError(
                f"{place}.path: {entry.path} is written for contract {kind.contract!r}, and this"
                f" program has {CONTRACT}; read docs/plugins.md, change the class, and set"
                f" `contract = {CONTRACT}`"
            )
        signature = inspect.signature(kind)
        try:
            signature.bind(*given, **named, **entry.arguments)
        except TypeError as error:
            raise ValueError(
                f"{place}.arguments: {error}; {entry.path} takes {signature}"
            ) from None
        return kind

    @classmethod
    def made(cls, place: str, entry: Own, *given: Any, **named: Any) -> Self:
        """Return an object of a plug-in's class; ``ValueError`` if it refuses its arguments."""
        kind = cls.imported(place, entry, *given, **named)
        try:
            return kind(*given, **named, **entry.arguments)
        except Exception as error:  # a constructor may raise anything
            refuses = f"arguments: {entry.path} refuses them" if entry.arguments else None
            raise ValueError(
                f"{place}.{refuses or f'path: {entry.path} cannot be made'} {failure(error)}"
            ) from error


class PlanContract(Contract):
    """What the plug-ins of a report declare, which see all of a plan."""

    def check(self, plan: Plan) -> None:
        """Raise ``ValueError`` for a plan that lacks what the plug-in needs; by default, none
        does."""

    @classmethod
    def made_for(cls, plan: Plan, place: str, entry: Own) -> Self:
        """Return an object of a plug-in's class that has looked at the plan."""
        plug_in = cls.made(place, entry)
        with failing(f"{place}.path: check() of {entry.path} fails"):
            try:
                plug_in.check(plan)
            except ValueError as error:
                refused = str(error)
            else:
                return plug_in
        raise ValueError(f"{place}: {entry.path}: {refused}")


def _missing(kind: type[Contract], base: type[Contract]) -> Iterator[str]:
    """Yield what a class lacks: names that its base declares without a value, then methods."""
    for declaring in (one for one in reversed(base.__mro__) if issubclass(one, Contract)):
        for name in inspect.get_annotations(declaring):
            if not hasattr(kind, name):
                yield f"`{name}`"
    for method in sorted(getattr(kind, "__abstractmethods__", ())):
        yield f"the method `{method}`"


@contextmanager
def failing(said: str) -> Iterator[None]:
    """Let an error of own code be a ``ValueError`` that begins with what is ``said``, and names the
    line of its file."""
    try:
        yield
    except Exception as error:  # the code is the user's
        raise ValueError(f"{said} {failure(error)}") from error


def entries(plan: Plan) -> Iterator[tuple[str, Own]]:
    """Yield the field and the entry of each plug-in of a plan."""
    for study in plan.studies.values():
        for place, entry in own_code(study):
            if not isinstance(entry, CustomSettings):
                yield place, entry


def check_names(plan: Plan, files: Collection[str], figures: Collection[str]) -> None:
    """Refuse the name of a file or of a figure that the program makes itself; nothing is
    imported."""
    taken = {"files": {file.removesuffix(".csv") for file in files}, "figures": {*figures}}
    for kind, names in taken.items():
        for index, entry in enumerate(getattr(plan.statistics, kind)):
            if entry.name in names:
                raise ValueError(
                    f"statistics.{kind}.{index}.name: {entry.name!r} is made by the program itself;"
                    f" give yours another name than {', '.join(sorted(names))}"
                )


def code_of_report(plan: Plan) -> dict[str, Code]:
    """Return by path what identifies the code of the plug-ins that make parts of the report.

    Nothing is imported. ``ValueError`` names the field of a plug-in of any kind whose module is not
    there.
    """
    found = {}
    for place, entry in entries(plan):
        try:
            code = code_of(entry.path)
        except ValueError as error:
            raise ValueError(f"{place}.{error}") from None
        if place.startswith("statistics"):
            found[entry.path] = code
    return found
