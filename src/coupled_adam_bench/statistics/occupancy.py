"""How far a study is from the paper's regime: how often its rows and its text come, and what its
rates sum to.

What drives a row is how often its token comes. A token of unigram probability p comes B p times in
a batch of B tokens. Adam remembers about 1 / (1 - beta2) steps, so it mostly forgets a row that
these steps see less than once.
"""

import math
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coupled_adam_bench.data.bins import UNIGRAM
from coupled_adam_bench.page.blocks import Block, Grid, Kind, Text, listed
from coupled_adam_bench.page.formats import MISSING, grouped
from coupled_adam_bench.statistics.declared import Material, Row, Section, Statistic
from coupled_adam_bench.store import paths
from coupled_adam_bench.study.catalogue.bands import RAREST
from coupled_adam_bench.study.catalogue.metrics import of_text
from coupled_adam_bench.study.plan.cells import Cell
from coupled_adam_bench.study.plan.schedule import learning_rate_factor
from coupled_adam_bench.study.settings import Training, rate_factor
from coupled_adam_bench.study.settings.optimizers import EmberSettings
from coupled_adam_bench.study.settings.optimizers.base import BetaSettings

_PAPER = [
    "Table 1 of the paper",
    "97,700 to 391,000",
    "0.544 to 2.18",
    "5.3",
    "6.87 to 66",
    "1,330,000",
    MISSING,
]
"""4.92 to 19.66 B tokens in 50,304 rows, and of a text of 9,035,582,198 (nanoGPT,
data/openwebtext/readme.md); the rows that OpenWebText's unigram counts in the authors' code have,
50,257 [C]; 2.5e-4 (760M) over 50,000 steps to 6e-4 (125M) over 200,000, with the paper's
schedule; a beta2 of 0.95 and 98,304 tokens a step."""
_OF_TEXT = of_text(RAREST.pooled_calibration)


def share_of_rows_forgotten(
    counts_V: NDArray[np.integer[Any]], batch_tokens: int, beta2: float
) -> float:
    """Return the share of tokens that come less than once in the steps that a second moment
    remembers.

    ``counts_V`` says how often each token comes in the training text, shape (V,).
    """
    expected_V = batch_tokens / (1 - beta2) * counts_V / counts_V.sum()
    return float((expected_V < 1).mean())


def beta2_of(cell: Cell) -> float:
    """Return the decay rate of the second moment of a cell's embedding, its own or the study's.

    NaN for a rule without one, and before a trial has chosen it.
    """
    entry = cell.optimizer.embedding
    if not cell.is_chosen:
        return math.nan
    if isinstance(entry, EmberSettings):  # whose default is not the study's
        return entry.beta2
    return cell.training.betas(entry)[1] if isinstance(entry, BetaSettings) else math.nan


def half_life(cell: Cell) -> float:
    """Return the tokens after which half of a cell's second moment is of newer gradients.

    That is ln 2 / -ln beta2 steps of a batch (Marek et al. 2025, arXiv 2507.07101).
    """
    beta2, training = beta2_of(cell), cell.training
    steps = 0.0 if beta2 == 0 else math.log(2) / -math.log(beta2)
    return steps * training.batch_sequences * training.seq_len


def sum_of_rates(cell: Cell) -> float:
    """Return the learning rates of a cell's embedding, summed over its steps; NaN before a trial
    has chosen them."""
    if not cell.is_chosen:
        return math.nan
    peak = cell.model.learning_rate
    factor = rate_factor(cell.optimizer.embedding, cell.model.d_model)
    return peak * factor * _sum_of_factors(cell.training, cell.steps, peak)


@cache
def _sum_of_factors(training: Training, steps: int, peak: float) -> float:
    return math.fsum(learning_rate_factor(step, steps, training, peak) for step in range(steps))


def _of_text(cell: Cell, results: Path) -> tuple[float, float]:
    """Return the passes over a cell's training text and :func:`share_of_rows_forgotten` there.

    Both are NaN if the text is not prepared here, and passes are of a text that is a source.
    """
    counts = paths.data_dir(cell.data_id, results) / UNIGRAM
    if not counts.is_file():
        return math.nan, math.nan
    counts_V = np.load(counts)
    training, beta2 = cell.training, beta2_of(cell)
    if math.isnan(beta2):  # a rule without a memory is set beside the study's Adam
        beta2 = training.beta2
    forgotten = share_of_rows_forgotten(
        counts_V, training.batch_sequences * training.seq_len, beta2
    )
    if training.data_order == "pairs":  # which are drawn anew at each step
        return math.nan, forgotten
    return cell.n_tokens / int(counts_V.sum()), forgotten


def _rows(material: Material) -> Iterator[Row]:
    for cell in material.plan.cells.values():
        passes, forgotten = _of_text(cell, material.runs.parent)
        yield {
            "cell": cell.id,
            "batch_tokens": cell.training.batch_sequences * cell.training.seq_len,
            "tokens_per_row": cell.n_tokens / cell.vocab_size,
            "passes": passes,
            "share_of_rows_forgotten": forgotten,
            "sum_of_rates": sum_of_rates(cell),
            "half_life_tokens": half_life(cell),
            _OF_TEXT: material.study.measured.get((cell.id, "test", _OF_TEXT), math.nan),
        }


def _range(*ends: float) -> str:
    first, last = map(grouped, ends)
    return first if first == last else f"{first} to {last}"


_HEADS: tuple[tuple[str, Kind], ...] = (
    ("regime", "row"),
    ("training tokens for each row", "number"),
    ("passes over the text", "number"),
    ("rows that Adam's memory sees less than once, %", "number"),
    ("sum of learning rates", "number"),
    ("half-life of the second moment, tokens", "number"),
    (f"log(probability / share) of the {RAREST.label} by the text's own frequencies", "number"),
)


def _ends(rows: Sequence[Row], column: str, scale: float = 1.0) -> str:
    """Return what a column of the study ranges over."""
    values = [scale * row[column] for row in rows if not math.isnan(row[column])] or [math.nan]
    return _range(min(values), max(values))


def _blocks(material: Material) -> Iterator[Block]:
    rows = material.rows(STATISTIC)
    yield Text(
        "What drives a row of the embedding is how often its token comes, and how far the learning"
        " rates can carry it. A result of another regime says little about the paper's."
    )
    forgotten = _ends(rows, "share_of_rows_forgotten", 100)
    per_row, passes = _ends(rows, "tokens_per_row"), _ends(rows, "passes")
    ours = ["this study", per_row, passes, forgotten, _ends(rows, "sum_of_rates")]
    ours += [_ends(rows, "half_life_tokens"), _ends(rows, _OF_TEXT)]
    yield Grid("Regime of the study", listed(*_HEADS), [ours, _PAPER])


STATISTIC = Statistic(
    file="occupancy.csv",
    columns={
        "cell": str,
        "batch_tokens": int,
        "tokens_per_row": float,
        "passes": float,
        "share_of_rows_forgotten": float,
        "sum_of_rates": float,
        "half_life_tokens": float,
        _OF_TEXT: float,
    },
    key=("cell",),
    rows=_rows,
    section=Section("regime", "How far from the paper's regime", _blocks),
)
