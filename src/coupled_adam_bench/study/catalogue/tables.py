"""The tables of the paper, declared once: what each compares, how, and in which columns."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

ComparisonName = Literal["pair", "each_other", "single_runs"]


@dataclass(frozen=True)
class Comparison:
    """A way to compare the optimizers of a table.

    ``tested`` says whether a t-test decides what is bold; without one the better value is.
    ``optimizers`` is their number where it is fixed, ``min_seeds`` the fewest seeds that a block of
    the table may have, and ``bold_beats`` says in print what a bold value is better than.
    """

    tested: bool
    optimizers: int | None
    min_seeds: int
    bold_beats: str


COMPARISONS: dict[ComparisonName, Comparison] = {
    "pair": Comparison(True, 2, 2, "the other optimizer"),
    "each_other": Comparison(True, None, 2, "every other value of its column and block"),
    "single_runs": Comparison(False, None, 1, "the other values of its block"),
}
TABLE_ENDINGS = ("tex", "tabular.tex", "html", "md", "csv")
"""The formats of a table, as its files end."""
SETUP_TABLES = ("setup_models", "setup_training")
"""The tables of the study's settings, which stand in LaTeX beside those of its results."""
MIN_OPTIMIZERS = 2
"""The fewest optimizers that any table compares."""


@dataclass(frozen=True)
class Table:
    """A table, whose ``columns`` are names of metrics.

    ``width`` is ``column``, ``text`` or a length of LaTeX: what the printed table fits into, with
    its ``caption`` ``above`` or ``below``.
    """

    name: str
    title: str
    comparison: ComparisonName
    columns: tuple[str, ...]
    width: str = "text"
    caption: str = "below"

    @property
    def rules(self) -> Comparison:
        """The rules of the table's comparison."""
        return COMPARISONS[self.comparison]


PAPER_COLUMNS = ("loss", "acc", "isotropy", "mean_norm", "mean_norm_ratio", "r_bar", "rho", "kappa")

TABLES: dict[str, Table] = {
    table.name: table
    for table in (
        Table("table1", "Table 1", comparison="pair", columns=PAPER_COLUMNS),
        Table("table2", "Table 2", comparison="single_runs", columns=PAPER_COLUMNS),
        Table("table7", "Table 7", comparison="each_other", columns=PAPER_COLUMNS),
    )
}


def comparing_any_number(tables: Iterable[Table]) -> str:
    """Return the names of the tables that take any number of optimizers with a test, for the remedy
    in an error."""
    return " or ".join(
        table.name for table in tables if table.rules.tested and table.rules.optimizers is None
    )
