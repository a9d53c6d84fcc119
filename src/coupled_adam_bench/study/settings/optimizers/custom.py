"""A user's own optimizer."""

from collections.abc import Collection
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from coupled_adam_bench.store.files import digest
from coupled_adam_bench.study.settings.base import (
    FILE_PATTERN,
    NAME_LENGTH,
    DottedPath,
    Label,
    Scalar,
    as_seen,
    checked_arguments,
)
from coupled_adam_bench.study.settings.optimizers.base import HeadSettings
from coupled_adam_bench.study.settings.optimizers.built_in import BY_NAME


class CustomSettings(HeadSettings):
    """A user's own optimizer for the embedding: any subclass of torch.optim.Optimizer
    (docs/optimizers.md).

    The class is called as ``Class(embeddings, lr=..., weight_decay=..., **arguments)``, without
    ``weight_decay`` if it has no such argument.
    """

    later: ClassVar[tuple[str, ...]] = (*HeadSettings.later, "code")

    name: Literal["custom"]
    path: DottedPath
    """Module and class, in an installed package or in a file of the folder where the study is
    started."""
    key: str = Field(pattern=FILE_PATTERN, max_length=NAME_LENGTH)
    """Name in results, in cell ids and in the keys of tables. No other optimizer of the study may
    have it, and no built-in one with any settings."""
    label: Label
    """Name in tables, which may be that of no built-in optimizer either."""
    arguments: Annotated[
        dict[str, Any],
        BeforeValidator(
            checked_arguments, json_schema_input_type=dict[str, Scalar | tuple[Scalar, ...]]
        ),
    ] = Field(default_factory=dict)
    """Keyword arguments; lists become tuples."""
    lr_factor: float = Field(1.0, gt=0, le=1e40)
    """Factor that multiplies the model's learning rate; the schedule is the same for all
    optimizers."""
    weight_decay: float | None = Field(None, ge=0, le=1e6)
    """Weight decay of the embedding; by default ``training.embedding_weight_decay``. Whether it is
    decoupled depends on the class."""
    code: dict[str, str] | None = None
    """What identifies the code of the class: by module the SHA-256 of its file, or by package its
    version. By default it is that of the code which is there when the study is started; other code
    than one that is given is refused."""

    @model_validator(mode="after")
    def _has_names_of_its_own(self) -> Self:
        key, label = self.key.casefold(), as_seen(self.label).casefold()
        for name, kind in BY_NAME.items():
            title = kind.title.casefold()
            # Their settings follow: adamw_f3, "Adam, f = 3", "Adam (tuned)".
            is_key = key == name or key.startswith(f"{name}_")
            if is_key or label == title or label.startswith((f"{title},", f"{title} (")):
                field, given = ("key", self.key) if is_key else ("label", self.label)
                raise ValueError(
                    f"{field}: {given!r} is a name of the built-in optimizer {name}; give yours"
                    " another"
                )
        return self

    def n_states(self, rows: int, width: int) -> int:
        """Return what AdamW keeps, since nobody knows what this class does."""
        return 2 * rows * width

    def names(self, leave_out: Collection[str] = ()) -> tuple[str, str]:  # noqa: ARG002 - as of the built-in ones
        """Return key and label, which the user has given."""
        return self.key, self.label

    def in_row(self, key: str, label: str) -> Self:
        """Return the same optimizer as a row of tables and results with other names."""
        return self.model_copy(update={"key": key, "label": label})

    @property
    def own_key(self) -> str:
        """The name that is a part of a cell's id."""
        return self.key

    @property
    def code_name(self) -> str:
        """The path, and a short hash of the code."""
        return f"{self.path}, code {digest(self.code) if self.code else 'unknown'}"
