"""``verify`` on a tiny study that was trained for real; its commands run in this process."""

import json
import math
import os
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from coupled_adam_bench.catalog.metrics import METRICS
from coupled_adam_bench.cli import main
from coupled_adam_bench.files import read_json, read_sealed, sha256_file, write_json, write_sealed
from coupled_adam_bench.paths import WEIGHTS, data_dir, run_dir
from coupled_adam_bench.plan import load_plan
from coupled_adam_bench.verify import verify as verify_module
from coupled_adam_bench.verify.compare import Difference, compare_histories, compare_numbers, tolerances

MANIFEST = Path("results/tiny/manifest.json")
LOSS, ACC = ("test", "loss"), ("average", "acc")
PLAN = MANIFEST.with_name("plan.json")


def run_here(command: list[str], threads: int) -> int:
    return main(command)


def check(*arguments: Any, **options: Any) -> int:
    return verify_module.verify(MANIFEST, *arguments, run=run_here, **options)


@pytest.fixture(scope="session")
def verified_study(tmp_path_factory: pytest.TempPathFactory, tiny_study: Any) -> Path:
    """A folder with a study of two cells, from its plan to its manifest."""
    root = tmp_path_factory.mktemp("verified")
    grid = tiny_study()["grid"][0] | {"tokens": [{"steps": 12}], "seeds": [1]}
    del grid["table"]
    before = Path.cwd()
    os.chdir(root)
    try:
        Path("tiny.yaml").write_text(yaml.safe_dump(tiny_study(grid=[grid])))
        plan = ["--plan", "results/tiny/plan.json"]
        assert main(["plan", "--study", "tiny.yaml", "--out", plan[1]]) == 0
        assert main(["prepare", *plan]) == 0
        cells = ["--cells", *load_plan(Path(plan[1])).cells]
        assert main(["train", *plan, *cells]) == 0
        for stage in ("test-loss", "embeddings", "downstream"):
            assert main([stage, *plan, *cells, "--done", f"{stage}.done"]) == 0
        assert main(["collect", *plan, "--out", "results/tiny/results.csv"]) == 0
        assert main(["manifest", *plan]) == 0
    finally:
        os.chdir(before)
    return root


@pytest.fixture
def study(verified_study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids of the cells of the finished study, which is the working folder."""
    shutil.copytree(verified_study, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return [cell["cell"] for cell in read_json(MANIFEST)["cells"]]


def files_of(folder: Path) -> dict[str, str]:
    return {str(path): sha256_file(path) for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_study_reproduces_bit_for_bit_and_is_not_touched(
    study: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    before = files_of(Path("results"))
    assert check(study, None, json=Path("verdicts.json")) == 0
    assert files_of(Path("results")) == before
    said = capsys.readouterr().out
    for cell in study:
        assert f"{cell}: reproduced bit for bit" in said
    assert "3 lines of history" in said  # steps 5, 10 and 12
    verdicts = read_json(Path("verdicts.json"))["cells"]
    assert [verdict["word"] for verdict in verdicts] == ["reproduced bit for bit"] * 2
    assert all(verdict["differences"] == verdict["differing"] == [] for verdict in verdicts)


def forge(cell: str, change: Any) -> None:
    """Change a history, and make the checksums of its run fit, as somebody would who covers his tracks."""
    folder = run_dir(cell)
    rows = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    change(rows)
    (folder / "history.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    record = read_sealed(folder / "run.json")
    write_sealed(folder / "run.json", record | {"history_sha256": sha256_file(folder / "history.jsonl")})


def test_a_changed_history_is_found(study: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    history = run_dir(study[0]) / "history.jsonl"
    history.write_text(history.read_text().replace('"step": 5', '"step": 4'))
    assert check(study[:1], None) == 1
    said = capsys.readouterr().out
    assert "NOT reproduced\n  the recorded files are not what was written" in said
    assert "history.jsonl: SHA-256" in said


def test_a_forged_history_is_found(study: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    forge(study[0], lambda rows: rows[1].update(loss=rows[1]["loss"] - 0.5))
    assert check(study[:1], None) == 1
    said = capsys.readouterr().out
    assert "the weights are the same, but not their history: history, step 10, loss" in said
    forge(study[0], lambda rows: rows[1].update(loss=rows[1]["loss"] + 0.5))
    assert check(study[:1], None) == 0
    forge(study[0], lambda rows: rows.pop(0))
    assert check(study[:1], None) == 1


def test_a_model_that_is_not_the_manifest_s_is_found(study: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    for cell, other in (study, study[::-1]):
        shutil.copy(run_dir(other) / "model" / WEIGHTS, f"{cell}-weights")
    for cell in study:
        weights = run_dir(cell) / "model" / WEIGHTS
        shutil.move(f"{cell}-weights", weights)
        record = read_sealed(run_dir(cell) / "run.json")
        write_sealed(run_dir(cell) / "run.json", record | {"model_sha256": sha256_file(weights)})
    assert check(study, None) == 1
    assert capsys.readouterr().out.count("run.json: another model_sha256 than in the manifest") == 2


def test_a_number_of_the_results_that_does_not_come_out_is_found(
    study: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    results = MANIFEST.with_name("results.csv")
    lines = results.read_text().splitlines(keepends=True)
    place = next(number for number, line in enumerate(lines) if ",test,loss," in line)
    value = lines[place].split(",")[7]
    lines[place] = lines[place].replace(value, repr(float(value) - 0.02))
    results.write_text("".join(lines))
    with pytest.raises(ValueError, match=r"results\.csv: changed since the manifest was written"):
        check(study[:1], None)
    manifest = read_json(MANIFEST)
    manifest["sha256"]["results.csv"] = sha256_file(results)
    write_json(MANIFEST, manifest)
    assert check(study[:1], None) == 1
    assert (
        f"too far: test loss: {float(value) - 0.02!r} in the manifest's results, {value} here"
        in capsys.readouterr().out
    )
    assert check(study[:1], None, own={"loss": 0.03}) == 0
    assert "reproduced within the tolerances" in capsys.readouterr().out


def test_another_number_of_threads_is_within_the_tolerances(study: list[str]) -> None:
    assert check([], 1, threads=2, folder=Path("again")) == 0
    plan = load_plan(Path("again/plan.json"))
    assert {one.execution.train_threads for one in plan.studies.values()} == {2}


def test_data_that_are_not_there_are_prepared_again(study: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree("results/data")
    shutil.rmtree("results/runs")  # as where only the folder of the study was handed on
    PLAN.unlink()
    assert check(study[:1], None, folder=Path("again")) == 0
    said = capsys.readouterr().out
    assert "reproduced bit for bit" in said
    assert "not compared: the history and the files beside evaluations: the recorded run is not there" in said
    assert not Path("results/data").exists()


def test_damaged_data_are_left_alone_and_prepared_again(study: list[str]) -> None:
    folder = data_dir(load_plan(PLAN).data_ids[0])
    bin_ = folder / "train.bin"
    bin_.write_bytes(bytes(8) + bin_.read_bytes()[8:])
    before = files_of(Path("results"))
    assert check(study[:1], None) == 0
    assert files_of(Path("results")) == before


def test_text_that_is_no_longer_there_cannot_be_checked(study: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree("results/data")

    def no_text(command: list[str], threads: int) -> int:
        return 2

    assert verify_module.verify(MANIFEST, study[:1], None, run=no_text) == 2
    assert "not checked\n  its data are not there, and could not be prepared again" in capsys.readouterr().out


def test_a_training_that_fails_here_cannot_be_checked(study: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    def no_memory(command: list[str], threads: int) -> int:
        return 137 if command[0] == "train" else main(command)

    assert verify_module.verify(MANIFEST, study[:1], None, run=no_memory) == 2
    assert "`train` ended with exit status 137" in capsys.readouterr().out


def test_what_differs_between_the_machines_is_said(study: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    manifest = read_json(MANIFEST)
    manifest["cells"][0]["environment"] |= {"torch": "2.0.0", "device": "NVIDIA H100"}
    manifest["protocol"]["versions"]["downstream"] = 1
    write_json(MANIFEST, manifest)
    assert check(study[:1], None) == 0
    said = capsys.readouterr().out
    assert "another torch: 2.0.0 then, " in said
    assert "another device: NVIDIA H100 then, CPU (" in said
    note = "not compared: downstream, whose mathematics has another version here: of 6 numbers that both have, 6 are"
    assert note in said


def test_a_cell_that_was_not_trained_cannot_be_checked(study: list[str]) -> None:
    manifest = read_json(MANIFEST)
    manifest["cells"][0] |= {"status": "not trained", "reason": "no run.json"}
    write_json(MANIFEST, manifest)
    assert check(study[:1], None) == 2
    with pytest.raises(ValueError, match="--sample: 2, but the manifest has 1 trained cells"):
        check([], 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cells": None}, "not a manifest of this program"),
        ({"cells": [{"cell": "nano_1_adamw_s1_0"}]}, "would be trained in another way"),
        ({"studies": []}, "would be trained in another way"),
    ],
)
def test_what_is_no_manifest_is_refused(study: list[str], change: dict[str, Any], message: str) -> None:
    write_json(MANIFEST, read_json(MANIFEST) | change)
    with pytest.raises(ValueError, match=message):
        check(study[:1], None)


def test_the_command_line(study: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(MANIFEST), "--cells", "nobody"]) == 2
    assert "--cells: nobody not in" in capsys.readouterr().err
    assert main(["verify", str(MANIFEST), "--sample", "1", "--tolerance", "loss=-1"]) == 2
    assert "--tolerance: 'loss=-1' is not METRIC=NUMBER" in capsys.readouterr().err
    for wrong in (["--sample", "0"], [], ["--sample", "1", "--cells", "a"]):
        with pytest.raises(SystemExit, match="2"):
            main(["verify", str(MANIFEST), *wrong])


def test_a_sample_is_drawn_evenly(study: list[str]) -> None:
    recorded = verify_module.read_recorded(MANIFEST)
    drawn = [verify_module.choose(recorded, 1, seed)[0] for seed in range(200)]
    assert 70 < drawn.count(study[0]) < 130
    assert verify_module.choose(recorded, 2, 0) == study


def test_the_spread_is_that_over_the_seeds_of_a_cell(study: list[str]) -> None:
    recorded = verify_module.read_recorded(MANIFEST)
    first, second = recorded.plan.cells.values()
    assert recorded.spread(first) == {}  # there is one seed
    twin = replace(first, id="twin", seed=2)
    plan = SimpleNamespace(cells={cell.id: cell for cell in (first, second, twin)})
    values = {first.id: {LOSS: 3.0, ACC: 0.5}, second.id: {LOSS: 9.0, ACC: 0.9}, "twin": {LOSS: 4.0, ACC: math.nan}}
    assert replace(recorded, plan=plan, values=values).spread(first) == {LOSS: pytest.approx(0.5**0.5)}


def test_numbers_are_compared_with_the_tolerance_of_their_metric() -> None:
    allowed = tolerances(METRICS, {("test", "loss"): 0.004, ("embeddings", "isotropy"): 0.02}, {"acc": 0.5})
    assert allowed["test", "loss"] == 0.01  # tables print two digits
    assert allowed["embeddings", "isotropy"] == 0.02  # the spread over seeds is larger than their last digit
    assert allowed["average", "acc"] == 0.5
    then = {("test", "loss"): 3.0, ("average", "acc"): math.nan, ("x", "y"): 1.0, ("z", "z"): math.nan}
    now = {("test", "loss"): 3.009, ("average", "acc"): 0.4, ("x", "y"): 9.0, ("z", "z"): math.nan}
    near, missing, other = compare_numbers(then, now, allowed, {})
    assert (near.name, near.is_far, near.share) == ("test loss", False, pytest.approx(0.9))
    assert missing.is_far  # NaN there, a number here
    assert (other.is_far, other.share) == (False, -1.0)  # no table prints it
    assert compare_numbers(then, now, allowed, {"y": 1.0})[2].is_far
    assert Difference("test loss", 3.0, 3.0101, 0.01).is_far


def test_histories_are_compared_line_by_line() -> None:
    then = [{"step": 1, "loss": 2.0, "lr": 0.1, "time": 5.0}, {"step": 2, "loss": 1.0, "lr": 0.1, "time": 6.0}]
    now = [{"step": 1, "loss": 2.0, "lr": 0.2, "time": 9.0}]
    found = compare_histories(then, now)
    names = ["step 1, lr", "step 2, step", "step 2, loss", "step 2, lr"]
    assert [difference.name for difference in found] == [f"history, {name}" for name in names]
