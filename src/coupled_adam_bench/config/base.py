"""What all sections of a study are made of."""

import re
from decimal import Decimal
from typing import Annotated, Any, ClassVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
)

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9.\-]*$"  # without '_', which separates the parts of a cell's id
Name = Annotated[str, Field(pattern=NAME_PATTERN, description="Letters, digits, '.' and '-'; becomes part of a path.")]
_COUNT_PATTERN = r"^([0-9]+(?:\.[0-9]+)?) ?([KMBT]?)$"
_SUFFIX = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


def parse_count(value: Any) -> Any:
    """Turn ``"1.5M"`` or ``"20B"`` into an integer and pass everything but text through for pydantic to judge."""
    if not isinstance(value, str):
        return value
    match = re.fullmatch(_COUNT_PATTERN, value.strip())
    count = Decimal(match[1]) * _SUFFIX[match[2]] if match else Decimal("nan")
    if count % 1 != 0:  # also of "nan"
        raise ValueError("must be a whole number, or one with K, M, B or T, such as 1.5M")
    return int(count)


_CountText = Annotated[str, Field(pattern=_COUNT_PATTERN)]
Count = Annotated[
    int,
    Field(gt=0),
    BeforeValidator(parse_count, json_schema_input_type=Annotated[int, Field(gt=0)] | _CountText),
    Field(description="A number, or one with K, M, B or T."),
]


Seed = Annotated[int, Field(ge=0)]


def as_list(value: Any) -> Any:
    """Turn a single text into a list of one and pass everything else through."""
    return [value] if isinstance(value, str) else value


class Settings(BaseModel):
    """Base of all sections: immutable, and an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)


class LaterSettings(Settings):
    """Settings to which fields were added: these are left out of a dump at their defaults.

    The ids of cells are hashes of dumps (cells.py), so runs from before such a field stay what they are.
    """

    later: ClassVar[tuple[str, ...]]

    @model_serializer(mode="wrap")
    def _without_later_defaults(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields = type(self).model_fields
        values: dict[str, Any] = dump(self)
        return {name: v for name, v in values.items() if name not in self.later or v != fields[name].default}
