"""The keyword arguments that a study gives to an optimizer of its own."""

from math import isfinite
from typing import Any

Scalar = bool | int | float | str | None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _check_argument(name: str, value: Any) -> None:
    if isinstance(value, str) and _is_number(value):
        # Given as text, the number would fail inside the optimizer or, worse, would not fail.
        raise ValueError(f"{name}: {value!r} is text to YAML, whose numbers have a point: write 1.0e-8, not 1e-8")
    if not isinstance(value, bool | int | float | str | None) or (isinstance(value, float) and not isfinite(value)):
        raise ValueError(f"{name}: must be a finite number, text, true, false or null, or a list of these")


def checked_arguments(values: Any) -> Any:
    """Return the keyword arguments of a custom optimizer, lists as tuples; ``ValueError`` names what cannot be one."""
    if not isinstance(values, dict):
        return values
    for name, instead in (
        ("params", "the embedding is passed as params"),
        ("lr", "it is the model's learning_rate times lr_factor"),
        ("weight_decay", "it has a field of its own, beside arguments"),
    ):
        if name in values:
            raise ValueError(f"{name}: not among the arguments; {instead}")
    for name, value in values.items():
        if not isinstance(name, str) or not name.isidentifier():
            raise ValueError(f"{name!s:.50}: not a valid name for an argument")
        is_list = isinstance(value, list | tuple)
        entries = {f"{name}.{index}": entry for index, entry in enumerate(value)} if is_list else {name: value}
        for entry_name, entry in entries.items():
            _check_argument(entry_name, entry)
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
