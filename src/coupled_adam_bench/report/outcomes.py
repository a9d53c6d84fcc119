"""The section "Who is better, and where": what the study found in sentences, the claim that it
tests, and each comparison once."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from markupsafe import Markup

from coupled_adam_bench.page.blocks import (
    PLACE_COLUMNS,
    Block,
    Cell,
    Column,
    Fold,
    Grid,
    Heading,
    Items,
    Part,
    Text,
    label_in,
    metric_column,
    place_of,
    symbols,
    with_arrow,
)
from coupled_adam_bench.page.formats import MISSING, difference_with_interval, p_equals, plural
from coupled_adam_bench.report import in_short, reach
from coupled_adam_bench.report.in_short import QUESTIONS, Pair, pairs_of
from coupled_adam_bench.results.facts import Comparison, Outcome
from coupled_adam_bench.results.groups import GROUP
from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.statistics.compare import RULES
from coupled_adam_bench.statistics.declared import Material, Row, Section
from coupled_adam_bench.statistics.scores import CLAIMED, verdicts
from coupled_adam_bench.study.catalogue.metrics import LOSS, METRICS, Metric
from coupled_adam_bench.study.catalogue.names import ADAM, COUPLED_ADAM
from coupled_adam_bench.study.plan import Plan
from coupled_adam_bench.study.settings import CustomSettings

_MOST_NAMES = 3
"""The most optimizers that a question names."""


def challengers(plan: Plan) -> dict[str, str]:
    """Return by their keys the labels of the optimizers that a study is about; none if it asks
    whether the paper's result reproduces.

    They are the user's own or, in a study without Coupled Adam, all but Adam.
    """
    plain, labels, own = set(), {}, {}
    for cell in plan.cells.values():
        optimizer = cell.optimizer
        name = optimizer.names(leave_out=["lr_factor"])[0]
        plain.add(name)
        if name != ADAM:
            labels[optimizer.key] = optimizer.label
        if any(isinstance(entry, CustomSettings) for entry in optimizer.entries.values()):
            own[optimizer.key] = optimizer.label
    if ADAM not in plain:
        return {}
    return own or ({} if COUPLED_ADAM in plain else labels)


def question(plan: Plan) -> str:
    """Return what the study asks, as a heading of its report."""
    names = list(dict.fromkeys(challengers(plan).values()))
    if not names:
        return "Did it reproduce?"
    if len(names) > _MOST_NAMES:
        return "Which optimizers are better than Adam, and where?"
    *others, last = names
    listed = f"{', '.join(others)} and {last}" if others else last
    return f"{'Are' if others else 'Is'} {listed} better than Adam, and where?"


@dataclass(frozen=True)
class Card:
    """What an optimizer's loss in one table says, in a ``word`` with its ``tone``."""

    title: str
    word: str
    tone: str
    sentences: tuple[str, ...]


def _word(better: int, worse: int, total: int) -> tuple[str, str]:
    """Return what is said of the loss at some places, and the tone in which it is said."""
    places = "" if total == 1 else f" at {better or worse} of {total} places"
    if better and worse:
        return f"Better loss{places}, worse at {worse}", "middle"
    if better:
        return f"Better loss{places}", "good" if better == total else "middle"
    if worse:
        return f"Worse loss{places}", "bad"
    return "No clear difference in loss", "open"


def _card(title: str, found: Sequence[Pair]) -> Card:
    """Return the card of one optimizer in one table."""
    tested = [each for each in found if each.loss.outcome != Outcome.UNTESTED]
    if not tested:
        sentence = Markup("A test needs two seeds of each optimizer at the same place.")
        return Card(title, "Not tested", "open", (sentence,))
    outcomes = [each.loss.outcome for each in tested]
    word, tone = _word(outcomes.count(Outcome.BETTER), outcomes.count(Outcome.WORSE), len(tested))
    # The place that says most about larger runs is the one with the most parameters and tokens.
    largest = max(tested, key=lambda each: (each.group.first.n_params, each.group.n_tokens))
    test = largest.loss
    said = Markup(
        "Loss minus Adam's at {}: {} {}, {} (<i>p</i> {}, and {} after Holm's correction)."
    ).format(
        place_of(largest.group),
        difference_with_interval(test.difference, test.low, test.high, LOSS.digits + 1),
        LOSS.unit,
        test.outcome,
        p_equals(test.p),
        p_equals(test.p_corrected),
    )
    seeds = sorted({each.loss.n for each in tested})
    several = plural(seeds[0], "seed") if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]} seeds"
    evidence = Markup("Evidence: {}, {} each, paired by seed.").format(
        plural(len(tested), "place"), several
    )
    return Card(title, word, tone, (said, evidence))


_MARKS = {
    Outcome.BETTER: (" *", "status good"),
    Outcome.WORSE: (" *", "status bad"),
    Outcome.BETTER_UNCORRECTED: (" °", ""),
    Outcome.WORSE_UNCORRECTED: (" °", ""),
}
"""The sign and the tone of an outcome in a table."""


def _difference(metric: Metric, is_centered: bool, row: Row) -> Cell:
    """Return a difference to the reference as a cell."""
    found: Comparison = row["found"][metric, is_centered]
    if found.difference != found.difference:
        return Cell(MISSING, title=found.reason)
    if found.outcome == Outcome.UNTESTED:
        return Cell(MISSING, title=found.reason or "one run each: in the table, and not tested")
    mark, tone = _MARKS.get(found.outcome, ("", ""))
    text = difference_with_interval(found.difference, found.low, found.high, metric.digits + 1)
    title = (
        f"{found.outcome}: two-sided p {p_equals(found.p)}, after Holm's correction over the"
        f" {plural(found.n_tests, 'test')} of {found.decided_in} {p_equals(found.p_corrected)}"
    )
    return Cell(text + mark, tone, title)


def grid_of(pairs: Sequence[Pair], is_adam: bool, titles: Mapping[str, str]) -> Grid[Row]:
    """Return the table of comparisons with the same reference, given the titles of the tables."""
    reference = pairs[0].group.optimizer_labels[pairs[0].reference]
    columns: list[Column[Row]] = [Column("Optimizer", label_in("optimizer"), "row"), *PLACE_COLUMNS]
    # Two tables can have other seeds of an optimizer at the same place.
    places = {(each.optimizer, each.group.setup, each.group.n_tokens) for each in pairs}
    if len(places) < len(pairs):
        columns.append(Column("Table", lambda row: titles[row[GROUP].table]))
    for metric, is_centered in QUESTIONS:
        found = [each.found[metric, is_centered] for each in pairs]
        if (is_centered and not is_adam) or all(
            each.difference != each.difference for each in found
        ):
            continue
        heading = with_arrow(metric) + Markup(" <sup>‡</sup>" if is_centered else "")
        columns.append(metric_column(metric, partial(_difference, metric, is_centered), heading))
    rows = [each.row for each in pairs]
    return Grid(f"Differences to {reference}", columns, rows, f"Minus {reference}", dense=True)


def _grids(study: StudyResults, pairs: Sequence[Pair]) -> list[Block]:
    """Return a table for each reference, those to Adam first."""
    titles = {name: table.title for name, table in study.layout.tables.items()}
    by_reference: dict[str, list[Pair]] = {}
    for each in pairs:
        if each.is_tested:
            by_reference.setdefault(each.reference, []).append(each)
    grids: list[Block] = []
    for reference, found in by_reference.items():
        is_adam = found[0].group.plain_keys.get(ADAM) == reference
        grids.append(grid_of(found, is_adam, titles))
    return grids


def _cards(study: StudyResults, pairs: Sequence[Pair], labels: Mapping[str, str]) -> list[Card]:
    """Return how each optimizer that the study is about does against Adam, a card for each
    table."""
    cards = []
    against_adam = [each for each in pairs if each.group.plain_keys.get(ADAM) == each.reference]
    for name, table in study.layout.tables.items():
        for key, label in labels.items():
            of_card = [
                each for each in against_adam if (each.group.table, each.optimizer) == (name, key)
            ]
            if of_card:
                cards.append(_card(f"{label}, {table.title}", of_card))
    return cards


def _lead(pairs: Sequence[Pair], about: Collection[str]) -> Pair | None:
    """Return the tested comparison of the largest model, of an optimizer that the study is about if
    one is there, else of Coupled Adam."""
    tested = [each for each in pairs if each.is_tested and each.is_to_first]
    candidates = [each for each in tested if each.optimizer in about]
    candidates = candidates or [
        each for each in tested if each.group.plain_keys.get(COUPLED_ADAM) == each.optimizer
    ]
    return max(
        candidates or tested,
        key=lambda each: (each.group.first.n_params, each.group.n_tokens),
        default=None,
    )


_INTRODUCTION = Markup(
    "Each comparison of the study with Adam and, among several optimizers, with Coupled Adam, once:"
    " the mean difference over seeds, paired by seed, with its two-sided 95 % interval by Student's"
    " <i>t</i>. It is decided by the two-sided paired <i>t</i>-test, after Holm's correction: * is"
    " significant after it, and better if it is green, worse if it is red; ° has <i>p</i> &lt; 0.05"
    " only without it. The correction is over all pairs of optimizers, places and metrics of the"
    " first table that has the runs; metrics that are no column of it, and ‡, are corrected"
    " together. All runs are measured on the same held-out text: the intervals hold for other"
    ' seeds, not for other text (<a href="#statistics">the same text under two models</a>).'
    " The column with ‡ has another reference: Adam's embedding minus its mean, which needs no"
    " other training. The loss of Adam without that mean was not measured."
)


def _blocks(material: Material) -> Iterator[Block]:
    """Say it in short, answer the study's question, and show all comparisons."""
    study, labels = material.study, challengers(material.plan)
    pairs = pairs_of(study)
    lead = _lead(pairs, labels)
    yield Heading("In short")
    yield Items(list(in_short.sentences(study, pairs, lead)))
    claim = Part(
        "verdict.html.j2",
        {
            "verdicts": verdicts(study),
            "claimed": symbols([METRICS[name] for name in CLAIMED], last=" and "),
            "rule": f"the {RULES[material.plan.statistics.bold].says}",
        },
    )
    yield Heading(question(material.plan))
    if labels:
        yield Part("challenge.html.j2", {"cards": _cards(study, pairs, labels)})
        if verdicts(study):
            yield Fold("Does the paper's claim of Coupled Adam hold, too?", [claim])
    else:
        yield claim
    grids = _grids(study, pairs)
    if not grids:
        return
    details: list[Block] = [Text(_INTRODUCTION)]
    if material.plan.stated is not None:
        details.append(
            Text(
                "This section is exploratory: what was stated in advance has a section of its own."
            )
        )
    details += [*grids, Items(list(reach.sentences(study)))]
    yield Fold("All comparisons, place by place, with how they are decided", details)


SECTION = Section("verdict", "Who is better, and where", _blocks, is_front=True)
