"""From which number of tokens on Coupled Adam is better, and how rare tokens are calibrated, as
sentences."""

import math
from collections.abc import Iterator, Sequence

from markupsafe import Markup

from coupled_adam_bench.page.blocks import place_of, symbol, symbols
from coupled_adam_bench.page.formats import MISSING, fixed, with_interval
from coupled_adam_bench.results.facts import Outcome
from coupled_adam_bench.results.groups import Group, longest_groups
from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.statistics.scores import Verdict, verdicts
from coupled_adam_bench.statistics.student import mean_interval
from coupled_adam_bench.study.catalogue.bands import RAREST
from coupled_adam_bench.study.catalogue.metrics import METRICS, Metric

CALIBRATION = METRICS[RAREST.pooled_calibration]


def calibrations(study: StudyResults, groups: Sequence[Group]) -> list[str]:
    """Return the calibration of the rarest tokens of each optimizer at one place, an empty list if
    it was not measured."""
    texts: dict[str, str] = {}
    name = f"{CALIBRATION.name}_stderr"
    errors = study.values_of({name: CALIBRATION.task})
    facts = [fact for group in groups for fact in study.at(group, CALIBRATION).values()]
    if all(fact.sample.n < 2 for fact in facts):
        return []
    for fact in facts:
        text = MISSING
        if math.isfinite(fact.sample.mean):
            interval = mean_interval(fact.sample)
            text = with_interval(fact.sample.mean, *interval, digits=CALIBRATION.digits)
        cells = fact.group.cells[fact.optimizer]
        found = [errors.get((cell.id, name), math.nan) for cell in cells]
        if all(map(math.isfinite, found)):
            text += f", by documents ± {fixed(math.fsum(found) / len(found), CALIBRATION.digits)}"
        texts.setdefault(fact.label, f"{fact.label}: {text}")
    said = list(texts.values())
    if best := facts[0].best:
        said.append(f"the training text's own frequencies: {fixed(best[0], CALIBRATION.digits)}")
    return said


def _words(numbers: list[str], holds: list[bool]) -> str:
    """Say at which numbers of tokens, in their order, something holds."""
    if all(holds):
        return "at every D"
    if not any(holds):
        return "at no D"
    first = holds.index(True)
    if all(holds[first:]):
        return (
            f"from {numbers[first]} on" if first < len(numbers) - 1 else f"at {numbers[first]} only"
        )
    return (
        f"at {', '.join(number for number, held in zip(numbers, holds, strict=True) if held)} only"
    )


def reaches(
    study: StudyResults, verdict: Verdict
) -> Iterator[tuple[Group, dict[str, list[Metric]]]]:
    """Yield from which number of tokens on metrics go the paper's way, for each size."""
    name = verdict.table.name
    for last in longest_groups(study.layout.groups[name]):
        groups = [group for group in study.layout.groups[name] if group.setup == last.setup]
        if len(groups) < 2 or not verdict.table.rules.tested:
            continue
        numbers = [group.tokens_label for group in groups]
        metrics: dict[str, list[Metric]] = {}
        for metric in study.layout.columns[name]:
            outcomes = []
            for group in groups:
                fact = study.at(group, metric)[verdict.coupled_adam]
                outcomes.append(fact.against[verdict.adam].outcome)
            words = "not tested"
            if any(outcome != Outcome.UNTESTED for outcome in outcomes):
                words = _words(numbers, [outcome == Outcome.BETTER for outcome in outcomes])
            metrics.setdefault(words, []).append(metric)
        yield last, metrics


def sentences(study: StudyResults) -> Iterator[str]:
    """Yield from which number of tokens on Coupled Adam is better, and how rare tokens are
    calibrated."""
    for verdict in verdicts(study):
        for group, metrics in reaches(study, verdict):
            said = Markup("; ").join(
                Markup("{}: {}").format(words, symbols(of)) for words, of in metrics.items()
            )
            yield Markup(
                "<strong>From which <i>D</i> on is Coupled Adam better than Adam?</strong> ({},"
                " <i>N</i> = {}; after the correction.) {}."
            ).format(verdict.table.title, group.model_label, said)
    # The same runs can stand in several tables.
    places: dict[tuple[object, int], list[Group]] = {}
    for groups in study.layout.groups.values():
        for group in longest_groups(groups):
            places.setdefault((group.setup, group.n_tokens), []).append(group)
    told = False
    for of_place in places.values():
        if texts := calibrations(study, of_place):
            told = True
            yield Markup("<strong>Are rare tokens calibrated?</strong> ({}.) {}.").format(
                place_of(of_place[0]), "; ".join(texts)
            )
    if told:
        yield Markup(
            "{} is 0 if the rarest 1 % of the text get as much probability as they have of the"
            " held-out text. It is best where a model with the training text's own frequencies has"
            " it, since rare tokens of one text are rarer in another. Its interval is over seeds,"
            " and ± is its standard error over the documents of this text."
        ).format(symbol(CALIBRATION))
