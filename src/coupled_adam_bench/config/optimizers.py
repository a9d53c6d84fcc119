"""Optimizers of the embedding: the paper's, and any other by its dotted path."""

from math import isfinite
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from coupled_adam_bench.config.base import LaterSettings, Settings

_KEY_FORM, _LABEL_FORM = "_wd{:g}", ", wd = {:g}"


class _BuiltIn(LaterSettings):
    later: ClassVar[tuple[str, ...]] = ("weight_decay",)

    weight_decay: float | None = Field(None, ge=0)
    """Of the embedding; without it ``training.embedding_weight_decay``."""

    def _with_decay(self, text: str, form: str) -> str:
        return text if self.weight_decay is None else text + form.format(self.weight_decay)


class AdamW(_BuiltIn):
    """AdamW for the embedding, as for all other parameters: the paper's "Adam"."""

    name: Literal["adamw"]

    @property
    def key(self) -> str:
        """Name in results, ids and tables' keys."""
        return self._with_decay("adamw", _KEY_FORM)

    @property
    def label(self) -> str:
        """Name in tables."""
        return self._with_decay("Adam", _LABEL_FORM)


class CoupledAdam(_BuiltIn):
    """Coupled Adam for the embedding; ``scale_exponent`` n multiplies the second moment by 2^-n (Sec. 6.1) [C]."""

    name: Literal["coupled_adam"]
    scale_exponent: int = 0

    @property
    def key(self) -> str:
        """Name in results, ids and tables' keys."""
        scale = "" if self.scale_exponent == 0 else f"_n{self.scale_exponent}"
        return self._with_decay(f"coupled_adam{scale}", _KEY_FORM)

    @property
    def label(self) -> str:
        """Name in tables."""
        scale = "" if self.scale_exponent == 0 else f", n = {self.scale_exponent}"
        return self._with_decay(f"Coupled Adam{scale}", _LABEL_FORM)


class Sgd(_BuiltIn):
    """SGD for the embedding at ``lr_factor`` times the learning rate (Alg. 2) [C]."""

    name: Literal["sgd"]
    lr_factor: float = Field(gt=0)
    momentum: float = Field(0.9, ge=0, lt=1)

    @property
    def key(self) -> str:
        """Name in results, ids and tables' keys."""
        momentum = "" if self.momentum == 0.9 else f"_m{self.momentum:g}"
        return self._with_decay(f"sgd_f{self.lr_factor:g}{momentum}", _KEY_FORM)

    @property
    def label(self) -> str:
        """Name in tables."""
        momentum = "" if self.momentum == 0.9 else f", m = {self.momentum:g}"
        return self._with_decay(f"SGD, f = {self.lr_factor:g}{momentum}", _LABEL_FORM)


def _dotted_path(path: str) -> str:
    parts = path.split(".")
    if len(parts) < 2 or not all(part.isidentifier() for part in parts):
        raise ValueError("must be a module and a class in it, joined by dots, such as torch.optim.Adagrad")
    return path


def _not_taken(key: str) -> str:
    if key in ("adamw", "coupled_adam"):
        raise ValueError(f"{key} is taken; results tell optimizers apart by it")
    return key


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _check_argument(name: str, value: Any) -> None:
    if isinstance(value, str) and _is_number(value):
        # An optimizer would choke on it, or worse.
        raise ValueError(f"{name}: {value!r} is text to YAML, whose numbers have a point: write 1.0e-8, not 1e-8")
    if not isinstance(value, bool | int | float | str | None) or (isinstance(value, float) and not isfinite(value)):
        raise ValueError(f"{name}: must be a finite number, text, true, false or null, or a list of these")


def _arguments(values: Any) -> Any:
    if not isinstance(values, dict):
        return values
    for name, instead in (
        ("params", "the embedding is given as it"),
        ("lr", "it is the model's learning_rate times lr_factor"),
        ("weight_decay", "it has a field of its own, beside arguments"),
    ):
        if name in values:
            raise ValueError(f"{name}: not among the arguments; {instead}")
    for name, value in values.items():
        is_list = isinstance(value, list | tuple)
        entries = {f"{name}.{index}": entry for index, entry in enumerate(value)} if is_list else {name: value}
        for place, entry in entries.items():
            _check_argument(place, entry)
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


_Scalar = bool | int | float | str | None


class Custom(Settings):
    """A user's own optimizer for the embedding: any subclass of torch.optim.Optimizer (docs/optimizers.md).

    It is called as ``Class(embeddings, lr=..., weight_decay=..., **arguments)``, without ``weight_decay`` if it takes
    none.
    """

    name: Literal["custom"]
    path: Annotated[str, AfterValidator(_dotted_path)]
    """Module and class, of an installed package or of a file in the folder in which the study is started."""
    key: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._\-]*$"), AfterValidator(_not_taken)]
    """Name in results, ids and tables' keys."""
    label: str
    """Name in tables."""
    arguments: Annotated[
        dict[str, Any],
        BeforeValidator(_arguments, json_schema_input_type=dict[str, _Scalar | tuple[_Scalar, ...]]),
    ] = Field(default_factory=dict)
    """Keyword arguments; lists become tuples."""
    lr_factor: float = Field(1.0, gt=0)
    """Of the model's learning rate; the schedule is that of all optimizers."""
    weight_decay: float | None = Field(None, ge=0)
    """Of the embedding; without it ``training.embedding_weight_decay``. Coupled or not: the class decides."""


def _optimizer_from_name(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


_AnyOptimizer = Annotated[AdamW | CoupledAdam | Sgd | Custom, Field(discriminator="name")]
Optimizer = Annotated[
    _AnyOptimizer,
    BeforeValidator(_optimizer_from_name, json_schema_input_type=Literal["adamw", "coupled_adam"] | _AnyOptimizer),
]
