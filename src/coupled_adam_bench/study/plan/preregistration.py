"""A stated plan: what a study will test, written down before its first run (preregistration), in a
separate file.

It is checked against the study before the first job.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from coupled_adam_bench.store.files import sha256_file
from coupled_adam_bench.study.plan.cells import Cell
from coupled_adam_bench.study.plan.tuning import PlannedBlock
from coupled_adam_bench.study.settings.base import (
    Label,
    Line,
    Name,
    Seed,
    Settings,
    Term,
    duplicates,
)
from coupled_adam_bench.study.settings.errors import validate
from coupled_adam_bench.study.settings.grid import TableName
from coupled_adam_bench.study.settings.reading import read_study_file


class Hypothesis(Settings):
    """An optimizer is better than another in a metric, at every place of a table that this
    names."""

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
    """Name of the only model that is meant; by default all of the table. At several places the
    hypothesis is confirmed if it holds at each of them, so p is the largest of theirs (Berger
    1982)."""
    tokens: Label | None = None
    """Label of the only number of tokens that is meant, such as ``20B``; by default all of the
    table."""
    test: Literal["t-test", "paired", "trend", "equivalence"] = "t-test"
    """``t-test``: the paper's one-sided Student's t-test with pooled variance [P]; ``paired``: by
    seed; ``trend``: that the gain grows with the number of tokens, over all places together
    (``statistics/lines.py``); ``equivalence``: that the two differ by less than ``margin``, in two
    one-sided tests paired by seed (TOST)."""
    margin: float | None = Field(None, gt=0, le=1e300)
    """For ``equivalence``, the difference that counts as none; for ``paired``, by how much more
    than this ``better`` is said to be better, 0 if not given."""
    difference: float | None = Field(None, gt=0, le=1e300)
    """Size of the difference that is expected, for the power that ``plan`` says."""
    spread: float | None = Field(None, gt=0, le=1e300)
    """Standard deviation that is expected, of an optimizer's values or, if ``paired``, of the
    differences."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.better == self.than:
            raise ValueError(f"than: {self.than!r} is the optimizer that is better; name another")
        if (self.difference is None) != (self.spread is None):
            raise ValueError("spread: goes with `difference`; give both, or leave both out")
        if self.test == "equivalence" and self.margin is None:
            raise ValueError(
                "margin: missing; equivalence needs the difference that counts as none"
            )
        if self.margin is not None and self.difference is not None:
            raise ValueError(
                "difference: the power of a test with a margin is not computed; leave out one of"
                " both"
            )
        if self.margin is not None and self.test not in ("equivalence", "paired"):
            raise ValueError(
                f"margin: a {self.test} has none; leave it out, or take equivalence or paired"
            )
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

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if twice := duplicates(hypothesis.name for hypothesis in self.hypotheses):
            raise ValueError(
                f"hypotheses: {', '.join(twice)} is the name of more than one; rename one"
            )
        if twice := duplicates(self.seeds):
            raise ValueError(f"seeds: {', '.join(twice)} given more than once")
        if len(self.seeds) < 2:
            raise ValueError(f"seeds: only {self.seeds[0]}; a test needs at least 2")
        return self


class Stated(Settings):
    """A stated plan with the path and the SHA-256 of its file, which stands for it."""

    path: str
    sha256: str
    plan: StatedPlan


def read_stated(path: str) -> Stated:
    """Read a stated plan; ``ValueError`` that names the setting ``stated`` for one that is
    wrong."""
    try:
        plan = validate(StatedPlan, read_study_file(Path(path)), path)
        return Stated(path=path, sha256=sha256_file(Path(path)), plan=plan)
    except (OSError, ValueError) as error:
        raise ValueError(f"stated: {error}") from None


def is_meant(hypothesis: Hypothesis, table: str | None, cell: Cell) -> bool:
    """Tell whether a hypothesis is about a cell of a table."""
    return (
        table == hypothesis.table
        and hypothesis.model in (None, cell.model.name)
        and hypothesis.tokens in (None, cell.length_label)
        and cell.optimizer.key in (hypothesis.better, hypothesis.than)
    )


def meant_cells(stated: Stated, blocks: Sequence[PlannedBlock]) -> list[Cell]:
    """Return the cells that any hypothesis is about, each once."""
    meant = {}
    for planned in blocks:
        table = planned.block.table
        for cell in planned.cells:
            if any(is_meant(hypothesis, table, cell) for hypothesis in stated.plan.hypotheses):
                meant[cell.id] = cell
    return list(meant.values())


def check_stated(stated: Stated, blocks: Sequence[PlannedBlock]) -> None:
    """Raise ``ValueError`` for a hypothesis about something that the study does not have."""
    for number, hypothesis in enumerate(stated.plan.hypotheses):
        for message in _problems(hypothesis, blocks):
            raise ValueError(f"stated: {stated.path}: hypotheses.{number}.{message}")


def _problems(hypothesis: Hypothesis, blocks: Sequence[PlannedBlock]) -> Iterator[str]:
    of_table = [planned for planned in blocks if planned.block.table == hypothesis.table]
    if not of_table:
        tables = dict.fromkeys(planned.block.table for planned in blocks if planned.block.table)
        yield (
            f"table: {hypothesis.table!r} is no table of the study; there are"
            f" {', '.join(tables) or 'none'}"
        )
        return
    # The blocks of a table may be of several studies, and a metric is tested on all their cells.
    metrics = list(of_table[0].study.metrics)
    for planned in of_table[1:]:
        metrics = [name for name in metrics if name in planned.study.metrics]
    if hypothesis.metric not in metrics:
        yield (
            f"metric: {hypothesis.metric!r} is nothing that the study measures; there are"
            f" {', '.join(metrics)}"
        )
    cells = [cell for planned in of_table for cell in planned.cells]
    optimizers = [cell.optimizer.key for cell in cells]
    models = [cell.model.name for cell in cells]
    lengths = [cell.length_label for cell in cells]
    for field, value, known in (
        ("better", hypothesis.better, optimizers),
        ("than", hypothesis.than, optimizers),
        ("model", hypothesis.model, models),
        ("tokens", hypothesis.tokens, lengths),
    ):
        if value is not None and value not in known:
            yield (
                f"{field}: {value!r} is not in {hypothesis.table}; there are"
                f" {', '.join(dict.fromkeys(known))}"
            )
    # Two optimizers are compared only where data, model, length and recipe are the same.
    keys: dict[tuple[Any, ...], set[str]] = {}
    for cell in cells:
        if is_meant(hypothesis, hypothesis.table, cell):
            place = (cell.data_id, cell.model.name, cell.n_tokens, cell.training.model_dump_json())
            keys.setdefault(place, set()).add(cell.optimizer.key)
    if {hypothesis.better, hypothesis.than} not in keys.values():
        yield (
            f"than: {hypothesis.better} and {hypothesis.than} are nowhere compared at the model and"
            " tokens given"
        )
    compared = {n_tokens for (_, _, n_tokens, _), found in keys.items() if len(found) > 1}
    if hypothesis.test == "trend" and len(compared) == 1:
        yield (
            f"test: a trend needs several numbers of tokens, and {hypothesis.table} compares at one"
        )
