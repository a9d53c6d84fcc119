"""Results document by document: what is kept of lm-eval's samples, and read back."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from coupled_adam_bench.cli.guard import unmeasured
from coupled_adam_bench.evaluation.stage import _write, run_stage
from coupled_adam_bench.records.kept import (
    DOCUMENTS,
    Document,
    documents_of,
    pack_documents,
    read_documents,
)
from coupled_adam_bench.records.stored import Evaluation, Measurement, measurement_of, row
from coupled_adam_bench.store.files import read_sealed
from coupled_adam_bench.study.catalogue.stages import STAGES

STAGE = STAGES["downstream"]
DONE = Path("stage.done")


def document(doc_id: int, acc: float = 1.0, **changes) -> Document:
    fields = {
        "task": "race",
        "doc_id": doc_id,
        "doc_hash": f"{doc_id:016x}",
        "gold": 1,
        "metrics": {"acc": acc},
        "loglikelihoods": [-1.5, -1 / 3],
    }
    return Document(**fields | changes)


@pytest.fixture
def measurement(part) -> Measurement:
    return measurement_of(STAGE, part.study, part.data_id)


def keep(measurement: Measurement, cell_id: str, documents: list[Document]) -> None:
    evaluation = Evaluation(
        [row("average", "acc", 0.5)], files={DOCUMENTS: pack_documents(documents)}
    )
    _write(measurement, cell_id, evaluation)


def sample(doc_id: int, responses: list, metrics: dict, filtered: str = "none", **changes) -> dict:
    fields = {
        "doc_id": doc_id,
        "doc_hash": "ab" * 32,
        "target": 0,
        "resps": responses,
        "filter": filtered,
    }
    return fields | {"metrics": list(metrics)} | metrics | changes


def test_what_is_kept_of_samples_by_hand():
    choice = sample(
        1, [[(-2.0, True)], [(np.float64(-3.5), False)]], {"acc": 1.0, "acc_norm": np.float32(0.0)}
    )
    text = sample(0, [["yes"]], {"exact_match": True, "perplexity": (-3.0, 2)}, target="yes")
    again = sample(0, [["yes"]], {"exact_match": 0}, filtered="strict", target="yes")
    first, second = documents_of("own", [choice, text, again])
    assert second == Document("own", 1, "ab" * 8, 0, {"acc": 1.0, "acc_norm": 0.0}, [-2.0, -3.5])
    assert first == Document(
        "own", 0, "ab" * 8, "yes", {"exact_match": 1.0, "exact_match@strict": 0.0}, []
    )


def test_documents_are_read_back(part, measurement):
    first = next(iter(part.cells))
    odd = "two\u2028lines\nof \u00fc"
    keep(measurement, first, [document(0, gold=odd), document(1, 0.0), document(0, task="arc")])
    assert read_documents(measurement, first)[0].gold == odd
    assert read_documents(measurement, first)[1].metrics == {"acc": 0.0}
    assert read_documents(measurement, first)[1].loglikelihoods == [
        -1.5,
        -1 / 3,
    ]  # to the last digit


def test_the_documents_of_a_stage(part, measurement):
    first, second = part.cells
    assert run_stage(STAGE, part.of([first, second]), DONE) == 0
    ours, theirs = (read_documents(measurement, cell_id) for cell_id in (first, second))
    record = read_sealed(measurement.find(first))
    acc = {(found["task"], found["metric"]): found["value"] for found in record["results"]}
    for task in ("synthetic_grammar", "synthetic_topic"):
        of_task = [one for one in ours if one.task == task]
        assert [one.doc_id for one in of_task] == list(range(20))
        assert np.mean([one.metrics["acc"] for one in of_task]) == pytest.approx(
            acc[task, "acc"], abs=1e-12
        )
        for one in of_task:  # the answer with the largest log-likelihood is the one that is taken
            assert len(one.loglikelihoods) == 4
            assert one.metrics["acc"] == (int(np.argmax(one.loglikelihoods)) == one.gold)
    assert [(one.task, one.doc_hash) for one in ours] == [
        (one.task, one.doc_hash) for one in theirs
    ]
    assert any(
        one.loglikelihoods != other.loglikelihoods for one, other in zip(ours, theirs, strict=True)
    )


@pytest.mark.fault(
    "evaluation",
    "the documents beside an evaluation are edited, cut off, of another cell or lost",
    "who reads the evaluation stops with the name of the file, and the next start measures the cell"
    " again",
)
def test_damaged_documents_are_made_anew(part, measurement, capsys):
    first, second = part.cells
    assert run_stage(STAGE, part.of([first, second]), DONE) == 0
    file = measurement.file(first, DOCUMENTS)
    whole = file.read_bytes()
    edited = gzip.compress(gzip.decompress(whole).replace(b'"acc": 1.0', b'"acc": 0.0', 1), mtime=0)
    for damage in (
        edited,
        whole[:-20],
        b"",
        measurement.file(second, DOCUMENTS).read_bytes(),
        None,
    ):
        file.unlink()
        if damage is not None:
            file.write_bytes(damage)
        what = "missing" if damage is None else "SHA-256 .*"
        with pytest.raises(ValueError, match=rf"{file}: {what}, but its evaluation says"):
            read_documents(measurement, first)
        assert str(file) in unmeasured(measurement, first)  # as a start of the workflow finds it
    assert run_stage(STAGE, part.of([first, second]), DONE) == 0
    log = capsys.readouterr().err
    assert f"{first}: evaluated again: {file}: missing" in log and f"{second}: kept" in log
    assert file.read_bytes() == whole
    assert unmeasured(measurement, first) is None
