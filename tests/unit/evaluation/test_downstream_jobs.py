"""A job that scores several cells: what they share, and what one that fails costs the others."""

import math
import os
import textwrap
from pathlib import Path

import pytest
from forks import python

from coupled_adam_bench.evaluation import downstream, harness_model
from coupled_adam_bench.evaluation.stage import run_stage
from coupled_adam_bench.records.kept import read_documents
from coupled_adam_bench.records.stored import measurement_of
from coupled_adam_bench.store import paths
from coupled_adam_bench.store.files import read_sealed, write_sealed
from coupled_adam_bench.study.catalogue.stages import STAGES

DOWNSTREAM = STAGES["downstream"]
DONE = Path("stage.done")


def evaluation_of(part, cell_id: str) -> dict:
    return read_sealed(measurement_of(DOWNSTREAM, part.study, part.data_id).find(cell_id))


def test_requests_are_built_and_tokenized_once(part, monkeypatch):
    built, tokenized = [], []
    model_class = harness_model.HarnessModel
    encode = model_class._encode
    monkeypatch.setattr(
        model_class,
        "_encode",
        lambda self, request: tokenized.append(request.args) or encode(self, request),
    )
    results = []
    with downstream.open_evaluator(part.study, part.data_id, "cpu") as evaluate:
        from lm_eval.api.task import ConfigurableTask

        construct = ConfigurableTask.construct_requests
        monkeypatch.setattr(
            ConfigurableTask,
            "construct_requests",
            lambda self, *args, **options: built.append(1) or construct(self, *args, **options),
        )
        for cell in [*part.cells.values(), *part.cells.values()]:
            results.append(evaluate(cell, paths.run_dir(cell.id) / "model"))
    assert len(built) == 40  # two tasks of 20 items
    assert len(tokenized) == len(set(tokenized)) <= 160  # four answers each
    assert results[0] == results[2] and results[1] == results[3]
    assert results[0].results != results[1].results


@pytest.mark.fault(
    "evaluation",
    "the weights of a trained model are NaN, or so large that its log-likelihoods are not finite",
    "its scores are NaN with that reason, where lm-eval would take the first answer for the"
    " likeliest",
)
@pytest.mark.parametrize("factor", [math.nan, 1e30])
def test_log_likelihoods_that_are_not_finite_are_a_gap(part, save_cell, factor):
    bad, good = part.cells
    save_cell(part, part.cells[bad], 5, eot_id=120, factor=factor)
    assert run_stage(DOWNSTREAM, part.of([bad, good]), DONE) == 0
    record = evaluation_of(part, bad)
    values = {(row["task"], row["metric"]): row["value"] for row in record["results"]}
    assert {task for task, _ in values} == {"synthetic_grammar", "synthetic_topic", "average"}
    assert values and all(math.isnan(value) for value in values.values())
    assert (
        "synthetic_grammar: the log-likelihood of item 0 (from 0) is nan: weights of this model"
        in record["reason"]
    )
    assert "lm-eval reports no acc" not in record["reason"]
    assert read_documents(measurement_of(DOWNSTREAM, part.study, part.data_id), bad) == []
    assert not any(math.isnan(row["value"]) for row in evaluation_of(part, good)["results"])


KILLED_IN_THE_SECOND = """
    import os
    import sys
    from pathlib import Path
    from coupled_adam_bench.study.catalogue.stages import STAGES
    from coupled_adam_bench.evaluation import embedding_geometry
    from coupled_adam_bench.evaluation.stage import run_stage
    from coupled_adam_bench.study.plan import load_plan
    cells = list(load_plan(Path("plan.json")).cells.values())
    read, seen = embedding_geometry.read_embeddings, set()
    def read_or_die(model, key):
        seen.add(model)
        return read(model, key) if len(seen) < 2 else os.kill(os.getpid(), 9)
    embedding_geometry.read_embeddings = read_or_die
    run_stage(STAGES["embeddings"], cells, Path("stage.done"))
"""


@pytest.mark.fault(
    "evaluation",
    "a job that evaluates several cells is killed in the middle of one, as by the kernel when"
    " memory is short",
    "what was measured is on disk, and the next start measures only the rest",
)
def test_a_killed_job_keeps_the_cells_that_it_has_finished(part, capsys):
    first, second = part.cells
    write_sealed(Path("plan.json"), part.plan().to_json())
    command = ["-c", textwrap.dedent(KILLED_IN_THE_SECOND)]
    killed = python("pipeline", command, Path(), dict(os.environ))
    killed.communicate(timeout=120)
    assert killed.returncode == -9 and not DONE.exists()
    assert run_stage(STAGES["embeddings"], part.of([first, second]), DONE) == 0
    log = capsys.readouterr().err
    assert f"embeddings: {first}: kept" in log and f"embeddings: {second}: kept" not in log


@pytest.mark.fault(
    "evaluation",
    "one of several cells of a downstream job crashes",
    "the cells before and after it are scored and kept; the next start scores that cell alone",
)
def test_one_crashed_cell_costs_only_itself(part, capsys, monkeypatch):
    first, second = part.cells
    model_class = harness_model.HarnessModel
    score = model_class._score

    def crash(self, requests, encoded):
        if first in str(self._folder):
            raise RuntimeError("out of memory")
        return score(self, requests, encoded)

    with monkeypatch.context() as patch:
        patch.setattr(model_class, "_score", crash)
        assert run_stage(DOWNSTREAM, part.of([first, second]), DONE) == 1
    assert (
        f"{first}: FAILED: ValueError: downstream task 'synthetic_grammar' of cell {first}"
        in capsys.readouterr().err
    )
    assert run_stage(DOWNSTREAM, part.of([first, second]), DONE) == 0
    log = capsys.readouterr().err
    assert f"{second}: kept" in log and f"{first}: kept" not in log
