"""Studies whose numbers are drawn: all that may go wrong in results, at random."""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pandas as pd

from coupled_adam_bench.study.catalogue.tables import TABLES, Table

METRICS = ("loss", "acc", "isotropy", "mean_norm_ratio", "r_bar", "kappa")
OPTIMIZERS = ("adamw", "coupled_adam", "sgd_f100", "sgd_f200", "mine")
KINDS = ("continuous", "shared", "counts", "ties", "constant", "shifted")


def draw(kind: str, seed: int, optimizer: int, rng: np.random.Generator, shared: float) -> Fraction:
    """Draw one number, exactly as the float that it becomes."""
    if kind == "continuous":
        return Fraction(rng.normal(0.8 * optimizer, 1))
    if kind == "shared":  # runs of one seed are alike, so that the paired test finds more
        return Fraction(shared + rng.normal(0.5 * optimizer, 0.1))
    if kind == "counts":
        return Fraction(int(rng.binomial(24, 0.4)), 24)
    if kind == "ties":
        return Fraction(int(rng.integers(3)), 3)
    if kind == "constant":
        return Fraction(int(rng.integers(2)) if seed == 1 else optimizer // 2, 7)
    return Fraction(seed, 10) + Fraction(optimizer % 2, 3)  # the same difference with every seed


@dataclass(frozen=True)
class Study:
    """Drawn numbers: ``exact`` by cell and metric, ``values`` as the tests are given them."""

    tables: dict[str, Table]
    values: pd.DataFrame
    exact: dict[tuple[str, str], Fraction | None]


def draw_study(rng: np.random.Generator) -> Study:
    """Draw a study of three tables, whose places share cells and have seeds of their own."""
    tables = {name: TABLES[name] for name in ("table2", "table1", "table7")}
    exact: dict[tuple[str, str], Fraction | None] = {}
    rows = []
    places = [(1000, 10), (2000, 10), (1000, 20)]
    kind_of = {(place, name): str(rng.choice(KINDS)) for place in places for name in METRICS}
    dead = {(place, key) for place in places for key in OPTIMIZERS if rng.random() < 0.15}
    for name, table in tables.items():
        n_optimizers = 2 if table.comparison != "each_other" else int(rng.integers(3, 6))
        for place in places:
            for number, key in enumerate(OPTIMIZERS[:n_optimizers]):
                first = 1 if name != "table7" else int(rng.choice([1, 1, 2]))
                seeds = range(
                    first, first + (1 if name == "table2" else int(rng.choice([3, 3, 2])))
                )
                for seed in seeds:
                    cell = f"{place}-{key}-{seed}"
                    dies = (place, key) in dead or rng.random() < 0.04
                    for metric in METRICS:
                        how = kind_of[place, metric]
                        # Runs of one seed share what they share, whichever optimizer they have.
                        shared = np.random.default_rng([place[0], place[1], seed]).normal()
                        value = draw(how, seed, number, rng, shared)
                        if dies or rng.random() < 0.02:
                            value = None
                        exact.setdefault((cell, metric), value)
                        kept = exact[cell, metric]
                        as_float = float("nan") if kept is None else float(kept)
                        kind = "adamw" if key == "mine" else key  # with settings of its own
                        named = (name, *place, "model", "data", key, key, kind, *map(str, place))
                        rows.append((*named, seed, cell, metric, as_float))
    columns = "table n_tokens n_params model data optimizer label kind tokens_label size_label seed cell metric value"
    return Study(tables, pd.DataFrame(rows, columns=columns.split()), exact)
