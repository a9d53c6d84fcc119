"""A study's own embedding metrics, by dotted path."""

import math
from pathlib import Path

import numpy as np
import pytest
from planned import Planned

from coupled_adam_bench.evaluation.embedding_geometry import (
    EMBEDDING_KEYS,
    read_embeddings,
    try_metrics,
)
from coupled_adam_bench.evaluation.settings import check_evaluation
from coupled_adam_bench.evaluation.stage import run_stage
from coupled_adam_bench.records.stored import measurement_of
from coupled_adam_bench.store import paths
from coupled_adam_bench.store.files import read_sealed
from coupled_adam_bench.study.catalogue.stages import STAGES
from coupled_adam_bench.study.settings import parse_study

MODULE = """
import numpy as np

def all_cosine(embeddings):
    unit = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    return float(np.square(unit.sum(0)).sum() / len(unit) ** 2)

def frequent_norm(embeddings, unigram_counts):
    return np.linalg.norm(embeddings[unigram_counts.argmax()])

def nothing(embeddings):
    return float("nan")

def endless(embeddings):
    return float("inf")

def partition(embeddings):
    return float(np.exp(600 + np.linalg.norm(embeddings, axis=1).max()))

def changes(embeddings):
    embeddings[:] = 0
    return 0.0

def fails(embeddings):
    raise RuntimeError("no")

def draws(embeddings):
    return np.random.default_rng().random()

number = 3
"""
DONE = Path("stage.done")


def metric(function: str, **changes) -> dict:
    values = {
        "name": function,
        "path": f"my_metrics.{function}",
        "symbol": "M",
        "higher_is_better": False,
    }
    return values | changes


@pytest.fixture
def own(part, monkeypatch):
    """The function that returns the finished study with own metrics of the module
    ``my_metrics``."""
    Path("my_metrics.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(Path.cwd()))
    monkeypatch.delitem(__import__("sys").modules, "my_metrics", raising=False)

    def make(*metrics: dict) -> Planned:
        values = part.study.model_dump(mode="json")
        return Planned(
            parse_study(values | {"evaluation": values["evaluation"] | {"metrics": metrics}}),
            part.data_id,
        )

    return make


def values_of(study: Planned) -> dict[str, float]:
    cell_id = next(iter(study.cells))
    record = measurement_of(STAGES["embeddings"], study.study, study.data_id).read(cell_id)
    return {row["metric"]: row["value"] for row in record["results"] if row["task"] == "embeddings"}


def test_own_metrics_stand_beside_the_others(own):
    study = own(metric("all_cosine", unit="cos"), metric("frequent_norm"))
    assert run_stage(STAGES["embeddings"], list(study.cells.values())[:1], DONE) == 0
    values = values_of(study)
    cell_id = next(iter(study.cells))
    matrix = read_embeddings(paths.run_dir(cell_id) / "model", EMBEDDING_KEYS["gpt2"])
    cosines = [a @ b / np.sqrt(a @ a * (b @ b)) for a in matrix for b in matrix]
    assert values["all_cosine"] == pytest.approx(np.mean(cosines), rel=1e-12)
    counts = np.load(paths.data_dir(study.data_id) / "unigram.npy")
    assert values["frequent_norm"] == np.linalg.norm(matrix[counts.argmax()])
    assert values["isotropy"] > 0
    record = measurement_of(STAGES["embeddings"], study.study, study.data_id).read(cell_id)
    assert {row["unit"] for row in record["results"] if row["metric"] == "all_cosine"} == {"cos"}


def test_a_changed_metric_and_an_added_one_are_measured(own):
    cell = next(iter(own().cells.values()))

    def measured(study: Planned) -> Path:
        assert run_stage(STAGES["embeddings"], [study.cells[cell.id]], DONE) == 0
        return measurement_of(STAGES["embeddings"], study.study, study.data_id).find(cell.id)

    plain, one = measured(own()), measured(own(metric("all_cosine")))
    assert measured(own(metric("all_cosine"))) == one != plain
    assert measured(own(metric("all_cosine"), metric("frequent_norm"))) not in (plain, one)
    Path("my_metrics.py").write_text(MODULE.replace("** 2", "** 3") + "import my_helper\n")
    Path("my_helper.py").touch()
    other = measured(own(metric("all_cosine")))
    Path("my_helper.py").write_text("x = 1\n")
    assert len({one, other, measured(own(metric("all_cosine")))}) == 3
    assert read_sealed(one)["results"] != []


def test_nan_has_its_reason(own):
    study = own(metric("nothing"))
    assert run_stage(STAGES["embeddings"], list(study.cells.values())[:1], DONE) == 0
    cell_id = next(iter(study.cells))
    record = measurement_of(STAGES["embeddings"], study.study, study.data_id).read(cell_id)
    assert math.isnan(values_of(study)["nothing"])
    assert record["reason"] == "nothing: my_metrics.nothing is NaN for this matrix"


@pytest.mark.fault(
    "evaluation",
    "A study's own metric fails, returns infinity or 1e262, writes into the matrix, or draws random"
    " numbers.",
    "It is refused before the first job with its place in the study.",
)
@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("endless", "returns inf, not a finite number of at most 1e+70 in size"),
        (
            "partition",
            (
                "e+262, not a finite number of at most 1e+70 in size, which statistics need;"
                " return, for example, its log"
            ),
        ),
        ("changes", "fails (ValueError: assignment destination is read-only"),
        ("fails", "fails (RuntimeError: no)"),
        ("draws", "a metric is a pure function"),
        ("number", "is int, not a function"),
        ("all_cosin", "has no 'all_cosin'; did you mean 'all_cosine'?"),
    ],
)
def test_what_is_no_metric_is_refused_before_the_first_job(own, function, message):
    with pytest.raises(ValueError) as raised:
        try_metrics(own(metric("all_cosine"), metric(function)).study)
    assert "evaluation.metrics.1.path: " in str(raised.value)
    assert message in str(raised.value)


def test_a_module_that_is_not_there_is_found_without_importing_anything(own):
    study = own(metric("all_cosine", path="no_such_module.f"))
    with pytest.raises(
        ValueError, match=r"evaluation\.metrics\.0\.path: no package or module 'no_such_module' is"
    ):
        check_evaluation(study.study)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"name": "frequent_norm"},
            "evaluation.metrics: 'frequent_norm' is declared more than once",
        ),
        ({"name": "isotropy"}, "evaluation.metrics.0.name: 'isotropy' is a metric of every study"),
        ({"name": "No"}, "evaluation.metrics.0.name: must"),
        ({"path": "f"}, "evaluation.metrics.0.path: must be a module and what it defines"),
    ],
)
def test_wrong_declarations_are_named(own, changes, message):
    with pytest.raises(ValueError) as raised:
        own(metric("all_cosine") | changes, metric("frequent_norm"))
    assert message in str(raised.value)
