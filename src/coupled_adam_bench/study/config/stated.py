"""A stated plan: what a study will test, written down before its first run (preregistration), in a file of its own."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from coupled_adam_bench.store.files import sha256_file
from coupled_adam_bench.study.config.base import Label, Line, Name, Seed, Settings, Term, duplicates
from coupled_adam_bench.study.config.errors import validate
from coupled_adam_bench.study.config.reading import read_study_file
from coupled_adam_bench.study.config.tables import TableName


class Hypothesis(Settings):
    """An optimizer is better than another in a metric, at every place of a table that this names."""

    name: Label
    """A short name, by which the report calls it."""
    table: TableName
    """The table whose places are meant."""
    metric: Term
    """A metric that the study measures; its direction says what is better."""
    better: Term
    """Key of the optimizer that is said to be better, as in ``results.csv``."""
    than: Term
    """Key of the other optimizer."""
    model: Name | None = None
    """Name of the only model that is meant; by default all of the table. At several places the hypothesis is confirmed
    if it holds at each of them, so p is the largest of theirs (Berger 1982)."""
    tokens: Label | None = None
    """Label of the only number of tokens that is meant, such as ``20B``; by default all of the table."""
    test: Literal["t-test", "paired", "trend"] = "t-test"
    """``t-test``: the paper's one-sided Student's t-test with pooled variance [P]; ``paired``: by seed; ``trend``: that
    the gain grows with the number of tokens, over all places together (``statistics/trend.py``)."""
    difference: float | None = Field(None, gt=0, le=1e300)
    """Size of the difference that is expected, for the power that ``plan`` says."""
    spread: float | None = Field(None, gt=0, le=1e300)
    """Standard deviation that is expected, of an optimizer's values or, if ``paired``, of the differences."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.better == self.than:
            raise ValueError(f"than: {self.than!r} is the optimizer that is better; name another")
        if (self.difference is None) != (self.spread is None):
            raise ValueError("spread: goes with `difference`; give both, or leave both out")
        for field in ("tokens", "difference"):
            if self.test == "trend" and getattr(self, field) is not None:
                raise ValueError(f"{field}: a trend has none; leave it out, or take another test")
        return self


class StatedPlan(Settings):
    """What is stated before the first run."""

    title: Line = ""
    hypotheses: tuple[Hypothesis, ...] = Field(min_length=1, max_length=1000)
    seeds: tuple[Seed, ...] = Field(min_length=1, max_length=10_000)
    """The seeds that are run, and no others."""
    alpha: float = Field(0.05, gt=0, lt=0.5)
    """Level of significance, one-sided [P]."""
    correction: Literal["none", "holm", "bonferroni"] = "holm"
    """How the level is shared by several hypotheses."""

    @model_validator(mode="before")
    @classmethod
    def _has_one_look(cls, values: Any) -> Any:
        if isinstance(values, dict) and "stopping" in values:
            raise ValueError("stopping: all stated seeds are run, and tested once; leave it out")
        return values

    @model_validator(mode="after")
    def _fits(self) -> Self:
        for message in self._problems():
            raise ValueError(message)
        return self

    def _problems(self) -> Iterator[str]:
        if twice := duplicates(hypothesis.name for hypothesis in self.hypotheses):
            yield f"hypotheses: {', '.join(twice)} is the name of more than one; rename one"
        if twice := duplicates(self.seeds):
            yield f"seeds: {', '.join(twice)} given more than once"
        if len(self.seeds) < 2:
            yield f"seeds: {self.seeds[0]} alone; a test needs at least 2"


@dataclass(frozen=True)
class Stated:
    """A stated plan with the path and the SHA-256 of its file, which stands for it."""

    path: str
    sha256: str
    plan: StatedPlan

    def to_json(self) -> dict[str, Any]:
        """Return the stated plan as a JSON value."""
        return {"path": self.path, "sha256": self.sha256, "plan": self.plan.model_dump(mode="json")}


def stated_from_json(values: dict[str, Any]) -> Stated:
    """Return the stated plan that :meth:`Stated.to_json` gave."""
    return Stated(values["path"], values["sha256"], validate(StatedPlan, values["plan"], values["path"]))


def read_stated(path: str) -> Stated:
    """Read a stated plan; ``ValueError`` that names the setting ``stated`` for one that is wrong."""
    try:
        plan = validate(StatedPlan, read_study_file(Path(path)), path)
        return Stated(path, sha256_file(Path(path)), plan)
    except (OSError, ValueError) as error:
        raise ValueError(f"stated: {error}") from None
