"""What the tables of a study compare: optimizers at the same number of parameters and of tokens."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from coupled_adam_bench.cells import Cell, readable_count
from coupled_adam_bench.plan import Plan
from coupled_adam_bench.results.schema import METRICS, Metric

if TYPE_CHECKING:
    from pandas import DataFrame

PAIRWISE = "table1"
"""The table that compares exactly two optimizers."""
UNTESTED = "table2"
"""The table of single runs, which has no test."""

Values = Mapping[tuple[int, int, str, int, str], float]
"""Values by n_params, n_tokens, optimizer, seed and metric."""


@dataclass(frozen=True)
class Group:
    """Cells that differ in optimizer and seed only; ``cells`` is by the optimizer's key, in the order of the study."""

    table: str
    n_tokens: int
    n_params: int
    tokens_label: str
    model_label: str
    cells: Mapping[str, tuple[Cell, ...]]

    def samples(self, values: Values, metric: Metric) -> dict[str, list[float]]:
        """Return the metric's values over seeds by optimizer; a value that is not there is NaN."""
        nan = float("nan")
        return {
            key: [values.get((cell.n_params, cell.n_tokens, key, cell.seed, metric.name), nan) for cell in cells]
            for key, cells in self.cells.items()
        }


def table_groups(plan: Plan) -> dict[str, tuple[Group, ...]]:
    """Return the groups of every table of a study, in the order of tables, tokens and parameters.

    All blocks of a table count together. Raises ``ValueError`` for a group of Table 1 without exactly two optimizers.
    """
    found: dict[tuple[str, int, int], dict[str, dict[str, Cell]]] = {}
    for part in plan.parts:
        for block in part.study.grid:
            if block.table is not None:
                for cell in part.block_cells(block):
                    optimizers = found.setdefault((block.table, cell.n_tokens, cell.n_params), {})
                    optimizers.setdefault(cell.optimizer.key, {}).setdefault(cell.id, cell)
    tables: dict[str, tuple[Group, ...]] = {}
    for (table, n_tokens, n_params), optimizers in sorted(found.items(), key=lambda item: item[0]):
        cells = {key: tuple(cells.values()) for key, cells in optimizers.items()}
        first = next(iter(cells.values()))[0]
        tokens_label = first.tokens_label or readable_count(n_tokens)
        model_label = first.model.label or readable_count(n_params)
        if table == PAIRWISE and len(cells) != 2:
            raise ValueError(
                f"grid: {table} compares two optimizers, and has {len(cells)} at {model_label} parameters and "
                f"{tokens_label} tokens ({', '.join(cells)}); give it two, or use table7, which compares any number"
            )
        group = Group(table, n_tokens, n_params, tokens_label, model_label, cells)
        tables[table] = (*tables.get(table, ()), group)
    return tables


def table_values(plan: Plan, results: "DataFrame") -> Values:
    """Return the tables' values of ``results.csv``; ``ValueError`` if it belongs to another study."""
    if others := set(results["study"]) - {plan.name}:
        raise ValueError(f"results.csv: study {sorted(others)}, the plan is of {plan.name!r}; collect again")
    return {
        (row["n_params"], row["n_tokens"], row["optimizer"], row["seed"], row["metric"]): row["value"]
        for row in results.to_dict("records")
        if row["metric"] in METRICS and METRICS[row["metric"]].task == row["task"]
    }
