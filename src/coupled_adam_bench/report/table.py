"""The one table model: what a table says, in plain text, for every renderer."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from coupled_adam_bench.plan import Plan
from coupled_adam_bench.report.formats import MISSING, shorthand
from coupled_adam_bench.results.groups import PAIRWISE, UNTESTED, Group, Values, table_groups, table_values
from coupled_adam_bench.results.schema import METRICS, Metric
from coupled_adam_bench.statistics.compare import winners
from coupled_adam_bench.statistics.t_test import ALPHA, summarize

if TYPE_CHECKING:
    from pandas import DataFrame

Winners = Mapping[tuple[str, int, int, str], str | None]


@dataclass(frozen=True)
class Value:
    """A number as it is printed: ``mean`` and ``spread``, such as ``0.123`` and ``(4)``; ``spread`` may be empty."""

    mean: str
    spread: str
    bold: bool

    @property
    def text(self) -> str:
        """The whole number."""
        return f"{self.mean} {self.spread}".rstrip()

    @property
    def missing(self) -> bool:
        """Whether there is no number."""
        return self.mean == MISSING


@dataclass(frozen=True)
class Row:
    """An optimizer and its value in every column."""

    optimizer: str
    label: str
    cells: tuple[Value, ...]


@dataclass(frozen=True)
class SizeGroup:
    """Rows with the same number of parameters."""

    label: str
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class TokensGroup:
    """Rows with the same number of tokens."""

    label: str
    sizes: tuple[SizeGroup, ...]

    @property
    def n_rows(self) -> int:
        """Rows of all sizes."""
        return sum(len(size.rows) for size in self.sizes)


@dataclass(frozen=True)
class Column:
    """A metric; ``spread`` is the length of its longest standard deviation in print, for alignment."""

    metric: Metric
    spread: int


@dataclass(frozen=True)
class Table:
    """A table; all of its text is plain, each renderer escapes it."""

    name: str
    study: str
    caption: str
    columns: tuple[Column, ...]
    groups: tuple[TokensGroup, ...]
    notes: tuple[str, ...]


def _row(group: Group, key: str, values: Values, best: Winners) -> Row:
    cells = []
    for metric in METRICS.values():
        mean, _, spread = shorthand(summarize(group.samples(values, metric)[key]), metric.digits).partition(" ")
        place = (group.table, group.n_params, group.n_tokens, metric.name)
        if place not in best and len(group.cells) > 1:
            raise ValueError(
                f"tests.csv: no row for {group.table}, {group.n_params} parameters, {group.n_tokens} tokens, "
                f"{metric.name}; run the tests of this results.csv again"
            )
        cells.append(Value(mean, spread, best.get(place) == key))
    return Row(key, group.cells[key][0].optimizer.label, tuple(cells))


def _caption(plan: Plan, groups: tuple[Group, ...]) -> str:
    labels = list(dict.fromkeys(cells[0].optimizer.label for group in groups for cells in group.cells.values()))
    what = " and ".join(labels) if len(labels) == 2 else "Embedding optimizers"
    return f"{what} at D training tokens and N parameters. Study: {plan.title or plan.name}."


def _seed_note(groups: tuple[Group, ...]) -> str:
    counts = sorted({len(cells) for group in groups for cells in group.cells.values()})
    if counts == [1]:
        return "Single runs, one seed each."
    seeds = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"Mean and sample standard deviation over {seeds} seeds: 0.123 (4) means 0.123 ± 0.004."


def _bold_note(name: str) -> str:
    if name == UNTESTED:
        return "Bold: better than the other values of its block; no test."
    others = "the other optimizer" if name == PAIRWISE else "every other value of its column and block"
    level = f"one-sided Student's t-test of the unrounded values, pooled variance, p < {ALPHA:g}"
    return f"Bold: significantly better than {others} ({level})."


def _missing_notes(groups: tuple[Group, ...], values: Values, shown: list[Value]) -> list[str]:
    missing = sum(value.missing for value in shown)
    if not missing:
        return []
    samples = [
        sample for group in groups for metric in METRICS.values() for sample in group.samples(values, metric).values()
    ]
    note = (
        f"Missing ({MISSING}): {missing} of {len(shown)} values, where runs diverged, lack an evaluation or have an "
        "undefined metric; tests.csv has the reasons."
    )
    if any(0 < summarize(sample).n < len(sample) for sample in samples):
        note += " Where an optimizer lacks only some of its seeds, nothing in that column of its block is bold."
    return [note]


def _build(plan: Plan, name: str, groups: tuple[Group, ...], values: Values, best: Winners) -> Table:
    sizes: dict[int, list[SizeGroup]] = {}
    tokens_labels: dict[int, str] = {}
    for group in groups:
        rows = tuple(_row(group, key, values, best) for key in group.cells)
        sizes.setdefault(group.n_tokens, []).append(SizeGroup(group.model_label, rows))
        tokens_labels.setdefault(group.n_tokens, group.tokens_label)
    tokens_groups = tuple(TokensGroup(tokens_labels[n_tokens], tuple(found)) for n_tokens, found in sizes.items())
    rows = tuple(row for group in tokens_groups for size in group.sizes for row in size.rows)
    columns = tuple(
        Column(metric, max(len(row.cells[index].spread) for row in rows))
        for index, metric in enumerate(METRICS.values())
    )
    notes = (
        _seed_note(groups),
        _bold_note(name),
        *_missing_notes(groups, values, [value for row in rows for value in row.cells]),
        f"Protocol: {plan.protocol_label}.",
    )
    return Table(name, plan.name, _caption(plan, groups), columns, tokens_groups, notes)


def build_tables(plan: Plan, results: "DataFrame", tests: "DataFrame") -> tuple[Table, ...]:
    """Return the tables that a study defines: values from ``results.csv``, bold type from ``tests.csv``."""
    values, best = table_values(plan, results), winners(tests)
    return tuple(_build(plan, name, groups, values, best) for name, groups in table_groups(plan).items())
