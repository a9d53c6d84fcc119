"""Whether the values that are bold in the tables reproduce what the paper claims."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import isnan

from coupled_adam_bench.results.facts import Outcome
from coupled_adam_bench.results.groups import Group, longest_groups
from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.statistics.compare import DECIDING
from coupled_adam_bench.study.catalogue.metrics import LOSS, Metric
from coupled_adam_bench.study.catalogue.names import ADAM, COUPLED_ADAM
from coupled_adam_bench.study.catalogue.tables import Table

CLAIMED = ("isotropy", "mean_norm_ratio", "r_bar")
"""The metrics of the paper's claim [P]: embeddings are isotropic and centred, and agree with human
ratings."""


@dataclass(frozen=True)
class Score:
    """In how many groups of a table each optimizer has the bold value of a metric; ``wins`` is by
    its key."""

    metric: Metric
    wins: dict[str, int]
    undecided: int
    untestable: int


@dataclass(frozen=True)
class Scorecard:
    """The scores of a table.

    ``labels`` of its optimizers are by key; ``plain`` are the keys by their names without their own
    learning rate.
    """

    table: Table
    labels: dict[str, str]
    plain: dict[str, str]
    scores: tuple[Score, ...]


TONES = ("bad", "middle", "good")
WORDS = {
    "paper": ("Not reproduced", "Partly reproduced", "Reproduced"),
    "small": ("Not seen in small", "Partly seen in small", "Seen in small"),
    "head alone": (
        "Not seen on a head without a transformer",
        "Partly seen on a head without a transformer",
        "Seen on a head without a transformer",
    ),
    "generated": ("Mechanism not seen", "Mechanism partly seen", "Mechanism seen"),
}
"""The words for a claim of which nothing, a part or all holds, by what the study can show of the
paper's result."""


def _not_tested(words: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{word} (not tested)" for word in words)


UNTESTED = {reach: _not_tested(words) for reach, words in WORDS.items()} | {
    "paper": (
        "Not consistent with the paper (not tested)",
        "Partly consistent with the paper (not tested)",
        "Consistent with the paper (not tested)",
    ),
}
"""The words for a table of single runs: no test stands behind it, so it shows no more than this."""
SMALLEST = (124e6, 4.92e9)
"""The parameters and tokens of the smallest run of the paper's Table 1 [P]; a study is of its size
from 9 / 10 on."""
NOT_JUDGED = "Not judged: nothing could be compared"


def reach_of(groups: Iterable[Group]) -> str:
    """Return what groups can show of the paper's result: a key of ``WORDS``."""
    firsts = [group.first for group in groups]
    if any(cell.study.data.source.kind == "synthetic" for cell in firsts):
        return "generated"
    if not all(cell.model.family.has_layers for cell in firsts):
        return "head alone"
    n_params, n_tokens = SMALLEST
    is_large = all(
        cell.n_params >= 0.9 * n_params and cell.n_tokens >= 0.9 * n_tokens for cell in firsts
    )
    return "paper" if is_large else "small"


@dataclass(frozen=True)
class DecidedCounts:
    """In how many comparisons of embeddings Coupled Adam is better by our decision, and in how many
    groups its loss is better and worse."""

    holds: int
    loss_better: int
    loss_worse: int


@dataclass(frozen=True)
class Verdict:
    """The paper's claim in one table, for the keys of its Adam and its Coupled Adam, in a ``word``
    and its ``tone``.

    ``holds`` counts the comparisons of embeddings, of ``total``, in which Coupled Adam is better,
    and ``untestable`` those that cannot be made.
    ``loss`` has the losses of all ``groups``, None if the table has no loss. ``loss_kept`` counts
    the groups at the most tokens of each size, of ``n_longest``, in which Adam's loss is not
    better: at fewer tokens the paper's Coupled Adam is slightly worse too. All of these follow what
    is bold; ``decided`` counts by our own decision.
    """

    table: Table
    adam: str
    coupled_adam: str
    word: str
    tone: str
    holds: int
    untestable: int
    total: int
    groups: tuple[Group, ...]
    loss: Score | None
    loss_kept: int
    n_longest: int
    decided: "DecidedCounts"

    @property
    def seeds(self) -> tuple[int, int]:
        """The fewest and the most seeds of an optimizer in a group."""
        counts = [len(cells) for group in self.groups for cells in group.cells.values()]
        return min(counts), max(counts)

    @property
    def reach(self) -> str:
        """What its groups can show of the paper's result: a key of ``WORDS``."""
        return reach_of(self.groups)


def _is_untestable(study: StudyResults, group: Group, metric: Metric) -> bool:
    """Tell whether a comparison could not be made: no difference or, if it is a test, no
    p-value."""
    facts = study.at(group, metric).values()
    rows = [each.row for fact in facts for each in fact.against.values()]
    # Only the comparisons of the best mean have a rule, which decides what is bold.
    return any(
        isnan(row["difference"]) or (row["rule"] in DECIDING and isnan(row[DECIDING[row["rule"]]]))
        for row in rows
        if "rule" in row and "bold" in row
    )


def _bold(study: StudyResults, group: Group, metric: Metric) -> str | None:
    """Return the key of the optimizer whose value is bold, or None."""
    return next((key for key, fact in study.at(group, metric).items() if fact.bold), None)


def _count_decided(
    study: StudyResults, groups: tuple[Group, ...], adam: str, coupled_adam: str
) -> DecidedCounts:
    """Return how Coupled Adam does against Adam by our decision."""
    outcomes: dict[str, list[Outcome]] = {}
    for name in (*CLAIMED, LOSS.name):
        outcomes[name] = []
        for group in groups:
            fact = study.at(group, name)[coupled_adam]
            if adam in fact.against:
                outcomes[name].append(fact.against[adam].outcome)
    return DecidedCounts(
        sum(outcomes[name].count(Outcome.BETTER) for name in CLAIMED),
        outcomes[LOSS.name].count(Outcome.BETTER),
        outcomes[LOSS.name].count(Outcome.WORSE),
    )


def _score(
    study: StudyResults, groups: tuple[Group, ...], metric: Metric, keys: dict[str, str]
) -> Score:
    bold = [_bold(study, group, metric) for group in groups]
    open_groups = [group for group, key in zip(groups, bold, strict=True) if key is None]
    untestable = sum(_is_untestable(study, group, metric) for group in open_groups)
    return Score(
        metric, {key: bold.count(key) for key in keys}, len(open_groups) - untestable, untestable
    )


def scorecards(study: StudyResults) -> tuple[Scorecard, ...]:
    """Count who is bold in every table of a study."""
    cards = []
    for name, table in study.layout.tables.items():
        groups = study.layout.groups[name]
        labels = study.layout.optimizer_labels[name]
        plain: dict[str, str] = {}
        for group in groups:
            plain |= group.plain_keys
        scores = tuple(
            _score(study, groups, metric, labels) for metric in study.layout.columns[name]
        )
        cards.append(Scorecard(table, labels, plain, scores))
    return tuple(cards)


def _pair(card: Scorecard) -> tuple[str, str] | None:
    """Return the keys of Adam and Coupled Adam if the table compares just these; each may have its
    own rate."""
    if len(card.labels) == 2 and card.plain.keys() == {ADAM, COUPLED_ADAM}:
        return card.plain[ADAM], card.plain[COUPLED_ADAM]
    return None


def _judge(
    study: StudyResults, card: Scorecard, scores: dict[str, Score], adam: str, coupled_adam: str
) -> Verdict:
    groups, tested = study.layout.groups[card.table.name], card.table.rules.tested
    longest, loss = longest_groups(groups), scores.get(LOSS.name)
    kept = 0
    if loss is not None:
        there = [group for group in longest if not _is_untestable(study, group, loss.metric)]
        kept = sum(_bold(study, group, loss.metric) != adam for group in there)
    holds, total = (
        sum(scores[name].wins[coupled_adam] for name in CLAIMED),
        len(CLAIMED) * len(groups),
    )
    level = 1 if holds else 0
    if holds == total and loss is not None and kept == len(longest):
        level = 2
    word = (WORDS if tested else UNTESTED)[reach_of(groups)][level]
    tone = TONES[level] if tested else "open"
    untestable = sum(scores[name].untestable for name in CLAIMED)
    if untestable == total:
        word, tone = NOT_JUDGED, "open"
    decided = _count_decided(study, groups, adam, coupled_adam)
    return Verdict(
        card.table,
        adam,
        coupled_adam,
        word,
        tone,
        holds,
        untestable,
        total,
        groups,
        loss,
        kept,
        len(longest),
        decided,
    )


def verdicts(study: StudyResults) -> tuple[Verdict, ...]:
    """Judge the paper's claim in every table that compares just Adam and Coupled Adam in all that
    it is about.

    Their learning rates of the embedding may differ: the claim is the same when each has the rate
    that suits it.
    """
    judged = []
    for card in scorecards(study):
        scores = {score.metric.name: score for score in card.scores}
        pair = _pair(card)
        if pair and scores.keys() >= set(CLAIMED):
            judged.append(_judge(study, card, scores, *pair))
    return tuple(judged)
