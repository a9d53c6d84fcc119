"""The section ``tune`` of a block: the grids from which each optimizer's settings are chosen by
validation loss."""

from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from itertools import product
from math import prod
from operator import getitem
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, ValidationError

from coupled_adam_bench.study.settings.base import (
    Name,
    Scalar,
    Seed,
    Settings,
    Steps,
    StepsOrCount,
    Term,
    duplicates,
)
from coupled_adam_bench.study.settings.errors import describe_errors
from coupled_adam_bench.study.settings.model import Model
from coupled_adam_bench.study.settings.optimizers import CustomSettings, SingleOptimizer
from coupled_adam_bench.study.settings.per_matrix import Optimizer

LEARNING_RATE = "learning_rate"
"""The peak learning rate of the whole recipe, which belongs to the model; all other names are the
optimizer's."""
_ARGUMENTS = "arguments."
_NAMES = {"name", "path", "key", "label", "arguments", "code"}
_ANY_ARGUMENT = _ARGUMENTS + "NAME"

Values = dict[str, Any]
"""A value for each field that is tuned, such as ``{"learning_rate": 0.01, "lr_factor": 0.5}``."""


def _values(values: Any) -> Any:
    if not isinstance(values, list | tuple):
        raise ValueError("must be a list of values")
    read = []
    for value in values:
        read.append(tuple(value) if isinstance(value, list) else value)
    return tuple(read)


Grid = dict[
    Term,
    Annotated[
        tuple[Any, ...],
        BeforeValidator(_values, json_schema_input_type=tuple[Scalar | tuple[Scalar, ...], ...]),
        Field(min_length=1),
    ],
]
"""The values of each field that is tuned; the candidates are all their combinations."""


class Tune(Settings):
    """The trial that comes before the cells of a block: candidates are trained with seeds of their
    own.

    The candidate with the least mean loss on the whole split ``val`` is taken for the cells of the
    grid.
    """

    seeds: tuple[Seed, ...] = Field(min_length=1)
    """Random seeds of the trial. None of them is a seed of the study's grid."""
    grids: dict[Term, Grid] = Field(min_length=1)
    """Grids by the name of the optimizer in results (docs/optimizers.md), tuned settings left out:
    ``sgd`` for one whose ``lr_factor`` is tuned. A field is ``learning_rate``, the model's peak
    learning rate, or a setting of the optimizer, such as ``lr_factor``, ``arguments.betas`` or, of
    one for each matrix, ``embedding.lr_factor``."""
    tokens: StepsOrCount | None = None
    """Training tokens of the candidates; by default those of the cells for which they are
    candidates."""
    model: Name | None = None
    """The model of all candidates; by default that of the cells for which they are candidates."""
    equal_budgets: bool = True
    """Whether it is an error if the optimizers of the block have different numbers of candidates.
    With ``false`` the report notes it."""

    def steps(self, batch_tokens: int) -> int | None:
        """Return the number of steps of a candidate, None if it is that of the cells."""
        if isinstance(self.tokens, Steps):
            return self.tokens.steps
        return None if self.tokens is None else self.tokens // batch_tokens

    def grid_of(self, optimizer: Optimizer) -> Grid:
        """Return the grid of an optimizer of the block, which is empty for one that is not
        tuned."""
        key = self._key_of(optimizer)
        return {} if key is None else self.grids[key]

    def trial_of(self, optimizer: Optimizer) -> Self | None:
        """Return what chooses the settings of an optimizer of the block, ``None`` for one that is
        not tuned."""
        key = self._key_of(optimizer)
        return None if key is None else self.model_copy(update={"grids": {key: self.grids[key]}})

    def _key_of(self, optimizer: Optimizer) -> str | None:
        """Return the name by which a grid is an optimizer's: that of its row, without the fields of
        the grid."""
        return next(
            (key for key, grid in self.grids.items() if optimizer.names(leave_out=grid)[0] == key),
            None,
        )

    def row_of(self, optimizer: Optimizer) -> Optimizer:
        """Return an optimizer of the block as a row: names of one that is tuned do not tell the
        tuned settings."""
        if not (grid := self.grid_of(optimizer)):
            return optimizer
        key, label = optimizer.names(leave_out=grid)
        return optimizer.in_row(key, f"{label} (tuned)")

    def errors(
        self,
        optimizers: Iterable[Optimizer],
        models: Mapping[str, Model],
        batch_tokens: int,
        fewest_steps: int,
    ) -> Iterator[str]:
        """Yield what is wrong as ``field: message``; ``models`` are those that may be
        candidates."""
        if twice := duplicates(self.seeds):
            yield f"seeds: {', '.join(twice)} given more than once"
        if self.model is not None and self.model not in models:
            yield f"model: {self.model} is not among the study's models {', '.join(models)}"
            return
        # A choice must not rest on longer training than that of the cells for which it is made.
        steps = self.steps(batch_tokens)
        if steps == 0:
            yield f"tokens: {self.tokens} is smaller than one batch of {batch_tokens} tokens"
        elif steps is not None and steps > fewest_steps:
            yield (
                f"tokens: {steps:,} steps are more than the {fewest_steps:,} of the block's"
                " shortest cells; tune with as many or fewer, or leave it out"
            )
        by_key = {self._key_of(optimizer) or optimizer.key: optimizer for optimizer in optimizers}
        if unknown := sorted(set(self.grids) - set(by_key)):
            yield (
                f"grids: {', '.join(unknown)} is no key of the block's optimizers, which are"
                f" {', '.join(by_key)}"
            )
        model = models[self.model] if self.model is not None else next(iter(models.values()))
        # An optimizer without a grid has no candidates, which counts among the budgets as 0.
        counts = dict.fromkeys(by_key, 0)
        for key, optimizer in by_key.items():
            if key not in self.grids:
                continue
            grid = self.grids[key]
            for problem in _grid_errors(grid, model, optimizer):
                yield f"grids.{key}{problem}"
            counts[key] = prod(map(len, grid.values()))
        if self.equal_budgets and len(set(counts.values())) > 1:
            named = ", ".join(f"{key} has {count}" for key, count in counts.items())
            yield (
                f"grids: {named} candidates; in a fair trial all optimizers have the same number;"
                " make them the same, or set equal_budgets: false, and the report notes it"
            )


def _grid_errors(grid: Grid, model: Model, optimizer: Optimizer) -> Iterator[str]:
    """Yield what is wrong with the grid of an optimizer, beginning with the field."""
    if not grid:
        yield ": no field; name at least one, such as learning_rate"
    for field, values in grid.items():
        try:
            found = [read_value(field, value, model, optimizer) for value in values]
        except ValueError as error:
            yield f".{field}: {error}"
            continue
        if twice := duplicates(map(repr, found)):
            yield f".{field}: {', '.join(twice)} given more than once"


def candidates(grid: Grid, model: Model, optimizer: Optimizer) -> list[Values]:
    """Return the values of each candidate, typed: all combinations of the grid, the last field
    fastest."""
    typed = []
    for field, values in grid.items():
        typed.append([read_value(field, value, model, optimizer) for value in values])
    return [dict(zip(grid, combination, strict=True)) for combination in product(*typed)]


def read_value(field: str, value: Any, model: Model, optimizer: Optimizer) -> Any:
    """Return the value of a tuned field with the type of the field; ``ValueError`` says what is
    allowed."""
    return value_of(field, *with_values({field: value}, model, optimizer))


def value_of(field: str, model: Model, optimizer: Optimizer) -> Any:
    """Return the value that a tuned field has in a model and an optimizer."""
    if field == LEARNING_RATE:
        return model.learning_rate
    found: Any = optimizer
    for name in field.split("."):
        found = found[name] if isinstance(found, dict) else getattr(found, name)
    return found


def with_values(
    values: Mapping[str, Any], model: Model, optimizer: Optimizer
) -> tuple[Model, Optimizer]:
    """Return model and optimizer with tuned values; ``ValueError`` for an unknown field or a value
    out of bounds."""
    own = dict(values)
    settings = optimizer.model_dump()
    try:
        if LEARNING_RATE in own:
            model = Model.model_validate(
                model.model_dump() | {LEARNING_RATE: own.pop(LEARNING_RATE)}
            )
        for field, value in own.items():
            start, arguments, _ = field.partition(_ARGUMENTS)
            allowed = _fields(optimizer)
            setting = start + _ANY_ARGUMENT if arguments else field
            if setting not in allowed:
                raise ValueError(
                    f"{optimizer.key} has no such setting to tune; allowed: {', '.join(allowed)}"
                )
            *path, name = field.split(".")
            reduce(getitem, path, settings)[name] = value
        if isinstance(optimizer, CustomSettings):
            # A row's label may be longer than the study's own.
            checked = CustomSettings.model_validate(settings | {"label": optimizer.key})
            return model, checked.in_row(optimizer.key, optimizer.label)
        return model, type(optimizer).model_validate(settings)
    except ValidationError as error:
        described = describe_errors(error, type(optimizer), settings)
        raise ValueError("; ".join(line.partition(": ")[2] for line in described)) from None


def _fields(optimizer: Optimizer) -> list[str]:
    entries = optimizer.entries.items()
    return [
        LEARNING_RATE,
        *(
            f"{name}.{field}".removeprefix(".")
            for name, one in entries
            for field in _own_fields(one)
        ),
    ]


def _own_fields(optimizer: SingleOptimizer) -> list[str]:
    own = [field for field in type(optimizer).model_fields if field not in _NAMES]
    return [*own, _ANY_ARGUMENT] if isinstance(optimizer, CustomSettings) else own
