"""The section "Tokens to a target" of the report: when runs reach a validation loss, and whether they end below it."""

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coupled_adam_bench.report.formats import MISSING, Shorthand, fixed, p_value, shorthand
from coupled_adam_bench.results.groups import GROUP_COLUMNS, Group
from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.results.target import ALL_SEEDS, read_target
from coupled_adam_bench.statistics.t_test import Sample
from coupled_adam_bench.study.cells import readable_count

_DIGITS = 4


@dataclass(frozen=True)
class TargetRow:
    """An optimizer of a group in print; ``ratio`` is its tokens over those of the first one."""

    optimizer: str
    reached: str
    tokens: str
    ratio: str
    loss: Shorthand
    p_value: str
    reason: str


@dataclass(frozen=True)
class TargetSection:
    """What the template prints; ``tables`` is by the study's table."""

    target: str
    tables: dict[str, tuple[tuple[Group, tuple[TargetRow, ...]], ...]]


def _row(label: str, row: Mapping[Hashable, Any], first: Mapping[Hashable, Any]) -> TargetRow:
    tokens = row["tokens"]
    return TargetRow(
        label,
        f"{row['n_reached']} of {row['n']}",
        MISSING if math.isnan(tokens) else readable_count(round(tokens)),
        fixed(tokens / first["tokens"], 2),
        shorthand(Sample(row["n"], row["loss"], row["sd"]), _DIGITS),
        MISSING if math.isnan(row["p_value"]) else p_value(row["p_value"]),
        row["reason"],
    )


def target_section(study: StudyResults, path: Path) -> TargetSection | None:
    """Return the section made of ``target.csv``, None of a study without a target or without tables."""
    target = study.plan.statistics.target_loss
    if target is None or not path.is_file() or not study.groups:
        return None
    rows = [row for row in read_target(path).to_dict("records") if row["seed"] == ALL_SEEDS]
    found = {(*(row[name] for name in GROUP_COLUMNS), row["optimizer"]): row for row in rows}
    tables = {}
    for name, groups in study.groups.items():
        shown = []
        for group in groups:
            of_group = {key: found[(*group.place, key)] for key in group.cells}
            first = next(iter(of_group.values()))
            labels = group.optimizer_labels
            shown.append((group, tuple(_row(labels[key], row, first) for key, row in of_group.items())))
        tables[name] = tuple(shown)
    return TargetSection(f"{target:g}", tables)
