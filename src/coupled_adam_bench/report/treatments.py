"""The sections on embeddings changed after training, and on each list of word pairs."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from coupled_adam_bench.page.blocks import (
    MEANS_NOTE,
    Beside,
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
    symbol,
)
from coupled_adam_bench.page.formats import MISSING
from coupled_adam_bench.results.facts import CENTERED
from coupled_adam_bench.results.groups import Group, Values
from coupled_adam_bench.results.sample import Sample, summarize
from coupled_adam_bench.statistics.declared import Material, Section
from coupled_adam_bench.study.catalogue.metrics import METRICS
from embedding_geometry.rows import SUBWORDS

SHOWN = (METRICS["isotropy"], METRICS["r_bar"])
TREATMENTS = {
    CENTERED: "minus the mean",
    "embeddings_norm_scaled": "minus the mean, norm-scaled",
    "embeddings_abtt": "all-but-the-top",
    "embeddings_abtt2": "all-but-the-top, 2 directions",
}
"""The label of each treatment, by its task in ``results.csv``."""


_WAYS = Markup(
    "An embedding can also be changed after training: minus its mean (Biś et al. 2021), which can"
    " be scaled with each norm (the same), or by all-but-the-top, minus its mean and its largest"
    " principal components (Mu &amp; Viswanath 2018): a hundredth of the width of them, at least"
    " one, or two. The question to these rows: does Adam with one of them reach what Coupled Adam"
    " has as trained? Weight decay of the embedding, another way, is an optimizer of its own in the"
    " studies that compare it."
)
_NOT_TESTED = Markup(
    "These rows are not part of the paper's tables. Nothing here is tested, and nothing is bold."
    " The treatments change a copy of the embedding; loss and accuracy with it were not measured."
    " They take away much of what lowers {} by their definition, so that a high value after them"
    " says little about training."
)


def _treated(group: Group, values: Mapping[str, Values], title: str) -> Grid[Any]:
    names, samples = [], []
    for key, label in group.optimizer_labels.items():
        for treatment, measured in values.items():
            names.append([label, treatment])
            of_row = []
            for metric in SHOWN:
                by_seed = group.by_seed(measured, metric)[key]
                of_row.append((summarize(list(by_seed.values())), metric.digits))
            samples.append(of_row)
    cells = aligned_cells(samples)
    lines = [[*name, *line] for name, line in zip(names, cells, strict=True)]
    columns = listed(("Optimizer", "rows"), ("Embedding", "row"), *SHOWN)
    label = f"Other ways to isotropy, {title}, D = {group.tokens_label}, N = {group.model_label}"
    return Grid(label, columns, lines, caption=place_of(group))


def _variants(material: Material) -> Iterator[Block]:
    study = material.study
    treated = {}
    for task, label in TREATMENTS.items():
        treated[label] = study.values_of({metric.name: task for metric in SHOWN})
    if not any(treated.values()):
        return
    yield Text(_WAYS)
    yield Text(_NOT_TESTED.format(symbol(METRICS["isotropy"])))
    for name, groups in study.layout.groups.items():
        title = study.layout.tables[name].title
        yield Heading(f"At the sizes of {title}")
        yield Text(groups_left_out(groups))
        values = {"as trained": study.values} | treated
        yield Beside([_treated(group, values, title) for group in groups_shown(groups)])
    yield Items([MEANS_NOTE], small=True)


CORRELATIONS = {
    "Pearson, cosine": ("", "pearson_cosine"),
    "Spearman, cosine": ("", "spearman_cosine"),
    "Pearson, dot": ("", "pearson_dot"),
    "Spearman, dot": ("", "spearman_dot"),
    "pieces: Pearson, cosine": (SUBWORDS, "pearson_cosine"),
}
"""The columns of word similarity: the ending of the task and the metric of each."""
_LISTS_OF_PAIRS = Markup(
    "Each set is a list of word pairs with human ratings. A pair is kept if both words are single"
    " tokens, so its coverage depends on the tokenizer. The columns of pieces take the mean"
    " embedding of a word's tokens instead, and are no part of the paper's <i>r̄</i>. The cells"
    " that a table compares have the same tokenizer, and so the same pairs. results.csv also has"
    " the 95 % interval of each correlation over the pairs (percentiles of 1,000 resamples)."
)
_SETS: tuple[tuple[str, Kind], ...] = (
    ("Optimizer", "rows"),
    ("Set", "row"),
    ("pairs", "number"),
    ("coverage", "number"),
    ("with pieces", "number"),
    *((name, "number") for name in CORRELATIONS),
)


def _similarities(
    group: Group, values: Mapping[tuple[str, str, str], float], title: str
) -> Grid[Any]:
    ids: dict[str, list[str]] = {}
    for key, of_key in group.cells.items():
        ids[key] = [cell.id for cell in of_key]
    every = {cell for of_key in ids.values() for cell in of_key}
    tasks = dict.fromkeys(
        task for cell, task, metric in values if metric == "coverage" and cell in every
    )
    names = [(key, task) for key in ids for task in tasks if not task.endswith(SUBWORDS)]

    def sample(key: str, task: str, metric: str) -> list[float]:
        return [values.get((cell, task, metric), math.nan) for cell in ids[key]]

    def shared(key: str, task: str, metric: str, form: str) -> str:
        """Return a value that all cells share, from the first that has it."""
        return next(
            (format(value, form) for value in sample(key, task, metric) if not math.isnan(value)),
            MISSING,
        )

    samples: list[list[tuple[Sample, int]]] = []
    for key, task in names:
        forms = CORRELATIONS.values()
        of_forms = [sample(key, task + ending, metric) for ending, metric in forms]
        samples.append([(summarize(found), 2) for found in of_forms])
    correlations = aligned_cells(samples)
    # What a set covers is the same for all seeds, so it is said once beside their means.
    lines: list[list[str | Cell]] = []
    for (key, task), cells in zip(names, correlations, strict=True):
        pairs = [shared(key, task, "n_pairs", ",.0f"), shared(key, task, "coverage", ".1%")]
        pieces = shared(key, task + SUBWORDS, "coverage", ".1%")
        lines.append([group.optimizer_labels[key], task, *pairs, pieces, *cells])
    label = f"Word similarity, {title}, D = {group.tokens_label}, N = {group.model_label}"
    return Grid(label, listed(*_SETS), lines, caption=place_of(group))


def _word_similarity(material: Material) -> Iterator[Block]:
    study = material.study
    shown: dict[str, Sequence[Block]] = {}
    for name, groups in study.layout.groups.items():
        title = study.layout.tables[name].title
        grids: list[Block] = []
        for group in groups_shown(groups):
            grid = _similarities(group, study.measured, title)
            if grid.rows:
                grids.append(grid)
        if grids:
            shown[title] = [Text(groups_left_out(groups)), *grids]
    if shown:
        yield Text(_LISTS_OF_PAIRS)
    for title, blocks in shown.items():
        yield Heading(f"At the sizes of {title}")
        yield Fold("Correlations with human ratings", blocks)


VARIANTS = Section("variants", "Other ways to isotropy", _variants)
WORD_SIMILARITY = Section("word-similarity", "Word similarity", _word_similarity)
