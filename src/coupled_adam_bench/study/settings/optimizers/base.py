"""What optimizers of the embedding have in common. Nothing here loads torch: an implementation is
named by its path."""

from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import Any, ClassVar, Self

from pydantic import Field, PrivateAttr, model_validator

from coupled_adam_bench.study.settings.base import LaterSettings, Settings


class HeadSettings(LaterSettings, ABC):
    """What the entry of an optimizer can change beside its rule: the head's matrix after a step,
    and the head's loss.

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
    """Whether the mean of the head's rows is subtracted from each row after every step (Stollenwerk
    et al. 2026, arXiv 2601.02031)."""
    mu_loss: float = Field(0.0, ge=0, le=1e6)
    """Weight of the squared norm of the mean of the head's rows in what is minimized (arXiv
    2601.02031). Its authors publish 1e-4 and study 1e-7, 0.1 and 100 beside it [C]."""
    z_loss: float = Field(0.0, ge=0, le=1e6)
    """Weight of the mean of (log Z)^2 in what is minimized, where Z is the sum of a token's
    exponentiated logits (PaLM, Sec. 5); 1e-4 there and in arXiv 2601.02031."""
    soft_cap: float | None = Field(None, ge=1e-3, le=1e6)
    """Bound c of the logits, which become c tanh(logit / c) (Gemma 2, arXiv 2408.00118, with c =
    30); by default they have no bound."""

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if self.mu_centering and self.mu_loss:
            raise ValueError(
                "mu_loss: with mu_centering the mean is zero and adds nothing; leave out one of"
                " both"
            )
        return self

    @abstractmethod
    def n_states(self, rows: int, width: int) -> int:
        """Return how many numbers the optimizer keeps between steps for a matrix."""

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
        """The entries of single optimizers by their fields in this one; ``""`` is the field of one
        that is single."""
        return {"": self}


class Named(LaterSettings, ABC):
    """An optimizer whose key and label are made of its settings, unless it is a row that has
    others."""

    _row: tuple[str, str] | None = PrivateAttr(None)

    @abstractmethod
    def names(self, leave_out: Collection[str] = ()) -> tuple[str, str]:
        """Return key and label, made of all settings that differ from their defaults, some
        ``leave_out``."""

    def in_row(self, key: str, label: str) -> Self:
        """Return the same optimizer as a row of tables and results whose names do not tell its
        settings."""
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
    """A factor of the learning rate that depends on the width of the model: (d_model /
    reference)^power."""

    power: float = Field(ge=-4, le=4)
    """0.5 for a rate that grows with the square root of the width relative to the model's (Hayou
    and Liu 2025, arXiv 2506.15025), and 1 for one that grows with the width (muP, arXiv
    2203.03466)."""
    reference: int = Field(gt=0, le=2**20)
    """The width at which the factor is 1."""


class BuiltInSettings(HeadSettings, Named):
    """What all built-in optimizers can change, and what each declares: the class variables and
    ``keywords``."""

    later: ClassVar[tuple[str, ...]] = (*HeadSettings.later, "weight_decay", "width_scale")
    title: ClassVar[str]
    """The name in tables, to which settings are added."""
    implementation: ClassVar[str]
    """``module:Class`` of the optimizer; it gets the matrices, ``lr``, ``weight_decay`` and
    ``keywords``."""
    examples: ClassVar[tuple[Any, ...]]
    """Entries of a study that the tests go through: the shortest one, and one for each other size
    of its states."""
    named: ClassVar[dict[str, tuple[str, str]]] = {
        "width_scale": ("_w{0.power:g}-{0.reference}", ", f x (D / {0.reference})^{0.power:g}"),
        "weight_decay": ("_wd{:g}", ", wd = {:g}"),
        **HeadSettings.named,
    }

    weight_decay: float | None = Field(None, ge=0, le=1e6)
    """Weight decay of the embedding; by default ``training.embedding_weight_decay``."""
    width_scale: WidthScale | None = None
    """How the learning rate follows the width of the model, beside ``lr_factor``; by default it
    does not."""

    @classmethod
    def __pydantic_init_subclass__(cls, **arguments: Any) -> None:
        """Refuse a setting that neither key nor label would tell: two optimizers would be one in
        results and tables."""
        super().__pydantic_init_subclass__(**arguments)
        unnamed = cls.model_fields.keys() - cls.named.keys() - {"name"}
        assert not unnamed, f"{cls.__name__}: add {', '.join(sorted(unnamed))} to `named`"

    @abstractmethod
    def keywords(self, betas: tuple[float, float], eps: float) -> dict[str, Any]:
        """Return the arguments of the implementation that come after the matrices, ``lr`` and
        ``weight_decay``.

        ``betas`` are the optimizer's own decay rates if it has any, else the study's, and ``eps``
        is the study's.
        """

    def names(self, leave_out: Collection[str] = ()) -> tuple[str, str]:
        """Return key and label, made of all settings that differ from their defaults, some
        ``leave_out``."""
        kind: str = self.name  # type: ignore[attr-defined]
        key, label = kind, self.title
        for field, (in_key, in_label) in self.named.items():
            value = getattr(self, field)
            if field not in leave_out and value != type(self).model_fields[field].default:
                key, label = key + in_key.format(value), label + in_label.format(value)
        return key, label


class FactorSettings(BuiltInSettings):
    """What optimizers at the model's learning rate can change."""

    later: ClassVar[tuple[str, ...]] = (*BuiltInSettings.later, "lr_factor")
    named: ClassVar[dict[str, tuple[str, str]]] = {
        "lr_factor": ("_f{:g}", ", f = {:g}"),
        **BuiltInSettings.named,
    }

    lr_factor: float = Field(1.0, gt=0, le=1e40)
    """Factor that multiplies the model's learning rate for the embedding; the schedule is the same
    for all."""


class BetaSettings(FactorSettings):
    """What optimizers with the two moments of Adam can change."""

    later: ClassVar[tuple[str, ...]] = (*FactorSettings.later, "beta1", "beta2")
    named: ClassVar[dict[str, tuple[str, str]]] = {
        "lr_factor": FactorSettings.named["lr_factor"],
        "beta1": ("_b1-{:g}", ", beta1 = {:g}"),
        "beta2": ("_b2-{:g}", ", beta2 = {:g}"),
        **BuiltInSettings.named,
    }

    beta1: float | None = Field(None, ge=0, lt=1)
    """Decay rate of the first moment of the embedding; by default ``training.beta1``."""
    beta2: float | None = Field(None, ge=0, lt=1)
    """Decay rate of the second moment of the embedding; by default ``training.beta2``."""


class MomentumSettings(BuiltInSettings):
    """What optimizers with a sum of gradients and a learning rate of their own can change."""

    named: ClassVar[dict[str, tuple[str, str]]] = {
        "lr_factor": FactorSettings.named["lr_factor"],
        "momentum": ("_m{:g}", ", m = {:g}"),
        **BuiltInSettings.named,
    }

    lr_factor: float = Field(gt=0, le=1e40)
    """Factor that multiplies the model's learning rate for the embedding."""
    momentum: float = Field(0.9, ge=0, lt=1)
    """Factor of the sum of earlier gradients in a step."""

    def n_states(self, rows: int, width: int) -> int:
        """Return the size of the momentum, if there is any."""
        return rows * width if self.momentum else 0

    def keywords(self, betas: tuple[float, float], eps: float) -> dict[str, Any]:  # noqa: ARG002 - those of all
        """Return the factor of the momentum."""
        return {"momentum": self.momentum}
