"""The section "In short" of the report: what a reader asks first, answered with intervals."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from coupled_adam_bench.report.figures import largest_size
from coupled_adam_bench.report.formats import MISSING, fixed, p_value, with_interval
from coupled_adam_bench.results.groups import GROUP_COLUMNS, Group, Layout, longest_groups, plain_keys
from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.statistics import power
from coupled_adam_bench.statistics.contrasts import Contrast, Question, contrasts
from coupled_adam_bench.statistics.declared import Material
from coupled_adam_bench.statistics.power import PAIRED, POWER
from coupled_adam_bench.statistics.scores import Verdict
from coupled_adam_bench.statistics.student import ALPHA, interval
from coupled_adam_bench.statistics.t_test import summarize
from coupled_adam_bench.store.runs import run_history
from coupled_adam_bench.study.catalog.bands import RAREST
from coupled_adam_bench.study.catalog.metrics import METRICS, Metric
from coupled_adam_bench.study.catalog.names import ADAM, COUPLED_ADAM
from coupled_adam_bench.study.cells import readable_count

CALIBRATION = METRICS[RAREST.pooled_calibration]
ANISOTROPIC = 0.5
"""Below this isotropy the section calls an embedding anisotropic; a choice of ours."""


@dataclass(frozen=True)
class AnswerCell:
    """A difference with its interval, the p-value after Holm's correction, and whether it is significantly better."""

    difference: str
    p_value: str
    better: bool


@dataclass(frozen=True)
class AnswerTable:
    """All other optimizers of a group against ``reference``.

    ``rows`` are (optimizer, cells), a cell for each of the ``questions``. ``calibrations`` are (optimizer, text) of
    all optimizers, or empty if they were not measured.
    """

    title: str
    group: Group
    reference: str
    questions: tuple[Question, ...]
    rows: tuple[tuple[str, tuple[AnswerCell, ...]], ...]
    calibrations: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Reach:
    """From which number of tokens on Coupled Adam is better than Adam: (words, metrics) of a size and table."""

    title: str
    model: str
    metrics: tuple[tuple[str, tuple[Metric, ...]], ...]


@dataclass(frozen=True)
class Detectable:
    """Differences, as (metric, text), that ``n`` seeds of two optimizers find with the usual power, paired by seed."""

    title: str
    group: Group
    n: int
    differences: tuple[tuple[Metric, str], ...]


@dataclass(frozen=True)
class AnswerSection:
    """What the template prints.

    ``onsets`` are (optimizer, words on when its isotropy was below ``anisotropic``) of ``size``. ``power`` is the
    probability with which the differences of ``detectable`` are found.
    """

    tables: tuple[AnswerTable, ...]
    reaches: tuple[Reach, ...]
    detectable: tuple[Detectable, ...]
    onsets: tuple[tuple[str, str], ...]
    size: str
    anisotropic: str = f"{ANISOTROPIC:g}"
    power: str = f"{100 * POWER:g} %"


def _cell(question: Question, answer: Contrast) -> AnswerCell:
    test, digits = answer.test, question.metric.digits + 1
    if math.isnan(test.difference):
        return AnswerCell(MISSING, MISSING, better=False)
    text = with_interval(test.difference, test.low, test.high, digits)
    return AnswerCell(text, p_value(answer.p_holm), better=answer.p_holm < ALPHA)


def _calibrations(study: StudyResults, group: Group) -> tuple[tuple[str, str], ...]:
    samples = {key: summarize(values) for key, values in study.samples(group, CALIBRATION).items()}
    if all(math.isnan(sample.mean) for sample in samples.values()):
        return ()
    labels, name = group.optimizer_labels, f"{CALIBRATION.name}_stderr"
    errors, texts = study.values_of({name: CALIBRATION.task}), []
    for key, sample in samples.items():
        error = sample.sd / math.sqrt(sample.n) if sample.n > 1 else math.nan
        ends = interval(sample.mean, error, sample.n - 1) if sample.n > 1 else (math.nan, math.nan)
        text = with_interval(sample.mean, *ends, CALIBRATION.digits) if math.isfinite(sample.mean) else MISSING
        found = [errors.get((cell.id, name), math.nan) for cell in group.cells[key]]
        if all(map(math.isfinite, found)):
            text += f", by documents ± {fixed(math.fsum(found) / len(found), CALIBRATION.digits)}"
        texts.append((labels[key], text))
    return tuple(texts)


def _tables(study: StudyResults) -> Iterator[AnswerTable]:
    """Yield the answers at the most tokens of each size: against Adam and, among several, against Coupled Adam."""
    for name, table in study.tables.items():
        for group in longest_groups(study.groups[name]):
            keys, labels = plain_keys(group), group.optimizer_labels
            references = [keys[kind] for kind in (ADAM, COUPLED_ADAM) if kind in keys]
            for reference in references if len(labels) > 2 else references[:1]:
                found = contrasts(study, group, reference, centered=reference == keys.get(ADAM))
                if found is None:
                    continue
                rows = tuple(
                    (labels[key], tuple(map(_cell, found.questions, answers))) for key, answers in found.answers.items()
                )
                calibrations = _calibrations(study, group) if reference == references[0] else ()
                yield AnswerTable(table.title, group, labels[reference], found.questions, rows, calibrations)


def _words(numbers: list[str], holds: list[bool]) -> str:
    """Say at which numbers of tokens, in their order, something holds."""
    if all(holds):
        return "at every D"
    if not any(holds):
        return "at no D"
    first = holds.index(True)
    if all(holds[first:]):
        return f"from {numbers[first]} on" if first < len(numbers) - 1 else f"at {numbers[first]} only"
    return f"at {', '.join(number for number, held in zip(numbers, holds, strict=True) if held)} only"


def _reaches(study: StudyResults, verdict: Verdict) -> Iterator[Reach]:
    """Yield from which number of tokens on each column goes the paper's way, after the correction of all tests."""
    name = verdict.table.name
    for last in longest_groups(study.groups[name]):
        groups = [group for group in study.groups[name] if group.setup == last.setup]
        if len(groups) < 2 or not verdict.table.rules.tested:
            continue
        numbers = [group.tokens_label for group in groups]
        metrics: dict[str, list[Metric]] = {}
        for metric in study.columns(name):
            holds = [
                any(
                    row["optimizer"] == verdict.coupled_adam and row["p_holm"] < ALPHA
                    for row in study.comparisons_of(group, metric)
                )
                for group in groups
            ]
            metrics.setdefault(_words(numbers, holds), []).append(metric)
        yield Reach(
            verdict.table.title, last.model_label, tuple((words, tuple(each)) for words, each in metrics.items())
        )


def _detectable(study: StudyResults, verdict: Verdict, material: Material) -> Iterator[Detectable]:
    rows = material.rows(power.STATISTIC)
    for group in longest_groups(study.groups[verdict.table.name]):
        place = dict(zip(GROUP_COLUMNS, group.place, strict=True))
        found = [
            row
            for row in rows
            if row["design"] == PAIRED
            and not math.isnan(row["detectable"])
            and all(row[name] == value for name, value in place.items())
        ]
        differences = tuple(
            (metric, fixed(row["detectable"], metric.digits + 1))
            for row in found
            if (metric := study.layout.metrics[row["metric"]]).name in verdict.table.columns
        )
        if differences:
            yield Detectable(verdict.table.title, group, found[0]["n"], differences)


def _onset(histories: list[dict[int, float]]) -> str | None:
    """Say by how many tokens the isotropy, a mean over seeds, was below ``ANISOTROPIC``; None if not measured."""
    common = sorted(set[int].intersection(*(set(values) for values in histories))) if histories else []
    if not common:
        return None
    below = [sum(values[tokens] for values in histories) / len(histories) < ANISOTROPIC for tokens in common]
    if not any(below):
        return f"not within {readable_count(common[-1])} tokens"
    place = below.index(True)
    since = f", and not yet at {readable_count(common[place - 1])}" if place else ", when it was first measured"
    return f"by {readable_count(common[place])} tokens{since}"


def _onsets(layout: Layout, runs: Path) -> tuple[str, tuple[tuple[str, str], ...]]:
    shown = largest_size(layout)
    histories: dict[str, list[dict[int, float]]] = {}
    for cell in shown.cells:
        rows = [row for row in run_history(runs / cell.id) if "isotropy" in row]
        if rows:
            histories.setdefault(cell.optimizer.label, []).append({row["tokens"]: row["isotropy"] for row in rows})
    onsets = ((label, _onset(of_seeds)) for label, of_seeds in histories.items())
    return shown.title, tuple((label, words) for label, words in onsets if words)


def answer_section(material: Material, verdicts: tuple[Verdict, ...]) -> AnswerSection | None:
    """Return the section of a study, None if there is nothing to answer: no two seeds, or no Adam to compare with."""
    study = material.study
    tables = tuple(_tables(study))
    if not tables:
        return None
    size, onsets = _onsets(study.layout, material.runs)
    return AnswerSection(
        tables,
        tuple(reach for verdict in verdicts for reach in _reaches(study, verdict)),
        tuple(each for verdict in verdicts for each in _detectable(study, verdict, material)),
        onsets,
        size,
    )
