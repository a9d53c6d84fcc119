"""The section "Seeds" of the report: how much of the text two seeds share, and what that does to the tests."""

import math
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from coupled_adam_bench.report.formats import MISSING, fixed
from coupled_adam_bench.statistics.seeds import PLACE_COLUMNS, consequence, read_seeds

SHARES_OF_DATA = (1.0, 0.5)
"""The shares of the variance over seeds for which the section says what the overlap does."""
WORTH_SAYING = 0.05
"""Correlation from which on the section warns: 3 % of the standard deviation over seeds."""


@dataclass(frozen=True)
class PairRow:
    """Two seeds, and the shares of their windows as text."""

    seeds: str
    in_step: str
    anywhere: str
    correlation: str


@dataclass(frozen=True)
class ConsequenceRow:
    """What the overlap does if a share of the noise comes from the order of the data, as text."""

    of_data: str
    sd: str
    error_rate: str


@dataclass(frozen=True)
class SeedPlace:
    """The runs of one text, order and length; ``how`` says what was counted, ``reason`` why nothing was."""

    title: str
    how: str
    reason: str
    pairs: tuple[PairRow, ...]
    consequences: tuple[ConsequenceRow, ...]


@dataclass(frozen=True)
class SeedsSection:
    """What the template prints; ``verdict`` is a sentence."""

    verdict: str
    places: tuple[SeedPlace, ...]


def _percent(share: float) -> str:
    return MISSING if math.isnan(share) else f"{100 * share:.2f} %"


def _consequences(rows: list[dict[str, Any]]) -> tuple[ConsequenceRow, ...]:
    import numpy as np

    seeds = sorted({row[name] for row in rows for name in ("seed", "other_seed")})
    correlations = np.eye(len(seeds))
    for row in rows:
        i, j = seeds.index(row["seed"]), seeds.index(row["other_seed"])
        correlations[i, j] = correlations[j, i] = row["correlation"]
    found = [(share, consequence(correlations, share)) for share in SHARES_OF_DATA]
    return tuple(
        ConsequenceRow(f"{share:.0%}", fixed(what.sd_factor, 3), _percent(what.error_rate)) for share, what in found
    )


def _place(key: tuple[Any, ...], rows: list[dict[str, Any]]) -> SeedPlace:
    place = dict(zip(PLACE_COLUMNS, key, strict=True))
    batch = f"{place['steps']:,} steps of {place['batch_sequences']:,} windows"
    title = f"{place['data']}, order {place['data_order']}, {batch}"
    reason = rows[0]["reason"]
    read = rows[0]["steps_read"]
    how = (
        "counted over all steps"
        if read == place["steps"]
        else f"counted over {read:,} evenly spaced steps; what is shared anywhere is computed"
    )
    pairs = tuple(
        PairRow(
            f"{row['seed']} and {row['other_seed']}",
            _percent(row["shared_in_step"]),
            _percent(row["shared_anywhere"]),
            fixed(row["correlation"], 3),
        )
        for row in rows
    )
    return SeedPlace(title, how, reason, pairs, () if reason else _consequences(rows))


def seeds_section(path: Path) -> SeedsSection | None:
    """Return the section made of ``seeds.csv``, None where no two seeds are compared or the audit was not made."""
    if not path.is_file():
        return None
    records = [{str(name): value for name, value in row.items()} for row in read_seeds(path).to_dict("records")]
    if not records:
        return None
    grouped = groupby(records, key=lambda row: tuple(row[name] for name in PLACE_COLUMNS))
    places = tuple(_place(key, list(rows)) for key, rows in grouped)
    largest = max((row["correlation"] for row in records if not math.isnan(row["correlation"])), default=math.nan)
    if math.isnan(largest):
        verdict = "The data are not prepared, so it is not known what the seeds share."
    elif largest < WORTH_SAYING:
        verdict = "The seeds of this study read other text at every step: they are independent, as the tests assume."
    else:
        verdict = (
            f"Seeds of this study read the same text: two of them share up to {_percent(largest)} of the windows of a "
            "step. If the noise comes from the text, the spread over seeds is too small, and the tests find too many "
            "differences."
        )
    return SeedsSection(verdict, places)
