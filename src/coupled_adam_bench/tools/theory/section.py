"""The section "Theory" of the report: the paper's statements beside the numbers, rows of its tables, and one answer."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from coupled_adam_bench.report import formats
from coupled_adam_bench.results.groups import Layout
from coupled_adam_bench.study.catalog.names import EMBEDDING, HEAD
from coupled_adam_bench.tools.theory.checks import Check, answer_open_question, checks_of
from coupled_adam_bench.tools.theory.records import (
    DriftRecord,
    TheoryGroup,
    drift_value,
    gradient_sum,
    largest_update_sum,
    read_theory,
)


@dataclass(frozen=True)
class GradientRow:
    """A group in the table of gradients; ``sums`` are of output in float32 and float64, then of input."""

    group: TheoryGroup
    runs: str
    sums: tuple[str, str, str, str]
    slope: str
    r_squared: str
    adam_r_squared: str


@dataclass(frozen=True)
class DriftRow:
    """A matrix of a group in the table of drift; ``shares`` are input, output and decay, in percent."""

    group: TheoryGroup
    runs: str
    matrix: str
    displacement: str
    mean_norm_ratio: str
    update_sum: str
    shares: tuple[str, str, str]
    residual: str


@dataclass(frozen=True)
class TheorySection:
    """What the template prints; ``remarks`` say why something is missing, and of which cells."""

    checks: tuple[Check, ...]
    answer: str
    gradients: tuple[GradientRow, ...]
    drifts: tuple[DriftRow, ...]
    remarks: dict[str, list[str]]
    replay: str


def _number(values: Sequence[float], digits: int = 2) -> str:
    """Return the largest value, or ``-`` if there is none: a table shows the worst run of what should be small."""
    return formats.significant(max(values, default=math.nan), digits)


def _mean(values: Sequence[float], text: Callable[[float], str]) -> str:
    return text(fmean(values)) if values else formats.MISSING


def _in_percent(share: float) -> str:
    return formats.fixed(100 * share, 1)


def _runs(group: TheoryGroup) -> str:
    measured = sum(record.status == "ok" for record in group.records)
    return str(measured) if measured == len(group.records) else f"{measured} of {len(group.records)}"


def _gradient_row(group: TheoryGroup) -> GradientRow:
    sums = [
        _number(group.values(gradient_sum(side, precision)))
        for side in ("output", "input")
        for precision in ("float32", "float64")
    ]
    slopes = group.values(lambda record: record.moment.slope if record.moment else None)
    fits = group.values(lambda record: record.moment.r_squared if record.moment else None)
    adam_fits = group.values(lambda record: record.adam_moment.r_squared if record.adam_moment else None)
    return GradientRow(
        group,
        _runs(group),
        (sums[0], sums[1], sums[2], sums[3]),
        _mean(slopes, formats.significant),
        _mean(fits, lambda value: formats.fixed(value, 3)),
        _mean(adam_fits, lambda value: formats.fixed(value, 3)),
    )


def _drift_row(group: TheoryGroup, matrix: str) -> DriftRow:
    def shown(choose: Callable[[DriftRecord], float | None], text: Callable[[float], str] = formats.significant) -> str:
        return _mean(group.values(drift_value(matrix, choose)), text)

    name = "tied" if group.tied else matrix
    return DriftRow(
        group,
        _runs(group),
        name,
        shown(lambda drift: drift.displacement[-1]),
        shown(lambda drift: drift.mean_norm_ratio[-1]),
        _number(group.values(largest_update_sum(matrix))),
        (
            shown(lambda drift: drift.input_share, _in_percent),
            shown(lambda drift: drift.output_share, _in_percent),
            shown(lambda drift: drift.decay_share, _in_percent),
        ),
        shown(lambda drift: drift.residual[-1] if drift.residual else None),
    )


def theory_section(layout: Layout, runs: Path) -> TheorySection | None:
    """Return the section of a study, None of one that does not check the theory."""
    groups = read_theory(layout, runs)
    if not groups:
        return None
    records = [record for group in groups for record in group.records]
    remarks: dict[str, list[str]] = {}
    for record in records:
        if record.reason:
            remarks.setdefault(record.reason, []).append(record.cell.id)
    replays = [record.replay_difference for record in records if record.replay_difference is not None]
    return TheorySection(
        checks_of(groups),
        answer_open_question(groups),
        tuple(_gradient_row(group) for group in groups),
        tuple(_drift_row(group, matrix) for group in groups for matrix in (EMBEDDING, HEAD)[: 1 if group.tied else 2]),
        remarks,
        _number(replays),
    )
