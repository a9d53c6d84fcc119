"""How much of the training text two seeds share, and what that does to a test over seeds: ``seeds.csv``.

The t-test takes the values of seeds as independent. Shared text correlates them.

n: seeds of an optimizer. A run's number is taken as normal, with a correlation between any two seeds.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray
from scipy.special import stdtrit

from coupled_adam_bench.report.blocks import Block, Column, Fold, Grid, Heading, Text
from coupled_adam_bench.report.formats import MISSING, fixed
from coupled_adam_bench.statistics.declared import Field, Material, Row, Section, Statistic
from coupled_adam_bench.statistics.student import ALPHA
from coupled_adam_bench.training.seed_overlap import audit

SHARES_OF_DATA = (1.0, 0.5)
"""The shares of the variance over seeds for which the section says what the overlap does."""
WORTH_SAYING = 0.05
"""Correlation from which on the section warns: 3 % of the standard deviation over seeds."""
_PLACE = {
    "data": Field(str, "id of the data"),
    "data_order": Field(str, "how training draws its windows"),
    "streams": Field(int, "generators that draw"),
    "batch_sequences": Field(int, "windows of a step"),
    "seq_len": Field(int, "tokens of a window"),
    "n_tokens": Field(int, "tokens of training"),
    "steps": Field(int, "steps of training"),
}
"""The columns that say which runs two seeds are compared in."""
N_DRAWS = 100_000
"""Number of simulated comparisons; the standard error of a rate of 10 % is then 0.1 %."""


@dataclass(frozen=True)
class Consequence:
    """What the correlation of seeds does.

    ``sd_factor`` is the root of the ratio of the expected to the true variance over seeds. ``error_rate`` says how
    often one of two equal optimizers comes out significantly better; it is 0.1 for independent seeds, since the data
    choose the direction of the test.
    """

    sd_factor: float
    error_rate: float


def sd_factor(correlations: NDArray[np.float64]) -> float:
    """Return sqrt(E s^2 / sigma^2) = sqrt(1 - r), r the mean correlation of two seeds; correlations of shape (n, n)."""
    n = len(correlations)
    mean = (correlations.sum() - n) / (n * (n - 1))
    return float(max(0.0, 1 - mean) ** 0.5)


def consequence(
    correlations: NDArray[np.float64], of_data: float = 1.0, common: float = 0.0, n_draws: int = N_DRAWS
) -> Consequence:
    """Simulate comparisons of two equal optimizers whose seeds have these correlations, of shape (n, n).

    ``of_data`` is the share of the variance over seeds that comes from the order of the data, the rest is independent;
    ``common`` the share of it that moves both optimizers alike, as they read the same text under a seed. The draws are
    the same in each call.
    """
    n = len(correlations)
    within = of_data * correlations + (1 - of_data) * np.eye(n)
    across = common * of_data * correlations
    covariance = np.block([[within, across], [across, within]])
    values, vectors = np.linalg.eigh(covariance)
    root = vectors * np.sqrt(np.clip(values, 0, None))  # rounding, or a sample of steps, may leave some below 0
    drawn = np.random.default_rng(0).standard_normal((n_draws, 2 * n)) @ root.T
    first, second = drawn[:, :n], drawn[:, n:]
    pooled = (first.var(axis=1, ddof=1) + second.var(axis=1, ddof=1)) / 2
    t = np.abs(first.mean(axis=1) - second.mean(axis=1)) / np.sqrt(2 * pooled / n)
    return Consequence(sd_factor(within), float((t > stdtrit(2 * n - 2, 1 - ALPHA)).mean()))


def _percent(share: float) -> str:
    return MISSING if math.isnan(share) else f"{100 * share:.2f} %"


_PAIRS: tuple[Column[Row], ...] = (
    Column("Seeds", lambda row: f"{row['seed']} and {row['other_seed']}", "row"),
    Column("in the same step", lambda row: _percent(row["shared_in_step"]), "number"),
    Column("anywhere in the run", lambda row: _percent(row["shared_anywhere"]), "number"),
    Column("correlation", lambda row: fixed(row["correlation"], 3), "number"),
)
_CONSEQUENCES: tuple[Column[tuple[float, Consequence]], ...] = (
    Column("Share from the text", lambda each: f"{each[0]:.0%}", "row"),
    Column("standard deviation, found / true", lambda each: fixed(each[1].sd_factor, 3), "number"),
    Column("equal optimizers that come out different", lambda each: _percent(each[1].error_rate), "number"),
)


def _consequences(rows: Sequence[Row]) -> list[tuple[float, Consequence]]:
    seeds = sorted({row[name] for row in rows for name in ("seed", "other_seed")})
    correlations = np.eye(len(seeds))
    for row in rows:
        i, j = seeds.index(row["seed"]), seeds.index(row["other_seed"])
        correlations[i, j] = correlations[j, i] = row["correlation"]
    return [(share, consequence(correlations, share)) for share in SHARES_OF_DATA]


def _of_place(rows: Sequence[Row]) -> Iterator[Block]:
    first = rows[0]
    batch = f"{first['steps']:,} steps of {first['batch_sequences']:,} windows"
    title = f"{first['data']}, order {first['data_order']}, {batch}"
    yield Heading(title)
    if first["reason"]:
        yield Text(f"Not known: {first['reason']}.")
        return
    how = "counted over all steps"
    if first["steps_read"] != first["steps"]:
        how = f"counted over {first['steps_read']:,} evenly spaced steps; what is shared anywhere is computed"
    yield Grid(f"Seeds, {title}", _PAIRS, rows, caption=f"Windows that two seeds share, {how}", tall=True)
    caption = (
        "What the correlation of these seeds does to a test of all of them, by the share of the variance over seeds "
        "that comes from the text"
    )
    yield Grid(f"Consequences, {title}", _CONSEQUENCES, _consequences(rows), caption=caption)


def verdict(rows: Sequence[Row]) -> str:
    """Return in a sentence whether the seeds are independent."""
    largest = max((row["correlation"] for row in rows if not math.isnan(row["correlation"])), default=math.nan)
    if math.isnan(largest):
        return "The data are not prepared, so it is not known what the seeds share."
    if largest < WORTH_SAYING:
        return "The seeds of this study read other text at every step: they are independent, as the tests assume."
    return (
        f"Seeds of this study read the same text: two of them share up to {_percent(largest)} of the windows of a "
        "step. If the noise comes from the text, the spread over seeds is too small, and the tests find too many "
        "differences."
    )


def _blocks(material: Material) -> Iterator[Block]:
    rows = material.rows(STATISTIC)
    if not rows:
        return
    yield Text(verdict(rows))
    yield Text(
        Markup(
            "A test over seeds assumes that they are independent. The windows of text that two seeds read are computed "
            "here from the sampler itself. If every window of every step adds an independent amount to what a run ends "
            "with, the correlation that the text gives to two runs is the share of windows that both read in the same "
            'step. The whole list is <a href="../seeds.csv">seeds.csv</a>.'
        )
    )
    places = groupby(rows, key=lambda row: tuple(row[name] for name in _PLACE))
    shown: list[Block] = [block for _, of_place in places for block in _of_place(list(of_place))]
    note = (
        "Of two equal optimizers with independent seeds, 10 % come out significantly different, since the data choose "
        f"the direction of the test. The rates are those of {N_DRAWS:,} simulated comparisons."
    )
    yield Fold("What two seeds share, and what it does", [*shown, Text(note, small=True)])


STATISTIC = Statistic(
    file="seeds.csv",
    columns=_PLACE
    | {
        "seed": Field(int, "a seed"),
        "other_seed": Field(int, "another seed"),
        "shared_in_step": Field(float, "share of windows that both read in the same step"),
        "shared_anywhere": Field(float, "share of windows that both read; computed unless all steps are read"),
        "correlation": Field(float, "correlation that the text gives to the two runs"),
        "steps_read": Field(int, "steps that are counted"),
        "reason": Field(str, "why a number is missing"),
    },
    key=(*_PLACE, "seed", "other_seed"),
    rows=lambda material: audit(material.plan, material.runs.parent),
    section=Section("seeds", "Seeds", _blocks),
)
