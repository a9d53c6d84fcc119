"""A finished study is trained and measured again, and what is off is found."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from pandas import DataFrame
from safetensors.numpy import load_file, save_file
from tiny import changed

from coupled_adam_bench.evaluation.stage import evaluate
from coupled_adam_bench.results.collect import collect
from coupled_adam_bench.store.runs import WEIGHTS, data_dir, run_of
from coupled_adam_bench.study.plan import Plan, make_plan, read_plan
from coupled_adam_bench.study.study import parse_study
from coupled_adam_bench.tools.verify import _is_as_made, _is_near, apart, verify

FILE = Path("results/tiny/plan.json")


@pytest.fixture
def plan(copy: Path) -> Plan:
    assert copy.is_dir()
    return read_plan(FILE)


def plant(cell_id: str) -> None:
    """Change one weight of a trained cell's embedding by a thousandth."""
    weights = load_file(run_of(cell_id).folder / WEIGHTS)
    weights["transformer.wte.weight"][1, 0] += 1e-3
    save_file(weights, run_of(cell_id).folder / WEIGHTS, metadata={"format": "pt"})


def test_what_is_off_is_found(plan: Plan, tmp_path: Path) -> None:
    first, *_ = plan.cells
    again = tmp_path / "again"
    assert verify(FILE, [first], again) == 0
    assert load_file(again / run_of(first).folder / WEIGHTS)

    # A number of another cell, edited.
    results, cells = collect(plan), list(plan.cells.values())
    assert _is_near("results", plan, cells, results, 0.0)
    losses = results.query("task == 'test' and metric == 'loss'").dropna(subset="value")
    assert losses["cell"].iloc[-1] != first
    results.loc[losses.index[-1], "value"] -= 1e-3
    assert not _is_near("results", plan, cells, results, 1e-4)
    assert _is_near("results", plan, cells, results, 2e-3)

    # A wrong weight, which the digest of the record tells.
    assert _is_as_made(cells)
    plant(first)
    assert not _is_as_made(cells)

    # The same where the record is of the wrong weights, and so are all numbers.
    record = run_of(first).read()
    run_of(first).write({name: value for name, value in record.items() if name != "sha256"})
    evaluate(plan, plan.find([first]))
    collect(plan).to_csv(FILE.with_name("results.csv"), index=False, na_rep="NaN")
    assert verify(FILE, [first], again) == 1


def test_files_at_relative_paths_are_found_from_another_folder(plan: Plan, tmp_path: Path) -> None:
    values = json.loads(FILE.read_text())["study"]
    lists = Path("data/word_similarity")
    lists.mkdir(parents=True)
    (pairs,) = data_dir(plan.data_id).glob("word_lists/*")
    shutil.copy(pairs, lists / "mine.tsv")
    values = changed(values, "evaluation.word_similarity", [{"name": "mine", "file": "mine.tsv"}])
    plan = make_plan(parse_study(values))
    plan.write(FILE)
    evaluate(plan, list(plan.cells.values()))
    collect(plan).to_csv(FILE.with_name("results.csv"), index=False, na_rep="NaN")
    assert verify(FILE, [], tmp_path / "again") == 0


def test_what_cannot_be_made_again_is_told(plan: Plan, tmp_path: Path) -> None:
    (tmp_path / "again/results").mkdir(parents=True)
    (tmp_path / "again/results/runs").write_text("no folder")
    with pytest.raises(ValueError, match="results/runs"):
        verify(FILE, [], tmp_path / "again")
    with pytest.raises(ValueError, match="folder"):
        verify(FILE, [], Path())
    with pytest.raises(ValueError, match="nobody"):
        verify(FILE, ["nobody"], tmp_path / "again")


def test_distance_is_relative_above_one_and_a_missing_number_is_far() -> None:
    def frame(**values: float) -> DataFrame:
        rows = [
            {"cell": "c", "task": "t", "metric": name, "value": values[name]} for name in values
        ]
        return DataFrame(rows)

    then = frame(small=0.5, large=-200.0, same=3.0, nan=np.nan, gone=1.0, lost=1.0)
    now = frame(small=0.25, large=-100.0, same=3.0, nan=np.nan, new=1.0, lost=np.nan)
    found = apart(then, now).set_index("metric")["apart"].to_dict()
    missing = {"gone": np.inf, "new": np.inf, "lost": np.inf}
    assert found == {"small": 0.25, "large": 0.5, "same": 0.0, "nan": 0.0, **missing}
