"""How much longer real training steps take than the count of ``roofline``: by what the proof on a
GPU has measured of ours, and by public logs of other code.

``public_logs.csv`` has a line for each log: its source, and whether that was seen again or is taken
from notes; the card as the source names it, empty where we assume one; the shape of the model, the
batch, and the milliseconds of a step. The proof (docs/gpu.md) writes lines of the same form.
``gpu_speed.csv`` has those of the one card that has run it, with date, commit and PyTorch.
"""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any, Literal

from coupled_adam_bench.study.plan import make_plan
from coupled_adam_bench.study.plan.cells import Cell
from coupled_adam_bench.study.settings import parse_study
from coupled_adam_bench.tools.estimate.roofline import step_parts

PUBLIC = Path(__file__).with_name("public_logs.csv")
SHIPPED = Path(__file__).with_name("gpu_speed.csv")
"""What the proof has measured of our own steps, and ships with the bench."""
SEEN_AGAIN, FROM_NOTES = "again", "notes"
WELL_KNOWN = ("H100", "H200", "A100")
"""The cards of which several logs with a named card are known."""
SAME_CHIP = {"H100": "H200"}
"""By kind of GPU, the kind that has the same chip with the same peak, and another memory, whose
bandwidth the count has."""
_SHAPE = ("n_layer", "n_head", "d_model", "ffn_dim")


@dataclass(frozen=True)
class Log:
    """What a log says of a training step."""

    source: str
    card: str
    """The card as the source names it, empty if it does not."""
    cell: Cell
    """A cell of the log's shape and batch, with its kind of GPU."""
    seconds: float
    about: str

    @property
    def gpu(self) -> str:
        """The kind of GPU, a key of ``GPUS``."""
        return str(self.cell.study.budget.gpu)

    @property
    def is_judged(self) -> bool:
        """Whether the estimate must agree: the source names the card, and it is a well-known
        one."""
        return bool(self.card) and self.gpu in WELL_KNOWN

    @property
    def residual(self) -> float:
        """The time of the step over what ``roofline`` counts."""
        return self.seconds / sum(step_parts(self.cell, self.cell.study.execution).values())


ResidualSource = Literal["proof", "one card", "same chip", "estimate"]
"""Whose steps were measured: ours on the user's card, ours on a card of the same kind, ours on a
card with the same chip, or those of others' code."""


@dataclass(frozen=True)
class Residual:
    """How much longer a step takes than counted: the likely factor, and between which two shares of
    it the logs lie."""

    factor: float
    low: float
    high: float
    source: ResidualSource = "estimate"


def read_logs(path: Path) -> tuple[Log, ...]:
    """Return the logs of a file, none if there is no such file.

    Raises a ``ValueError`` that names the file and the line which cannot be read.
    """
    if not path.exists():
        return ()
    logs = []
    with path.open(newline="", encoding="utf-8") as file:
        for number, row in enumerate(csv.DictReader(file), start=2):
            try:
                seconds = float(row["milliseconds"]) / 1000
                log = Log(row["source"], row["card"], _cell(row), seconds, row["about"])
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(f"{path}, line {number}: {error!r}; delete the line") from error
            logs.append(log)
    return tuple(logs)


def _cell(row: dict[str, Any]) -> Cell:
    model = {field: int(row[field]) for field in _SHAPE}
    qk_norm = {} if row["qk_norm"] == "false" else {"qk_norm": row["qk_norm"]}
    named = {"name": "log", "architecture": row["architecture"], "learning_rate": 1e-3}
    training = {key: int(row[key]) for key in ("seq_len", "batch_sequences")}
    execution = {key: int(row[key]) for key in ("gpus", "micro_batch_sequences")}
    source = {"kind": "synthetic"}
    block = {"models": ["log"], "tokens": [{"steps": 10_000}], "optimizers": ["adamw"]}
    # Whatever the log does not say has the defaults of a study, and none of it takes time.
    values = {
        "study": "log",
        "data": {
            "name": "log",
            "source": source,
            "tokenizer": "word",
            "vocab_size": int(row["vocab_size"]),
        },
        "models": [model | named | qk_norm | {"tied": row["tied"] == "true"}],
        "training": training | {"precision": "bf16"},
        "grid": [block | {"seeds": [1]}],
        "execution": execution | {"compile": True},
        "budget": {"gpu": row["gpu"]},
    }
    return next(iter(make_plan(parse_study(values)).cells.values()))


@cache
def public_logs() -> tuple[Log, ...]:
    """Return the logs of ``public_logs.csv``."""
    return read_logs(PUBLIC)


@cache
def public_residual(gpu: str) -> Residual:
    """Return the residual of a kind of GPU by public logs: the median of those that name this card,
    or of all that name theirs.

    The range is that of the logs of all well-known cards, each relative to the median of its card;
    for another card, of the logs of all cards.
    """
    named = [log for log in public_logs() if log.card]
    of_card = [log.residual for log in named if log.gpu == gpu]
    factor = median(of_card or [log.residual for log in named])
    shares: list[float] = []
    for card in WELL_KNOWN if gpu in WELL_KNOWN else {log.gpu for log in named}:
        found = [log.residual for log in named if log.gpu == card]
        shares += [residual / median(found) for residual in found]
    return Residual(factor, min(shares), max(shares))


@cache
def shipped_logs() -> tuple[Log, ...]:
    """Return the logs of ``gpu_speed.csv``, which are of our own code."""
    return read_logs(SHIPPED)


def residual_of(cell: Cell, own: Sequence[Log] = ()) -> Residual:
    """Return the residual of a cell on the kind of GPU of its budget.

    It is that of the user's ``own`` logs of this kind, else of the logs that ship with the bench,
    else of those of a card with the same chip, and else of public logs.
    """
    gpu = cell.study.budget.gpu
    measured: tuple[tuple[ResidualSource, Sequence[Log]], ...] = (
        ("proof", own),
        ("one card", shipped_logs()),
    )
    for source, logs in measured:
        of_kind = [log for log in logs if log.gpu == gpu]
        if of_kind:
            return _measured_residual(cell, of_kind, source)
    public = public_residual(gpu)
    of_chip = [log for log in shipped_logs() if log.gpu == SAME_CHIP.get(gpu)]
    if not of_chip:
        return public
    # Nobody has measured how well the count carries over, so the high end stays that of public
    # logs. The low end is that of the chip, which is no faster with a slower memory.
    chip = _measured_residual(cell, of_chip, "same chip")
    return Residual(chip.factor, chip.low, public.high, "same chip")


def _measured_residual(cell: Cell, logs: Sequence[Log], source: ResidualSource) -> Residual:
    """Return the residual by logs of our code: of the cell's own model where it was measured, with
    the range of all models."""
    residuals = [log.residual for log in logs]
    of_model = [log.residual for log in logs if _shape_of(log.cell) == _shape_of(cell)]
    middle = median(residuals)
    low, high = min(residuals) / middle, max(residuals) / middle
    return Residual(median(of_model or residuals), low, high, source)


def _shape_of(cell: Cell) -> tuple[str, int, int, int]:
    model = cell.model
    return model.architecture, model.n_layer, model.d_model, model.d_ffn


def log_line(cell: Cell, source: str, card: str, milliseconds: float, about: str) -> dict[str, Any]:
    """Return what a log of one of our cells has in a file, as text by its column."""
    model, training, execution = cell.model, cell.training, cell.study.execution
    shape = {field: getattr(model, field) for field in _SHAPE} | {"ffn_dim": model.d_ffn}
    return {
        "source": source,
        "seen": "here",
        "card": card,
        "gpu": cell.study.budget.gpu,
        "gpus": execution.gpus,
        "architecture": model.architecture,
        **shape,
        "tied": str(model.tied).lower(),
        "qk_norm": str(model.qk_norm).lower(),
        "vocab_size": cell.vocab_size,
        "seq_len": training.seq_len,
        "batch_sequences": training.batch_sequences,
        "micro_batch_sequences": execution.micro_batch_sequences,
        "milliseconds": f"{milliseconds:.4g}",
        "about": about,
    }
