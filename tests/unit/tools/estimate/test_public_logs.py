"""The estimate of a training step beside what public logs say, and beside the proof's own."""

import csv
import importlib
import re
from dataclasses import replace
from pathlib import Path

import pytest

from coupled_adam_bench.store.paths import GPU_SPEED, RESULTS
from coupled_adam_bench.study.plan.cells import Cell
from coupled_adam_bench.tools.estimate.public_logs import (
    FROM_NOTES,
    PUBLIC,
    SEEN_AGAIN,
    SHIPPED,
    Log,
    Residual,
    log_line,
    public_logs,
    public_residual,
    read_logs,
    residual_of,
    shipped_logs,
)
from coupled_adam_bench.tools.estimate.roofline import step_parts
from coupled_adam_bench.tools.estimate.speed import estimated_speed, read_speeds

BENCHMARKS = Path(__file__).parents[4] / "benchmarks"
JUDGED = [log for log in public_logs() if log.is_judged]
OTHERS = [log for log in public_logs() if not log.is_judged]


def share(log: Log) -> float:
    """Return the milliseconds of a log over those that public logs let expect for its step."""
    return log.residual / public_residual(log.gpu).factor


def on_card(cell: Cell, gpu: str) -> Cell:
    """Return a cell of a study whose budget has this kind of GPU."""
    budget = cell.study.budget.model_copy(update={"gpu": gpu})
    return replace(cell, study=cell.study.model_copy(update={"budget": budget}))


def seconds_of(cell: Cell) -> float:
    """Return the seconds that ``plan`` estimates for a step of a cell."""
    cell = replace(cell, steps=1000)
    execution = cell.study.execution.model_copy(update={"eval_every": None})
    return cell.n_tokens / cell.steps / estimated_speed(cell, execution).tokens_per_second


def test_an_h200_takes_the_steps_that_one_has_measured():
    assert [(log.card, log.about) for log in shipped_logs()] == [
        ("NVIDIA H200", name) for name in ("gpt2-125m", "gpt2-355m", "gpt2-760m", "stablelm-1.3b")
    ]
    for log in shipped_logs():
        assert seconds_of(log.cell) == pytest.approx(log.seconds, rel=1e-6)
        found = residual_of(log.cell)
        assert found.source == "one card"
        assert found.low < 1 < found.high
    lines = csv.DictReader(SHIPPED.read_text(encoding="utf-8").splitlines())
    told = {(line["date"], line["commit"], line["torch"]) for line in lines}
    assert told == {("2026-11-27", "77714ee", "2.11.0+cu130")}


def test_an_h100_takes_them_with_its_own_memory_and_the_high_end_of_public_logs():
    log = shipped_logs()[0]
    there = on_card(log.cell, "H100")
    counted = [sum(step_parts(each, each.study.execution).values()) for each in (log.cell, there)]
    assert seconds_of(there) / seconds_of(log.cell) == pytest.approx(counted[1] / counted[0])
    assert 1.05 < counted[1] / counted[0] < 1.2
    found, chip, public = residual_of(there), residual_of(log.cell), public_residual("H100")
    assert found == Residual(chip.factor, chip.low, public.high, "same chip")


@pytest.mark.parametrize("gpu", ["A100", "L40S", "B200"])
def test_a_card_that_nobody_has_measured_takes_public_logs(gpu):
    cell = on_card(shipped_logs()[0].cell, gpu)
    assert residual_of(cell) == public_residual(gpu)
    assert residual_of(cell).source == "estimate"


@pytest.mark.parametrize("log", JUDGED, ids=lambda log: f"{log.gpu} {log.about}")
def test_the_estimate_is_within_a_tenth_of_logs_that_name_a_well_known_card(log):
    assert share(log) == pytest.approx(1, abs=0.1)
    residual = public_residual(log.gpu)
    assert residual.low <= share(log) * (1 + 1e-9) and share(log) <= residual.high * (1 + 1e-9)


def test_which_logs_are_judged_and_how_far_off_the_others_are():
    assert {log.gpu for log in JUDGED} == {"H100", "H200", "A100"}
    assert len(JUDGED) == 9
    found = [(log.gpu, bool(log.card), round(share(log), 2)) for log in OTHERS]
    assert found == [
        ("H100", False, 0.99),
        ("B200", True, 1.0),  # the only log of its kind
        ("L40S", True, 1.0),  # the only log of its kind
        ("A100-SXM4-40GB", False, 1.07),
        ("A100-SXM4-40GB", False, 0.97),
        ("A100-SXM4-40GB", False, 0.88),
        ("A100-SXM4-40GB", False, 0.82),
        ("A100-SXM4-40GB", False, 0.83),
        ("A100-SXM4-40GB", True, 0.71),
        ("A100-SXM4-40GB", True, 1.29),
    ]


def test_each_log_has_its_source_and_says_who_has_seen_it():
    text = PUBLIC.read_text()
    for line in text.splitlines()[1:]:
        assert re.match(rf"https://\S+,({SEEN_AGAIN}|{FROM_NOTES}),", line), line


def test_a_card_without_logs_takes_the_median_of_all_cards():
    named = sorted(log.residual for log in public_logs() if log.card)
    assert named[0] < public_residual("V100").factor < named[-1]
    assert public_residual("V100").factor == pytest.approx(1.25, abs=0.01)


def test_the_range_of_a_card_that_few_logs_name_is_wider():
    well_known, others = public_residual("H200"), public_residual("B200")
    assert (round(well_known.low, 2), round(well_known.high, 2)) == (0.91, 1.06)
    assert (round(others.low, 2), round(others.high, 2)) == (0.71, 1.29)


def test_what_the_proof_measured_replaces_the_public_logs_of_its_kind(tmp_path, monkeypatch):
    cell = replace(JUDGED[0].cell, steps=1000)
    execution = cell.study.execution
    before = estimated_speed(cell, execution)
    path = tmp_path / GPU_SPEED.relative_to(RESULTS)
    path.parent.mkdir()
    monkeypatch.syspath_prepend(BENCHMARKS)
    proof = importlib.import_module("gpu_proof")
    seconds = {"small": 0.2, "medium": 0.25, "large": 0.3}
    for model, each in [("large", 0.5), *seconds.items()]:  # the last of a model counts
        proof.write_speeds(path, [log_line(cell, "the proof", "NVIDIA H100", 1000 * each, model)])
    speeds = read_speeds([cell], tmp_path / "runs")
    after = speeds.of(cell, execution)
    assert sorted(log.seconds for log in speeds.own) == pytest.approx([*seconds.values()])
    assert after.source == "proof" and before.source == "same chip"
    assert after.spread == pytest.approx((0.2 / 0.25, 0.3 / 0.25))
    factors = before.tokens_per_second / after.tokens_per_second
    counted = sum(step_parts(cell, execution).values())
    assert factors == pytest.approx(0.25 / counted / residual_of(cell).factor)
    assert speeds.of(on_card(cell, "H200"), execution).source == "one card"
    assert speeds.of(on_card(cell, "A100"), execution).source == "estimate"


@pytest.mark.fault("settings", "a line of the proof's file cannot be read", "refused by its line")
def test_a_line_that_cannot_be_read_is_named(tmp_path):
    path = tmp_path / GPU_SPEED.name
    lines = PUBLIC.read_text().splitlines()
    path.write_text("\n".join([*lines[:2], lines[2].replace(",H100,", ",H101,")]))
    with pytest.raises(ValueError, match=r"gpu_speed\.csv, line 3: .*H101.*; delete the line"):
        read_logs(path)
    assert read_logs(tmp_path / "none.csv") == ()
    cell = on_card(JUDGED[0].cell, "A100")
    assert residual_of(cell, read_logs(tmp_path / "none.csv")) == public_residual("A100")
