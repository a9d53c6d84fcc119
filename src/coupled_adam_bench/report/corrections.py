"""The section on statistics: what survives corrections, what is equal, and all tests."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise, product
from math import inf, nan
from typing import Any

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
    Text,
    label_in,
    listed,
    p_cell,
    place_of,
    symbol,
)
from coupled_adam_bench.page.formats import (
    interval,
    p_equals,
    plural,
    significant,
)
from coupled_adam_bench.report import same_text
from coupled_adam_bench.results.facts import Outcome
from coupled_adam_bench.results.groups import GROUP
from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.statistics import compare
from coupled_adam_bench.statistics.declared import Material, Row, Section
from coupled_adam_bench.statistics.pairs import BETTER, TWO_SIDED, TWO_SIDED_PAIRED
from coupled_adam_bench.statistics.student import ALPHA
from coupled_adam_bench.study.plan import Plan

TESTS = {
    "p_value": "Student's t-test, one-sided, as in the paper",
    "p_bh": "the same, two-sided, after Benjamini-Hochberg",
    "p_holm": "the same, two-sided, after Holm",
    TWO_SIDED_PAIRED: "paired t-test, two-sided",
    "p_paired_holm": "the same, after Holm, which decides on this page",
}
"""The label of each p-value whose findings are counted."""


def tested_rows(study: StudyResults, name: str) -> list[Row]:
    """Return the comparisons of the best mean of a table, as rows: all their tests, with the group,
    the metric and the comparison."""
    rows: list[Row] = []
    for group, metric in product(study.layout.groups[name], study.layout.columns[name]):
        for key, fact in study.at(group, metric).items():
            of_best = [each for each in fact.against.values() if "bold" in each.row]
            for each in of_best:
                if each.row["optimizer"] == key:
                    ours = {GROUP: group, METRIC: metric, COMPARISON: each}
                    rows.append({**each.row, "p_paired_holm": each.p_corrected, **ours})
    return rows


METRIC, COMPARISON = "measured", "comparison"
"""The keys under which these rows have their metric and their comparison."""


def _interval(row: Row, of: str = "") -> str:
    return interval(row[f"{of}low"], row[f"{of}high"])


def _count(count: int) -> Cell:
    return Cell(str(count), "" if count else "zero")


def _survivors(study: StudyResults, name: str, rows: Sequence[Row]) -> Iterator[Block]:
    """Say what of a table's findings survives."""
    title, metrics = study.layout.tables[name].title, study.layout.columns[name]
    bold: defaultdict[Any, list[Outcome]] = defaultdict(list)
    for row in rows:
        if row["bold"]:
            found = bold[row[GROUP].place, row["metric"]]
            # A value that is missing altogether keeps none from being bold, and has no test.
            if row["n_reference"]:
                found.append(row[COMPARISON].outcome)

    def surviving(*outcomes: Outcome) -> int:
        survivors = 0
        for found in bold.values():
            survivors += all(each in outcomes for each in found)
        return survivors

    yield Heading(f"{title}: what survives a correction")
    is_are = "is" if len(bold) == 1 else "are"
    uncorrected = surviving(Outcome.BETTER, Outcome.BETTER_UNCORRECTED)
    yield Text(
        f"{plural(len(bold), 'value')} of the table {is_are} bold. Better than all others by"
        f" two-sided tests paired by seed: {uncorrected} of {len(bold)}, and after Holm's"
        f" correction: {surviving(Outcome.BETTER)}."
        if bold
        else "No value of the table is bold."
    )
    lines = []
    for column, label in TESTS.items():
        counts = dict.fromkeys(metrics, 0)
        for row in rows:
            counts[row[METRIC]] += bool(row[column] < ALPHA)
        cells = [_count(count) for count in counts.values()]
        lines.append([label, *cells, str(sum(counts.values()))])
    caption = Markup("Comparisons with <i>p</i> &lt; 0.05, by test and metric")
    columns = listed(("Test", "row"), *metrics, ("all", "number"))
    yield Grid(f"What survives, {title}", columns, lines, caption=caption)


def _equal(study: StudyResults, name: str) -> Iterator[str]:
    """Yield which optimizers two one-sided tests, paired by seed, show to be equal within the
    study's margins."""
    for group, metric in product(study.layout.groups[name], study.layout.columns[name]):
        margin = study.plan.statistics.margins.get(metric.name, nan)
        for one, other in combinations(study.at(group, metric).values(), 2):
            p = one.against[other.optimizer].p_equivalent
            if p < ALPHA:
                yield Markup("{} and {}: {} is equal within {:g} ({}, <i>p</i> {}).").format(
                    one.label, other.label, symbol(metric), margin, place_of(group), p_equals(p)
                )


def _number(heading: str, column: str) -> Column[Row]:
    return Column(heading, lambda row: significant(row[column]), "number")


def _p_column(heading: str, column: str) -> Column[Row]:
    return Column(Markup("<i>p</i>{}").format(heading), lambda row: p_cell(row[column]), "number")


def _ends(heading: str, of: str) -> Column[Row]:
    return Column(heading, lambda row: _interval(row, of), "number")


def _significance(row: Row) -> str:
    if row["rule"] == BETTER:
        return "not tested"
    return "yes" if row["significant"] else "no"


_NUMBERS: tuple[Column[Row], ...] = (
    *PLACE_COLUMNS,
    Column("Metric", lambda row: symbol(row[METRIC]), "row"),
    Column("Optimizer", label_in("optimizer")),
    Column("minus", label_in("reference")),
    _number("difference", "difference"),
    _ends("95 % interval", ""),
    _number(Markup("<i>t</i>"), "t"),
    _p_column("", TWO_SIDED),
    _p_column(", B.-H.", "p_bh"),
    _p_column(", Holm", "p_holm"),
    Column("pairs", lambda row: str(row["n_pairs"]), "number"),
    _ends("95 % interval, paired", "paired_"),
    _p_column(", paired", TWO_SIDED_PAIRED),
    _p_column(", paired, Holm", "p_paired_holm"),
    Column("Decided", lambda row: row[COMPARISON].outcome),
    _p_column(", one-sided", "p_value"),
    _p_column(", one-sided, Welch", "p_welch"),
    _p_column(", one-sided, sign flips", "p_permutation"),
    _ends("bootstrap", "bootstrap_"),
    _number(Markup("Hedges <i>g</i>"), "hedges_g"),
    Column("By the rule of bold", _significance),
    Column("Remark", lambda row: row["reason"] or row[COMPARISON].reason, "wrap"),
)
_EQUIVALENCE: tuple[Column[Row], ...] = (
    _number("margin", "margin"),
    _p_column(", within the margin", "p_equivalence"),
    _p_column(", within the margin, paired", "p_equivalence_paired"),
)
"""Columns of a study with margins: two one-sided tests that a difference is smaller than the
margin."""


_INTRODUCTION = Markup(
    "In each block and metric, the optimizer with the best mean is compared with each other one."
    " Two rules stand beside each other. A value is bold by {}. A comparison is decided as under"
    " <a href='#verdict'>who is better</a>: by the two-sided paired test after Holm's correction,"
    " over all pairs of optimizers in all blocks and metrics of the table. A comparison of the same"
    " runs that several tables have is decided in the first, and stands on this page with the"
    " numbers of that table; tests.csv has it in each. Columns that are called one-sided are of"
    " tests whose direction the data choose, as in the paper: of two equal optimizers one comes out"
    " significantly better in 10 % of the cases. All other p-values, and the intervals at 95 %, are"
    " two-sided. Numbers below 0.05 are set in a heavier type. The whole lists are <a"
    ' href="../tests.csv">tests.csv</a> and <a href="../paired.csv">paired.csv</a>.'
)


def _shared_text(plan: Plan) -> Iterator[Block]:
    """Warn of seeds that read the same text, against which no test over seeds is proof
    (training/order.py)."""
    ranks = {
        cell.training.data_ranks
        for cell in plan.cells.values()
        if cell.training.data_order == "per_rank"
    }
    seeds = sorted({cell.seed for cell in plan.cells.values()})
    # Rank r draws with the seed seed + r, so two seeds share the streams of all ranks but as many
    # as they differ by.
    gap = min((second - first for first, second in pairwise(seeds)), default=inf)
    shared = 1 - gap / max(ranks) if ranks else 0
    if shared > 0:
        yield Text(
            f"Seeds of this study read the same text: two of them share {100 * shared:.0f} % of the"
            " windows of a step. As far as the noise comes from the text, the spread over seeds is"
            " too small, and the tests find too many differences."
        )


def _blocks(material: Material) -> Iterator[Block]:
    study = material.study
    yield Text(_INTRODUCTION.format(compare.RULES[material.plan.statistics.bold].says))
    yield from _shared_text(material.plan)
    every: list[Row] = []
    for name in study.layout.tables:
        rows = tested_rows(study, name)
        if study.layout.tables[name].rules.tested and rows:
            yield from _survivors(study, name, rows)
        # The same runs are compared once on the page; tests.csv has them in each table.
        here = ("", study.layout.tables[name].title)
        every += [row for row in rows if row[COMPARISON].decided_in in here]
    # What is not significantly different is equal only where a test says so.
    if margins := material.plan.statistics.margins:
        equal = [text for name in study.layout.tables for text in _equal(study, name)]
        yield Heading("Equal within a margin")
        yield Text(
            "Margins of the study are {}. Each pair of optimizers is tested by two one-sided"
            " tests paired by seed. {}".format(
                ", ".join(f"{margin:g} for {name}" for name, margin in margins.items()),
                (
                    "All others are not shown to be equal."
                    if equal
                    else "No two are shown to be equal."
                ),
            )
        )
        yield Items(equal)
    yield from same_text.blocks(material)
    yield Heading("The best of each block against the others, over seeds")
    title = Column[Row]("Table", lambda row: study.layout.tables[row[GROUP].table].title)
    columns = [title, *_NUMBERS, *(_EQUIVALENCE if margins else ())]
    yield Fold(plural(len(every), "comparison"), [Grid("Tests", columns, every, tall=True)])


SECTION = Section("statistics", "Statistics", _blocks)
