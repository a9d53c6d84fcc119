"""Tables as Markdown, for a README or an issue, and as CSV, with unrounded numbers, for programs and spreadsheets."""

import html
import re
from typing import TYPE_CHECKING, Any

from coupled_adam_bench.report.table import PrintedTable, Value
from coupled_adam_bench.results.tidy import typed_frame
from coupled_adam_bench.statistics.t_test import summarize
from coupled_adam_bench.study.catalog.metrics import Metric

if TYPE_CHECKING:
    from pandas import DataFrame

_MENTION = {"@": "&#64;"}  # GitHub links what follows a backslash and @ too
_MARKED = re.compile(r"[\\`*_\[\]#|~$]|[&<>@]|\s+")


def markdown_escape(text: str) -> str:
    """Return plain text as Markdown that shows it, in a cell of a table too: no link, mention, formula or tag."""

    def escaped(match: "re.Match[str]") -> str:
        found = match[0]
        return " " if found.isspace() else _MENTION.get(found, f"\\{found}")

    return _MARKED.sub(escaped, text)


def _symbol(metric: Metric) -> str:
    """Return the symbol of a metric, which is HTML, in Markdown: what stands below a letter stands behind it."""
    text = re.sub(r"<sub>(.*?)</sub>", r" (\1)", metric.html.replace("<sup>r</sup>", "ʳ"))
    parts = re.split(r"</?i>", text)
    return "*".join(markdown_escape(html.unescape(part)) for part in parts)


def _cell(value: Value) -> str:
    return f"**{value.text}**" if value.bold else value.text


def markdown(table: PrintedTable) -> str:
    """Return a table in the Markdown of GitHub, with caption and notes as paragraphs."""
    symbols = map(_symbol, table.columns)
    arrows = ["↑" if metric.higher_is_better else "↓" for metric in table.columns]
    lines = [
        ["*D*", "*N*", "Optimizer", *map(" ".join, zip(symbols, arrows, strict=True))],
        ["---", "---", "---", *("---:" for _ in table.columns)],
        *([*map(markdown_escape, (row.tokens, row.size, row.label)), *map(_cell, row.cells)] for row in table.rows),
    ]
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    notes = "".join(f"\n- {markdown_escape(note)}" for note in table.notes)
    return f"{markdown_escape(table.caption)}\n\n{text}\n{notes}\n"


def numbers(table: PrintedTable) -> "DataFrame":
    """Return a table's rows with the unrounded ``mean`` and ``sd``, ``n`` and ``bold`` of each metric.

    ``n`` is the number of finite values; the mean of a row that lacks a seed is NaN, as in print.
    """
    columns: dict[str, type] = {
        "D": str, "N": str, "optimizer": str, "n_tokens": int, "n_params": int, "optimizer_key": str,
    }  # fmt: skip
    kinds: dict[str, type] = {"mean": float, "sd": float, "n": int, "bold": bool}
    columns |= {f"{metric.name}.{name}": kind for metric in table.columns for name, kind in kinds.items()}
    records = []
    for row in table.rows:
        record: dict[str, Any] = {
            "D": row.tokens, "N": row.size, "optimizer": row.label, "n_tokens": row.n_tokens, "n_params": row.n_params,
            "optimizer_key": row.optimizer,
        }  # fmt: skip
        for metric, value in zip(table.columns, row.cells, strict=True):
            sample = summarize(value.values)
            found = {"mean": sample.mean, "sd": sample.sd, "n": sample.n, "bold": value.bold}
            record |= {f"{metric.name}.{name}": number for name, number in found.items()}
        records.append(record)
    return typed_frame(records, columns)
