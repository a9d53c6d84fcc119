"""What the front of the report says in sentences: the comparison that a study is about, its largest
effect, and where the two rules differ."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from coupled_adam_bench.page.blocks import place_of, symbol, symbols
from coupled_adam_bench.page.formats import (
    MISSING,
    decisive,
    fixed,
    p_equals,
    significant,
)
from coupled_adam_bench.results.facts import Comparison, Fact, Outcome
from coupled_adam_bench.results.groups import GROUP, Group
from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.statistics.compare import RULES
from coupled_adam_bench.statistics.decisions import ASKED, RATINGS, centered
from coupled_adam_bench.statistics.declared import Row
from coupled_adam_bench.study.catalogue.metrics import LOSS, METRICS, Metric

Question = tuple[Metric, bool]
"""A metric, and whether the reference has its mean subtracted after training."""
QUESTIONS: tuple[Question, ...] = (*((metric, False) for metric in ASKED), (RATINGS, True))


@dataclass(frozen=True)
class Pair:
    """An optimizer against a reference of its group, with a comparison for each question."""

    group: Group
    optimizer: str
    reference: str
    found: Mapping[Question, Comparison]

    @property
    def row(self) -> Row:
        """The same as the row of a table."""
        return {GROUP: self.group, "optimizer": self.optimizer, "found": self.found}

    @property
    def is_to_first(self) -> bool:
        """Whether the reference is the first of its group: Adam, where that is there."""
        return self.reference == self.group.references[0]

    @property
    def loss(self) -> Comparison:
        """The comparison of the losses."""
        return self.found[LOSS, False]

    @property
    def is_tested(self) -> bool:
        """Whether any of its comparisons was tested."""
        return any(each.outcome != Outcome.UNTESTED for each in self.found.values())


def pairs_of(study: StudyResults) -> list[Pair]:
    """Return each optimizer of a group against its references, the same runs once."""
    pairs: dict[object, Pair] = {}
    for group in study.layout.all_groups:
        for reference in group.references:
            for key in group.cells:
                cells = frozenset((group.ids[key], group.ids[reference]))
                if key != reference and cells not in pairs:
                    found = _found(study, group, key, reference)
                    pairs[cells] = Pair(group, key, reference, found)
    return list(pairs.values())


def _found(
    study: StudyResults, group: Group, key: str, reference: str
) -> dict[Question, Comparison]:
    """Return the comparisons of two optimizers, for the questions that were asked of them."""
    nothing = Comparison(key, reference, Outcome.UNTESTED)
    found = {}
    for metric, is_centered in QUESTIONS:
        rival = centered(reference) if is_centered else reference
        found[metric, is_centered] = study.at(group, metric)[key].against.get(rival, nothing)
    return found


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


def _amount(metric: Metric, found: Comparison) -> Markup:
    """Return a difference in words with its interval and p-values, such as ``0.202 nat/token lower,
    which is not clearly different (...)``."""
    # The size is printed without its sign, which the word after it has.
    size, *_ = decisive(abs(found.difference), found.low, found.high, digits=metric.digits + 1)
    _, low, high = decisive(found.difference, found.low, found.high, digits=metric.digits + 1)
    interval = "" if MISSING in (low, high) else f"95 % interval {low} to {high}, "
    amount = Markup("{}{} {}").format(
        size,
        _UNITS.get(metric.unit, f" {metric.unit}"),
        "lower" if found.difference < 0 else "higher",
    )
    if found.difference == 0 and not interval:
        amount = Markup("the same in each seed")
    return Markup("{}, which is {} ({}<i>p</i> {}, corrected <i>p</i> {})").format(
        amount, found.outcome, interval, p_equals(found.p), p_equals(found.p_corrected)
    )


def _told(metric: Metric, found: Comparison) -> Markup:
    """Return what a comparison says of a metric, in words."""
    return Markup("{} {} is {}").format(
        _IN_WORDS[metric.name], symbol(metric), _amount(metric, found)
    )


def _of_lead(lead: Pair) -> Iterator[Markup]:
    """Yield what the comparison that the study is about says, in sentences."""
    labels = lead.group.optimizer_labels
    start = Markup("{} against {} at {}: ").format(
        labels[lead.optimizer], labels[lead.reference], place_of(lead.group)
    )
    for names in _SENTENCES:
        told = []
        for name in names:
            metric = METRICS[name]
            found = lead.found[metric, False]
            if found.outcome != Outcome.UNTESTED:
                told.append(_told(metric, found))
        if told:
            sentence = start + Markup(", and ").join(told) + "."
            yield sentence[0].upper() + sentence[1:]
            start = Markup()
    found = lead.found[RATINGS, True]
    if found.outcome != Outcome.UNTESTED:
        yield Markup(
            "{} against {} with the mean of its embedding subtracted after training: {}."
        ).format(labels[lead.optimizer], labels[lead.reference], _told(RATINGS, found))


def _largest(study: StudyResults, pairs: Sequence[Pair]) -> Iterator[Markup]:
    """Yield the largest tested difference in loss to the first reference of any place, with that to
    the second one there.

    A run that is worse than guessing has failed, and its difference says nothing else.
    """
    tested = []
    for each in pairs:
        losses = study.at(each.group, LOSS)
        failed = any(losses[key].is_worse_than_guessing for key in (each.optimizer, each.reference))
        if each.loss.outcome != Outcome.UNTESTED and not failed:
            tested.append(each)
    largest = max(
        (each for each in tested if each.is_to_first),
        key=lambda each: abs(each.loss.difference),
        default=None,
    )
    if largest is None:
        return
    labels = largest.group.optimizer_labels
    told = [(largest.reference, largest.loss)]
    for each in tested:
        is_same = each.group.place == largest.group.place and each.optimizer == largest.optimizer
        if is_same and each.reference != largest.reference:
            told.append((each.reference, each.loss))
    yield Markup("The largest tested difference in loss from {} is that of {} at {}: {}.").format(
        labels[largest.reference],
        labels[largest.optimizer],
        place_of(largest.group),
        Markup("; ").join(
            Markup("against {}, {}").format(labels[key], _amount(LOSS, found))
            for key, found in told
        ),
    )


def worse_than_guessing(study: StudyResults, groups: Sequence[Group]) -> list[Fact]:
    """Return the losses of groups that are above that of equal probabilities."""
    found = []
    for group in groups:
        found += [fact for fact in study.at(group, LOSS).values() if fact.is_worse_than_guessing]
    return found


def _failed(study: StudyResults) -> Iterator[Markup]:
    """Yield which optimizers are worse than guessing."""
    named: dict[Markup, None] = {}
    for fact in worse_than_guessing(study, study.layout.all_groups):
        text = Markup("{} at {} (loss {}, and that of guessing is {})").format(
            fact.label,
            place_of(fact.group),
            significant(fact.sample.mean),
            fixed(fact.guessing, LOSS.digits),
        )
        named[text] = None
    if named:
        yield Markup("Worse than guessing: {}.").format(Markup("; ").join(named))


def _is_ahead(facts: Mapping[str, Fact], key: str) -> bool:
    """Tell whether an optimizer is better than all others that have a value, by our decision."""
    others = [fact.optimizer for fact in facts.values() if fact.is_measured]
    against = [facts[key].against.get(other) for other in others if other != key]
    return all(each is not None and each.outcome == Outcome.BETTER for each in against)


def _two_rules(study: StudyResults) -> Iterator[Markup]:
    """Yield where what is bold in the tables is not what is decided here."""
    rule, differing = study.plan.statistics.bold, []
    for name, table in study.layout.tables.items():
        if not table.rules.tested:
            continue
        n_bold, metrics = 0, []
        for metric in study.layout.columns[name]:
            for group in study.layout.groups[name]:
                facts = study.at(group, metric)
                bold = [key for key, fact in facts.items() if fact.bold]
                n_bold += len(bold)
                metrics += [metric for key in bold if not _is_ahead(facts, key)]
        if metrics:
            differing.append(
                Markup("{} of {} in {} ({})").format(
                    len(metrics), n_bold, table.title, symbols(dict.fromkeys(metrics))
                )
            )
    if differing:
        yield Markup(
            "Two rules: bold in the tables is {} ({}). The words here are ours: a two-sided"
            " <i>t</i>-test of the differences between runs of the same seed, after Holm's"
            " correction over the table. Some values that are bold are not better than all others"
            " by ours: {}."
        ).format(
            "the paper's rule" if rule == "paper" else "the rule of this study",
            RULES[rule].says,
            Markup("; ").join(differing),
        )


def sentences(study: StudyResults, pairs: Sequence[Pair], lead: Pair | None) -> Iterator[str]:
    """Yield what a reader needs first."""
    if lead is None:
        yield "Nothing was tested: a test needs two seeds of two optimizers at the same place."
    else:
        yield from _of_lead(lead)
    yield from _largest(study, pairs)
    yield from _failed(study)
    yield from _two_rules(study)
