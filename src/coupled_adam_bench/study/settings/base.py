"""The types and the base classes that all sections of a study use."""

import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from fractions import Fraction
from math import isfinite
from typing import Annotated, Any, ClassVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    SerializerFunctionWrapHandler,
    Tag,
    model_serializer,
    model_validator,
)

from coupled_adam_bench.study.settings.errors import in_words

# A file name has at most 255 bytes, and the id of a cell is made of two names, a seed, a count and
# a hash.
NAME_LENGTH = 64
_LETTERS = "and begin with a letter or a digit; letters are those from A to Z and from a to z"
NAME_PATTERN = in_words(  # without '_', which separates the fields of a cell's id
    r"^[A-Za-z0-9][A-Za-z0-9.\-]*$", f"must consist of letters, digits, '.' and '-', {_LETTERS}"
)
FILE_PATTERN = in_words(
    r"^[A-Za-z0-9][A-Za-z0-9._\-]*$",
    f"must consist of letters, digits, '_', '.' and '-', {_LETTERS}",
)
"""What a name may be that becomes a file or a folder of its own."""
Name = Annotated[
    str,
    Field(
        pattern=NAME_PATTERN,
        max_length=NAME_LENGTH,
        description="Letters, digits, '.' and '-'; becomes part of a path.",
    ),
]
MAX_COUNT = 10**18
"""Largest number of tokens; it is well below 2^63, the limit of the 64-bit integers in arrays and
tables."""
MAX_STEPS = 2**40
MAX_SEQUENCES = 2**24
_COUNT_PATTERN = r"^([0-9]+(?:\.[0-9]+)?) ?([KMBT]?)$"
_SUFFIX = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


def parse_count(value: Any) -> Any:
    """Turn text such as ``"1.5M"`` or ``"20B"`` into an integer; pydantic validates everything
    else."""
    if not isinstance(value, str):
        return not_bool(value)
    match = re.fullmatch(_COUNT_PATTERN, value.strip())
    count = Fraction(match[1]) * _SUFFIX[match[2]] if match and len(value) < 100 else Fraction(1, 2)
    if count.denominator != 1:
        raise ValueError("must be a whole number, or one with K, M, B or T, such as 1.5M")
    return int(count)


def not_bool(value: Any) -> Any:
    """Refuse true and false, which Python takes for 1 and 0, and pass everything else through."""
    if isinstance(value, bool):
        raise ValueError(f"must be a number, not {str(value).lower()}")
    return value


_CountText = Annotated[str, Field(pattern=_COUNT_PATTERN)]
_CountNumber = Annotated[int, Field(gt=0, le=MAX_COUNT)]
Count = Annotated[
    int,
    Field(gt=0, le=MAX_COUNT),
    BeforeValidator(parse_count, json_schema_input_type=_CountNumber | _CountText),
    Field(description="A number, or one with K, M, B or T."),
]

# Generators take seeds below 2^64, and a study's tables hold them as signed 64-bit integers.
Seed = Annotated[int, Field(ge=0, lt=2**63), BeforeValidator(not_bool)]


def _one_line(text: str) -> str:
    if not text.isprintable():
        raise ValueError("must be one line without control or other invisible characters")
    return text


def _label(text: str) -> str:
    if not text.strip() or text.startswith("_"):
        raise ValueError(
            "must not be empty or begin with '_': figures leave such labels out of their legends"
        )
    return text


def as_seen(label: str) -> str:
    """Return a label as a reader sees it: one form of each letter, one space where there are
    several."""
    return " ".join(unicodedata.normalize("NFKC", label).split())


Line = Annotated[str, Field(max_length=300), AfterValidator(_one_line)]
"""A line of text, which may be empty."""
Label = Annotated[str, Field(max_length=100), AfterValidator(_one_line), AfterValidator(_label)]
"""A name as tables and figures print it."""
Term = Annotated[str, Field(min_length=1, max_length=300), AfterValidator(_one_line)]
"""A name that comes from elsewhere, such as that of a dataset, a task or a field of a file."""


_VARIABLE = re.compile(r"\$(?:(\w+)|\{([^}]*)\})")


def _expanded(path: str) -> str:
    """Return a path with the user's home in place of ``~`` and with the values of the variables
    that it names.

    It is whole then, so a plan has the same path for every job, wherever it runs, and expands to
    itself.
    """
    for variable in _VARIABLE.finditer(path):
        if not os.environ.get(variable[1] or variable[2]):
            raise ValueError(
                f"the variable {variable[0]} is not set, or is empty; set it, or write the folder"
                " itself, and give a folder with a dollar sign in its name through a link"
            )
    # Path would drop what a pattern may end in.
    full = os.path.expanduser(os.path.expandvars(path))  # noqa: PTH111
    if full.startswith("~"):
        user = full.partition("/")[0]
        raise ValueError(
            f"{user} is the home of no user here; write the folder itself, or ./{user}"
        )
    if _VARIABLE.search(full):
        raise ValueError(
            f"stands for {full}, which has a dollar sign in it; give a link to that folder"
        )
    return full


def _below(name: str) -> str:
    if name.startswith("~") or "$" in name:
        raise ValueError(
            "must be the name of a file in that folder: neither ~ nor a variable begins there"
        )
    return name


UserPath = Annotated[str, Field(min_length=1, max_length=4096), AfterValidator(_expanded)]
"""A path on this machine, or a pattern of paths, as a user types it: ``~``, ``~user``, ``$NAME``
and ``${NAME}`` stand for what a shell takes them for."""
PathBelow = Annotated[str, Field(min_length=1, max_length=4096), AfterValidator(_below)]
"""The path of a file in a folder that another setting names."""


def _dotted_path(path: str) -> str:
    names = path.split(".")
    if len(names) < 2 or not all(name.isidentifier() for name in names) or names[0] == "__main__":
        raise ValueError(
            "must be a module and what it defines, joined by dots, such as torch.optim.Adagrad"
        )
    return path


DottedPath = Annotated[str, Field(max_length=300), AfterValidator(_dotted_path)]
"""The dotted path of a user's own code: its module, and the name in it."""


OWN_NAME_PATTERN = in_words(
    r"^[a-z][a-z0-9_]{0,39}$",
    "must consist of at most 40 small letters from a to z, digits and '_', and begin with a letter,"
    " such as top_share",
)
"""What a user may call what own code measures or makes."""

_NUMBER = re.compile(r"[-+]?[0-9.]+([eE][-+]?[0-9]+)?")
Scalar = bool | int | float | str | None
"""What a keyword argument may be, or a list of it."""
_NO_ARGUMENTS = {
    "lr": "it is the model's learning_rate times lr_factor",
    "weight_decay": "it has a field of its own, beside arguments",
}


def checked_arguments(values: Any, refused: Mapping[str, str] = _NO_ARGUMENTS) -> Any:
    """Return the keyword arguments of own code, lists as tuples; ``ValueError`` names what cannot
    be one.

    ``refused`` says by name why something is none, by default for a custom optimizer.
    """
    if not isinstance(values, dict):
        return values
    arguments = {}
    for name, value in values.items():
        if name in refused:
            raise ValueError(f"{name}: not among the arguments; {refused[name]}")
        for entry in value if isinstance(value, list | tuple) else (value,):
            if not isinstance(entry, Scalar) or (isinstance(entry, float) and not isfinite(entry)):
                raise ValueError(
                    f"{name}: must be a finite number, text, true, false or null, or a list of"
                    " these"
                )
            if isinstance(entry, str) and _NUMBER.fullmatch(entry):
                # Given as text, the number would fail inside the optimizer or, worse, would not
                # fail.
                raise ValueError(
                    f"{name}: {entry!r} is text to YAML, whose numbers have a point: write 1.0e-8,"
                    " not 1e-8"
                )
        arguments[name] = tuple(value) if isinstance(value, list) else value
    return arguments


def as_list(value: Any) -> Any:
    """Turn a single string into a list of one and return everything else unchanged."""
    return [value] if isinstance(value, str) else value


class Settings(BaseModel):
    """The base class of all sections: it is immutable, and an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _no_bool_for_a_number(cls, values: Any) -> Any:
        """Turn true and false into text where they are not allowed, so that pydantic does not read
        them as 1 and 0."""
        if not isinstance(values, dict):
            return values
        truths = {
            n
            for n, field in cls.model_fields.items()
            if re.search("bool|True|False", str(field.annotation))
        }
        wrong = {name for name, value in values.items() if isinstance(value, bool)} - truths
        return values | {name: str(values[name]).lower() for name in wrong}


class LaterSettings(Settings):
    """Settings to which fields were added; a dump leaves out the added fields that have their
    default values.

    A cell's id is a hash of such dumps (cells.py), so cells from before a field was added keep
    their ids.
    """

    later: ClassVar[tuple[str, ...]]

    @model_serializer(mode="wrap")
    def _without_later_defaults(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields = type(self).model_fields
        values: dict[str, Any] = dump(self)
        return {
            name: v
            for name, v in values.items()
            if name not in self.later or getattr(self, name) != fields[name].default
        }


class Steps(Settings):
    """Training tokens of a cell, given as steps of the global batch."""

    steps: int = Field(gt=0, le=MAX_STEPS)
    label: Label | None = None
    """Name in tables, e.g. ``20B``."""


StepsOrCount = Annotated[
    Annotated[Steps, Tag("in_steps")] | Annotated[Count, Tag("in_tokens")],
    Discriminator(lambda value: "in_steps" if isinstance(value, dict | Steps) else "in_tokens"),
]


def duplicates(values: Iterable[Any]) -> list[str]:
    """Return as text each value that is given more than once."""
    return [str(value) for value, count in Counter(values).items() if count > 1]
