"""The section "In short" of the report: what a reader asks first, answered with intervals."""

import math
from collections.abc import Collection, Iterator
from operator import itemgetter
from typing import Any

from markupsafe import Markup

from coupled_adam_bench.page.blocks import (
    Block,
    Cell,
    Column,
    Fold,
    Grid,
    Items,
    Text,
    metric_column,
    place_of,
    symbol,
    symbols,
    with_arrow,
)
from coupled_adam_bench.page.formats import MISSING, fixed, p_value, with_interval
from coupled_adam_bench.report.contrasts import Answers, Contrast, challengers, contrasts, outcome
from coupled_adam_bench.results.groups import Group, longest_groups, plain_keys
from coupled_adam_bench.results.sample import summarize
from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.statistics.declared import Material, Section
from coupled_adam_bench.statistics.paired import PairedTest
from coupled_adam_bench.statistics.scores import Verdict, verdicts
from coupled_adam_bench.statistics.student import ALPHA, mean_interval
from coupled_adam_bench.study.catalog.metrics import METRICS, RAREST, Metric
from coupled_adam_bench.study.catalog.names import ADAM, COUPLED_ADAM

CALIBRATION = METRICS[RAREST.pooled_calibration]


def _cell(metric: Metric, test: PairedTest, p: float) -> Cell:
    if math.isnan(test.difference):
        return Cell(MISSING)
    text = with_interval(test.difference, test.low, test.high, metric.digits + 1)
    return Cell(text, "win" if p < ALPHA else "", f"p after Holm's correction: {p_value(p)}")


def _grid(title: str, group: Group, reference: str, answers: Answers) -> Grid[Any]:
    labels = group.optimizer_labels
    columns: list[Column[Any]] = [Column("Optimizer", itemgetter(0), "row")]
    for index, (metric, centered) in enumerate(answers, 1):
        heading = with_arrow(metric) + Markup(" <sup>†</sup>" if centered else "")
        columns.append(metric_column(metric, itemgetter(index), heading))
    lines: list[list[str | Cell]] = []
    for key in labels:
        if key != reference:
            cells = [_cell(metric, *found[key]) for (metric, _), found in answers.items()]
            lines.append([labels[key], *cells])
    label = (
        f"In short, {title}, D = {group.tokens_label}, N = {group.model_label}, against"
        f" {labels[reference]}"
    )
    caption = Markup("{}, {}: minus {}").format(title, place_of(group), labels[reference])
    return Grid(label, columns, lines, caption=caption, dense=True)


def calibrations(study: StudyResults, group: Group) -> list[str]:
    """Return the calibration of the rarest tokens of each optimizer, an empty list if it was not
    measured."""
    samples = {key: summarize(values) for key, values in study.samples(group, CALIBRATION).items()}
    if all(math.isnan(sample.mean) for sample in samples.values()):
        return []
    labels, name = group.optimizer_labels, f"{CALIBRATION.name}_stderr"
    errors, texts = study.values_of({name: CALIBRATION.task}), []
    for key, sample in samples.items():
        text = MISSING
        if math.isfinite(sample.mean):
            text = with_interval(sample.mean, *mean_interval(sample), CALIBRATION.digits)
        found = [errors.get((cell.id, name), math.nan) for cell in group.cells[key]]
        if all(map(math.isfinite, found)):
            text += f", by documents ± {fixed(math.fsum(found) / len(found), CALIBRATION.digits)}"
        texts.append(f"{labels[key]}: {text}")
    if best := study.best_in(group, CALIBRATION):
        texts.append(f"the training text's own frequencies: {fixed(best[0], CALIBRATION.digits)}")
    return texts


def _words(numbers: list[str], holds: list[bool]) -> str:
    """Say at which numbers of tokens, in their order, something holds."""
    if all(holds):
        return "at every D"
    if not any(holds):
        return "at no D"
    first = holds.index(True)
    if all(holds[first:]):
        return (
            f"from {numbers[first]} on" if first < len(numbers) - 1 else f"at {numbers[first]} only"
        )
    return (
        f"at {', '.join(number for number, held in zip(numbers, holds, strict=True) if held)} only"
    )


def reaches(
    study: StudyResults, verdict: Verdict
) -> Iterator[tuple[Group, dict[str, list[Metric]]]]:
    """Yield from which number of tokens on metrics go the paper's way, for each size, after the
    table's correction."""
    name = verdict.table.name
    for last in longest_groups(study.groups[name]):
        groups = [group for group in study.groups[name] if group.setup == last.setup]
        if len(groups) < 2 or not verdict.table.rules.tested:
            continue
        numbers = [group.tokens_label for group in groups]
        metrics: dict[str, list[Metric]] = {}
        for metric in study.columns(name):
            # A verdict is of two optimizers.
            rows = [study.comparisons_of(group, metric)[0] for group in groups]
            holds = [
                row["optimizer"] == verdict.coupled_adam and row["p_paired_holm"] < ALPHA
                for row in rows
            ]
            metrics.setdefault(_words(numbers, holds), []).append(metric)
        yield last, metrics


def _items(material: Material, groups: dict[str, list[Group]]) -> Iterator[str]:
    study = material.study
    for verdict in verdicts(study):
        for group, metrics in reaches(study, verdict):
            said = Markup("; ").join(
                Markup("{}: {}").format(words, symbols(of)) for words, of in metrics.items()
            )
            yield Markup(
                "<strong>From which <i>D</i> on is Coupled Adam better than Adam?</strong> ({},"
                " <i>N</i> = {}; two-sided paired <i>p</i> &lt; 0.05 after Holm's correction of the"
                " table's tests.) {}."
            ).format(verdict.table.title, group.model_label, said)
    for name, of_table in groups.items():
        for group in of_table:
            if texts := calibrations(study, group):
                yield Markup("<strong>Are rare tokens calibrated?</strong> ({}, {}.) {}.").format(
                    study.tables[name].title, place_of(group), "; ".join(texts)
                )


_INTRODUCTION = Markup(
    "At the most tokens of each size: the difference of each optimizer to a reference, the mean"
    " over seeds, paired by seed, with its 95 % interval by Student's <i>t</i>. All runs are"
    " measured on the same held-out text: the intervals hold for other seeds, not for other text"
    ' (<a href="#statistics">the same text under two models</a>). Bold is significantly better:'
    " one-sided paired <i>t</i>-tests, <i>p</i> &lt; 0.05 after Holm's correction for all tests of"
    " a table here. To subtract the mean of Adam's embedding after training costs nothing. So the"
    " question to every other way is whether it is better than that: the column with † has Adam's"
    " embedding minus its mean as the reference. {} is 0 if the rarest 1 % of the text get as much"
    " probability as they have of the held-out text. It is best where a model with the training"
    " text's own frequencies has it, since rare tokens of one text are rarer in another. Its"
    " interval is over seeds, and ± is its standard error over the documents of this text."
)


_IN_WORDS = {
    "loss": "its test loss",
    "loss_rarest": "its loss of the rarest 1 % of the text",
    "isotropy": "its isotropy",
    "r_bar": "its agreement with human ratings of words",
}
"""What the sentences call the metrics of the questions."""
_UNITS = {"1": "", "percent": " percentage points"}
_SENTENCES = (("loss", "loss_rarest"), ("isotropy", "r_bar"))
"""The metrics of each sentence, in its order."""


def _told(metric: Metric, test: PairedTest, p: float) -> Markup:
    """Return a difference in words, with its interval and p-value."""
    digits = metric.digits + 1
    unit = _UNITS.get(metric.unit, f" {metric.unit}")
    evidence = Markup("95 % interval of the difference {} to {}, <i>p</i> = {}").format(
        fixed(test.low, digits), fixed(test.high, digits), p_value(p)
    )
    direction = "lower" if test.difference < 0 else "higher"
    told = f"{fixed(abs(test.difference), digits)}{unit} {direction}"
    if not outcome(metric, test, p):
        told = f"not clearly different, {told} in the mean"
    return Markup("{} {} is {} ({})").format(_IN_WORDS[metric.name], symbol(metric), told, evidence)


def _sentences(lead: Contrast) -> Iterator[Markup]:
    """Yield what a reader would tell of the study: at most three sentences of one optimizer."""
    group, labels = lead.group, lead.group.optimizer_labels
    start = Markup("{} against {} at {}: ").format(
        lead.label, labels[lead.reference], place_of(group)
    )
    for names in _SENTENCES:
        told = []
        for name in names:
            test, p = lead.test(METRICS[name])
            if math.isfinite(test.difference):
                told.append(_told(METRICS[name], test, p))
        if told:
            sentence = start + Markup(", and ").join(told) + "."
            yield sentence[0].upper() + sentence[1:]
            start = Markup()
    ratings = METRICS["r_bar"]
    test, p = lead.test(ratings, centered=True)
    if math.isfinite(test.difference):
        yield Markup(
            "To subtract the mean of {}'s embedding after training costs nothing; against that, {}."
        ).format(labels[lead.reference], _told(ratings, test, p))


def _lead(found: list[Contrast], about: Collection[str]) -> Contrast | None:
    """Return the comparison of the largest model, of an optimizer that the study is about if one is
    there, else of Coupled Adam."""
    candidates = [each for each in found if each.key in about]
    candidates = candidates or [
        each for each in found if plain_keys(each.group).get(COUPLED_ADAM) == each.key
    ]
    return max(
        candidates or found,
        key=lambda each: (each.group.first.n_params, each.group.n_tokens),
        default=None,
    )


def _blocks(material: Material) -> Iterator[Block]:
    """Answer at the most tokens of each size: against Adam and, among several, against Coupled
    Adam."""
    study = material.study
    grids: list[Block] = []
    leads: list[Contrast] = []
    answered: dict[str, list[Group]] = {}
    for name, table in study.tables.items():
        for group in longest_groups(study.groups[name]):
            keys = plain_keys(group)
            references = [keys[kind] for kind in (ADAM, COUPLED_ADAM) if kind in keys]
            for reference in references if len(group.cells) > 2 else references[:1]:
                is_adam = reference == keys.get(ADAM)
                found = contrasts(study, group, reference, centered=is_adam)
                if not found:
                    continue
                grids.append(_grid(table.title, group, reference, found))
                if reference == references[0]:
                    answered.setdefault(name, []).append(group)
                if is_adam:
                    rivals = [key for key in group.cells if key != reference]
                    leads += [Contrast(group, key, reference, found) for key in rivals]
    if not grids:
        return
    # A reader has one comparison in sentences, and opens the others.
    lead = _lead(leads, challengers(material.plan))
    if lead is not None:
        yield Items(list(_sentences(lead)))
    details: list[Block] = [Text(_INTRODUCTION.format(symbol(CALIBRATION)))]
    if material.plan.stated is not None:
        details.append(
            Text(
                "This section is exploratory: what was stated in advance has a section of its own."
            )
        )
    details += [*grids, Items(list(_items(material, answered)))]
    yield Fold("All differences at the most tokens, with how they are tested", details)


SECTION = Section("answers", "In short", _blocks, is_front=True)
