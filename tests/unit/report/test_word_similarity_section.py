import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from coupled_adam_bench.evaluation import word_similarity
from coupled_adam_bench.report import word_similarity as section
from coupled_adam_bench.report.render import html_environment
from coupled_adam_bench.results.collect import results_frame
from coupled_adam_bench.results.groups import layout_of
from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.study.plan import Plan

SETS = ("men", "rw")
PAIRS = {
    "men": (2486.0, 2486 / 3000),
    "rw": (354.0, 354 / 2034),
    "men_subwords": (3000.0, 1.0),
    "rw_subwords": (2034, 1),
}


def results(plan: Plan, sets: tuple[str, ...] = SETS) -> StudyResults:
    """Correlations that differ between optimizers and seeds; the second seed of Coupled Adam has none of rw."""
    rows = []
    for cell in plan.cells.values():
        value = 0.5 * (cell.optimizer.name == "coupled_adam") + 0.01 * cell.seed
        lacks = (cell.optimizer.name, cell.seed) == ("coupled_adam", 2)
        for name in (*sets, *(f"{name}_subwords" for name in sets)):
            n_pairs, coverage = PAIRS[name]
            rows += [(cell, name, "n_pairs", n_pairs, "1"), (cell, name, "coverage", coverage, "1")]
            for _, metric in section.COLUMNS.values():
                row = (cell, name, metric, float("nan") if lacks and name == "rw" else value, "1")
                rows += [row] if row not in rows else []
    return StudyResults(layout_of(plan), results_frame(plan, rows))


def test_every_set_of_every_optimizer(tiny_plan: Plan) -> None:
    found = section.word_similarity_section(results(tiny_plan))
    assert found is not None
    (place,) = found.tables["table1"]
    (adam, of_adam), (coupled, of_coupled) = place.optimizers
    assert (adam, coupled) == ("Adam", "Coupled Adam")
    assert [row.name for row in of_adam] == list(SETS)
    assert (of_adam[0].n_pairs, of_adam[0].coverage, of_adam[0].subword_coverage) == ("2,486", "82.9%", "100.0%")
    assert (of_adam[1].n_pairs, of_adam[1].coverage) == ("354", "17.4%")
    assert [value.text for value in of_adam[0].cells] == ["0.02 (1)"] * 5
    assert [value.text for value in of_coupled[1].cells] == ["-"] * 4 + ["0.52 (1)"]


def test_without_sets_there_is_no_section(tiny_plan: Plan) -> None:
    assert section.word_similarity_section(results(tiny_plan, sets=())) is None


def test_names_are_those_of_the_evaluation() -> None:
    assert section.SUBWORDS == word_similarity.SUBWORDS
    names = {f"{name}_{kind}" for name in word_similarity.CORRELATIONS for kind in ("cosine", "dot")}
    assert {metric for _, metric in section.COLUMNS.values()} == names


def test_the_template_prints_it(tiny_plan: Plan, templates: Path) -> None:
    found = section.word_similarity_section(results(tiny_plan))
    template: Any = html_environment(templates).get_template("word_similarity.html.j2")
    page = template.render(word_similarity=found, titles={"table1": "Table <1>"})
    assert page.count("<tr>") == 1 + 4 and page.count('rowspan="2"') == 2
    assert "At the sizes of Table &lt;1&gt;" in page
    assert len(re.findall(r">0\.02 \(1\)<", page)) == 10


@pytest.mark.parametrize("column", ["n_pairs", "coverage"])
def test_a_cell_without_an_evaluation_does_not_hide_the_pairs(tiny_plan: Plan, column: str) -> None:
    study = results(tiny_plan)
    frame: pd.DataFrame = study.results
    first = next(iter(tiny_plan.cells))
    frame.loc[(frame["cell"] == first) & (frame["metric"] == column), "value"] = float("nan")
    found = section.word_similarity_section(study)
    assert found is not None
    assert found.tables["table1"][0].optimizers[0][1][0].n_pairs == "2,486"
