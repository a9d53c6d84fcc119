"""The section "Rare tokens and long rows" of the report: loss and calibration by frequency band, logits, both Iso."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from coupled_adam_bench.report.formats import MISSING, fixed, shorthand, with_interval
from coupled_adam_bench.report.table import Value, aligned
from coupled_adam_bench.results.groups import Group
from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.statistics.paired import paired_test
from coupled_adam_bench.statistics.t_test import summarize
from coupled_adam_bench.study.catalog.bands import BANDS, Band
from coupled_adam_bench.study.catalog.metrics import METRICS, Metric

MATRIX_METRICS = tuple(
    METRICS[name] for name in ("logit_mean", "logit_sd", "logit_max", "log_z_squared", "isotropy", "isotropy_trimmed")
)
"""The columns of the second table of a group."""
PART_FROM = 0.1
"""Difference of the two kinds of Iso from which on the section says that they part; a choice of ours."""


@dataclass(frozen=True)
class BandCell:
    """The value of an optimizer in a band over seeds, and its paired difference to the first one as text."""

    value: Value
    difference: str


@dataclass(frozen=True)
class BandRow:
    """A band and an optimizer: loss, mean and pooled calibration."""

    optimizer: str
    cells: tuple[BandCell, ...]


@dataclass(frozen=True)
class FrequencyTable:
    """A group: ``bands`` are (label, rows), ``matrix`` are (optimizer, values of ``MATRIX_METRICS``)."""

    group: Group
    reference: str
    bands: tuple[tuple[str, tuple[BandRow, ...]], ...]
    matrix: tuple[tuple[str, tuple[Value, ...]], ...]


@dataclass(frozen=True)
class FrequencySection:
    """What the template prints; ``tables`` is by the study's table, ``parted`` are sentences on Iso and long rows."""

    tables: dict[str, tuple[FrequencyTable, ...]]
    columns: tuple[Metric, ...]
    parted: tuple[str, ...]
    missing: bool


def band_metrics(band: Band) -> tuple[Metric, ...]:
    """Return the metrics of a band that have a column."""
    return tuple(METRICS[name] for name in (band.metric, band.calibration, band.pooled_calibration))


def difference(study: StudyResults, group: Group, metric: Metric, key: str, reference: str) -> str:
    """Return an optimizer's mean difference to the reference, seed by seed, with its interval if it has one."""
    by_seed = study.by_seed(group, metric)
    test = paired_test(by_seed[key], by_seed[reference], metric.higher_is_better)
    if not math.isnan(test.difference):
        return with_interval(test.difference, test.low, test.high, metric.digits)
    ours = [by_seed[key][seed] - by_seed[reference][seed] for seed in by_seed[key] if seed in by_seed[reference]]
    return fixed(ours[0], metric.digits) if len(ours) == 1 else MISSING


def _value(study: StudyResults, group: Group, metric: Metric, key: str) -> Value:
    return Value(shorthand(summarize(study.samples(group, metric)[key]), metric.digits))


def _band(study: StudyResults, group: Group, band: Band) -> tuple[BandRow, ...]:
    metrics, labels = band_metrics(band), group.optimizer_labels
    reference = next(iter(labels))
    values = aligned([tuple(_value(study, group, metric, key) for metric in metrics) for key in labels])
    return tuple(
        BandRow(
            label,
            tuple(
                BandCell(value, "" if key == reference else difference(study, group, metric, key, reference))
                for value, metric in zip(row, metrics, strict=True)
            ),
        )
        for (key, label), row in zip(labels.items(), values, strict=True)
    )


def _table(study: StudyResults, group: Group) -> FrequencyTable:
    labels = group.optimizer_labels
    matrix = aligned([tuple(_value(study, group, metric, key) for metric in MATRIX_METRICS) for key in labels])
    return FrequencyTable(
        group,
        next(iter(labels.values())),
        tuple((band.label, _band(study, group, band)) for band in BANDS),
        tuple(zip(labels.values(), matrix, strict=True)),
    )


def _parted(study: StudyResults, group: Group) -> Iterator[str]:
    """Yield a sentence for each optimizer whose Iso is another without the longest rows."""
    whole, trimmed = (study.samples(group, METRICS[name]) for name in ("isotropy", "isotropy_trimmed"))
    for key, label in group.optimizer_labels.items():
        with_all, without = summarize(whole[key]).mean, summarize(trimmed[key]).mean
        if abs(without - with_all) >= PART_FROM:
            place = f"N = {group.model_label}, D = {group.tokens_label}"
            yield f"{label} ({place}): {fixed(with_all, 2)} with all rows, {fixed(without, 2)} without the longest"


def frequency_section(study: StudyResults) -> FrequencySection | None:
    """Return the section of a study, None of one without tables, or whose results are of before it was measured."""
    names = [metric.name for band in BANDS for metric in band_metrics(band)]
    if not study.groups or not any((cell, name) in study.values for cell in study.plan.cells for name in names):
        return None
    tables = {name: tuple(_table(study, group) for group in groups) for name, groups in study.groups.items()}
    parted = dict.fromkeys(
        sentence for groups in study.groups.values() for group in groups for sentence in _parted(study, group)
    )
    printed = [table for of_name in tables.values() for table in of_name]
    in_bands = [cell.value for table in printed for _, rows in table.bands for row in rows for cell in row.cells]
    in_matrix = [value for table in printed for _, values in table.matrix for value in values]
    return FrequencySection(tables, MATRIX_METRICS, tuple(parted), any(v.missing for v in in_bands + in_matrix))
