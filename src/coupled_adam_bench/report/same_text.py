"""The same text under two models: differences over documents, which the section on statistics
shows."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import isnan
from typing import Any

from markupsafe import Markup

from coupled_adam_bench.page.blocks import (
    PLACE,
    Block,
    Cell,
    Grid,
    Heading,
    Kind,
    P,
    Text,
    listed,
    p_cell,
)
from coupled_adam_bench.page.formats import MISSING, interval, significant
from coupled_adam_bench.results.groups import GROUP
from coupled_adam_bench.statistics import paired_text
from coupled_adam_bench.statistics.declared import ALL_SEEDS, Material, Row
from coupled_adam_bench.statistics.paired_text import AVERAGE, DOCUMENTS, HELD_OUT
from coupled_adam_bench.study.catalogue.metrics import LOSS, METRICS, Metric

_TEXT: tuple[tuple[str, Kind] | Metric, ...] = (
    *PLACE,
    ("Optimizer", "row"),
    ("minus", "text"),
    ("held-out documents", "number"),
    LOSS,
    P,
    ("seeds", "number"),
    ("documents", "number"),
    METRICS["acc"],
    P,
)


def _line(rows: Sequence[Row]) -> list[str | Cell]:
    """Return the line of two optimizers, given their rows of ``paired.csv``: of all seeds where
    there are several.

    Next to the loss stands at how many seeds it differs in the same direction as over all.
    """
    first = rows[0]
    seed = ALL_SEEDS if any(row["seed"] == ALL_SEEDS for row in rows) else first["seed"]
    shown = {(row["unit"], row["task"]): row for row in rows if row["seed"] == seed}
    loss = shown[HELD_OUT, LOSS.task]
    of_seeds = [
        row["difference"] for row in rows if row["unit"] == HELD_OUT and row["seed"] != ALL_SEEDS
    ]
    agreeing = sum(difference * loss["difference"] > 0 for difference in of_seeds)
    group = first[GROUP]
    labels = [group.optimizer_labels[first[side]] for side in ("optimizer", "reference")]
    place = [group.tokens_label, group.model_label, *labels]
    accuracy = _cells(shown.get((DOCUMENTS, AVERAGE)))
    return [*place, *_cells(loss), f"{agreeing} of {len(of_seeds)}", *accuracy]


def _cells(row: Row | None) -> list[str | Cell]:
    return [MISSING] * 3 if row is None else [str(row["n"]), _sure(row), p_cell(row["p_value"])]


def blocks(material: Material) -> Iterator[Block]:
    """Yield two models on the same documents: a table for each table of the study."""
    yield Heading("The same text under two models")
    yield Text(
        Markup(
            "Models of one seed are compared document by document, of held-out text and of the"
            ' downstream tasks. Over seeds, a document counts once, with its mean difference; "2 of'
            ' 3" seeds have a difference of the loss in the same direction. These <i>p</i> are'
            " two-sided. They say whether other text of the kind would show the same difference"
            " between these very models, also where there is one seed; they do not say what other"
            " seeds would show. Each task, each seed and what is missing: <a"
            ' href="../paired.csv">paired.csv</a>.'
        )
    )
    for table, rows in material.by_table(paired_text.STATISTIC):
        pairs: defaultdict[Any, list[Row]] = defaultdict(list)
        for row in rows:
            pairs[row[GROUP].place, row["optimizer"]].append(row)
        lines = [_line(found) for found in pairs.values()]
        yield Heading(table.title, 4)
        yield Grid(f"The same text, {table.title}", listed(*_TEXT), lines, tall=True)


def _sure(row: Row) -> str:
    """Return a difference with its interval below it, if it has one."""
    text = significant(row["difference"])
    return (
        text
        if isnan(row["low"])
        else Markup("{}<br><small>{}</small>").format(text, interval(row["low"], row["high"]))
    )
