"""The section "Does the gain grow?" of the report: the difference of two optimizers against tokens and parameters."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coupled_adam_bench.report.formats import MISSING, p_value, plural, significant
from coupled_adam_bench.results.groups import Setup
from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.statistics.scores import LOSS
from coupled_adam_bench.statistics.student import ALPHA
from coupled_adam_bench.statistics.trend import NO_CROSSING, PARAMETERS, TOKENS, read_trend
from coupled_adam_bench.study.catalog.metrics import Metric
from coupled_adam_bench.study.cells import readable_count

CROSSED = {LOSS: "losses", "r_bar": "word similarities"}
"""The metrics of which the report says where two optimizers cross, and how it names their values."""
Row = Mapping[Hashable, Any]


@dataclass(frozen=True)
class TrendRow:
    """A metric and a pair of optimizers: what each doubling of tokens and of parameters adds, as text."""

    metric: Metric
    optimizer: str
    reference: str
    tokens: str
    p_value: str
    p_holm: str
    parameters: str
    n: str
    reason: str


@dataclass(frozen=True)
class TrendTable:
    """The lines of a table's groups; ``answers`` are sentences on the loss, ``crossings`` on ``CROSSED``."""

    title: str
    answers: tuple[str, ...]
    crossings: tuple[str, ...]
    rows: tuple[TrendRow, ...]


def _interval(row: Row) -> str:
    if row["estimate"] != row["estimate"]:
        return MISSING
    return f"{significant(row['estimate'])} [{significant(row['low'])}, {significant(row['high'])}]"


def _answer(row: Row, optimizer: str, reference: str, where: str) -> str:
    """Return what the test of the loss against tokens says."""
    if row["p_value"] != row["p_value"]:
        return f"Whether the gain of {optimizer} over {reference} grows with D cannot be told{where}: {row['reason']}."
    word = "grows" if row["p_value"] < ALPHA else "is not shown to grow"
    return (
        f"The gain of {optimizer} over {reference} in loss {word} with D{where}: each doubling changes the "
        f"difference by {_interval(row)} nat/token (one-sided p {_equals(p_value(row['p_value']))})."
    )


def _equals(text: str) -> str:
    return text if text.startswith("<") else f"= {text}"


def _crossings(study: StudyResults, rows: Sequence[Row], labels: Mapping[str, str]) -> list[str]:
    """Return where the fitted values of a metric of each pair cross; where they do not is in one sentence."""
    sentences = []
    for optimizer, reference in dict.fromkeys((row["optimizer"], row["reference"]) for row in rows):
        of_pair = [row for row in rows if (row["optimizer"], row["reference"]) == (optimizer, reference)]
        fitted = f"The fitted {CROSSED[of_pair[0]['metric']]} of {labels[optimizer]} and {labels[reference]}"
        for row in of_pair:
            if row["tokens"] == row["tokens"]:
                interval = f"95 % interval {_tokens(row['low'])} to {_tokens(row['high'])}"
                where = f"N = {study.layout.labels[_setup(row)]}"
                sentences.append(
                    f"{fitted} cross at D = {_tokens(row['tokens'])} for {where} ({row['reason'] or interval})."
                )
        if apart := [study.layout.labels[_setup(row)] for row in of_pair if row["reason"] == NO_CROSSING]:
            sentences.append(f"{fitted} do not cross within the numbers of tokens of N = {', '.join(apart)}.")
    return sentences


def _tokens(value: float) -> str:
    return readable_count(round(value)) if value < 1e18 else "more than 10^18"


def trend_section(study: StudyResults, folder: Path) -> tuple[TrendTable, ...]:
    """Return the tables of the section from the files in ``folder``; there is none for a study of single places."""
    frame, crossings = read_trend(folder)
    rows, crossed = frame.to_dict("records"), crossings.to_dict("records")
    shown = []
    for name, table in study.tables.items():
        of_table = [row for row in rows if row["table"] == name and row["term"] == TOKENS]
        if not of_table:
            continue
        labels = {key: label for group in study.groups[name] for key, label in group.optimizer_labels.items()}
        families = {(row["data"], row["recipe"]) for row in of_table}
        of_loss = [row for row in of_table if row["metric"] == LOSS]
        shown.append(
            TrendTable(
                table.title,
                tuple(
                    _answer(row, labels[row["optimizer"]], labels[row["reference"]], _where(row, len(families)))
                    for row in of_loss
                ),
                tuple(
                    sentence
                    for metric in CROSSED
                    for sentence in _crossings(
                        study, [row for row in crossed if (row["table"], row["metric"]) == (name, metric)], labels
                    )
                ),
                tuple(_row(study, row, _other_term(rows, row), labels) for row in of_table),
            )
        )
    return tuple(shown)


def _where(row: Row, n_families: int) -> str:
    return f" on {row['data']} ({row['recipe']})" if n_families > 1 else ""


def _setup(row: Row) -> Setup:
    return Setup(row["n_params"], row["model"], row["data"], row["recipe"])


def _other_term(rows: list[dict[Hashable, Any]], row: Row) -> Row:
    """Return the row on parameters that belongs to one on tokens."""
    same = ("table", "data", "recipe", "metric", "optimizer", "reference")
    return next(each for each in rows if each["term"] == PARAMETERS and all(each[name] == row[name] for name in same))


def _row(study: StudyResults, row: Row, parameters: Row, labels: Mapping[str, str]) -> TrendRow:
    return TrendRow(
        metric=study.layout.metrics[row["metric"]],
        optimizer=labels[row["optimizer"]],
        reference=labels[row["reference"]],
        tokens=_interval(row),
        p_value=p_value(row["p_value"]),
        p_holm=p_value(row["p_holm"]),
        parameters=_interval(parameters),
        n=f"{plural(row['n'], 'pair')}, {plural(row['n_seeds'], 'seed')}",
        reason=row["reason"],
    )
