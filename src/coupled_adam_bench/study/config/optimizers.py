"""Optimizers of the embedding: the paper's, and any other class by its dotted path."""

from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import BeforeValidator, Field, PrivateAttr, model_validator

from coupled_adam_bench.store.files import digest
from coupled_adam_bench.study.config.base import (
    NAME_LENGTH,
    DottedPath,
    Label,
    LaterSettings,
    Scalar,
    Settings,
    as_seen,
    checked_arguments,
)


class HeadSettings(LaterSettings, ABC):
    """What the entry of an optimizer can change beside its rule: the head's matrix after a step, and the head's loss.

    The defaults change nothing. With a tied head the matrix is the embedding.
    """

    later: ClassVar[tuple[str, ...]] = ("mu_centering", "mu_loss", "z_loss", "soft_cap")
    named: ClassVar[dict[str, tuple[str, str]]] = {
        "mu_centering": ("_mucenter", ", mu-centering"),
        "mu_loss": ("_mu{:g}", ", mu-loss = {:g}"),
        "z_loss": ("_z{:g}", ", z-loss = {:g}"),
        "soft_cap": ("_cap{:g}", ", soft cap = {:g}"),
    }
    """How settings that differ from their defaults appear in key and label, in this order."""

    mu_centering: bool = False
    """Whether the mean of the head's rows is subtracted from each row after every step (Stollenwerk et al. 2026, arXiv
    2601.02031)."""
    mu_loss: float = Field(0.0, ge=0, le=1e6)
    """Weight of the squared norm of the mean of the head's rows in what is minimized (arXiv 2601.02031). Its authors
    publish 1e-4 and study 1e-7, 0.1 and 100 beside it [C]."""
    z_loss: float = Field(0.0, ge=0, le=1e6)
    """Weight of the mean of (log Z)^2 in what is minimized, where Z is the sum of a token's exponentiated logits (PaLM,
    Sec. 5); 1e-4 there and in arXiv 2601.02031."""
    soft_cap: float | None = Field(None, ge=1e-3, le=1e6)
    """Bound c of the logits, which become c tanh(logit / c) (Gemma 2, arXiv 2408.00118, with c = 30); by default they
    have no bound."""

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if self.mu_centering and self.mu_loss:
            raise ValueError("mu_loss: with mu_centering the mean is zero and adds nothing; leave out one of both")
        return self

    @abstractmethod
    def n_states(self, rows: int, width: int) -> int:
        """Return how many numbers the optimizer keeps between steps for a matrix."""

    @property
    def has_plain_head(self) -> bool:
        """Whether the head is trained by its cross-entropy alone."""
        return not (self.mu_centering or self.mu_loss or self.z_loss or self.soft_cap is not None)

    @property
    def embedding(self) -> Self:
        """The entry that trains the embedding."""
        return self

    @property
    def head(self) -> Self:
        """The entry that trains the matrix of the head, which a tied embedding is."""
        return self

    @property
    def entries(self) -> dict[str, Self]:
        """The entries of single optimizers by their fields in this one; ``""`` is the field of one that is single."""
        return {"": self}


class Named(LaterSettings, ABC):
    """An optimizer whose key and label are made of its settings, unless it is a row that has others."""

    _row: tuple[str, str] | None = PrivateAttr(None)

    @abstractmethod
    def names(self, leave_out: Collection[str] = ()) -> tuple[str, str]:
        """Return key and label, made of all settings that differ from their defaults, some ``leave_out``."""

    def in_row(self, key: str, label: str) -> Self:
        """Return the same optimizer as a row of tables and results whose names do not tell its settings."""
        copy = self.model_copy()
        copy._row = (key, label)
        return copy

    @property
    def own_key(self) -> str:
        """The name that tells the settings, a part of a cell's id."""
        return self.names()[0]

    @property
    def key(self) -> str:
        """The name in results and in the keys of tables."""
        return (self._row or self.names())[0]

    @property
    def label(self) -> str:
        """The name in tables."""
        return (self._row or self.names())[1]


class WidthScale(Settings):
    """A factor of the learning rate that depends on the width of the model: (d_model / reference)^power."""

    power: float = Field(ge=-4, le=4)
    """0.5 for a rate that grows with the square root of the width relative to the model's (Hayou and Liu 2025, arXiv
    2506.15025), and 1 for one that grows with the width (muP, arXiv 2203.03466)."""
    reference: int = Field(gt=0, le=2**20)
    """The width at which the factor is 1."""


class _BuiltIn(HeadSettings, Named):
    later: ClassVar[tuple[str, ...]] = (*HeadSettings.later, "weight_decay", "width_scale")
    title: ClassVar[str]
    named: ClassVar[dict[str, tuple[str, str]]] = {
        "width_scale": ("_w{0.power:g}-{0.reference}", ", f x (D / {0.reference})^{0.power:g}"),
        "weight_decay": ("_wd{:g}", ", wd = {:g}"),
        **HeadSettings.named,
    }

    weight_decay: float | None = Field(None, ge=0, le=1e6)
    """Weight decay of the embedding; by default ``training.embedding_weight_decay``."""
    width_scale: WidthScale | None = None
    """How the learning rate follows the width of the model, beside ``lr_factor``; by default it does not."""

    def names(self, leave_out: Collection[str] = ()) -> tuple[str, str]:
        """Return key and label, made of all settings that differ from their defaults, some ``leave_out``."""
        kind: str = self.name  # type: ignore[attr-defined]
        key, label = kind, self.title
        for field, (in_key, in_label) in self.named.items():
            value = getattr(self, field)
            if field not in leave_out and value != type(self).model_fields[field].default:
                key, label = key + in_key.format(value), label + in_label.format(value)
        return key, label


class _WithFactor(_BuiltIn):
    later: ClassVar[tuple[str, ...]] = (*_BuiltIn.later, "lr_factor")
    named: ClassVar[dict[str, tuple[str, str]]] = {"lr_factor": ("_f{:g}", ", f = {:g}"), **_BuiltIn.named}

    lr_factor: float = Field(1.0, gt=0, le=1e40)
    """Factor that multiplies the model's learning rate for the embedding; the schedule is the same for all."""


class BetaSettings(_WithFactor):
    """What optimizers with the two moments of Adam can change."""

    later: ClassVar[tuple[str, ...]] = (*_WithFactor.later, "beta1", "beta2")
    named: ClassVar[dict[str, tuple[str, str]]] = {
        "lr_factor": _WithFactor.named["lr_factor"],
        "beta1": ("_b1-{:g}", ", beta1 = {:g}"),
        "beta2": ("_b2-{:g}", ", beta2 = {:g}"),
        **_BuiltIn.named,
    }

    beta1: float | None = Field(None, ge=0, lt=1)
    """Decay rate of the first moment of the embedding; by default ``training.beta1``."""
    beta2: float | None = Field(None, ge=0, lt=1)
    """Decay rate of the second moment of the embedding; by default ``training.beta2``."""


class AdamWSettings(BetaSettings):
    """AdamW for the embedding, as for all other parameters: the paper's "Adam"."""

    later: ClassVar[tuple[str, ...]] = (*BetaSettings.later, "amsgrad")
    title: ClassVar[str] = "Adam"
    named: ClassVar[dict[str, tuple[str, str]]] = {"amsgrad": ("_amsgrad", ", AMSGrad"), **BetaSettings.named}

    name: Literal["adamw"]
    amsgrad: bool = False
    """Whether the denominator has the largest second moment so far (Reddi et al. 2018, arXiv 1904.09237)."""

    def n_states(self, rows: int, width: int) -> int:
        """Return the size of both moments, and of the largest second one."""
        return (3 if self.amsgrad else 2) * rows * width


class CoupledAdamSettings(BetaSettings):
    """Coupled Adam for the embedding; ``scale_exponent`` n multiplies the second moment by 2^-n (Sec. 6.1) [C]."""

    title: ClassVar[str] = "Coupled Adam"
    named: ClassVar[dict[str, tuple[str, str]]] = {"scale_exponent": ("_n{}", ", n = {}"), **BetaSettings.named}

    name: Literal["coupled_adam"]
    scale_exponent: int = Field(0, ge=-20, le=20)
    """Exponent n. The paper uses -5 to 5; beyond about 100 in either direction, float32 cannot hold the scaled second
    moments."""

    def n_states(self, rows: int, width: int) -> int:
        """Return the size of the first moment, and one row for the second."""
        return (rows + 1) * width


class EmberSettings(_WithFactor):
    """Ember for the embedding: no first moment, a second moment for each row and each column (Shah 2026, arXiv
    2607.01455)."""

    title: ClassVar[str] = "Ember"
    named: ClassVar[dict[str, tuple[str, str]]] = {
        "lr_factor": _WithFactor.named["lr_factor"],
        "beta2": ("_b2-{:g}", ", beta2 = {:g}"),
        "eps": ("_eps{:g}", ", eps = {:g}"),
        **_BuiltIn.named,
    }

    name: Literal["ember"]
    beta2: float = Field(0.999, ge=0, lt=1)
    """Decay rate of the second moments (arXiv 2607.01455)."""
    eps: float = Field(1e-8, ge=1e-30, le=1)
    """Term that is added to the denominator of the update (arXiv 2607.01455)."""

    def n_states(self, rows: int, width: int) -> int:
        """Return one number for each row and each column."""
        return rows + width


class AdamMiniSettings(BetaSettings):
    """Adam-mini for the embedding: one second moment for each row (Zhang et al. 2024, arXiv 2406.16793) [C]."""

    title: ClassVar[str] = "Adam-mini"

    name: Literal["adam_mini"]

    def n_states(self, rows: int, width: int) -> int:
        """Return the size of the first moment, and one number of the second for each row."""
        return rows * width + rows


class _WithMomentum(_BuiltIn):
    named: ClassVar[dict[str, tuple[str, str]]] = {
        "lr_factor": _WithFactor.named["lr_factor"],
        "momentum": ("_m{:g}", ", m = {:g}"),
        **_BuiltIn.named,
    }

    lr_factor: float = Field(gt=0, le=1e40)
    """Factor that multiplies the model's learning rate for the embedding."""
    momentum: float = Field(0.9, ge=0, lt=1)
    """Factor of the sum of earlier gradients in a step."""

    def n_states(self, rows: int, width: int) -> int:
        """Return the size of the momentum, if there is any."""
        return rows * width if self.momentum else 0


class SgdSettings(_WithMomentum):
    """SGD for the embedding at ``lr_factor`` times the learning rate (Alg. 2) [C]."""

    title: ClassVar[str] = "SGD"

    name: Literal["sgd"]


class ObliqueSgdSettings(_WithMomentum):
    """SGD for an embedding whose rows have length 1, as in NVIDIA's Emerging-Optimizers."""

    title: ClassVar[str] = "Oblique SGD"

    name: Literal["oblique_sgd"]


class NormalizedSgdSettings(_WithFactor):
    """SGD for the embedding, with a root mean square of 1 in each row or column of a step (SCALE, arXiv 2506.16659)."""

    title: ClassVar[str] = "Normalized SGD"
    named: ClassVar[dict[str, tuple[str, str]]] = {
        "by": ("_{}", ", by {}"),
        "lr_factor": _WithFactor.named["lr_factor"],
        "momentum": ("_m{:g}", ", m = {:g}"),
        **_BuiltIn.named,
    }

    name: Literal["normalized_sgd"]
    by: Literal["row", "column"]
    """What has a root mean square of 1. SCALE has columns of the embedding and rows of the head [C]."""
    momentum: float = Field(0.0, ge=0, lt=1)
    """Decay rate of the average of gradients that is normalized. SCALE has 0.9 for the head alone [C]."""

    def n_states(self, rows: int, width: int) -> int:
        """Return the size of the average, if there is any."""
        return rows * width if self.momentum else 0


class CustomSettings(HeadSettings):
    """A user's own optimizer for the embedding: any subclass of torch.optim.Optimizer (docs/optimizers.md).

    The class is called as ``Class(embeddings, lr=..., weight_decay=..., **arguments)``, without ``weight_decay`` if it
    has no such argument.
    """

    later: ClassVar[tuple[str, ...]] = (*HeadSettings.later, "code")

    name: Literal["custom"]
    path: DottedPath
    """Module and class, in an installed package or in a file of the folder where the study is started."""
    key: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._\-]*$", max_length=NAME_LENGTH)
    """Name in results, in cell ids and in the keys of tables. No other optimizer of the study may have it, and no
    built-in one with any settings."""
    label: Label
    """Name in tables, which may be that of no built-in optimizer either."""
    arguments: Annotated[
        dict[str, Any],
        BeforeValidator(checked_arguments, json_schema_input_type=dict[str, Scalar | tuple[Scalar, ...]]),
    ] = Field(default_factory=dict)
    """Keyword arguments; lists become tuples."""
    lr_factor: float = Field(1.0, gt=0, le=1e40)
    """Factor that multiplies the model's learning rate; the schedule is the same for all optimizers."""
    weight_decay: float | None = Field(None, ge=0, le=1e6)
    """Weight decay of the embedding; by default ``training.embedding_weight_decay``. Whether it is decoupled depends on
    the class."""
    code: dict[str, str] | None = None
    """What identifies the code of the class: by module the SHA-256 of its file, or by package its version. By default
    it is that of the code which is there when the study is started; other code than one that is given is refused."""

    @model_validator(mode="after")
    def _has_names_of_its_own(self) -> Self:
        key, label = self.key.casefold(), as_seen(self.label).casefold()
        for kind in get_args(BuiltIn):
            (name,) = get_args(kind.model_fields["name"].annotation)
            title = kind.title.casefold()
            # Their settings follow: adamw_f3, "Adam, f = 3", "Adam (tuned)".
            is_key = key == name or key.startswith(f"{name}_")
            if is_key or label == title or label.startswith((f"{title},", f"{title} (")):
                field, given = ("key", self.key) if is_key else ("label", self.label)
                raise ValueError(f"{field}: {given!r} is a name of the built-in optimizer {name}; give yours another")
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


def optimizer_from_name(value: Any) -> Any:
    """Return the settings of an optimizer that may be given by its name alone."""
    return {"name": value} if isinstance(value, str) else value


BuiltIn = (
    AdamWSettings
    | CoupledAdamSettings
    | AdamMiniSettings
    | EmberSettings
    | NormalizedSgdSettings
    | ObliqueSgdSettings
    | SgdSettings
)
PLAIN = tuple(
    get_args(kind.model_fields["name"].annotation)[0]
    for kind in get_args(BuiltIn)
    if not any(field.is_required() for name, field in kind.model_fields.items() if name != "name")
)
"""Names of the built-in optimizers that need no settings: a study may give them as plain text."""
_AnySingle = Annotated[BuiltIn | CustomSettings, Field(discriminator="name")]
SingleOptimizer = Annotated[
    _AnySingle, BeforeValidator(optimizer_from_name, json_schema_input_type=Literal[PLAIN] | _AnySingle)
]


def rate_factor(optimizer: SingleOptimizer, width: int) -> float:
    """Return the factor that multiplies the learning rate of a model of this width for an optimizer's matrices."""
    scale = None if isinstance(optimizer, CustomSettings) else optimizer.width_scale
    return optimizer.lr_factor * (1.0 if scale is None else (width / scale.reference) ** scale.power)
