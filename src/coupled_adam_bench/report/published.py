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

from coupled_adam_bench.report.formats import fixed, shorthand
from coupled_adam_bench.results.groups import Group
from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.results.tidy import read_csv
from coupled_adam_bench.statistics.t_test import Sample, summarize
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
"""Verdicts at the paper's scale: ours is bold as in the paper; not bold there where the paper is; bold where the paper
is not; bold for the other optimizer; at least one run is missing."""
SAME_DIRECTION, OTHER_DIRECTION, NO_DIFFERENCE = "same direction", "other direction", "no difference"
"""Verdicts at another scale, where only the direction of the difference is compared."""


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


@dataclass(frozen=True)
class ComparedPair:
    """A published pair beside ours, as text; ``ours`` and ``differences`` are of Adam and of Coupled Adam."""

    pair: PublishedPair
    place: str
    published: tuple[str, ...]
    ours: tuple[str, ...]
    differences: tuple[str, ...]
    verdict: str


@dataclass(frozen=True)
class PublishedSection:
    """What the template prints: pairs of the paper's scale, and pairs of another one, of which the direction counts."""

    labels: tuple[str, ...]
    at_scale: tuple[ComparedPair, ...]
    elsewhere: tuple[ComparedPair, ...]

    def counts(self, rows: tuple[ComparedPair, ...]) -> dict[str, int]:
        """Return how often each verdict is given."""
        return dict(Counter(row.verdict for row in rows))


def _better(metric: Metric, means: dict[str, float]) -> str | None:
    """Return the optimizer with the better mean, None if they are equal or one is missing."""
    difference = (means[COUPLED_ADAM] - means[ADAM]) * (1 if metric.higher_is_better else -1)
    return COUPLED_ADAM if difference > 0 else ADAM if difference < 0 else None


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


def _pairs_of(study: StudyResults) -> list[Group]:
    """Return the groups that have both optimizers, those of tables that compare nothing else first."""
    names = sorted(study.tables, key=lambda name: study.tables[name].comparison == "each_other")
    groups = [group for name in names for group in study.groups[name]]
    return [group for group in groups if {ADAM, COUPLED_ADAM} <= group.cells.keys()]


def _distance(pair: PublishedPair, group: Group) -> tuple[float, float]:
    """Return how far a group is from a published pair in size and in tokens, as logarithms of ratios."""
    return (
        abs(math.log(group.setup.n_params / pair.n_params)),
        abs(math.log(group.n_tokens / pair.n_tokens)),
    )


def _compared(study: StudyResults, group: Group, pair: PublishedPair, at_scale: bool) -> ComparedPair:
    metric, optimizers = pair.metric, (ADAM, COUPLED_ADAM)
    of_group = study.samples(group, metric)
    samples: dict[str, Sample] = {name: summarize(of_group[name]) for name in optimizers}
    means = {name: sample.mean for name, sample in samples.items()}
    if any(math.isnan(mean) for mean in means.values()):
        verdict = NOT_RUN
    elif at_scale and set(group.cells) == set(optimizers) and metric in study.columns(group.table):
        verdict = verdict_on(pair.bold, study.bold(group, metric))
    else:
        verdict = direction_of(_better(metric, pair.means), _better(metric, means))
    return ComparedPair(
        pair,
        f"{group.model_label}, {group.tokens_label}",
        tuple(fixed(pair.means[name], metric.digits) for name in optimizers),
        tuple(str(shorthand(samples[name], metric.digits)) for name in optimizers),
        tuple(fixed(means[name] - pair.means[name], metric.digits) for name in optimizers) if at_scale else (),
        verdict,
    )


def published_section(study: StudyResults) -> PublishedSection | None:
    """Return the section of a study, None of one that compares Adam and Coupled Adam nowhere.

    A published pair stands beside that of the same model size and tokens or, if there is none, of the nearest ones.
    """
    groups = _pairs_of(study)
    if not groups:
        return None
    at_scale: list[ComparedPair] = []
    elsewhere: list[ComparedPair] = []
    for pair in published_pairs():
        nearest = min(groups, key=lambda group: sum(_distance(pair, group)))
        same = max(_distance(pair, nearest)) < _SAME_SCALE
        (at_scale if same else elsewhere).append(_compared(study, nearest, pair, same))
    first = groups[0].optimizer_labels
    return PublishedSection((first[ADAM], first[COUPLED_ADAM]), tuple(at_scale), tuple(elsewhere))
