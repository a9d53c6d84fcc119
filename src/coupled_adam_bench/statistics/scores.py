"""How often each optimizer is best in the tables, and whether that reproduces what the paper claims."""

from dataclasses import dataclass
from math import isnan

from coupled_adam_bench.catalog.metrics import Metric
from coupled_adam_bench.catalog.names import ADAM, COUPLED_ADAM
from coupled_adam_bench.catalog.tables import Table
from coupled_adam_bench.results.comparisons import DECIDING
from coupled_adam_bench.results.groups import Group
from coupled_adam_bench.results.study_results import StudyResults

CLAIMED = ("isotropy", "mean_norm_ratio", "r_bar")
"""The metrics of the paper's claim [P]: embeddings are isotropic and centred, and agree with human ratings."""
LOSS = "loss"


@dataclass(frozen=True)
class Score:
    """In how many groups of a table each optimizer has the bold value of a metric; ``wins`` is by its key."""

    metric: Metric
    wins: dict[str, int]
    undecided: int
    untestable: int


@dataclass(frozen=True)
class Scorecard:
    """The scores of a table; ``labels`` of its optimizers are by key."""

    table: Table
    n_groups: int
    labels: dict[str, str]
    scores: tuple[Score, ...]

    def headline(self, key: str) -> list[tuple[int, list[Metric]]]:
        """Return (wins, metrics) of an optimizer, the most wins first, metrics with as many wins together."""
        by_wins: dict[int, list[Metric]] = {}
        for score in self.scores:
            by_wins.setdefault(score.wins[key], []).append(score.metric)
        return sorted(by_wins.items(), reverse=True)


@dataclass(frozen=True)
class Verdict:
    """The paper's claim on embeddings in one table: in how many of ``total`` comparisons it holds, and the loss."""

    table: Table
    word: str
    holds: int
    total: int
    n_groups: int
    loss: Score | None


def _is_untestable(study: StudyResults, group: Group, metric: Metric) -> bool:
    """Tell whether a comparison could not be made: no difference or, if it is a test, no p-value."""
    return any(
        isnan(row["difference"]) or (row["rule"] in DECIDING and isnan(row[DECIDING[row["rule"]]]))
        for row in study.comparisons_of(group, metric)
    )


def _score(study: StudyResults, groups: tuple[Group, ...], metric: Metric, keys: dict[str, str]) -> Score:
    bold = [study.bold(group, metric) for group in groups]
    open_groups = [group for group, key in zip(groups, bold, strict=True) if key is None]
    untestable = sum(_is_untestable(study, group, metric) for group in open_groups)
    return Score(metric, {key: bold.count(key) for key in keys}, len(open_groups) - untestable, untestable)


def scorecards(study: StudyResults) -> tuple[Scorecard, ...]:
    """Count who is bold in every table of a study."""
    cards = []
    for name, table in study.tables.items():
        groups = study.groups[name]
        labels = {key: label for group in groups for key, label in group.optimizer_labels.items()}
        scores = tuple(_score(study, groups, metric, labels) for metric in study.columns(name))
        cards.append(Scorecard(table, len(groups), labels, scores))
    return tuple(cards)


def verdicts(cards: tuple[Scorecard, ...]) -> tuple[Verdict, ...]:
    """Judge the paper's claim in every table that compares just Adam and Coupled Adam in all that it is about."""
    judged = []
    for card in cards:
        scores = {score.metric.name: score for score in card.scores}
        if set(card.labels) == {ADAM, COUPLED_ADAM} and scores.keys() >= set(CLAIMED):
            holds = sum(scores[name].wins[COUPLED_ADAM] for name in CLAIMED)
            total = len(CLAIMED) * card.n_groups
            word = "Reproduced" if holds == total else "Partly reproduced" if holds else "Not reproduced"
            judged.append(Verdict(card.table, word, holds, total, card.n_groups, scores.get(LOSS)))
    return tuple(judged)
