"""Section of a study: the grid, whose blocks are products of models, numbers of tokens, optimizers and seeds."""

from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar

from pydantic import Field

from coupled_adam_bench.study.catalog.tables import MIN_OPTIMIZERS, Table, comparing_any_number
from coupled_adam_bench.study.config.base import LaterSettings, Name, Seed, StepsOrCount, duplicates
from coupled_adam_bench.study.config.optimizers import OWN_HEAD, Optimizer
from coupled_adam_bench.study.config.tables import TableName
from coupled_adam_bench.study.config.tune import Tune


class GridBlock(LaterSettings):
    """A Cartesian product of cells, and the table that shows them."""

    later: ClassVar[tuple[str, ...]] = ("tune",)

    table: TableName | None = None
    """``table1``, ``table2``, ``table7``, or a table that the study declares under ``tables``."""
    models: tuple[Name, ...] = Field(min_length=1)
    tokens: tuple[StepsOrCount, ...] = Field(min_length=1)
    """Training tokens of the cells: counts such as ``20B``, which are rounded down to whole steps, or steps."""
    optimizers: tuple[Optimizer, ...] = Field(min_length=1)
    seeds: tuple[Seed, ...] = Field((1, 2, 3), min_length=1)
    """Random seeds, each a cell of its own [P]. A seed draws the initial weights and the order of the data."""
    data_seeds: tuple[Seed, ...] | None = Field(None, min_length=1)
    """Seeds of the order of the data that are crossed with ``seeds``, which then draw the initial weights: each pair is
    a cell. By default both have the same seed [P]. For blocks without a table: they show where the noise comes from."""
    tune: Tune | None = None
    """Grids from which the settings of the optimizers are chosen before the cells are trained; by default none."""

    @property
    def rows(self) -> list[Optimizer]:
        """The optimizers with the names that results and tables have for them."""
        return [self.tune.row_of(optimizer) if self.tune else optimizer for optimizer in self.optimizers]

    def steps(self, batch_tokens: int) -> list[int]:
        """Return the number of steps for each entry of ``tokens``."""
        return [value // batch_tokens if isinstance(value, int) else value.steps for value in self.tokens]

    def settings_of_own_heads(self) -> list[str]:
        """Return the fields, given or tuned, that treat a head in another way than the embedding."""
        given = (field for optimizer in self.optimizers for field in optimizer.own_head_settings())
        tuned = (field for grid in self.tune.grids.values() for field in grid if field in OWN_HEAD) if self.tune else ()
        return list(dict.fromkeys((*given, *tuned)))

    def errors(self, batch_tokens: int, models: Iterable[str], tables: Mapping[str, Table]) -> Iterator[str]:
        """Yield what is wrong with this block as ``field: message``; ``batch_tokens`` is the size of one batch."""
        if unknown := sorted(set(self.models) - set(models)):
            yield f"models: {', '.join(unknown)} is not among the study's models {', '.join(models)}"
        for value in self.tokens:
            if isinstance(value, int) and value < batch_tokens:
                yield (
                    f"tokens: {value} is smaller than one batch of {batch_tokens} tokens "
                    "(training.batch_sequences x training.seq_len)"
                )
        for field, values in (
            ("models", self.models),
            ("tokens", [f"{count} steps" for count in self.steps(batch_tokens)]),
            ("optimizers", [row.key for row in self.rows]),
            ("seeds", self.seeds),
            ("data_seeds", self.data_seeds or ()),
        ):
            if twice := duplicates(values):
                yield f"{field}: {', '.join(twice)} given more than once"
        if self.tune is not None and self.data_seeds is not None:
            yield "data_seeds: a block that tunes has the same seed for both; leave out data_seeds, or tune"
        if self.table is not None and self.data_seeds is not None:
            yield (
                f"data_seeds: {self.table} shows the spread over `seeds` alone and would average over these; leave out "
                "`table`, or data_seeds"
            )
        elif self.table is not None:
            yield from self._table_errors(self.table, tables)

    def _table_errors(self, name: str, tables: Mapping[str, Table]) -> Iterator[str]:
        if name not in tables:
            yield f"table: {name} is no table; there are {', '.join(tables)}, and others are declared under `tables`"
            return
        table, n_optimizers = tables[name], len(self.optimizers)
        if table.rules.optimizers is not None and n_optimizers != table.rules.optimizers:
            yield (
                f"optimizers: {name} compares exactly {table.rules.optimizers}, not {n_optimizers}; more go into "
                f"{comparing_any_number(tables.values())}"
            )
        elif n_optimizers < MIN_OPTIMIZERS:
            yield f"optimizers: {name} compares at least {MIN_OPTIMIZERS}, not {n_optimizers}"
        if len(self.seeds) < table.min_seeds:
            reason = "rests on a t-test and needs" if table.rules.tested else "needs"
            yield f"seeds: {name} {reason} at least {table.min_seeds} seeds"
