"""``verify`` on a tiny study that was trained for real; its commands run in this process."""

import csv
import gzip
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from coupled_adam_bench.cli import main
from coupled_adam_bench.machine.device import processor
from coupled_adam_bench.machine.process import git_revision
from coupled_adam_bench.store.files import read_json, read_sealed, sha256_file, write_json
from coupled_adam_bench.store.paths import data_dir
from coupled_adam_bench.study.plan import load_plan, make_plan
from coupled_adam_bench.study.settings import parse_study
from coupled_adam_bench.tools.verify import verify as verify_module
from coupled_adam_bench.tools.verify.recorded import _chosen, with_choices
from coupled_adam_bench.tools.verify.rerun import run_in_process

MANIFEST = Path("results/tiny/manifest.json")
PLAN = MANIFEST.with_name("plan.json")


def run_here(command: list[str], threads: int) -> int:
    return main(command)


def check(*arguments: Any, **options: Any) -> int:
    return verify_module.verify(MANIFEST, *arguments, run=run_here, **{"repeats": 3, **options})


REPORT = ["--templates", str(Path(__file__).parents[4] / "templates"), "--svg-only"]


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
        loaded = load_plan(Path(plan[1]))
        cells = ["--cells", *loaded.cells]
        assert main(["train", *plan, *cells]) == 0
        for stage in loaded.studies["tiny"].stages:
            assert main([stage.command, *plan, *cells, "--done", f"{stage.name}.done"]) == 0
        assert main(["report", *plan, *REPORT]) == 0
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


def test_a_study_reproduces_bit_for_bit_and_is_not_touched(study, capsys):
    before = files_of(Path("results"))
    assert check(study, None) == 0
    assert files_of(Path("results")) == before
    said = capsys.readouterr().out
    for cell in study:
        assert f"{cell}: reproduced bit for bit" in said


def forge(cell: str, changes: dict[str, float]) -> None:
    """Change numbers of a cell in the results, and the sum of these in the manifest, as a careful
    forger does."""
    results = MANIFEST.with_name("results.csv")
    with results.open(newline="") as file:
        header, *rows = csv.reader(file)
    for row in rows:
        named = dict(zip(header, row, strict=True))
        if named["cell"] == cell and named["metric"] in changes and named["task"] in PRINTED:
            row[header.index("value")] = repr(float(named["value"]) + changes[named["metric"]])
    with results.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    manifest = read_json(MANIFEST)
    manifest["sha256"]["results.csv"] = sha256_file(results)
    write_json(MANIFEST, manifest)


PRINTED = ("test", "word_similarity", "embeddings", "average")
WITHIN_A_DIGIT = {"loss": -0.0099, "r_bar": 0.99, "isotropy": 0.0099, "acc": 0.01}


@pytest.mark.fault(
    "results",
    "Four numbers of a cell are forged by less than a printed digit, and the sum in the manifest is"
    " put right.",
    "`verify` says that they are not reproduced, each by its name, and exits with 1.",
)
def test_numbers_that_are_forged_within_a_printed_digit_are_found(study, capsys):
    forge(study[0], WITHIN_A_DIGIT)
    assert check(study[:1], None) == 1
    said = capsys.readouterr().out
    for number in ("test loss", "word_similarity r_bar", "embeddings isotropy", "average acc"):
        assert f"too far: {number}: " in said
    assert "is allowed (the weights are the same, so no training was rounded)" in said
    assert "4 of 112 numbers have other bits; the weights are the same" in said
    assert "1 of 2 cells: NOT reproduced" in said
    assert (
        check(study[:1], None, own={"loss": 0.03, "acc": 0.02, "r_bar": 1.0, "isotropy": 0.01}) == 0
    )
    assert "1 of 2 cells: reproduced, but for rounding" in capsys.readouterr().out


def test_results_of_which_the_sum_is_another_are_refused(study):
    results = MANIFEST.with_name("results.csv")
    results.write_text(results.read_text().replace(",test,loss,", ",test,los,", 1))
    with pytest.raises(ValueError, match=r"results\.csv: changed since the manifest was written"):
        check(study[:1], None)


def test_where_the_weights_differ_the_limit_is_measured(study, capsys):
    forge(study[0], WITHIN_A_DIGIT)
    manifest = read_json(MANIFEST)
    manifest["cells"][0]["model_sha256"] = "0" * 64
    write_json(MANIFEST, manifest)
    assert check(study[:1], None) == 1
    said = capsys.readouterr().out
    assert "trained 3 times, of which the numbers here are the means" in said
    assert "standard deviations over repeats, 2 degrees of freedom" in said
    assert check(study[:1], None, repeats=1) == 3
    said = capsys.readouterr().out
    assert f"{study[0]}: not checked\n  undecided: " in said
    assert "its spread is not known: no second seed, no repeats" in said


def test_other_threads_round_otherwise_and_reproduce(study, capsys):
    assert check(study, None, threads=2, folder=Path("again")) == 0
    assert "another threads: 1 then, 2 here" in capsys.readouterr().out
    execution = read_sealed(Path("again/plan.json"))["studies"][0]["study"]["execution"]
    assert (execution["train_threads"], execution["evaluation_threads"]) == (2, 2)


def test_what_a_command_says_is_shown_if_it_fails(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    assert run_in_process(["plan"], 1) == 2
    assert "plan.log ends with:" in capfd.readouterr().err
    assert run_in_process(["plan", "--help"], 1) == 0
    assert capfd.readouterr() == ("", "")


def test_data_that_are_not_there_are_prepared_again(study, capsys):
    shutil.rmtree("results/data")
    shutil.rmtree("results/runs")  # as where only the folder of the study was handed on
    PLAN.unlink()
    assert check(study[:1], None, folder=Path("again")) == 0
    assert "reproduced bit for bit" in capsys.readouterr().out
    assert not Path("results/data").exists()


ROOT = Path(__file__).parents[4]
EXAMPLES = ROOT / "docs" / "examples"


def unpacked(packed: Path, folder: Path) -> Path:
    """Unpack the manifest of a bundle and its results, and return the manifest."""
    folder.mkdir()
    for name in ("manifest.json", "results.csv"):
        (folder / name).write_bytes(gzip.decompress((packed.parent / f"{name}.gz").read_bytes()))
    return folder / "manifest.json"


def test_all_shipped_manifests_are_read(tmp_path):
    packed = [
        path for top in ("research", "docs") for path in (ROOT / top).rglob("manifest.json.gz")
    ]
    assert len(packed) == 16
    found = [unpacked(path, tmp_path / path.parts[-3]) for path in packed]
    studies = set()
    for path in (EXAMPLES / "demo" / "manifest.json", *found):
        recorded = verify_module.read_recorded(path)
        studies.add(recorded.plan.name)
        cells = {cell["cell"] for cell in read_json(path)["cells"]}
        assert set(recorded.plan.cells) == set(recorded.values) == cells
        assert set(recorded.choices) == set(recorded.plan.tunings)
        assert all(cell.is_chosen for cell in recorded.plan.cells.values())
    assert {"demo", "english", "regime", "rivals", "theory"} <= studies


def test_a_manifest_without_its_results_is_refused(tmp_path):
    shutil.copy(EXAMPLES / "demo" / "manifest.json", tmp_path)
    with pytest.raises(ValueError, match=r"results\.csv: missing"):
        verify_module.read_recorded(tmp_path / "manifest.json")


@pytest.mark.parametrize(
    ("text", "message"), [("nothing", "matches no text file"), ("other", "other: not the text, ")]
)
def test_text_that_is_not_there_or_another_is_said_so(text, message, tmp_path, capsys):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "one.txt").write_text("text")
    (packed,) = ROOT.glob("*/english/bundle/manifest.json.gz")
    path = unpacked(packed, tmp_path / "english")
    cell = read_json(path)["cells"][0]["cell"]
    options = {
        "given": {"text": str(tmp_path / text)},
        "run": pytest.fail,
        "folder": tmp_path / "again",
    }
    assert verify_module.verify(path, [cell], None, **options) == 3
    said = capsys.readouterr().out
    assert message in said
    assert "give its place with --config 'paths={text: FOLDER}'" in said


OWN = """
from torch.optim import SGD

class Mine(SGD):
    pass
"""


@pytest.fixture
def tuned_study(
    tmp_path: Path, tiny_study: Any, tiny_data: Path, monkeypatch: pytest.MonkeyPatch
) -> str:
    """The id of the cell of a finished study whose settings a trial chose; the optimizer is a
    user's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("own_for_verify.py").write_text(OWN)
    own = {"name": "custom", "path": "own_for_verify.Mine", "key": "mine", "label": "Mine"}
    tune = {"seeds": [9], "grids": {"mine": {"lr_factor": [1.0, 5.0]}}}
    grid = tiny_study()["grid"][0] | {
        "tokens": [{"steps": 12}],
        "seeds": [1],
        "optimizers": [own],
        "tune": tune,
    }
    del grid["table"]
    Path("tiny.yaml").write_text(yaml.safe_dump(tiny_study(grid=[grid])))
    plan = ["--plan", "results/tiny/plan.json"]
    assert main(["plan", "--study", "tiny.yaml", "--out", plan[1]]) == 0
    assert main(["prepare", *plan]) == 0
    (tuning,) = load_plan(PLAN).tunings
    out = f"results/tiny/tuning/{tuning}.json"
    for stage in ("train", "choose"):
        tried = (
            ["--cells", *load_plan(PLAN).tuning_cells]
            if stage == "train"
            else ["--tuning", tuning, "--out", out]
        )
        assert main([stage, *plan, *tried]) == 0
    cells = ["--cells", *load_plan(PLAN).by_job_name]
    assert main(["train", *plan, *cells]) == 0
    for stage in load_plan(PLAN).studies["tiny"].stages:
        assert main([stage.command, *plan, *cells, "--done", f"{stage.name}.done"]) == 0
    assert main(["report", *plan, *REPORT]) == 0
    return next(cell.id for cell in load_plan(PLAN).cells.values() if cell.tuning)


def test_a_tuned_cell_is_verified_with_its_choice(tuned_study, capsys):
    assert check([tuned_study], None) == 0
    assert f"{tuned_study}: reproduced bit for bit" in capsys.readouterr().out
    Path("own_for_verify.py").write_text(OWN + "# a comment\n")
    assert check([tuned_study], None) == 3
    said = capsys.readouterr().out
    assert (
        "not checked\n  own_for_verify.Mine is other code here than that of the manifest (" in said
    )
    assert "own_for_verify.py)" in said


def test_a_candidate_that_is_in_the_grid_too_is_not_taken_for_the_choice(tiny_study):
    grid = tiny_study()["grid"][0] | {"table": None, "seeds": [1]}
    tune = {"seeds": [9], "grids": {"adamw": {"lr_factor": [0.5, 2.0]}}}
    given = grid | {"optimizers": [{"name": "adamw", "lr_factor": 0.5}]}
    plan = make_plan(
        parse_study(tiny_study(grid=[grid | {"optimizers": ["adamw"], "tune": tune}, given]))
    )
    for index, n_cells in ((0, 1), (1, 2)):
        known = set(with_choices(plan, dict.fromkeys(plan.tunings, index)).cells)
        found, choices = _chosen("tiny", "", plan.to_json()["studies"], MANIFEST, known)
        assert list(choices.values()) == [index]
        assert set(found.cells) == known
        assert len(known) == n_cells


def test_damaged_data_are_left_alone_and_prepared_again(study):
    folder = data_dir(load_plan(PLAN).data_ids[0])
    bin_ = folder / "train.bin"
    bin_.write_bytes(bytes(8) + bin_.read_bytes()[8:])
    before = files_of(Path("results"))
    assert check(study[:1], None) == 0
    assert files_of(Path("results")) == before


def test_text_that_is_no_longer_there_cannot_be_checked(study, capsys):
    shutil.rmtree("results/data")

    def no_text(command: list[str], threads: int) -> int:
        return 2

    assert verify_module.verify(MANIFEST, study[:1], None, run=no_text) == 3
    assert (
        "not checked\n  its data are not there, and could not be prepared again"
        in capsys.readouterr().out
    )


def test_a_training_that_fails_here_cannot_be_checked(study, capsys):
    def no_memory(command: list[str], threads: int) -> int:
        return 137 if command[0] == "train" else main(command)

    assert verify_module.verify(MANIFEST, study[:1], None, run=no_memory) == 3
    assert "`train` ended with exit status 137" in capsys.readouterr().out


def test_what_differs_between_the_machines_is_said(study, capsys):
    manifest = read_json(MANIFEST)
    manifest["cells"][0]["environment"] |= {"torch": "2.0.0", "device": "NVIDIA H100"}
    manifest["protocol"]["versions"]["downstream"] = 1
    write_json(MANIFEST, manifest)
    assert check(study[:1], None) == 0
    said = capsys.readouterr().out
    assert "another torch: 2.0.0 then, " in said
    assert f"another device: NVIDIA H100 then, {processor()} here" in said
    assert "not compared: downstream, whose mathematics has another version here" in said


def test_a_cell_that_was_not_trained_cannot_be_checked(study):
    manifest = read_json(MANIFEST)
    manifest["cells"][0] |= {"status": "not trained", "reason": "no run.json"}
    write_json(MANIFEST, manifest)
    assert check(study[:1], None) == 3
    with pytest.raises(ValueError, match="--sample: 2, but the manifest has 1 trained cells"):
        check([], 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cells": None}, "not a manifest of this program"),
        ({"cells": [{"cell": "nano_1_adamw_s1_0"}]}, "would be trained in another way"),
        (
            {"studies": [], "git_revision": "abc"},
            "would be trained in another way .*; check out revision abc",
        ),
        (
            {"studies": [], "git_revision": git_revision()},
            "in another way .*; put it back as it was written",
        ),
    ],
)
def test_what_is_no_manifest_is_refused(study, change, message):
    write_json(MANIFEST, read_json(MANIFEST) | change)
    with pytest.raises(ValueError, match=message):
        check(study[:1], None)


def test_the_command_line(study, capsys):
    assert main(["verify", str(MANIFEST), "--cells", "nobody"]) == 2
    assert "--cells: nobody not in" in capsys.readouterr().err
    assert main(["verify", str(MANIFEST), "--sample", "1", "--tolerance", "loss=-1"]) == 2
    assert "--tolerance: 'loss=-1' is not METRIC=NUMBER" in capsys.readouterr().err
    for text in ("paths={txt: here}", "paths=here", "training={seq_len: 8}"):
        assert main(["verify", str(MANIFEST), "--sample", "1", "--config", text]) == 2
        assert (
            f"--config: '{text}' is not paths={{...}} with text: PATH, " in capsys.readouterr().err
        )
    for wrong in (["--sample", "0"], [], ["--sample", "1", "--cells", "a"]):
        with pytest.raises(SystemExit, match="2"):
            main(["verify", str(MANIFEST), *wrong])


def test_a_sample_is_drawn_evenly(study):
    recorded = verify_module.read_recorded(MANIFEST)
    drawn = [verify_module.choose(recorded, 1, seed)[0] for seed in range(200)]
    assert 70 < drawn.count(study[0]) < 130
    assert verify_module.choose(recorded, 2, 0) == study


@pytest.mark.fault(
    "results",
    "A pipe stands in the place of a manifest, of its results or of a record of the data.",
    "`verify` does not open it: it says so, or prepares the data again",
)
@pytest.mark.parametrize("name", ["manifest.json", "results.csv", "meta.json"])
def test_a_pipe_is_not_opened(study, name):
    (data,) = Path("results/data").iterdir()
    file = data / name if name == "meta.json" else MANIFEST.with_name(name)
    file.unlink()
    os.mkfifo(file)
    if name == "meta.json":
        assert check(study[:1], None) == 0
        return
    with pytest.raises(ValueError, match=r"a pipe stands where a file belongs|missing, so there"):
        check(study[:1], None)
