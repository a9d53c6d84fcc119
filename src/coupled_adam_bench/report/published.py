"""The section "Beside the paper" of the report: the published numbers beside ours, each with a verdict.

``catalog/published.csv`` has the numbers of Stollenwerk and Stollenwerk (ACL 2025, arXiv 2502.08441) that are known
to us: rows at 20B tokens of Table 1, and two sizes of Table 2. Nobody here has read them in the paper: they come from a
third party's summary of it [S]. They hold for the paper's data (OpenWebText, SlimPajama) and its authors' code. Which
of Table 1 are bold is not known to us; the better mean stands for it.
"""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coupled_adam_bench.page.blocks import PLACE, Block, Cell, Grid, Kind, Part, listed, symbol
from coupled_adam_bench.page.formats import fixed, shorthand
from coupled_adam_bench.results.groups import Group
from coupled_adam_bench.results.rounding import difference
from coupled_adam_bench.results.sample import summarize
from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.results.tidy import read_csv
from coupled_adam_bench.statistics.declared import Material, Section
from coupled_adam_bench.study import catalog
from coupled_adam_bench.study.catalog.metrics import METRICS, Metric
from coupled_adam_bench.study.catalog.names import ADAM, COUPLED_ADAM

PUBLISHED_COLUMNS: dict[str, type] = {
    "source": str, "tokens_label": str, "model_label": str, "n_tokens": int, "n_params": int, "optimizer": str,
    "metric": str, "value": float, "bold": str, "origin": str,
}  # fmt: skip
_SAME_SCALE = math.log(1.1)
"""Sizes and tokens within 10 % of each other are the same: 124M is the paper's 125M, and 19.66B its 20B."""

SAME, LOST, GAINED, FLIPPED, NOT_RUN = "same", "lost", "gained", "flipped", "not run"
"""Verdicts: ours is bold as in the paper; not bold where the paper is; bold where the paper is not; bold for the other
optimizer; at least one run is missing."""
SAME_DIRECTION, OTHER_DIRECTION, NO_DIFFERENCE = "same direction", "other direction", "no difference"
"""Verdicts beside a table of more optimizers, where only the direction of the difference is compared."""
_TONES = {SAME: "good", SAME_DIRECTION: "good", FLIPPED: "bad", OTHER_DIRECTION: "bad"}


@dataclass(frozen=True)
class PublishedPair:
    """The paper's means of Adam and Coupled Adam; ``bold`` is the optimizer that is bold or, if unknown, better."""

    source: str
    tokens_label: str
    model_label: str
    n_tokens: int
    n_params: int
    metric: Metric
    means: dict[str, float]
    bold: str | None


def _better(metric: Metric, means: dict[str, float]) -> str | None:
    """Return the optimizer with the better mean, None if they are equal or one is missing."""
    gain = difference(means[COUPLED_ADAM], means[ADAM]) * (1 if metric.larger_wins else -1)
    return COUPLED_ADAM if gain > 0 else ADAM if gain < 0 else None


def published_pairs() -> Iterator[PublishedPair]:
    """Yield the published pairs, in the order of the file."""
    path = Path(catalog.__file__).with_name("published.csv")
    key = ("source", "n_tokens", "n_params", "metric")
    pairs: dict[tuple[Any, ...], dict[str, dict[Any, Any]]] = {}
    for row in read_csv(path, PUBLISHED_COLUMNS, (*key, "optimizer")).to_dict("records"):
        pairs.setdefault(tuple(row[name] for name in key), {})[row["optimizer"]] = row
    for rows in pairs.values():
        first, metric = rows[ADAM], METRICS[rows[ADAM]["metric"]]
        means = {name: row["value"] for name, row in rows.items()}
        marked = [name for name, row in rows.items() if row["bold"] == "yes"]
        bold = _better(metric, means) if first["bold"] == "unknown" else next(iter(marked), None)
        yield PublishedPair(
            first["source"], first["tokens_label"], first["model_label"], first["n_tokens"], first["n_params"], metric,
            means, bold,
        )  # fmt: skip


def verdict_on(published: str | None, ours: str | None) -> str:
    """Return the verdict on what is bold in the paper and in our table, each None if nothing is."""
    if published == ours:
        return SAME
    if ours is None:
        return LOST
    return GAINED if published is None else FLIPPED


def direction_of(published: str | None, ours: str | None) -> str:
    """Return the verdict on which mean is better in the paper and in ours, each None if they are equal."""
    if published == ours:
        return SAME_DIRECTION
    return NO_DIFFERENCE if ours is None else OTHER_DIRECTION


def _is_same(pair: PublishedPair, group: Group) -> bool:
    """Tell whether a group has the size and the tokens of a published pair."""
    ratios = (group.setup.n_params / pair.n_params, group.n_tokens / pair.n_tokens)
    return all(abs(math.log(ratio)) < _SAME_SCALE for ratio in ratios)


def _line(study: StudyResults, group: Group, pair: PublishedPair) -> list[str | Cell]:
    metric, optimizers = pair.metric, (ADAM, COUPLED_ADAM)
    samples = {name: summarize(study.samples(group, metric)[name]) for name in optimizers}
    means = {name: sample.mean for name, sample in samples.items()}
    if any(math.isnan(mean) for mean in means.values()):
        verdict = NOT_RUN
    elif set(group.cells) == set(optimizers) and metric in study.columns(group.table):
        verdict = verdict_on(pair.bold, study.bold(group, metric))
    else:
        verdict = direction_of(_better(metric, pair.means), _better(metric, means))
    line: list[str | Cell] = [pair.source, pair.tokens_label, pair.model_label, symbol(metric)]
    for name in optimizers:
        line += [fixed(pair.means[name], metric.digits), str(shorthand(samples[name], metric.digits))]
        line.append(fixed(means[name] - pair.means[name], metric.digits))
    return [*line, Cell(verdict, f"status {_TONES.get(verdict, 'middle')}")]


def published_lines(study: StudyResults) -> list[list[str | Cell]]:
    """Return the published pairs of which the study has the size and the tokens, beside its own."""
    # Tables that compare nothing else come first.
    names = sorted(study.tables, key=lambda name: study.tables[name].comparison == "each_other")
    groups = [group for name in names for group in study.groups[name] if {ADAM, COUPLED_ADAM} <= group.cells.keys()]
    nearest = ((pair, next((group for group in groups if _is_same(pair, group)), None)) for pair in published_pairs())
    return [_line(study, group, pair) for pair, group in nearest if group is not None]


_HEADS: tuple[tuple[str, Kind], ...] = (
    ("Source", "text"), *PLACE, ("Metric", "row"), ("Adam, paper", "number"), ("ours", "number"),
    ("difference", "number"), ("Coupled Adam, paper", "number"), ("ours", "number"), ("difference", "number"),
    ("Verdict", "text"),
)  # fmt: skip


def _blocks(material: Material) -> Iterator[Block]:
    if lines := published_lines(material.study):
        counts = Counter(str(line[-1].text) for line in lines if isinstance(line[-1], Cell))
        yield Part("published.html.j2", {"counts": counts})
        yield Grid("Published numbers and ours", listed(*_HEADS), lines, tall=True)


SECTION = Section("published", "Beside the paper", _blocks)
