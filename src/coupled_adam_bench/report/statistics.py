"""The section on statistics: what survives corrections, what is equal, the same text under two models, all tests."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from math import isnan
from typing import Any

from markupsafe import Markup

from coupled_adam_bench.report.blocks import (
    PLACE,
    PLACE_COLUMNS,
    Block,
    Cell,
    Column,
    Fold,
    Grid,
    Heading,
    Kind,
    P,
    Part,
    Text,
    listed,
    symbol,
)
from coupled_adam_bench.report.formats import MISSING, interval, p_value, plural, significant
from coupled_adam_bench.results.comparisons import ALL_SEEDS, AVERAGE, BETTER, DOCUMENTS, HELD_OUT
from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.statistics import compare, paired_text
from coupled_adam_bench.statistics.declared import Material, Placed, Row, Section
from coupled_adam_bench.statistics.stated_plan import is_exploratory
from coupled_adam_bench.statistics.student import ALPHA
from coupled_adam_bench.study.catalog.metrics import METRICS, Metric
from coupled_adam_bench.study.config.execution import BoldRule

TESTS = {
    "p_value": "Student's t-test, as in the paper",
    "p_bh": "the same, two-sided, after Benjamini-Hochberg",
    "p_holm": "the same, two-sided, after Holm",
    "p_paired": "paired t-test",
    "p_paired_holm": "paired t-test, two-sided, after Holm",
}
"""The label of each p-value whose findings are counted."""
RULES: dict[BoldRule, str] = {
    "paper": "Student's t-test, the paper's",
    "paired": "the paired t-test",
    "holm": "Student's t-test, two-sided, after Holm's correction for all pairs of optimizers of the table",
}


def _p(value: float) -> Cell:
    return Cell(p_value(value), "win" if value < ALPHA else "")


def _sure(row: Row) -> str:
    """Return a difference with its interval below it, if it has one."""
    text = significant(row["difference"])
    return text if isnan(row["low"]) else Markup("{}<br><small>{}</small>").format(text, _interval(row))


def _interval(row: Row, of: str = "") -> str:
    return interval(row[f"{of}low"], row[f"{of}high"])


def _survivors(study: StudyResults, name: str, comparisons: Sequence[Placed]) -> Iterator[Block]:
    """Say what of a table's findings survives."""
    title, metrics = study.tables[name].title, study.columns(name)
    bold: defaultdict[Any, list[Placed]] = defaultdict(list)
    for each in comparisons:
        if each.row["bold"]:
            bold[each.group.place, each.metric.name].append(each)

    def surviving(column: str) -> int:
        # A value that is missing altogether keeps none from being bold, and has no test.
        return sum(all(c.row[column] < ALPHA or isnan(c.row[column]) for c in values) for values in bold.values())

    yield Heading(f"{title}: what survives a correction")
    is_are = "is" if len(bold) == 1 else "are"
    yield Text(
        f"{plural(len(bold), 'value')} of the table {is_are} bold. After Benjamini-Hochberg's correction, "
        f"{surviving('p_bh')} of them are still significant, after Holm's {surviving('p_holm')}."
        if bold
        else "No value of the table is bold."
    )
    lines = []
    for column, label in TESTS.items():
        counts = [sum(c.row[column] < ALPHA for c in comparisons if c.metric is metric) for metric in metrics]
        lines.append([label, *(Cell(str(count), "" if count else "zero") for count in counts), str(sum(counts))])
    caption = Markup("Comparisons with <i>p</i> &lt; 0.05, by test and metric")
    columns = listed(("Test", "row"), *metrics, ("all", "number"))
    yield Grid(f"What survives, {title}", columns, lines, caption=caption)


def _within(row: Mapping[Any, Any]) -> str:
    if row["p_equivalence"] < ALPHA:
        return "yes"
    if row["p_equivalence_paired"] < ALPHA:
        return "by pairs only"
    return "not tested" if row["reason"] else "not shown"


def _compared(study: StudyResults) -> list[Column[Placed]]:
    return [
        Column("Table", lambda c: study.tables[c.group.table].title),
        *PLACE_COLUMNS,
        Column("Metric", lambda c: symbol(c.metric), "row"),
        Column("Better", lambda c: c.label("optimizer")),
        Column("than", lambda c: c.label("reference")),
    ]


def _equivalence(study: StudyResults, comparisons: Sequence[Placed]) -> Iterator[Block]:
    yield Heading("Equivalence")
    yield Text(
        Markup(
            "Is a difference smaller than the margin that the study has set before? Two one-sided tests say so if "
            "<i>p</i> &lt; 0.05. The worse optimizer is then no worse than the margin. A larger <i>p</i> shows nothing."
        )
    )
    columns: list[Column[Placed]] = [
        *_compared(study),
        Column("difference", lambda c: _sure(c.row), "number"),
        Column("margin", lambda c: significant(c.row["margin"]), "number"),
        Column(Markup("<i>p</i>, pooled"), lambda c: _p(c.row["p_equivalence"]), "number"),
        Column(Markup("<i>p</i>, paired"), lambda c: _p(c.row["p_equivalence_paired"]), "number"),
        Column("Within", lambda c: _within(c.row)),
    ]
    yield Grid("Equivalence", columns, comparisons, tall=True)


_TEXT: tuple[tuple[str, Kind] | Metric, ...] = (
    *PLACE, ("Optimizer", "row"), ("minus", "text"), ("held-out documents", "number"), METRICS["loss"], P,
    ("seeds", "number"), ("documents", "number"), METRICS["acc"], P,
)  # fmt: skip


def _text_line(pair: Sequence[Placed]) -> list[str | Cell]:
    """Return the line of two optimizers, given their rows of ``paired.csv``: of all seeds where there are several.

    Beside the loss stands at how many seeds it differs in the same direction as over all.
    """
    first, rows = pair[0], [each.row for each in pair]
    seed = ALL_SEEDS if any(row["seed"] == ALL_SEEDS for row in rows) else first.row["seed"]
    shown = {(row["unit"], row["task"]): row for row in rows if row["seed"] == seed}
    loss = shown[HELD_OUT, METRICS["loss"].task]
    of_seeds = [row["difference"] for row in rows if row["unit"] == HELD_OUT and row["seed"] != ALL_SEEDS]
    agreeing = sum(difference * loss["difference"] > 0 for difference in of_seeds)
    place = [first.group.tokens_label, first.group.model_label, first.label("optimizer"), first.label("reference")]
    accuracy = _text_cells(shown.get((DOCUMENTS, AVERAGE)))
    return [*place, *_text_cells(loss), f"{agreeing} of {len(of_seeds)}", *accuracy]


def _text_cells(row: Row | None) -> list[str | Cell]:
    return [MISSING] * 3 if row is None else [str(row["n"]), _sure(row), _p(row["p_value"])]


def _same_text(material: Material) -> Iterator[Block]:
    yield Heading("The same text under two models")
    yield Text(
        Markup(
            "Models of one seed are compared document by document, of held-out text and of the downstream tasks. Over "
            'seeds, a document counts once, with its mean difference; "2 of 3" seeds have a difference of the loss in '
            "the same direction. These <i>p</i> are two-sided. They say whether other text of the kind would show the "
            "same difference between these very models, also where there is one seed; they do not say what other seeds "
            'would show. Each task, each seed and what is missing: <a href="../paired.csv">paired.csv</a>.'
        )
    )
    for name, table in material.study.tables.items():
        pairs: defaultdict[Any, list[Placed]] = defaultdict(list)
        for each in material.placed(paired_text.STATISTIC, name):
            pairs[each.group.place, each.row["optimizer"]].append(each)
        lines = [_text_line(found) for found in pairs.values()]
        if lines:
            yield Heading(table.title, 4)
            yield Grid(f"The same text, {table.title}", listed(*_TEXT), lines, tall=True)


def _numbers(material: Material) -> list[Column[Placed]]:
    exploratory = is_exploratory(material)

    def significance(c: Placed) -> str:
        says = "not tested" if c.row["rule"] == BETTER else "yes" if c.row["significant"] else "no"
        pair = (c.row["optimizer"], c.row["reference"])
        return f"{says} (exploratory)" if exploratory(c.group, c.metric, *pair) else says

    def number(heading: str, column: str) -> Column[Placed]:
        return Column(heading, lambda c: significant(c.row[column]), "number")

    def p(heading: str, column: str) -> Column[Placed]:
        return Column(Markup("<i>p</i>{}").format(heading), lambda c: _p(c.row[column]), "number")

    def ends(heading: str, of: str) -> Column[Placed]:
        return Column(heading, lambda c: _interval(c.row, of), "number")

    return [
        number("difference", "difference"),
        ends("95 % interval", ""),
        number(Markup("<i>t</i>"), "t"),
        p("", "p_value"),
        p(", B.-H.", "p_bh"),
        p(", Holm", "p_holm"),
        p(", Welch", "p_welch"),
        Column("pairs", lambda c: str(c.row["n_pairs"]), "number"),
        p(", paired", "p_paired"),
        ends("95 % interval, paired", "paired_"),
        p(", sign flips", "p_permutation"),
        ends("bootstrap", "bootstrap_"),
        number(Markup("Hedges <i>g</i>"), "hedges_g"),
        Column("Significant", significance),
        Column("Remark", lambda c: c.row["reason"], "wrap"),
    ]


def _blocks(material: Material) -> Iterator[Block]:
    study = material.study
    yield Part("statistics.html.j2", {"rule": RULES[material.plan.statistics.bold]})
    every = []
    for name in study.tables:
        comparisons = material.placed(compare.STATISTIC, name)
        if study.tables[name].rules.tested and comparisons:
            yield from _survivors(study, name, comparisons)
        every += comparisons
    if with_margin := [c for c in every if not isnan(c.row["margin"])]:
        yield from _equivalence(study, with_margin)
    yield from _same_text(material)
    yield Heading("All comparisons over seeds")
    columns = [*_compared(study), *_numbers(material)]
    yield Fold(plural(len(every), "comparison"), [Grid("Tests", columns, every, tall=True)])


SECTION = Section("statistics", "Statistics", _blocks)
