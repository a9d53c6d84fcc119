"""The section "In short" of the report: what a reader asks first, answered with intervals."""

import math
from collections.abc import Iterator
from operator import itemgetter
from typing import Any

from markupsafe import Markup

from coupled_adam_bench.report.blocks import (
    Block,
    Cell,
    Column,
    Grid,
    Items,
    Part,
    metric_column,
    place_of,
    symbol,
    symbols,
    with_arrow,
)
from coupled_adam_bench.report.figures import largest_size
from coupled_adam_bench.report.formats import MISSING, fixed, p_value, with_interval
from coupled_adam_bench.results.groups import Group, longest_groups, plain_keys
from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.statistics.contrasts import Contrast, Contrasts, Question, contrasts
from coupled_adam_bench.statistics.declared import Material, Section
from coupled_adam_bench.statistics.scores import Verdict, scorecards, verdicts
from coupled_adam_bench.statistics.student import ALPHA, interval
from coupled_adam_bench.statistics.t_test import summarize
from coupled_adam_bench.store.runs import run_history
from coupled_adam_bench.study.catalog.metrics import METRICS, RAREST, Metric
from coupled_adam_bench.study.catalog.names import ADAM, COUPLED_ADAM
from coupled_adam_bench.study.cells import readable_count

CALIBRATION = METRICS[RAREST.pooled_calibration]
ANISOTROPIC = 0.5
"""Below this isotropy the section calls an embedding anisotropic; a choice of ours."""


def _cell(question: Question, answer: Contrast) -> Cell:
    test = answer.test
    if math.isnan(test.difference):
        return Cell(MISSING)
    text = with_interval(test.difference, test.low, test.high, question.metric.digits + 1)
    tone = "win" if answer.p_holm < ALPHA else ""
    return Cell(text, tone, f"p after Holm's correction: {p_value(answer.p_holm)}")


def _heading(question: Question) -> str:
    arrowed = with_arrow(question.metric)
    return arrowed + Markup(" <sup>†</sup>") if question.centered else arrowed


def _grid(title: str, found: Contrasts) -> Grid[Any]:
    group, labels = found.group, found.group.optimizer_labels
    columns: list[Column[Any]] = [Column("Optimizer", itemgetter(0), "row")]
    for number, question in enumerate(found.questions, 1):
        columns.append(metric_column(question.metric, itemgetter(number), _heading(question)))
    lines = [[labels[key], *map(_cell, found.questions, answers)] for key, answers in found.answers.items()]
    reference = labels[found.reference]
    label = f"In short, {title}, D = {group.tokens_label}, N = {group.model_label}, against {reference}"
    caption = Markup("{}, {}: minus {}").format(title, place_of(group), reference)
    return Grid(label, columns, lines, caption=caption, dense=True)


def calibrations(study: StudyResults, group: Group) -> list[str]:
    """Return the calibration of the rarest tokens of each optimizer, an empty list if it was not measured."""
    samples = {key: summarize(values) for key, values in study.samples(group, CALIBRATION).items()}
    if all(math.isnan(sample.mean) for sample in samples.values()):
        return []
    labels, name = group.optimizer_labels, f"{CALIBRATION.name}_stderr"
    errors, texts = study.values_of({name: CALIBRATION.task}), []
    for key, sample in samples.items():
        error = sample.sd / math.sqrt(sample.n) if sample.n > 1 else math.nan
        ends = interval(sample.mean, error, sample.n - 1) if sample.n > 1 else (math.nan, math.nan)
        text = with_interval(sample.mean, *ends, CALIBRATION.digits) if math.isfinite(sample.mean) else MISSING
        found = [errors.get((cell.id, name), math.nan) for cell in group.cells[key]]
        if all(map(math.isfinite, found)):
            text += f", by documents ± {fixed(math.fsum(found) / len(found), CALIBRATION.digits)}"
        texts.append(f"{labels[key]}: {text}")
    return texts


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


def reaches(study: StudyResults, verdict: Verdict) -> Iterator[tuple[Group, dict[str, list[Metric]]]]:
    """Yield from which number of tokens on metrics go the paper's way, for each size, after the table's correction."""
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
        yield last, metrics


def _onset(histories: list[dict[int, float]]) -> str:
    """Say by how many tokens the isotropy, a mean over seeds, was below ``ANISOTROPIC``."""
    common = sorted(set[int].intersection(*map(set, histories)))
    below = [sum(values[tokens] for values in histories) / len(histories) < ANISOTROPIC for tokens in common]
    if not any(below):
        return f"not within {readable_count(common[-1])} tokens" if common else "not known"
    place = below.index(True)
    since = f", and not yet at {readable_count(common[place - 1])}" if place else ", when it was first measured"
    return f"by {readable_count(common[place])} tokens{since}"


def _onsets(material: Material) -> Iterator[str]:
    shown = largest_size(material.study.layout)
    histories: dict[str, list[dict[int, float]]] = {}
    for cell in shown.cells:
        rows = [row for row in run_history(material.runs / cell.id) if "isotropy" in row]
        if rows:
            histories.setdefault(cell.optimizer.label, []).append({row["tokens"]: row["isotropy"] for row in rows})
    if histories:
        yield Markup(
            "<strong>When does anisotropy arise?</strong> ({}.) {} is below {}, the mean over seeds: {}."
        ).format(
            shown.title,
            symbol(METRICS["isotropy"]),
            f"{ANISOTROPIC:g}",
            "; ".join(f"{label}: {_onset(of_seeds)}" for label, of_seeds in histories.items()),
        )


def _items(material: Material, groups: dict[str, list[Group]]) -> Iterator[str]:
    study = material.study
    for verdict in verdicts(study, scorecards(study)):
        for group, metrics in reaches(study, verdict):
            said = Markup("; ").join(Markup("{}: {}").format(words, symbols(of)) for words, of in metrics.items())
            yield Markup(
                "<strong>From which <i>D</i> on is Coupled Adam better than Adam?</strong> ({}, <i>N</i> = {}; "
                "two-sided <i>p</i> &lt; 0.05 after Holm's correction of the table's tests.) {}."
            ).format(verdict.table.title, group.model_label, said)
    yield from _onsets(material)
    for name, of_table in groups.items():
        for group in of_table:
            if texts := calibrations(study, group):
                yield Markup("<strong>Are rare tokens calibrated?</strong> ({}, {}.) {}.").format(
                    study.tables[name].title, place_of(group), "; ".join(texts)
                )


def _blocks(material: Material) -> Iterator[Block]:
    """Answer at the most tokens of each size: against Adam and, among several, against Coupled Adam."""
    study = material.study
    grids: list[Block] = []
    answered: dict[str, list[Group]] = {}
    for name, table in study.tables.items():
        for group in longest_groups(study.groups[name]):
            keys = plain_keys(group)
            references = [keys[kind] for kind in (ADAM, COUPLED_ADAM) if kind in keys]
            for reference in references if len(group.cells) > 2 else references[:1]:
                if found := contrasts(study, group, reference, centered=reference == keys.get(ADAM)):
                    grids.append(_grid(table.title, found))
                    if reference == references[0]:
                        answered.setdefault(name, []).append(group)
    if grids:
        yield Part("answers.html.j2", {"stated": material.plan.stated, "calibration": CALIBRATION})
        yield from grids
        yield Items(list(_items(material, answered)))


SECTION = Section("answers", "In short", _blocks)
