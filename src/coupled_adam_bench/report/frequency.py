"""The section "Rare tokens and long rows" of the report: loss and calibration by frequency band,
logits, both Iso."""

from collections.abc import Iterator
from typing import Any

from markupsafe import Markup

from coupled_adam_bench.page.blocks import (
    MEANS_NOTE,
    Block,
    Cell,
    Fold,
    Grid,
    Heading,
    Items,
    Kind,
    Text,
    aligned_cells,
    groups_left_out,
    groups_shown,
    listed,
    place_of,
)
from coupled_adam_bench.page.formats import difference_with_interval, fixed
from coupled_adam_bench.results.groups import Group
from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.statistics.declared import Material, Section
from coupled_adam_bench.statistics.paired import mean_difference
from coupled_adam_bench.study.catalogue.bands import BANDS, Band
from coupled_adam_bench.study.catalogue.metrics import METRICS, Metric


def _metrics_of(band: Band) -> tuple[Metric, ...]:
    """Return the columns of a band in the first table of a group."""
    names = (band.metric, band.calibration, band.pooled_calibration)
    return tuple(METRICS[name] for name in names)


BAND_METRICS = {band: _metrics_of(band) for band in BANDS}
MATRIX_METRICS = tuple(
    METRICS[name]
    for name in (
        "logit_mean",
        "logit_sd",
        "logit_max",
        "log_z_squared",
        "isotropy",
        "isotropy_trimmed",
    )
)
"""The columns of the second table of a group."""


def difference(study: StudyResults, group: Group, metric: Metric, key: str, reference: str) -> str:
    """Return an optimizer's mean difference to the reference, seed by seed, with its interval if it
    has one."""
    facts = study.at(group, metric)
    sample, low, high = mean_difference(facts[key].by_seed, facts[reference].by_seed)
    return difference_with_interval(sample.mean, low, high, metric.digits)


def _values(study: StudyResults, group: Group, metrics: tuple[Metric, ...]) -> list[list[Cell]]:
    rows = []
    for key in group.cells:
        facts = [study.at(group, metric)[key] for metric in metrics]
        rows.append([(fact.sample, fact.metric.digits) for fact in facts])
    return aligned_cells(rows)


def _bands(study: StudyResults, group: Group, label: str) -> Grid[Any]:
    first, *_ = labels = group.optimizer_labels
    lines: list[list[str | Cell]] = []
    for band, metrics in BAND_METRICS.items():
        for key, values in zip(labels, _values(study, group, metrics), strict=True):
            lines.append([band.label, labels[key]])
            for metric, value in zip(metrics, values, strict=True):
                lines[-1] += [
                    value,
                    "" if key == first else difference(study, group, metric, key, first),
                ]
        lines += _of_text(study, group, band, metrics)
    heads: list[tuple[str, Kind]] = [("Band", "rows"), ("Optimizer", "row")]
    for column in ("loss", "mean calibration", "pooled"):
        heads += [(column, "number"), (f"minus {labels[first]}", "number")]
    caption = (
        "Loss in nats per token and calibration by share of the training text, rarest tokens first"
    )
    return Grid(f"Frequency bands, {label}", listed(*heads), lines, caption=caption)


def _of_text(
    study: StudyResults, group: Group, band: Band, metrics: tuple[Metric, ...]
) -> Iterator[list[str | Cell]]:
    """Yield the line of a model with the training text's own frequencies, if it was measured."""
    first = next(iter(group.cells))
    best = [study.at(group, metric)[first].best for metric in metrics]
    if any(best):
        line: list[str | Cell] = [band.label, "frequencies of the training text"]
        for metric, values in zip(metrics, best, strict=True):
            line += [fixed(values[0], metric.digits) if values else "", ""]
        yield line


def _matrix(study: StudyResults, group: Group, label: str) -> Grid[Any]:
    values = _values(study, group, MATRIX_METRICS)
    lines = [
        [name, *cells] for name, cells in zip(group.optimizer_labels.values(), values, strict=True)
    ]
    caption = "Logits of held-out tokens, and isotropy with and without the longest 0.1 % of rows"
    columns = listed(("Optimizer", "row"), *MATRIX_METRICS)
    return Grid(f"Logits and isotropy, {label}", columns, lines, caption=caption)


_INTRODUCTION = Markup(
    "The mean loss hardly shows rare tokens. Here are loss and calibration by how frequent the"
    " predicted token is in the training text. The mean calibration is that of"
    " log(<i>p</i>/<i>f</i>) over the tokens of a band that occur in the held-out text: <i>p</i> is"
    " the mean probability of a token over all positions, and <i>f</i> its share of them. Rare"
    " tokens are counted only where they occur, so it is below 0 for them in a perfect model too,"
    " and only differences can be read. The pooled calibration takes a band as one token, with"
    " those that do not occur: below 0, the model gives the band too little. What a model with"
    " exactly the training text's frequencies has stands below the optimizers: it is not 0, since"
    " rare tokens of one text are rarer in another, and nearer to it is better. Differences are to"
    " the first optimizer, seed by seed, with 95 % intervals by Student's <i>t</i>. All numbers are"
    " over seeds on one held-out text. Other text would move the calibration of all optimizers"
    " alike, so their differences are surer than the numbers. In the second table <i>z</i> is a"
    " logit, <i>Z</i> the sum of the exponentials of the logits at a position, and"
    " Iso<sub>99.9</sub> is Iso without the longest 0.1 % of rows."
)


def _blocks(material: Material) -> Iterator[Block]:
    study = material.study
    names = [metric.name for metrics in BAND_METRICS.values() for metric in metrics]
    if not study.layout.groups or not any(
        (cell, name) in study.values for cell in study.plan.cells for name in names
    ):
        return
    yield Text(_INTRODUCTION)
    for name, groups in study.layout.groups.items():
        title = study.layout.tables[name].title
        yield Heading(title)
        yield Text(groups_left_out(groups))
        for number, group in enumerate(groups_shown(groups)):
            label = f"{title}, D = {group.tokens_label}, N = {group.model_label}"
            tables = [_bands(study, group, label), _matrix(study, group, label)]
            yield Fold(place_of(group), tables, is_open=number == 0)
    yield Items([f"{MEANS_NOTE} Nothing here is tested, and nothing is bold."], small=True)


SECTION = Section("frequency", "Rare tokens and long rows", _blocks)
