"""How much of the training text two seeds share: ``seeds.csv``. Tests over seeds take their values as independent."""

import math
from collections.abc import Iterator, Sequence

from markupsafe import Markup

from coupled_adam_bench.page.blocks import Block, Text
from coupled_adam_bench.statistics.declared import Material, Row, Section, Statistic
from coupled_adam_bench.training.seed_overlap import audit

WORTH_SAYING = 0.05
"""Correlation from which on the section warns: 3 % of the standard deviation over seeds."""
_PLACE: dict[str, type] = {
    "data": str, "data_order": str, "streams": int, "batch_sequences": int, "seq_len": int, "n_tokens": int,
    "steps": int,
}  # fmt: skip
"""The columns that say which runs two seeds are compared in."""


def verdict(rows: Sequence[Row]) -> str:
    """Return in a sentence whether the seeds are independent."""
    largest = max((row["correlation"] for row in rows if not math.isnan(row["correlation"])), default=math.nan)
    if math.isnan(largest):
        return "The data are not prepared, so it is not known what the seeds share."
    if largest < WORTH_SAYING:
        return "The seeds of this study read other text at every step: they are independent, as the tests assume."
    return (
        f"Seeds of this study read the same text: two of them share up to {100 * largest:.2f} % of the windows of a "
        "step. If the noise comes from the text, the spread over seeds is too small, and the tests find too many "
        "differences."
    )


def _blocks(material: Material) -> Iterator[Block]:
    if rows := material.rows(STATISTIC):
        yield Text(Markup('{} Each pair of seeds is in <a href="../seeds.csv">seeds.csv</a>.').format(verdict(rows)))


STATISTIC = Statistic(
    file="seeds.csv",
    columns=_PLACE
    | {
        "seed": int, "other_seed": int, "shared_in_step": float, "shared_anywhere": float, "correlation": float,
        "steps_read": int, "reason": str,
    },
    key=(*_PLACE, "seed", "other_seed"),
    rows=lambda material: audit(material.plan, material.runs.parent),
    section=Section("seeds", "Seeds", _blocks),
)  # fmt: skip
