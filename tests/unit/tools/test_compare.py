"""``compare`` on a study of seconds, run by Snakemake as the shipped one is."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
import yaml
from finished import SNAKEMAKE

import coupled_adam_bench
from coupled_adam_bench.cli import main
from coupled_adam_bench.store.runs import finished_run
from coupled_adam_bench.study.plan.cells import block_cells
from coupled_adam_bench.study.settings import load_study
from coupled_adam_bench.tools import compare as module
from coupled_adam_bench.tools.compare import compare

OWN = """
import torch

class Mine(torch.optim.AdamW):
    def __init__(self, params, lr, weight_decay=0.0):
        super().__init__(params, lr=lr, betas=(0.9, 0.95), weight_decay=weight_decay)

class NeedsClosure(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    def step(self, closure):
        closure()
"""


@pytest.fixture
def small(tmp_path, monkeypatch) -> Path:
    """Return an empty folder in which ``compare`` takes a study of seconds for the shipped one."""
    values = yaml.safe_load(module._SHIPPED.read_text(encoding="utf-8"))
    values["data"] |= {
        "source": {"kind": "synthetic", "n_words": 60, "n_tokens": 40000},
        "vocab_size": 64,
        "split": {"val_fraction": 0.02, "test_fraction": 0.02},
    }
    values["data"]["source"] |= {"n_classes": 4, "n_topics": 4, "n_word_pairs": 40}
    values["models"][0] |= {"n_contexts": 8, "d_model": 4}
    values["training"] |= {"seq_len": 8, "batch_sequences": 4, "warmup_steps": 5}
    values["grid"][0]["tokens"] = [{"steps": 40}]
    values["execution"] |= {"data_threads": 1, "track_seconds": None}
    shipped = tmp_path / "shipped.yaml"
    shipped.write_text(yaml.safe_dump(values))
    monkeypatch.setattr(module, "_SHIPPED", shipped)
    here = tmp_path / "here"
    here.mkdir()
    (here / "my_module.py").write_text(OWN)
    monkeypatch.chdir(here)
    return here


def test_the_package_hands_it_out():
    assert coupled_adam_bench.compare is compare
    with pytest.raises(AttributeError, match="no attribute 'compares'"):
        coupled_adam_bench.compares  # noqa: B018


def test_the_shipped_study_has_one_block_in_the_regime_that_its_page_states():
    study = load_study(module._SHIPPED)
    (block,) = study.grid
    assert study.training.data_order == "pairs" and study.data.vocab_size == 50304
    assert study.training.seq_len * study.training.batch_sequences == 36_864
    assert len(block.seeds) == 3 and block_cells(study, "data", block)


def test_two_calls_train_each_cell_once_and_say_the_numbers_of_the_study(small, capfd):
    optimizers = ["adamw", {"name": "adamw", "beta2": 0.999}, "my_module.Mine"]
    first = compare(optimizers, seeds=2)
    trained = {path: path.stat().st_mtime_ns for path in small.glob("results/runs/*/run.json")}
    assert len(trained) == 6
    assert "6 of 6 cells trained" in capfd.readouterr().err

    second = compare(optimizers, seeds=3)
    now = {path: path.stat().st_mtime_ns for path in small.glob("results/runs/*/run.json")}
    assert len(now) == 9 and trained.items() <= now.items()
    assert all(finished_run(path.parent) for path in now)

    assert first.frame["seed"].nunique() == 2 and second.frame["seed"].nunique() == 3
    written = pd.read_csv(small / "results/compare/results.csv")
    assert len(written) == len(second.frame)
    # The study that it names is the one that ran: nothing is left to do.
    planned = subprocess.run(
        [*SNAKEMAKE, "-n", "--configfile", str(second.study)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Nothing to be done" in planned.stdout + planned.stderr

    lines = str(second).splitlines()
    assert lines[0].split()[:2] == ["optimizer", "loss"]
    assert [line.split("  ")[0] for line in lines[1:4]] == [
        "Adam", "Adam, beta2 = 0.999", "my_module.Mine",
    ]  # fmt: skip
    losses = written[(written["metric"] == "loss") & (written["optimizer"] == "adamw")]["value"]
    assert lines[1].split()[1] == f"{losses.mean():.3f}"
    # AdamW with the betas of the study has its numbers, but for rounding.
    assert lines[6].startswith("The loss of my_module.Mine is 0.000 nat a token ")
    assert "than that of Adam, which is not clearly different (95 % interval" in lines[6]


@pytest.mark.parametrize(
    ("optimizers", "seeds", "said"),
    [
        (["adamw"], 3, "optimizers: .* give a list of two or more"),
        ("adamw", 3, "optimizers: 'adamw' is nothing to compare"),
        (["adamw", "adamww"], 3, "grid.0.optimizers.1: .*adamww"),
        (["adamw", {"name": "adamw", "beta3": 1}], 3, "grid.0.optimizers.1.*beta3"),
        (["adamw", "coupled_adam"], 1, "needs at least 2 seeds"),
        (["adamw", type("Mine", (), {"__module__": "__main__"})], 3, "into a file my_module.py"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_written(small, optimizers, seeds, said):
    with pytest.raises(ValueError, match=f"(?s){said}"):
        compare(optimizers, seeds)
    assert not (small / "results").exists()


def test_the_command_reads_entries_as_a_study_has_them(small, capsys):
    assert main(["compare", "adamw", "{name: adamw, beta3: 1}"]) == 2
    assert "grid.0.optimizers.1.beta3" in capsys.readouterr().err
    assert main(["compare", "adamw", "coupled_adam", "--seeds", "1"]) == 2
    assert "needs at least 2 seeds" in capsys.readouterr().err
    assert not (small / "results").exists()


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("my_module.Mien", "'my_module' has no 'Mien'; did you mean 'Mine'?"),
        ("my_module.NeedsClosure", "step() fails"),
        ("no_module.Mine", "no package or module 'no_module'"),
    ],
)
def test_a_wrong_class_has_the_sentence_of_a_study_and_trains_nothing(small, path, said, capfd):
    with pytest.raises(RuntimeError, match="once that is mended, the same call goes on"):
        compare(["adamw", path], seeds=2)
    assert said in capfd.readouterr().err
    assert not (small / "results" / "runs").exists()


def test_the_command_tells_a_wrong_class_without_a_traceback(small, capfd):
    assert main(["compare", "adamw", "my_module.Mien", "--seeds", "2"]) == 1
    said = capfd.readouterr().err
    assert "'my_module' has no 'Mien'" in said and "error: " in said
    assert "Traceback" not in said


@pytest.mark.parametrize("words", [["{name: sgd"], ["{name:", "adamw,", "beta2:", "0.999}"]])
def test_the_command_tells_an_entry_that_is_no_yaml_what_to_quote(words, small, capfd):
    assert main(["compare", "adamw", *words]) == 2
    said = capfd.readouterr().err
    assert f"OPTIMIZER: {words[0]!r} is no YAML; put braces and what is between them" in said
    assert "Traceback" not in said


def test_ctrl_c_keeps_what_is_there_and_the_same_call_goes_on(small):
    values = yaml.safe_load(module._SHIPPED.read_text())
    values["grid"][0]["tokens"] = [{"steps": 20000}]
    values["execution"] |= {"checkpoint_every": 20000, "train_cells_per_job": 1}
    module._SHIPPED.write_text(yaml.safe_dump(values))
    program = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
        " from pathlib import Path; from coupled_adam_bench.tools import compare as module;"
        f" module._SHIPPED = Path({str(module._SHIPPED)!r});"
        " module.compare(['adamw', 'coupled_adam'], 2, cores=1)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stderr=subprocess.PIPE, text=True, start_new_session=True,
        env=os.environ,
    )  # fmt: skip
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and not any(
        path.stat().st_size for path in small.glob("results/runs/*/history.jsonl")
    ):
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert "Stopped. The same command goes on from here." in said
    assert said.rstrip().endswith("KeyboardInterrupt")
    assert list(small.glob("results/runs/*/checkpoints/*"))
