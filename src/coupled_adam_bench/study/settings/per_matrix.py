"""An optimizer of a study: one for both matrices, or one for each matrix of an untied model."""

from collections.abc import Collection
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from coupled_adam_bench.study.settings.optimizers import (
    PLAIN,
    BuiltIn,
    CustomSettings,
    HeadSettings,
    Named,
    SingleOptimizer,
    optimizer_from_name,
)


class PerMatrixSettings(Named):
    """An optimizer for the embedding and another one for the matrix of a head that is not tied."""

    later: ClassVar[tuple[str, ...]] = ()

    name: Literal["per_matrix"] = "per_matrix"
    embedding: SingleOptimizer
    """What trains the embedding. Settings of the head's loss and mean stand in ``head``."""
    head: SingleOptimizer
    """What trains the matrix of the head."""

    @model_validator(mode="after")
    def _head_settings_stand_in_head(self) -> Self:
        for field in HeadSettings.model_fields:
            if getattr(self.embedding, field) != HeadSettings.model_fields[field].default:
                raise ValueError(
                    f"embedding.{field}: {field} is a setting of the head; give it to `head`"
                )
        return self

    @property
    def entries(self) -> dict[str, SingleOptimizer]:
        """The entries of the two optimizers by their fields."""
        return {"embedding": self.embedding, "head": self.head}

    def names(self, leave_out: Collection[str] = ()) -> tuple[str, str]:
        """Return key and label of both; ``leave_out`` has fields of one, as ``head.beta2``, or of
        both."""
        key, label = self.embedding.names(_of_entry("embedding", leave_out))
        head_key, head_label = self.head.names(_of_entry("head", leave_out))
        return f"{key}_head-{head_key}", f"{label}, head: {head_label}"


def _of_entry(entry: str, fields: Collection[str]) -> list[str]:
    return [field.removeprefix(f"{entry}.") for field in fields]


def _per_matrix(value: Any) -> Any:
    if isinstance(value, dict) and "name" not in value and value.keys() & {"embedding", "head"}:
        return {"name": "per_matrix", **value}
    return optimizer_from_name(value)


_AnyOptimizer = Annotated[BuiltIn | CustomSettings | PerMatrixSettings, Field(discriminator="name")]
Optimizer = Annotated[
    _AnyOptimizer,
    BeforeValidator(_per_matrix, json_schema_input_type=Literal[PLAIN] | _AnyOptimizer),
]
