"""Validation loss and geometry while a cell trains: what they are, when they are measured, what
they leave alone."""

import contextlib
import gc
import json
import math
import shutil
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from coupled_adam_bench.study.catalogue.bands import BAND_NAMES, BAND_SHARES
from hypothesis import given
from hypothesis import strategies as st
from planned import only
from safetensors.numpy import load_file

from coupled_adam_bench.models.export import load_model
from coupled_adam_bench.store.paths import trunk_dir
from coupled_adam_bench.study.plan import make_plan
from coupled_adam_bench.study.settings import parse_study
from coupled_adam_bench.training import live
from coupled_adam_bench.training.checkpoint import checkpoints
from coupled_adam_bench.training.distributed import WorkerGroup
from coupled_adam_bench.training.jobs import train
from coupled_adam_bench.training.live import LiveMeasurements, validation_windows
from coupled_adam_bench.training.measurement import Measurement, is_geometry_step
from coupled_adam_bench.training.moment import fit_line
from coupled_adam_bench.training.trainer import Trainer
from embedding_geometry.frequency import bands_of_tokens
from embedding_geometry.metrics import embedding_metrics

ALONE = WorkerGroup(torch.device("cpu"))
STEPS = 14
MEASURED = {"eval_every": 5, "eval_sequences": 7, "geometry_per_decade": 4}
NOT_MEASURED = {"eval_every": None, "geometry_per_decade": 0}
GEOMETRY_STEPS = [1, 2, 3, 6, 10, STEPS]


def settings_of(tiny_study: Any, **execution: Any) -> dict[str, Any]:
    """One step per line of the history, for comparisons of losses; some steps that are measured
    have checkpoints."""
    settings: dict[str, Any] = tiny_study()
    settings["grid"][0] |= {
        "table": None,
        "tokens": [{"steps": STEPS}],
        "optimizers": ["coupled_adam"],
        "seeds": [1],
    }
    settings["execution"] |= {"log_every": 1, "checkpoint_every": 5, **execution}
    return settings


def cell_and_execution(settings: dict[str, Any]) -> tuple[Any, Any]:
    plan = make_plan(parse_study(settings))
    (cell,) = plan.cells.values()
    return cell, only(plan).study.execution


def history_of(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "history.jsonl").read_text().splitlines()]


def rows_with(run_dir: Path, name: str) -> dict[int, float]:
    return {row["step"]: row[name] for row in history_of(run_dir) if name in row}


@pytest.fixture(scope="module")
def runs(tiny_study, tiny_data, tmp_path_factory) -> dict[str, Path]:
    """The same cell with measurements, and without."""
    folder = tmp_path_factory.mktemp("runs")
    cells = set()
    for name, execution in (("measured", MEASURED), ("not", NOT_MEASURED)):
        cell, settings = cell_and_execution(settings_of(tiny_study, **execution))
        cells.add(cell.id)
        assert train(cell, settings, tiny_data, folder / name, ALONE) == 0
    assert len(cells) == 1
    return {name: folder / name for name in ("measured", "not")}


@pytest.mark.parametrize("per_decade", [1, 4, 7, 100])
def test_the_steps_of_the_geometry_are_rounded_powers(per_decade):
    powers = {round(10 ** (k / per_decade)) for k in range(4 * per_decade + 1)}
    found = {step for step in range(1, 10_001) if is_geometry_step(step, per_decade)}
    assert found == powers
    assert not any(is_geometry_step(step, 0) for step in range(1, 100))
    assert is_geometry_step(10**12, per_decade) and not is_geometry_step(10**12 + 1, 2)


@given(st.integers(1, 3000), st.integers(1, 50), st.integers(1, 200))
def test_validation_windows_are_whole_and_do_not_overlap(n_tokens, seq_len, n_windows):
    tokens = np.arange(n_tokens)  # each says its place
    if n_tokens == 1:
        with pytest.raises(
            ValueError, match=r"execution\.eval_every: the split val has .* raise data\.split\.val"
        ):
            validation_windows(tokens, seq_len, n_windows)
        return
    windows = validation_windows(tokens, seq_len, n_windows)
    length = min(seq_len, n_tokens - 1)  # a split that is shorter than a window is one
    assert windows.shape == (min(n_windows, (n_tokens - 1) // length), length + 1)
    assert (np.diff(windows, axis=1) == 1).all()
    assert windows[0, 0] == 0 and (np.diff(windows[:, 0]) >= length).all()


def test_the_validation_loss_is_the_mean_over_the_same_windows(runs, tiny_data):
    losses = rows_with(runs["measured"], "val_loss")
    assert list(losses) == [5, 10, STEPS]
    model = load_model(runs["measured"] / "model").double()
    tokens = np.fromfile(tiny_data / "val.bin", dtype="<u2").astype(np.int64)
    each = []
    for window in validation_windows(tokens, 16, 7):
        with torch.no_grad():
            log_p = torch.log_softmax(model.logits(torch.from_numpy(window[:-1])[None])[0], -1)
        each += [-row[token].item() for row, token in zip(log_p, window[1:], strict=True)]
    assert len(each) == 7 * 16
    assert losses[STEPS] == pytest.approx(math.fsum(each) / len(each), rel=1e-6)


def test_the_geometry_is_that_of_the_weights(runs, tiny_data):
    embeddings = load_model(runs["measured"] / "model").embedding.weight.detach().double().numpy()
    metrics = embedding_metrics(embeddings, np.load(tiny_data / "unigram.npy"), "both_signs")
    last = history_of(runs["measured"])[-1]
    for name, value in metrics.items():
        assert last[name] == value
    assert list(rows_with(runs["measured"], "isotropy")) == GEOMETRY_STEPS
    assert len(set(rows_with(runs["measured"], "isotropy").values())) == len(GEOMETRY_STEPS)


def test_the_steps_of_rows_are_those_between_two_weights(runs, tiny_study, tiny_data, tmp_path):
    """The same training once more, step by step, with the weights before and after each."""
    rows = history_of(runs["measured"])
    names = {f"row_step_{band}" for band in BAND_NAMES}
    unigram = np.load(tiny_data / "unigram.npy")
    bands = bands_of_tokens(np.pad(unigram, (0, 64 - len(unigram))), BAND_SHARES)
    cell, execution = cell_and_execution(settings_of(tiny_study, **MEASURED))
    trainer = Trainer(cell, execution, tiny_data, tmp_path, ALONE)
    weight, found = trainer.model.embedding.weight, {}
    for step in range(STEPS):
        before = weight.detach().clone().numpy().astype(np.float64)
        trainer.train_step(step)
        moved = np.linalg.norm(weight.detach().numpy() - before, axis=1) / np.linalg.norm(
            before, axis=1
        )
        found[step + 1] = {
            f"row_step_{name}": moved[bands == number].mean()
            for number, name in enumerate(BAND_NAMES)
            if (bands == number).any()
        }
    trainer.close()
    for row in rows:
        here = names & row.keys()
        assert here == (found[row["step"]].keys() if row["step"] in GEOMETRY_STEPS else set())
        for name in here:
            assert row[name] == pytest.approx(found[row["step"]][name], rel=1e-4)
    assert "row_step_rare" in rows[-1] and not any(name.startswith("head_") for name in rows[-1])


def test_an_untied_head_has_steps_of_its_own(tiny_study, tiny_data, tmp_path):
    settings = settings_of(tiny_study, **MEASURED)
    settings["models"][0]["tied"] = False
    settings["grid"][0]["tokens"] = [{"steps": 6}]
    cell, execution = cell_and_execution(settings)
    assert train(cell, execution, tiny_data, tmp_path, ALONE) == 0
    last = history_of(tmp_path)[-1]
    assert last["head_row_step_rare"] > 0 and last["row_step_rare"] > 0
    assert last["head_row_step_rare"] != last["row_step_rare"]


def training_of(run_dir: Path) -> list[Any]:
    return [(row["step"], row["loss"], row["grad_norm"], row["lr"]) for row in history_of(run_dir)]


def test_they_change_no_bit_of_the_training(runs):
    assert training_of(runs["measured"]) == training_of(runs["not"])
    weights = {name: (run / "model/model.safetensors").read_bytes() for name, run in runs.items()}
    assert weights["measured"] == weights["not"]
    assert (
        "val_loss" not in history_of(runs["not"])[-1]
        and "isotropy" not in history_of(runs["not"])[-1]
    )


@pytest.mark.parametrize("kept", ["step-00000005", "step-00000010"])
def test_a_resumed_run_has_each_measurement_once(kept, runs, tiny_study, tiny_data, tmp_path):
    cell, execution = cell_and_execution(settings_of(tiny_study, **MEASURED))
    run_dir = Path(shutil.copytree(runs["measured"], tmp_path / cell.id))
    for path in [run_dir / "run.json", run_dir / "model", *checkpoints(run_dir / "checkpoints")]:
        if path.name != kept:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert train(cell, execution, tiny_data, run_dir, ALONE) == 0
    assert training_of(run_dir) == training_of(runs["measured"])
    for name in ("val_loss", "isotropy", "kappa"):
        assert rows_with(run_dir, name) == rows_with(runs["measured"], name)


def test_a_cell_of_a_trunk_has_the_measurements_of_one_that_was_trained_alone(
    tiny_study, tiny_data, tmp_path
):
    settings = settings_of(tiny_study, **MEASURED, checkpoint_every=100)
    settings["training"]["schedule"] = "wsd"
    settings["grid"][0]["tokens"] = [
        {"steps": 12, "label": "short"},
        {"steps": 18, "label": "long"},
    ]
    plan = make_plan(parse_study(settings))
    execution = only(plan).study.execution
    (trunk,) = plan.trunks.values()
    folder = trunk_dir(trunk.run.id, tmp_path)
    for prefix in sorted(trunk.prefixes.values(), key=lambda prefix: prefix.steps):
        assert train(prefix, execution, tiny_data, folder, ALONE, trunk=True) == 0
    for cell in plan.cells.values():
        for name, results in (("alone", None), ("from", tmp_path)):
            assert (
                train(cell, execution, tiny_data, tmp_path / f"{name}-{cell.steps}", ALONE, results)
                == 0
            )
        alone, started = tmp_path / f"alone-{cell.steps}", tmp_path / f"from-{cell.steps}"
        assert json.loads((started / "run.json").read_text())["trunk_steps"] > 0
        assert training_of(alone) == training_of(started)
        for name in ("val_loss", "isotropy", "row_step_rare"):
            assert rows_with(started, name) == rows_with(alone, name) != {}


@pytest.mark.parametrize(("parallel", "micro"), [("ddp", None), ("fsdp", 1)])
def test_several_processes_measure_the_same(
    parallel, micro, runs, make_workspace, nursery, tiny_study
):
    """Seven windows do not divide among two, and a checkpoint follows a measurement."""

    def trained(name: str, **execution: Any) -> Path:
        several = {"parallel": parallel, "train_processes": 2, "micro_batch_sequences": micro}
        workspace = make_workspace(settings_of(tiny_study, **execution, **several), name)
        (cell_id,) = workspace.plan.cells
        return nursery.train(workspace).run_dir(cell_id)

    measured = trained("measured", **MEASURED)
    for name in ("val_loss", "isotropy", "mean_norm_ratio", "row_step_rare"):
        found, expected = rows_with(measured, name), rows_with(runs["measured"], name)
        assert list(found) == list(expected)
        np.testing.assert_allclose(
            list(found.values()), list(expected.values()), rtol=2e-4, err_msg=name
        )
    if parallel == "fsdp":
        expected = load_file(trained("not", **NOT_MEASURED) / "model/model.safetensors")
        for tensor, weight in load_file(measured / "model/model.safetensors").items():
            np.testing.assert_array_equal(weight, expected[tensor])


def test_a_step_that_diverges_and_weights_that_are_not_finite(tiny_study, tiny_data, tmp_path):
    settings = settings_of(tiny_study, eval_every=1, geometry_per_decade=10)
    settings["models"][0]["learning_rate"] = 1e39  # more than float32 has
    settings["training"] |= {"warmup_steps": 0, "schedule": "constant"}
    for steps in (1, 5):
        settings["grid"][0]["tokens"] = [{"steps": steps}]
        cell, execution = cell_and_execution(settings)
        assert train(cell, execution, tiny_data, tmp_path / str(steps), ALONE) == 0
        assert json.loads((tmp_path / str(steps) / "run.json").read_text())["status"] == "diverged"
        rows = history_of(tmp_path / str(steps))
        # After the first update the weights are not finite, which the loss of the second step
        # shows.
        assert math.isnan(rows[0]["val_loss"]) and "isotropy" not in rows[0]
        assert not any({"val_loss", "isotropy"} & row.keys() for row in rows[1:])


@pytest.mark.parametrize(
    "optimizer",
    [
        {"name": "adamw", "lr_factor": 3},
        {"embedding": "ember", "head": {"name": "adamw", "lr_factor": 3}},
        {"name": "adamw", "lr_factor": 3, "amsgrad": True},
    ],
    ids=["tied", "per_matrix", "amsgrad"],
)
def test_the_second_moment_and_the_sum_of_rates_are_those_of_the_head(
    optimizer, tiny_study, tiny_data, tmp_path
):
    settings = tiny_study()
    settings["execution"]["geometry_per_decade"] = 4
    settings["models"][0]["tied"] = "name" in optimizer
    settings["grid"][0] |= {"table": None, "seeds": [1], "optimizers": [optimizer]}
    cell, execution = cell_and_execution(settings)
    with contextlib.closing(Trainer(cell, execution, tiny_data, tmp_path, ALONE)) as trainer:
        rates: list[float] = []
        measured = LiveMeasurements(trainer)
        for step in range(6):
            measured.before(step + 1, False)
            trainer.train_step(step)
            rates.append(trainer.optimizers.head.param_groups[0]["lr"])
        found = measured.after(6)
        state = trainer.optimizers.head.state[trainer.model.embedding_parameters()[-1]]
        square_VD = state.get("max_exp_avg_sq", state["exp_avg_sq"])
        moment_V = square_VD.double().mean(1).numpy() / (1 - cell.training.beta2**6)
    assert rates[-1] == 3 * trainer.optimizers.core.param_groups[0]["lr"]
    assert found["rate_sum"] == pytest.approx(sum(rates))
    assert {"isotropy", "mean_norm_ratio", "rho"} <= found.keys()
    assert any(name.startswith("moment_exponent_") for name in found)
    counts_V = np.load(tiny_data / "unigram.npy")
    kept_V = (counts_V > 0) & (moment_V > 0)
    line = fit_line(counts_V[kept_V] / counts_V.sum(), moment_V[kept_V])
    assert found["moment_slope"] == pytest.approx(line.slope)
    assert found["moment_r_squared"] == pytest.approx(line.r_squared)


class GradientNorm(Measurement):
    """The 2-norm of the gradient of the embedding in every third step, before it is clipped."""

    @staticmethod
    def is_wanted(execution):
        return True

    def is_due(self, step, last):
        return step % 3 == 0

    def between(self):
        gradient = self.trainer.model.embedding.weight.grad
        self._norm = torch.linalg.vector_norm(gradient).clone()

    def after(self, step):
        return {"embedding_grad_norm": self._norm.item()}


def test_a_measurement_of_gradients_is_one_class(tiny_study, tiny_data, tmp_path, monkeypatch):
    """It looks between the backward pass and clipping, and changes nothing of the run."""
    settings = settings_of(tiny_study, **NOT_MEASURED)
    settings["training"]["grad_clip"] = 1e-3
    cell, execution = cell_and_execution(settings)
    assert train(cell, execution, tiny_data, tmp_path / "plain", ALONE) == 0
    monkeypatch.setattr(live, "MEASUREMENTS", (*live.MEASUREMENTS, GradientNorm))
    assert train(cell, execution, tiny_data, tmp_path / "measured", ALONE) == 0
    plain, measured = history_of(tmp_path / "plain"), history_of(tmp_path / "measured")
    assert [row["loss"] for row in measured] == [row["loss"] for row in plain]
    found = {
        row["step"]: row["embedding_grad_norm"] for row in measured if len(row) > len(plain[0])
    }
    assert list(found) == [3, 6, 9, 12]
    assert not any("embedding_grad_norm" in row for row in plain)

    norms = {}
    with contextlib.closing(Trainer(cell, execution, tiny_data, tmp_path / "x", ALONE)) as trainer:
        clip = trainer.optimizers.clip_grad_norm_

        def looking(parameters, largest):
            weight = trainer.model.embedding.weight
            norms[len(norms) + 1] = math.sqrt(weight.grad.double().square().sum().item())
            return clip(parameters, largest)

        monkeypatch.setattr(trainer.optimizers, "clip_grad_norm_", looking)
        for step in range(STEPS):
            trainer.train_step(step)
    assert found == pytest.approx({step: norms[step] for step in found}, rel=1e-6)
    assert min(found.values()) > 1e-3  # of a clipped gradient it would be less


def test_a_closed_trainer_needs_no_collection_of_garbage(tiny_study, tiny_data, tmp_path):
    """The next cell of a job has its memory at once, although measurements know their trainer."""
    cell, execution = cell_and_execution(settings_of(tiny_study, **MEASURED))
    trainer = Trainer(cell, execution, tiny_data, tmp_path, ALONE)
    measured = LiveMeasurements(trainer)
    measured.before(1, False)
    trainer.train_step(0)
    weight = weakref.ref(trainer.model.embedding.weight)
    gc.disable()
    try:
        trainer.close()
        del trainer, measured
        assert weight() is None
    finally:
        gc.enable()
