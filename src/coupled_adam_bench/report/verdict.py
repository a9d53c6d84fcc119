"""The first section of the report: the question of this study, and its answer."""

from collections.abc import Iterator, Sequence
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
    Part,
    metric_column,
    place_of,
    symbols,
    with_arrow,
)
from coupled_adam_bench.page.formats import p_value, plural, with_interval
from coupled_adam_bench.report.contrasts import Contrast, challengers, contrasts
from coupled_adam_bench.results.groups import plain_keys
from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.statistics.declared import Material, Section
from coupled_adam_bench.statistics.scores import CLAIMED, LOSS, verdicts
from coupled_adam_bench.study.catalog.metrics import METRICS, Metric
from coupled_adam_bench.study.catalog.names import ADAM
from coupled_adam_bench.study.plan import Plan

_MOST_NAMES = 3
"""The most optimizers that a question names."""


def question(plan: Plan) -> str:
    """Return what the study asks, as the first heading of its report."""
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


def _contrasts(study: StudyResults, keys: Sequence[str]) -> Iterator[Contrast]:
    """Yield the contrasts of optimizers in all groups that have them and Adam."""
    for groups in study.groups.values():
        for group in groups:
            adam = plain_keys(group).get(ADAM)
            having = [key for key in keys if key in group.cells]
            if adam is None or not having:
                continue
            answers = contrasts(study, group, adam, centered=False)
            for key in having:
                yield Contrast(group, key, adam, answers)


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


def _card(title: str, found: Sequence[Contrast]) -> Card:
    """Return the card of one optimizer in one table."""
    loss = METRICS[LOSS]
    tested = [each for each in found if each.test(loss)[0].n >= 2]
    if not tested:
        sentence = Markup("A test needs two seeds of each optimizer at the same place.")
        return Card(title, "Not tested", "open", (sentence,))
    outcomes = [each.outcome(loss) for each in tested]
    word, tone = _word(outcomes.count("good"), outcomes.count("bad"), len(tested))
    # The place that says most about larger runs is the one with the most parameters and tokens.
    largest = max(tested, key=lambda each: (each.group.first.n_params, each.group.n_tokens))
    test, p = largest.test(loss)
    said = Markup("Loss minus Adam's at {}: {} {}, <i>p</i> = {} after Holm's correction.").format(
        place_of(largest.group),
        with_interval(test.difference, test.low, test.high, loss.digits + 1),
        loss.unit,
        p_value(p),
    )
    seeds = sorted({each.test(loss)[0].n for each in tested})
    several = plural(seeds[0], "seed") if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]} seeds"
    evidence = Markup("Evidence: {}, {} each, paired by seed.").format(
        plural(len(tested), "place"), several
    )
    return Card(title, word, tone, (said, evidence))


def _difference(metric: Metric, contrast: Contrast) -> Cell:
    """Return the difference to Adam in a metric as a cell."""
    test, p = contrast.test(metric)
    text = with_interval(test.difference, test.low, test.high, metric.digits + 1)
    found = contrast.outcome(metric)
    tone = f"status {found}" if found else ""
    return Cell(text, tone, f"p after Holm's correction: {p_value(p)}")


def _where(found: Sequence[Contrast]) -> Grid[Contrast]:
    """Return the table of all places."""
    metrics = [metric for metric, _ in found[0].answers]
    columns: list[Column[Contrast]] = [
        Column("Optimizer", lambda each: each.label, "row"),
        *PLACE_COLUMNS,
    ]
    columns += [
        metric_column(metric, partial(_difference, metric), with_arrow(metric))
        for metric in metrics
    ]
    caption = (
        "Where: differences to Adam, the mean over seeds with its 95 % interval. Green is better:"
        " an interval without zero, and p < 0.05 after Holm's correction within a place. Red is"
        " worse: an interval without zero."
    )
    return Grid("Where each optimizer is better than Adam", columns, found, caption, dense=True)


def _of_challengers(material: Material, labels: dict[str, str]) -> Iterator[Block]:
    """Yield how each optimizer that the study is about does against Adam."""
    study = material.study
    found = list(_contrasts(study, list(labels)))
    cards = []
    for name, table in study.tables.items():
        for key, label in labels.items():
            of_card = [each for each in found if (each.group.table, each.key) == (name, key)]
            if of_card:
                cards.append(_card(f"{label}, {table.title}", of_card))
    if not cards:
        yield Part("challenge.html.j2", {"cards": []})
        return
    yield Part("challenge.html.j2", {"cards": cards})
    tested = [each for each in found if each.answers]
    if tested:
        yield _where(tested)


def _blocks(material: Material) -> Iterator[Block]:
    """Answer the study's question; the paper's claim stands first only where it is the question."""
    claimed = symbols([METRICS[name] for name in CLAIMED], last=" and ")
    found = verdicts(material.study)
    claim = Part("verdict.html.j2", {"verdicts": found, "claimed": claimed})
    labels = challengers(material.plan)
    if not labels:
        yield claim
        return
    yield from _of_challengers(material, labels)
    if found:
        yield Fold("Does the paper's claim of Coupled Adam hold, too?", [claim])


SECTION = Section("verdict", "Did it reproduce?", _blocks, question=question, is_front=True)
