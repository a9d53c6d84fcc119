"""How much longer real training steps take than the count of ``roofline``: by public logs of other
code, and by what the proof on a GPU has measured of ours.

``public_logs.csv`` has a line for each log: its source, and whether that was seen again or is taken
from notes; the card as the source names it, empty where we assume one; the shape of the model, the
batch, and the milliseconds of a step. The proof (docs/gpu.md) writes lines of the same form.
"""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

from coupled_adam_bench.study.cells import Cell
from coupled_adam_bench.study.config import parse_study
from coupled_adam_bench.study.plan import make_plan
from coupled_adam_bench.tools.estimate.roofline import step_parts

PUBLIC = Path(__file__).with_name("public_logs.csv")
SEEN_AGAIN, FROM_NOTES = "again", "notes"
WELL_KNOWN = ("H100", "H200", "A100")
"""The cards of which several logs with a named card are known."""
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


@dataclass(frozen=True)
class Residual:
    """How much longer a step takes than counted: the likely factor, and between which two shares of
    it the logs lie."""

    factor: float
    low: float
    high: float
    is_own: bool = False
    """Whether our own code was measured, and not that of others."""


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


def residual_of(gpu: str, own: Sequence[Log] = ()) -> Residual:
    """Return the residual of a kind of GPU: by our ``own`` logs of it, or else by public ones."""
    measured = [log.residual for log in own if log.gpu == gpu]
    if not measured:
        return public_residual(gpu)
    factor = median(measured)
    return Residual(factor, min(measured) / factor, max(measured) / factor, is_own=True)


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
