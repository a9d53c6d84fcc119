from pathlib import Path

import pandas as pd
import pytest
from sections import tables_of

from coupled_adam_bench.report import treatments as section
from coupled_adam_bench.results.collect import results_frame
from coupled_adam_bench.results.groups import layout_of
from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.statistics.declared import Material
from coupled_adam_bench.study.plan import Plan
from embedding_geometry import word_similarity

SETS = ("men", "rw")
PAIRS = {
    "men": (2486.0, 2486 / 3000),
    "rw": (354.0, 354 / 2034),
    "men_subwords": (3000.0, 1.0),
    "rw_subwords": (2034, 1),
}


def results(plan: Plan, sets: tuple[str, ...] = SETS) -> StudyResults:
    """Correlations that differ between optimizers and seeds; the second seed of Coupled Adam has
    none of rw."""
    rows = []
    for cell in plan.cells.values():
        value = 0.5 * (cell.optimizer.name == "coupled_adam") + 0.01 * cell.seed
        lacks = (cell.optimizer.name, cell.seed) == ("coupled_adam", 2)
        for name in (*sets, *(f"{name}_subwords" for name in sets)):
            n_pairs, coverage = PAIRS[name]
            rows += [(cell, name, "n_pairs", n_pairs, "1"), (cell, name, "coverage", coverage, "1")]
            for _, metric in section.CORRELATIONS.values():
                row = (cell, name, metric, float("nan") if lacks and name == "rw" else value, "1")
                rows += [row] if row not in rows else []
    return StudyResults(layout_of(plan), results_frame(plan, rows))


def shown(study: StudyResults, tmp_path: Path) -> list[list[list[str]]]:
    return tables_of(section.WORD_SIMILARITY, Material(study, tmp_path, tmp_path))


def test_every_set_of_every_optimizer(tiny_plan, tmp_path):
    (lines,) = shown(results(tiny_plan), tmp_path)
    assert [line[:2] for line in lines] == [
        [name, each] for name in ("Adam", "Coupled Adam") for each in SETS
    ]
    assert lines[0][2:5] == ["2,486", "82.9%", "100.0%"]
    assert lines[1][2:4] == ["354", "17.4%"]
    assert lines[0][5:] == ["0.02 (1)"] * 5
    assert lines[3][5:] == ["-"] * 4 + ["0.52 (1)"]


def test_without_sets_there_is_no_section(tiny_plan, tmp_path):
    assert shown(results(tiny_plan, sets=()), tmp_path) == []


def test_names_are_those_of_the_evaluation():
    names = {
        f"{name}_{kind}" for name in word_similarity.CORRELATIONS for kind in ("cosine", "dot")
    }
    assert {metric for _, metric in section.CORRELATIONS.values()} == names


@pytest.mark.parametrize("column", ["n_pairs", "coverage"])
def test_a_cell_without_an_evaluation_does_not_hide_the_pairs(tiny_plan, column, tmp_path):
    study = results(tiny_plan)
    frame: pd.DataFrame = study.results
    first = next(iter(tiny_plan.cells))
    frame.loc[(frame["cell"] == first) & (frame["metric"] == column), "value"] = float("nan")
    assert shown(study, tmp_path)[0][0][2] == "2,486"
