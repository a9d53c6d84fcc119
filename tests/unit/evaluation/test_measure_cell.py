"""The command ``measure`` on an exported cell: the numbers of its evaluation, and from the same
files."""

from pathlib import Path

import numpy as np
import pytest

from coupled_adam_bench.evaluation.stage import run_stage
from coupled_adam_bench.records.stored import measurement_of
from coupled_adam_bench.store import paths
from coupled_adam_bench.store.runs import write_cell
from coupled_adam_bench.study.catalogue.stages import STAGES
from coupled_adam_bench.tools.measure import known_of
from embedding_geometry.model import measure_model
from embedding_geometry.word_lists import read_word_lists


def test_an_exported_cell_has_the_numbers_of_its_evaluation(part):
    cell_id, cell = next(iter(part.cells.items()))
    assert run_stage(STAGES["embeddings"], [cell], Path("stage.done")) == 0
    record = measurement_of(STAGES["embeddings"], part.study, part.data_id).read(cell_id)
    write_cell(paths.run_dir(cell_id), cell.to_json())
    found = measure_model(
        str(paths.run_dir(cell_id) / "model"), read_word_lists(None), [], known_of=known_of
    )

    evaluated, measured = (
        {(row["task"], row["metric"]): row["value"] for row in rows}
        for rows in (record["results"], found.results)
    )
    assert measured.keys() == evaluated.keys()
    assert measured == pytest.approx(evaluated, rel=1e-12)
    assert found.undefined == []
    matrix = record["matrices"]["embeddings"]
    np.testing.assert_allclose(
        found.detail["embeddings"]["singular_values"], matrix["singular_values"], rtol=1e-12
    )
    assert found.detail["embeddings"]["norm_frequency"] == matrix["norm_frequency"]
