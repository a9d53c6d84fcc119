"""How often each optimizer is best in the tables, and whether that reproduces what the paper claims."""

from dataclasses import dataclass
from math import isnan

from coupled_adam_bench.results.groups import Group, longest_groups, plain_keys
from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.statistics.compare import DECIDING
from coupled_adam_bench.study.catalog.metrics import Metric
from coupled_adam_bench.study.catalog.names import ADAM, COUPLED_ADAM
from coupled_adam_bench.study.catalog.tables import Table

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
    """The scores of a table.

    ``labels`` of its optimizers are by key; ``plain`` are the keys by their names without a learning rate of their own.
    """

    table: Table
    n_groups: int
    labels: dict[str, str]
    plain: dict[str, str]
    scores: tuple[Score, ...]

    @property
    def coupled_adam(self) -> str | None:
        """The key of Coupled Adam, at whatever learning rate, if it is in the table."""
        return self.plain.get(COUPLED_ADAM)

    def headline(self, key: str) -> list[tuple[int, list[Metric]]]:
        """Return (wins, metrics) of an optimizer, the most wins first, metrics with as many wins together."""
        by_wins: dict[int, list[Metric]] = {}
        for score in self.scores:
            by_wins.setdefault(score.wins[key], []).append(score.metric)
        return sorted(by_wins.items(), reverse=True)


REPRODUCED, PARTLY, NOT_REPRODUCED = "Reproduced", "Partly reproduced", "Not reproduced"
SEEN = {
    REPRODUCED: "Mechanism seen",
    PARTLY: "Mechanism partly seen",
    NOT_REPRODUCED: "Mechanism not seen",
}
"""The words for a generated language, which can show the mechanism and not the paper's result."""
CONSISTENT = {
    REPRODUCED: "Consistent with the paper (not tested)",
    PARTLY: "Partly consistent with the paper (not tested)",
    NOT_REPRODUCED: "Not consistent with the paper (not tested)",
}
"""The words for a table of single runs: no test stands behind it, so it shows no more than this."""
NOT_JUDGED = "Not judged: nothing could be compared"


@dataclass(frozen=True)
class Verdict:
    """The paper's claim in one table, for the keys of its Adam and its Coupled Adam.

    ``holds`` counts the comparisons of embeddings, of ``total``, in which Coupled Adam is better. ``loss`` has the
    losses of all blocks, None if the table has no loss. ``loss_kept`` counts the blocks at the most tokens of each
    size, of ``n_longest``, in which Adam's loss is not better: at fewer tokens the paper's Coupled Adam is slightly
    worse too. ``seeds`` are the fewest and the most seeds of an optimizer in a block.
    """

    table: Table
    adam: str
    coupled_adam: str
    word: str
    holds: int
    total: int
    n_groups: int
    loss: Score | None
    loss_kept: int
    n_longest: int
    n_sizes: int
    n_token_counts: int
    seeds: tuple[int, int]


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
        plain = {kind: key for group in groups for kind, key in plain_keys(group).items()}
        scores = tuple(_score(study, groups, metric, labels) for metric in study.columns(name))
        cards.append(Scorecard(table, len(groups), labels, plain, scores))
    return tuple(cards)


def _word(holds: int, total: int, loss_holds: bool, comparable: bool, tested: bool, generated: bool) -> str:
    if not comparable:
        return NOT_JUDGED
    word = NOT_REPRODUCED if not holds else REPRODUCED if holds == total and loss_holds else PARTLY
    if not tested:
        return CONSISTENT[word]
    return SEEN[word] if generated else word


def _pair(card: Scorecard) -> tuple[str, str] | None:
    """Return the keys of Adam and Coupled Adam if the table compares just these; each may have a rate of its own."""
    if len(card.labels) == 2 and card.plain.keys() == {ADAM, COUPLED_ADAM}:
        return card.plain[ADAM], card.plain[COUPLED_ADAM]
    return None


def _judge(study: StudyResults, card: Scorecard, scores: dict[str, Score], adam: str, coupled_adam: str) -> Verdict:
    groups = study.groups[card.table.name]
    longest, loss = longest_groups(groups), scores.get(LOSS)
    kept = 0
    if loss is not None:
        there = [group for group in longest if not _is_untestable(study, group, loss.metric)]
        kept = sum(study.bold(group, loss.metric) != adam for group in there)
    holds, total = sum(scores[name].wins[coupled_adam] for name in CLAIMED), len(CLAIMED) * card.n_groups
    missing = sum(scores[name].untestable for name in CLAIMED)
    counts = [len(cells) for group in groups for cells in group.cells.values()]
    loss_holds = loss is not None and kept == len(longest)
    generated = any(group.first.study.data.source.kind == "synthetic" for group in groups)
    return Verdict(
        card.table,
        adam,
        coupled_adam,
        _word(holds, total, loss_holds, missing < total, card.table.rules.tested, generated),
        holds,
        total,
        card.n_groups,
        loss,
        kept,
        len(longest),
        len({group.setup for group in groups}),
        len({group.n_tokens for group in groups}),
        (min(counts), max(counts)),
    )


def verdicts(study: StudyResults, cards: tuple[Scorecard, ...]) -> tuple[Verdict, ...]:
    """Judge the paper's claim in every table that compares just Adam and Coupled Adam in all that it is about.

    Their learning rates of the embedding may differ: the claim is the same when each has the rate that suits it.
    """
    judged = []
    for card in cards:
        scores = {score.metric.name: score for score in card.scores}
        if scores.keys() >= set(CLAIMED) and (pair := _pair(card)):
            judged.append(_judge(study, card, scores, *pair))
    return tuple(judged)
