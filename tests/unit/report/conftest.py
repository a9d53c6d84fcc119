"""A study of the paper's shape with results that are drawn, not measured, from evaluation files to
report."""

import hashlib
import json
import math
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from finished import once

from coupled_adam_bench.records.kept import (
    DOCUMENTS,
    WINDOWS,
    Document,
    WindowLosses,
    pack_documents,
    pack_windows,
)
from coupled_adam_bench.records.stored import beside
from coupled_adam_bench.report import figures, make
from coupled_adam_bench.report.make import Places, report
from coupled_adam_bench.results.collect import read_results
from coupled_adam_bench.results.groups import layout_of
from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.statistics.decisions import decide
from coupled_adam_bench.statistics.declared import Material
from coupled_adam_bench.store.files import write_sealed
from coupled_adam_bench.study.catalogue.tables import PAPER_COLUMNS
from coupled_adam_bench.study.plan import Plan, make_plan
from coupled_adam_bench.study.plan.cells import Cell
from coupled_adam_bench.study.settings import parse_any_study, parse_study

TEMPLATES = Path(__file__).parents[3] / "templates"
FACTORS = (100, 200, 300, 400, 500, 600)


def large(name: str, label: str, n_layer: int, d_model: int) -> dict[str, Any]:
    return {
        "name": name,
        "label": label,
        "n_layer": n_layer,
        "n_head": 32,
        "d_model": d_model,
        "learning_rate": 2e-4,
    }


def fake_settings() -> dict[str, Any]:
    pair = ["adamw", "coupled_adam"]
    sgd = [{"name": "sgd", "lr_factor": factor} for factor in FACTORS]
    return {
        "study": "fake",
        "title": "Drawn numbers, 100 % fake & <b>harmless</b>",
        "data": {
            "name": "owt",
            "source": {"kind": "hub", "preset": "openwebtext"},
            "tokenizer": "gpt2",
            "vocab_size": 50304,
        },
        "models": [
            "gpt2-125m",
            "gpt2-355m",
            "gpt2-760m",
            large("l1", "1.3B", 24, 2048),
            large("l2", "2.6B", 32, 2560),
        ],
        "evaluation": {"word_similarity": []},
        "statistics": {"margins": {"loss": 0.02}},
        "grid": [
            {
                "table": "table1",
                "models": ["gpt2-125m", "gpt2-355m", "gpt2-760m"],
                "tokens": ["5B", "10B", "20B"],
                "optimizers": pair,
            },
            {
                "table": "table2",
                "models": ["l1"],
                "tokens": ["26B"],
                "optimizers": pair,
                "seeds": [1],
            },
            {
                "table": "table2",
                "models": ["l2"],
                "tokens": ["210B"],
                "optimizers": pair,
                "seeds": [1],
            },
            {
                "table": "table7",
                "models": ["gpt2-125m"],
                "tokens": ["5B", "20B"],
                "optimizers": pair + sgd,
            },
        ],
    }


def drawn(cell: Cell) -> dict[str, float]:
    """Draw the tables' metrics of a cell, of the order of the paper's."""
    rng = np.random.default_rng(
        [cell.seed, cell.steps, cell.n_params % 2**32, sum(map(ord, cell.optimizer.key))]
    )
    coupled, sgd = cell.optimizer.name == "coupled_adam", cell.optimizer.name == "sgd"
    size, tokens = math.log10(cell.n_params / 1e8), math.log10(cell.n_tokens / 1e9)
    noise = dict(zip(PAPER_COLUMNS, rng.normal(size=len(PAPER_COLUMNS)), strict=True))
    return {
        "loss": 3.52
        - 0.35 * size
        - 0.33 * tokens
        + (0.01 - 0.04 * tokens) * coupled
        + 0.05 * sgd
        + 0.004 * noise["loss"],
        "acc": 0.33
        + 0.03 * size
        + 0.02 * tokens
        + 0.002 * coupled
        - 0.01 * sgd
        + 0.002 * noise["acc"],
        "isotropy": (0.9 if coupled else 0.6 if sgd else 0.2) + 0.02 * noise["isotropy"],
        "mean_norm": (0.05 if coupled or sgd else 1.31) + 0.01 * noise["mean_norm"],
        "mean_norm_ratio": (0.02 if coupled or sgd else 0.78) + 0.004 * noise["mean_norm_ratio"],
        "r_bar": (57 if coupled else 40 if sgd else 5) + 0.8 * noise["r_bar"],
        "rho": (0.62 if coupled else -0.35) + 0.012 * noise["rho"],
        "kappa": (6.1 if coupled else 1.2) + 0.15 * noise["kappa"],
    }


def diverges(cell: Cell) -> bool:
    return (cell.optimizer.key, cell.seed) in {("sgd_f500", 2)} | {
        ("sgd_f600", seed) for seed in (1, 2, 3)
    }


def drawn_text(cell: Cell, loss: float, acc: float) -> dict[str, dict[str, bytes]]:
    """Draw the losses of windows and the accuracies of documents by stage; the text is the same for
    all cells."""
    text, own = np.random.default_rng(0), np.random.default_rng([cell.seed, len(cell.id)])
    losses = loss + 0.3 * text.normal(size=100) + 0.02 * own.normal(size=100)
    windows = WindowLosses(np.arange(100) * 64, np.arange(100) // 2, np.full(100, 64), losses)
    right = text.random((2, 60)) + 0.1 * own.normal(size=(2, 60)) < acc
    documents = [
        Document(
            task, index, f"{index:016x}", 0, {"acc": float(right[number, index])}, [-1.0, -2.0]
        )
        for number, task in enumerate(("race", "arc_<easy>"))
        for index in range(60)
    ]
    return {
        "test_loss": {WINDOWS: pack_windows(windows)},
        "downstream": {DOCUMENTS: pack_documents(documents)},
    }


def write_fake_run(cell: Cell, files: Any) -> None:
    """Write all that training and evaluation leave behind, apart from the model."""
    status = "diverged" if diverges(cell) else "completed"
    values = {"n_predicted_tokens": 6400.0, "n_documents": 50.0} | drawn(cell)
    files.run(
        cell.id,
        status=status,
        step=60 if status == "diverged" else cell.steps,
        data_sha256={"train": "cd" * 32},
        train={"seconds": 12.5, "tokens_per_second": 81920.0, "peak_memory_bytes": None},
        environment={"python": "3.11.7", "device": "CPU (x86_64)", "git_revision": None},
    )
    rows: dict[str, list[tuple[str, str, float, str]]] = {}
    for stage in cell.study.stages:
        rows[stage.name] = [
            (task, name, math.nan if status == "diverged" else values.get(name, 0.5), unit)
            for task, name, unit in stage.measures
        ]
    if status == "completed":
        rows["test_loss"].append(("test", "perplexity", math.exp(values["loss"]), "1"))
    beside_of = {} if status == "diverged" else drawn_text(cell, values["loss"], values["acc"])
    for stage, results in rows.items():
        kept = {
            name: hashlib.sha256(contents).hexdigest()
            for name, contents in beside_of.get(stage, {}).items()
        }
        path = files.evaluation(cell.id, stage, results, **({"files": kept} if kept else {}))
        for name, contents in beside_of.get(stage, {}).items():
            beside(path, name).write_bytes(contents)
    rng = np.random.default_rng(cell.seed)
    with (files.runs / cell.id / "history.jsonl").open("w") as file:
        for step in np.linspace(cell.steps / 60, cell.steps, 60).astype(int):
            done = step / cell.steps
            ratio = (0.03 if cell.optimizer.name == "coupled_adam" else 0.8) * (
                1 - math.exp(-6 * done)
            )
            loss = values["loss"] + 4 * math.exp(-12 * done) + 0.03 * rng.normal()
            row = {
                "step": int(step),
                "loss": loss,
                "lr": 1e-4,
                "mean_norm": ratio,
                "mean_norm_ratio": ratio,
            }
            if step == cell.steps:
                row["val_loss"] = loss + 0.1
            file.write(json.dumps(row) + "\n")


def build(plan: Plan, root: Path, stored: Any) -> Path:
    """Run all stages from evaluation files to report and return the study's folder."""
    files = stored(plan, root / "runs")
    for cell in plan.cells.values():
        write_fake_run(cell, files)
    study_dir = root / plan.name
    write_sealed(study_dir / "plan.json", plan.to_json())
    report(plan, Places(TEMPLATES, study_dir, root / "runs"), endings=figures.FIGURE_ENDINGS)
    return study_dir


@contextmanager
def svg_alone() -> Iterator[None]:
    """Draw figures without their PDF files, which cut the fonts anew and take two thirds of the
    time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "FIGURE_ENDINGS", ("svg",))
        yield


@pytest.fixture
def no_pdf() -> Iterator[None]:
    """Draw figures as SVG alone: for tests of what they show, not of their files."""
    with svg_alone():
        yield


@pytest.fixture
def draw_only(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return what lets reports have figures of some names alone, which take most of the time."""

    def only(*names: str) -> None:
        captions = {name: figures.FIGURES[name].caption for name in names}
        for module in (figures, make):
            monkeypatch.setattr(module, "figures_of", lambda plan: captions)

    return only


@pytest.fixture(scope="session")
def run_all_stages(stored: Any) -> Callable[[Plan, Path], Path]:
    """Return what draws the numbers of a plan and runs all stages from evaluation files to
    report."""

    def run(plan: Plan, root: Path) -> Path:
        with svg_alone():
            return build(plan, root, stored)

    return run


@dataclass(frozen=True)
class Fake:
    plan: Plan
    root: Path
    study_dir: Path

    @cached_property
    def study(self) -> StudyResults:
        """The results of the study, with their tests."""
        study = StudyResults(layout_of(self.plan), read_results(self.study_dir / "results.csv"))
        return decide(study)

    @property
    def material(self) -> Material:
        return Material(self.study, self.root / "runs", self.study_dir)

    @property
    def page(self) -> str:
        return (self.study_dir / "report" / "index.html").read_text()


@pytest.fixture(scope="session")
def fake(tmp_path_factory: pytest.TempPathFactory, stored: Any) -> Fake:
    """The drawn study, all stages run once; do not write into it."""
    plan = make_plan(parse_study(fake_settings()))
    root = once(tmp_path_factory, "fake", lambda root: build(plan, root, stored))
    return Fake(plan, root, root / plan.name)


@pytest.fixture(scope="session")
def fake_in_parts(fake: Fake, tmp_path_factory: pytest.TempPathFactory, stored: Any) -> Fake:
    """The drawn study cut into one for each table and put together again, without PDFs; do not
    write into it."""
    folder, settings = tmp_path_factory.mktemp("studies"), fake_settings()
    for table in ("table1", "table2", "table7"):
        grid = [block for block in settings["grid"] if block["table"] == table]
        (folder / f"{table}.yaml").write_text(
            yaml.safe_dump({**settings, "study": table, "title": table, "grid": grid})
        )
    whole = {
        "study": fake.plan.name,
        "title": fake.plan.title,
        "studies": ["table1", "table2", "table7"],
    }
    plan = make_plan(parse_any_study(whole), [folder])
    with svg_alone():
        root = once(tmp_path_factory, "fake-in-parts", lambda root: build(plan, root, stored))
    return Fake(plan, root, root / plan.name)


@pytest.fixture(scope="session")
def templates() -> Path:
    return TEMPLATES


@pytest.fixture(scope="session")
def chromium() -> Callable[..., subprocess.CompletedProcess[str]]:
    program = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )
    if program is None:
        if os.environ.get("CAB_REQUIRE_TOOLS") == "1":
            pytest.fail("chromium is not installed, and CAB_REQUIRE_TOOLS=1")
        pytest.skip("chromium is not installed")

    def run(arguments: list[str], timeout: float = 60) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [program, *arguments], capture_output=True, text=True, timeout=timeout
        )

    return run
