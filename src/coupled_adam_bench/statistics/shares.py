"""The parts of a difference in loss by band: ``shares.csv`` and the section "Where a gap lies".

The loss is the mean over all held-out tokens. So the difference of two losses is a sum over bands
of frequency, in nats of the whole loss: for each band, the share of the tokens that are of it,
times the loss of these. The band of the tokens that the training text does not have is one of them,
without which the sum is not the whole.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from coupled_adam_bench.page.blocks import (
    PLACE,
    Block,
    Cell,
    Grid,
    Heading,
    Kind,
    Text,
    listed,
)
from coupled_adam_bench.page.formats import MISSING, fixed, interval
from coupled_adam_bench.records.stored import measurement_of
from coupled_adam_bench.results.groups import GROUP, GROUP_COLUMNS, Group
from coupled_adam_bench.results.sample import summarize
from coupled_adam_bench.results.study_results import rivals
from coupled_adam_bench.statistics.declared import Material, Row, Section, Statistic
from coupled_adam_bench.statistics.paired import mean_difference
from coupled_adam_bench.study.catalogue.bands import BANDS, NEVER_SEEN
from coupled_adam_bench.study.catalogue.metrics import LOSS
from coupled_adam_bench.study.catalogue.stages import STAGES
from coupled_adam_bench.study.plan import cells

WHOLE = "all"
"""A value of ``band``: the whole loss, as it was measured."""
LABELS = {NEVER_SEEN: "never seen"} | {band.name: band.label for band in BANDS}
"""The bands in print, rarest first."""
Parts = Mapping[str, float]
"""Numbers of a cell by band."""


def parts_of(cell: cells.Cell, runs: Path) -> tuple[Parts, Parts]:
    """Return by band the share of the held-out tokens, and what they add to the loss in nats.

    ``ValueError`` for a cell that is not measured or has diverged.
    """
    measurement = measurement_of(STAGES[LOSS.stage], cell.study, cell.data_id, runs)
    record = measurement.read(cell.id)
    if "bands" not in record:
        raise ValueError(f"{cell.id}: it has diverged")
    n_targets = sum(band["targets"] for band in record["bands"])
    shares, added = {WHOLE: 1.0}, {}
    for row in record["results"]:
        if (row["task"], row["metric"]) == ("test", "loss"):
            added[WHOLE] = row["value"]
    for band in record["bands"]:
        share = band["targets"] / n_targets
        shares[band["band"]] = share
        # A band without targets has no loss, and adds nothing.
        loss = 0.0 if share == 0 else band["loss"]
        added[band["band"]] = math.nan if loss is None else share * loss
    return shares, added


def _pair_rows(group: Group, key: str, reference: str, runs: Path) -> Iterator[Row]:
    """Yield the rows of two optimizers, over the seeds that both have; of a gap, why it is one."""
    ours = {cell.seed: cell for cell in group.cells[key]}
    theirs = {cell.seed: cell for cell in group.cells[reference]}
    try:
        found = {
            seed: (parts_of(cell, runs), parts_of(theirs[seed], runs))
            for seed, cell in ours.items()
            if seed in theirs
        }
    except (ValueError, OSError) as error:
        # A file that is missing or damaged is a gap of this pair, and the others have their rows.
        yield {"band": WHOLE, "n": 0, "reason": str(error)}
        return
    if not found:
        yield {"band": WHOLE, "n": 0, "reason": "no seed in common"}
        return
    for band in (WHOLE, *LABELS):
        tokens = [shares[band] for (shares, _), _ in found.values()]
        first = {seed: added[band] for seed, ((_, added), _) in found.items()}
        second = {seed: added[band] for seed, (_, (_, added)) in found.items()}
        sample, low, high = mean_difference(first, second)
        yield {
            "band": band,
            "tokens": summarize(tokens).mean,
            "n": sample.n,
            "difference": sample.mean,
            "low": low,
            "high": high,
            "reason": "",
        }


def _rows(material: Material) -> Iterator[Row]:
    for group in material.study.layout.all_groups:
        for key, reference in rivals(group):
            pair = group.columns | {"optimizer": key, "reference": reference}
            for row in _pair_rows(group, key, reference, material.runs):
                yield pair | dict(row)


def _cell(row: Row | None) -> Cell:
    """Return a difference in print, with its interval where the pointer rests."""
    if row is None:
        return Cell(MISSING)
    return Cell(fixed(row["difference"], 4), title=interval(row["low"], row["high"]))


def _lines(rows: Sequence[Row], bands: list[str]) -> Iterator[list[str | Cell]]:
    """Yield a line of the table for each two optimizers of each group."""
    pairs: dict[tuple[object, ...], dict[str, Row]] = {}
    for row in rows:
        pair = (row[GROUP].place, row["optimizer"], row["reference"])
        pairs.setdefault(pair, {})[row["band"]] = row
    for by_band in pairs.values():
        whole = by_band[WHOLE]
        group = whole[GROUP]
        labels = [group.optimizer_labels[whole[side]] for side in ("optimizer", "reference")]
        # A gap has only the row of the whole, which has its reason.
        numbers = [_cell(by_band.get(band)) for band in bands]
        size = [group.tokens_label, group.model_label]
        yield [*size, *labels, *numbers, whole["reason"]]


def _blocks(material: Material) -> Iterator[Block]:
    rows = [row for row in material.rows(STATISTIC) if not row["reason"]]
    if not rows:
        return
    yield Text(
        "The loss of a study is a mean over tokens, most of which are frequent. This section says"
        " how much of a difference in loss lies in which band of frequency: the share of the"
        " held-out tokens that are of the band, times the difference on these. The bands sum to the"
        " whole difference. Negative is better than the reference."
    )
    # A band without held-out tokens would be a column of zeros.
    there = {row["band"] for row in rows if row["tokens"] > 0}
    bands = [band for band in (WHOLE, *LABELS) if band in there]
    number: Kind = "number"
    heads: list[tuple[str, Kind]] = [(name, "rows") for name, _ in PLACE]
    heads += [("Optimizer", "text"), ("minus", "text"), ("whole", number)]
    heads += [(LABELS[band], number) for band in bands if band != WHOLE]
    heads += [("Remark", "wrap")]
    for table, of_table in material.by_table(STATISTIC):
        lines = list(_lines(of_table, bands))
        yield Heading(table.title)
        caption = "Difference in loss by band (nat/token); intervals are in shares.csv"
        yield Grid(f"Gaps of {table.title}", listed(*heads), lines, caption=caption, tall=True)


STATISTIC = Statistic(
    file="shares.csv",
    columns={
        "table": str,
        "n_params": int,
        "n_tokens": int,
        "optimizer": str,
        "reference": str,
        "band": str,
        "tokens": float,
        "n": int,
        "difference": float,
        "low": float,
        "high": float,
        "reason": str,
        "model": str,
        "data": str,
        "recipe": str,
    },
    key=(*GROUP_COLUMNS, "optimizer", "reference", "band"),
    rows=_rows,
    section=Section("shares", "Where a gap lies", _blocks),
)
