"""The caption of a printed table, and the notes below it, read from its facts."""

import math
from collections.abc import Sequence

from coupled_adam_bench.page.formats import MISSING, fixed
from coupled_adam_bench.results.facts import Fact
from coupled_adam_bench.results.groups import Group, Layout
from coupled_adam_bench.statistics.compare import RULES
from coupled_adam_bench.statistics.student import ALPHA
from coupled_adam_bench.study.catalogue.metrics import FEW_DOCUMENTS, LOSS, Metric
from coupled_adam_bench.study.catalogue.tables import TABLES, Table
from coupled_adam_bench.study.settings.execution import BoldRule

WORSE = "†"
"""The mark of a loss that is worse than that of guessing."""


def caption(layout: Layout, table: Table) -> str:
    """Return the caption of a table; if a study has several, one that is not the paper's begins
    with its title."""
    labels = dict.fromkeys(layout.optimizer_labels[table.name].values())
    what = " and ".join(labels) if len(labels) == 2 else "Embedding optimizers"
    paper = TABLES.get(table.name)
    is_papers = paper is not None and paper.title == table.title
    is_one_of_several = len(layout.tables) > 1
    title = f"{table.title.removesuffix('.')}. " if is_one_of_several and not is_papers else ""
    study = layout.plan.title or layout.plan.name
    return f"{title}{what} at D training tokens and N parameters. Study: {study}."


def seed_note(groups: tuple[Group, ...]) -> str:
    """Say over how many seeds the values are."""
    counts = sorted({len(cells) for group in groups for cells in group.cells.values()})
    if counts == [1]:
        return "Single runs, one seed each."
    seeds = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"Mean and sample standard deviation over {seeds} seeds: 0.123 (4) means 0.123 ± 0.004."


def bold_note(table: Table, rule: BoldRule) -> str:
    """Say what bold means."""
    others = table.rules.bold_beats
    if not table.rules.tested:
        return f"Bold: better than {others}; no test."
    return f"Bold: significantly better than {others} ({RULES[rule].says}, p < {ALPHA:g})."


def missing_notes(facts: Sequence[Fact], left_out: Sequence[Metric]) -> list[str]:
    """Say what is missing among the values of a table, and which columns were ``left_out``."""
    notes = []
    if left_out:
        names = ", ".join(metric.description for metric in left_out)
        notes.append(f"Left out, since no run has a value: {names}.")
    missing = sum(math.isnan(fact.sample.mean) for fact in facts)
    if missing:
        note = (
            f"Missing ({MISSING}): {missing} of {len(facts)} values, where runs diverged, lack an"
            " evaluation or have an undefined metric; tests.csv has the reasons."
        )
        if any(0 < fact.sample.n < len(fact.by_seed) for fact in facts):
            note += (
                " Where an optimizer lacks only some of its seeds, nothing in that column of its"
                " block is bold."
            )
        notes.append(note)
    return notes


def guessing_notes(losses: Sequence[Fact]) -> list[str]:
    """Say what the mark of a loss means that is worse than guessing."""
    found = sorted({fact.guessing for fact in losses if fact.is_worse_than_guessing})
    if not found:
        return []
    guessing = ", ".join(fixed(each, LOSS.digits) for each in found)
    return [f"{WORSE}: worse than guessing, a loss above that of equal probabilities, {guessing}."]


def held_out_notes(facts: Sequence[Fact]) -> list[str]:
    """Say how much text a loss is over, where the table has one and its size is known."""
    losses = [fact for fact in facts if fact.metric.stage == "test_loss"]
    tokens = [size for fact in losses for size in fact.held_out_tokens]
    documents = [size for fact in losses for size in fact.held_out_documents]
    if not documents:
        return []
    # Cells that were evaluated on other text have other sizes: then the note has both ends.
    ranges = []
    for found in (tokens, documents):
        ends = sorted({min(found), max(found)})
        ranges.append(" to ".join(f"{value:,.0f}" for value in ends))
    n_tokens, n_documents = ranges
    if any(fact.group.first.training.data_order == "pairs" for fact in losses):
        return [f"Losses are over all {n_tokens} pairs of their source, so they are exact."]
    few = (
        ", which are few: other text may give another loss (paired.csv)"
        if min(documents) < FEW_DOCUMENTS
        else ""
    )
    return [f"Losses are over {n_tokens} tokens of {n_documents} held-out documents{few}."]


def best_notes(facts: Sequence[Fact], columns: Sequence[Metric]) -> list[str]:
    """Say where the metrics of a table are best that have no better side."""
    notes = []
    for metric in columns:
        if metric.best_at is None:
            continue
        # Where the best value depends on the text, studies of several texts have several.
        found = sorted({best for fact in facts if fact.metric == metric for best in fact.best})
        if found:
            place = " to ".join(
                dict.fromkeys(fixed(best, metric.digits) for best in (found[0], found[-1]))
            )
            whose = (
                ", what the training text's own frequencies have,"
                if isinstance(metric.best_at, str)
                else ""
            )
            notes.append(
                f"{metric.description.capitalize()}: best at {place}{whose} and compared by the"
                " distance."
            )
        else:
            notes.append(
                f"{metric.description.capitalize()}: what is best was not measured, so nothing is"
                " bold."
            )
    return notes


def edge_notes(losses: Sequence[Fact], n_groups: int) -> list[str]:
    """Warn of settings that a trial chose at the edge of what it tried."""
    found = []
    for fact in losses:
        group = fact.group
        place = f" at D = {group.tokens_label}, N = {group.model_label}" if n_groups > 1 else ""
        found += [f"{fact.label}{place} ({edge})" for edge in fact.edges]
    if not found:
        return []
    return [
        "Warning: chosen at the edge of what was tried, beyond which better settings may lie:"
        f" {', '.join(found)}."
    ]
