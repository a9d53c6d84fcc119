"""Pydantic's validation errors, rewritten for authors of study files: which field is wrong, and
what is allowed."""

import difflib
import reprlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

_MESSAGES = {
    "missing": "missing",
    "tuple_type": "must be a list",
    "too_short": "must have at least one entry",
    "dict_type": "must be a mapping of keys to values",
    "model_type": "must be a mapping of keys to values",
    "model_attributes_type": "must be a mapping of keys to values",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "string_type": "must be text",
}
# These messages are complete without the value.
_WITHOUT_VALUE = (
    "missing",
    "extra_forbidden",
    "union_tag_not_found",
    "union_tag_invalid",
    "too_short",
)

_PLUG_INS_NOW = ("target_loss", "target_sd")
"""Settings of earlier versions that a plug-in took the place of."""
_IN_WORDS: dict[str, str] = {}
"""What each pattern of a setting allows."""
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxlong = 100

Location = tuple[int | str, ...]
Section = TypeVar("Section", bound=BaseModel)
Item = TypeVar("Item")
Result = TypeVar("Result")


def in_words(pattern: str, words: str) -> str:
    """Return the pattern of a setting, and note the words that tell an author what it allows."""
    _IN_WORDS[pattern] = words
    return pattern


def validate(model: type[Section], values: Any, origin: str) -> Section:
    """Return ``values`` as settings; a ``ValueError`` lists every wrong field, its value and what
    is allowed."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        lines = describe_errors(error, model, values)
        raise ValueError(
            "\n  ".join([f"{origin}: {len(lines)} invalid setting(s)", *lines])
        ) from None


def for_each(function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """Return what a function makes of each item; a ``ValueError`` has what it said of all those
    that it refused."""
    results: list[Result] = []
    problems: list[str] = []
    for item in items:
        try:
            results.append(function(item))
        except ValueError as error:
            problems.append(str(error))
    if problems:
        raise ValueError("\n".join(dict.fromkeys(problems)))
    return results


def describe_errors(error: ValidationError, root: type[BaseModel], values: Any) -> list[str]:
    """Return a line for every field of ``values`` that ``root`` refused, such as ``grid.0.seeds:
    must be a list``."""
    problems = [
        (field_location(problem, values), problem) for problem in error.errors(include_url=False)
    ]
    # By field and, where one validator has found several things, by what it has found.
    messages: dict[tuple[str, str], list[str]] = {}
    given: dict[tuple[str, str], str] = {}
    for location, problem in problems:
        # When a list has wrong entries, pydantic also reports the list as too short, or as no
        # literal of its union.
        has_inner = any(
            len(other) > len(location) and other[: len(location)] == location
            for other, _ in problems
        )
        if has_inner and problem["type"] in ("too_short", "literal_error"):
            continue
        name, message = ".".join(map(str, location)), _message(problem, root)
        if problem["type"] == "value_error" and not _is_scalar(problem["input"]):
            # The validator of a whole section raised it, and each line begins with the name of a
            # field; or that of a list, whose lines are about the list.
            for line in message.splitlines():
                said = f"{name}.{line}" if ": " in line else f"{name}: {line}"
                field, _, text = said.removeprefix(".").partition(": ")
                messages[field, text], given[field, text] = [text], ""
            continue
        key = (name or "(whole study)", "")
        messages.setdefault(key, []).append(message)
        given[key] = _given(problem)
    return [f"{key[0]}: {', or '.join(texts)}{given[key]}" for key, texts in messages.items()]


def _is_scalar(value: Any) -> bool:
    return not isinstance(value, dict | list | tuple | BaseModel)


def _given(problem: ErrorDetails) -> str:
    if problem["type"] in _WITHOUT_VALUE or not _is_scalar(problem["input"]):
        return ""
    return f" (got {_SHORT.repr(problem['input'])})"


def field_location(problem: ErrorDetails, values: Any) -> list[int | str]:
    """Return pydantic's location without the names of union branches, which study files do not
    contain."""
    location: list[int | str] = []
    for key in problem["loc"]:
        is_key = isinstance(values, dict) and key in values
        is_index = isinstance(values, list | tuple) and isinstance(key, int) and key < len(values)
        if is_key or is_index:
            values = values[key]
            location.append(key)
    if problem["type"] == "missing":
        location.append(problem["loc"][-1])
    if problem["type"] in ("union_tag_invalid", "union_tag_not_found") and isinstance(values, dict):
        location.append(problem["ctx"]["discriminator"].strip("'"))
    return location


def _message(problem: ErrorDetails, root: type[BaseModel]) -> str:
    kind, context = problem["type"], problem.get("ctx", {})
    if kind == "extra_forbidden":
        return _unknown_key(problem["loc"], root)
    if kind == "union_tag_invalid":
        return f"{_SHORT.repr(context['tag'])} is none of {context['expected_tags']}"
    if kind == "union_tag_not_found":
        tags = [
            tag for section in _sections(problem["loc"], root) for tag in sorted(_tags(section))
        ]
        return f"missing; one of {', '.join(map(repr, tags))}"
    if kind == "string_pattern_mismatch":
        return _IN_WORDS[context["pattern"]]
    if kind == "model_type" and context["class_name"] == "Own":
        given = problem["input"]
        path = given if isinstance(given, str) and "." in given else "my_module.MyClass"
        return f"a class of your own, written as {{path: {path}}}"
    message = (
        problem["msg"]
        .removeprefix("Value error, ")
        .replace("Input should be", "must be")
        .replace("String should", "must")
    )
    return _MESSAGES.get(kind, message)


def _unknown_key(location: Location, root: type[BaseModel]) -> str:
    key = str(location[-1])
    if key in _PLUG_INS_NOW:
        return 'is a plug-in now; CHANGELOG.md says under "What went before" how to name it'
    allowed = [name for section in _sections(location[:-1], root) for name in section.model_fields]
    close = difflib.get_close_matches(key, allowed, n=1)
    return (
        f"unknown key{f'; did you mean {close[0]!r}?' if close else ''}; allowed:"
        f" {', '.join(allowed)}"
    )


def _sections(location: Sequence[int | str], root: type[BaseModel]) -> list[type[BaseModel]]:
    """Return the settings classes that are allowed at one of pydantic's locations."""
    sections = [root]
    for key in location:
        fields = [section.model_fields[key] for section in sections if key in section.model_fields]
        if fields:
            sections = [section for field in fields for section in _classes(field.annotation)]
        else:  # the key is the index of a list or the name of a union branch
            sections = [section for section in sections if key in _tags(section)] or sections
    return sections


def _classes(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [section for argument in get_args(annotation) for section in _classes(argument)]


def _tags(section: type[BaseModel]) -> set[str]:
    """Return the values of ``kind`` or ``name`` that select this section in a discriminated
    union."""
    return {
        tag
        for name, field in section.model_fields.items()
        if name in ("kind", "name") and get_origin(field.annotation) is Literal
        for tag in get_args(field.annotation)
    }
