"""The section "Noise" of the report: where the spread of a number comes from."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coupled_adam_bench.report.formats import MISSING, significant
from coupled_adam_bench.results.groups import Setup
from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.statistics.noise import GROUP_COLUMNS, INIT, ORDER, REST, SEEDS, read_noise
from coupled_adam_bench.study.catalog.metrics import Metric
from coupled_adam_bench.study.catalog.tables import PAPER_COLUMNS
from coupled_adam_bench.study.cells import readable_count

Row = dict[str, Any]


@dataclass(frozen=True)
class NoiseGroup:
    """Runs that differ in seeds only: what they are called, their seeds, and the rows of ``noise.csv`` by metric."""

    title: str
    optimizer: str
    design: str
    rows: dict[str, list[Row]]


@dataclass(frozen=True)
class PartRow:
    """A part of the spread of a metric: as a standard deviation with its interval, and as a share, in text."""

    metric: Metric | None
    source: str
    sd: str
    interval: str
    df: str
    share: str
    reason: str


@dataclass(frozen=True)
class NoiseSection:
    """What the template prints; ``groups`` are (title, optimizer, design, rows)."""

    crossed: bool
    groups: tuple[tuple[str, str, str, tuple[PartRow, ...]], ...]


def shown_metrics(study: StudyResults) -> list[Metric]:
    """Return the metrics that the section and the figure show: those of the paper's tables that the study measures."""
    return [study.layout.metrics[name] for name in PAPER_COLUMNS if name in study.layout.metrics]


def root(variance: float) -> float:
    """Return a standard deviation; that of an estimated variance below 0 is 0."""
    return math.sqrt(max(0.0, variance)) if not math.isnan(variance) else math.nan


def noise_groups(study: StudyResults, path: Path) -> list[NoiseGroup]:
    """Return the groups of ``noise.csv`` in its order."""
    labels = {cell.optimizer.key: cell.optimizer.label for cell in study.plan.cells.values()}
    tokens = {cell.n_tokens: cell.tokens_label or readable_count(cell.n_tokens) for cell in study.plan.cells.values()}
    groups: dict[tuple[Any, ...], NoiseGroup] = {}
    for values in read_noise(path).to_dict("records"):
        row = {str(name): value for name, value in values.items()}
        key = tuple(row[name] for name in GROUP_COLUMNS)
        if key not in groups:
            setup = Setup(row["n_params"], row["model"], row["data"], row["recipe"])
            size = study.layout.labels.get(setup, readable_count(row["n_params"]))
            title = f"N = {size}, D = {tokens[row['n_tokens']]}"
            groups[key] = NoiseGroup(title, labels[row["optimizer"]], row["design"], {})
        groups[key].rows.setdefault(row["metric"], []).append(row)
    return list(groups.values())


def _share(row: Row, rows: Sequence[Row]) -> str:
    """Return the share of a part in the spread over seeds, of crossed seeds only; an estimate below 0 counts as 0."""
    parts = [max(0.0, other["variance"]) for other in rows if other["source"] in (INIT, ORDER, REST)]
    whole = math.fsum(parts)
    if len(parts) < 3 or row["source"] not in (INIT, ORDER, REST) or not whole > 0:
        return MISSING
    return f"{max(0.0, row['variance']) / whole:.0%}"


def _interval(row: Row) -> str:
    if math.isnan(row["low"]):
        return MISSING
    return f"{significant(root(row['low']))} to {significant(root(row['high']))}"


def _parts(metrics: Sequence[Metric], rows: dict[str, list[Row]]) -> tuple[PartRow, ...]:
    parts = []
    for metric in metrics:
        for number, row in enumerate(of_metric := rows.get(metric.name, [])):
            remarks = [row["reason"], "estimate below 0" if row["variance"] < 0 else ""]
            parts.append(
                PartRow(
                    metric=metric if number == 0 else None,
                    source=row["source"],
                    sd=significant(root(row["variance"])),
                    interval=_interval(row),
                    df=str(row["df"]) if row["df"] else MISSING,
                    share=_share(row, of_metric),
                    reason="; ".join(filter(None, remarks)),
                )
            )
    return tuple(parts)


def noise_section(study: StudyResults, path: Path) -> NoiseSection | None:
    """Return the section made of ``noise.csv``, None where it was not made or has no rows."""
    if not path.is_file():
        return None
    groups, metrics = noise_groups(study, path), shown_metrics(study)
    if not groups:
        return None
    sources = {row["source"] for group in groups for rows in group.rows.values() for row in rows}
    shown = tuple((group.title, group.optimizer, group.design, _parts(metrics, group.rows)) for group in groups)
    return NoiseSection(bool(sources - {SEEDS, "evaluation"}), shown)
