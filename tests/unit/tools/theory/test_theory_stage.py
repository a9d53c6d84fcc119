"""The stage ``theory`` by its command line, on tiny trained cells."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from planned import only

from coupled_adam_bench.evaluation.stage import run_stage
from coupled_adam_bench.models.base import LanguageModel
from coupled_adam_bench.store import paths
from coupled_adam_bench.store.files import read_sealed, write_sealed
from coupled_adam_bench.store.runs import write_run
from coupled_adam_bench.study.catalog.metrics import THEORY_METRICS
from coupled_adam_bench.study.catalog.stages import STAGES
from coupled_adam_bench.study.config import Theory, parse_study
from coupled_adam_bench.study.plan import make_plan
from coupled_adam_bench.tools.theory.gradients import mean_square
from coupled_adam_bench.training.distributed import WorkerGroup
from coupled_adam_bench.training.trainer import Trainer

DONE = Path("theory.done")
CUSTOM = {"name": "custom", "path": "torch.optim.Adagrad", "key": "adagrad", "label": "Adagrad"}


def files_of(cell_id: str) -> list[Path]:
    return list((paths.run_dir(cell_id) / "evaluations").glob("theory-*.json"))


def record_of(cell_id: str) -> dict:
    (file,) = files_of(cell_id)
    return read_sealed(file)


def values_of(record: dict) -> dict[str, float]:
    assert {row["task"] for row in record["results"]} == {"theory"}
    return {row["metric"]: row["value"] for row in record["results"]}


def test_every_cell_gets_its_file(theory_study, workspace, stage_of, capsys):
    plan = workspace(theory_study(24))
    assert stage_of("train", plan.cells) == 0
    assert stage_of("theory", plan.cells, "--done", str(DONE)) == 0
    assert DONE.exists()
    for cell_id, cell in plan.cells.items():
        record = record_of(cell_id)
        assert record["settings"] == {"n_batches": 4, "record_every": 5}
        assert (record["status"], record["version"]) == ("ok", STAGES["theory"].version)
        assert record["replay_max_relative_loss_difference"] == 0
        values = values_of(record)
        assert tuple(values) == THEORY_METRICS
        output = "embedding" if cell.model.tied else "head"
        drift = record["drift"][output]
        assert list(record["drift"]) == (
            ["embedding"] if cell.model.tied else ["embedding", "head"]
        )
        assert {len(series) for series in drift.values() if isinstance(series, list)} == {
            5
        }  # 5, 10, 15, 20, 24
        assert values["update_sum"] == max(drift["update_sum"][1:])  # warmup: 5 steps
        assert values["head_gradient_sum"] == record["gradient_sum"]["output"]["float64"] < 1e-15
        assert 1e-10 < record["gradient_sum"]["output"]["float32"] < 1e-6
        assert 0.01 < record["gradient_sum"]["input"]["float32"] < 1
        moment, adam = record["second_moment"], record["second_moment_adam"]
        assert values["second_moment_slope"] == moment["slope"] > 0
        assert values["second_moment_r_squared"] == moment["r_squared"]
        assert moment["n_batches"] == 4
        assert sum(moment["probability"]) == pytest.approx(1)
        assert (adam is not None) == (cell.optimizer.key == "adamw")
        still = not cell.model.tied and cell.optimizer.key != "adamw"
        if still:
            assert math.isnan(values["drift_input_share"])
            assert (
                record["reason"]
                == "no shares of the drift: the mean of the head moved by no more than rounding"
            )
        else:
            assert values["drift_input_share"] == drift["input_share"]
            assert record["reason"] is None
    log = capsys.readouterr().err
    assert "drift_input_share" in log
    assert stage_of("theory", plan.cells, "--done", str(DONE)) == 0
    assert capsys.readouterr().err.count("kept, evaluated before") == len(plan.cells)


def test_adam_s_own_moment_and_gradients_at_the_end(theory_study, workspace, stage_of):
    plan = workspace(theory_study(12, ["adamw"]))
    assert stage_of("train", plan.cells) == 0
    assert stage_of("theory", plan.cells, "--done", str(DONE)) == 0
    for cell_id, cell in plan.cells.items():
        data, execution = paths.data_dir(cell.data_id), only(plan).study.execution
        trainer = Trainer(
            cell, execution, data, paths.run_dir(cell_id), WorkerGroup(torch.device("cpu"))
        )
        trainer.resume()  # the last checkpoint
        assert trainer.state.step == 12
        weight = trainer.model.head_weight
        moment = trainer.optimizers.embedding.state[weight]["exp_avg_sq"].double().mean(1) / (
            1 - 0.95**12
        )
        gradients = []
        for step in range(12, 16):  # the batches that would be next
            trainer.optimizers.zero_grad()
            trainer.model(*trainer.batches.get(step)).backward()
            gradients.append(weight.grad.clone())
        record = record_of(cell_id)
        occurs = [index for index, count in enumerate(np.load(data / "unigram.npy")) if count]
        assert record["second_moment_adam"]["mean_square"] == pytest.approx(
            moment[occurs].tolist(), rel=1e-5
        )
        assert record["second_moment"]["mean_square"] == pytest.approx(
            mean_square(gradients)[occurs], rel=1e-4
        )


def test_a_user_s_optimizer_has_no_split(theory_study, workspace, stage_of):
    plan = workspace(theory_study(12, [CUSTOM]))
    assert stage_of("train", plan.cells) == 0
    assert stage_of("theory", plan.cells, "--done", str(DONE)) == 0
    for cell_id in plan.cells:
        record = record_of(cell_id)
        assert (
            record["reason"]
            == "no shares of the drift: Adagrad is not known to be linear in its gradients"
        )
        values = values_of(record)
        assert math.isnan(values.pop("drift_input_share"))
        assert all(math.isfinite(value) for value in values.values())
        assert values["update_sum"] > 1e-3
        assert all(drift["input"] is None for drift in record["drift"].values())


def test_another_curve_is_refused(theory_study, workspace, stage_of, capsys):
    plan = workspace(theory_study(10, ["adamw", "coupled_adam"], [theory_study()["models"][0]]))
    assert stage_of("train", plan.cells) == 0
    bad, good = plan.cells
    history = paths.run_dir(bad) / "history.jsonl"
    rows = [json.loads(line) for line in history.read_text().splitlines()]
    rows[0]["loss"] *= 1.01
    history.write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_run(
        history.parent, read_sealed(history.parent / "run.json")
    )  # as if it had been trained so
    assert stage_of("theory", plan.cells, "--done", str(DONE)) == 1
    assert not DONE.exists()
    assert not files_of(bad)
    assert record_of(good)["status"] == "ok"
    error = capsys.readouterr().err
    assert (
        "the losses of a replay differ from its history by up to 0.0099 of their size, more than"
        in error
    )
    assert "evaluation.theory.replay_tolerance 0.001" in error
    study = theory_study(10, ["adamw", "coupled_adam"], [theory_study()["models"][0]])
    study["evaluation"]["theory"]["replay_tolerance"] = 0.02
    write_sealed(Path("plan.json"), make_plan(parse_study(study)).to_json())
    (good_file,) = files_of(good)
    before = good_file.stat().st_mtime_ns
    assert stage_of("theory", plan.cells, "--done", str(DONE)) == 0
    assert record_of(bad)["replay_max_relative_loss_difference"] == pytest.approx(
        0.01 / 1.01, rel=1e-9
    )
    assert good_file.stat().st_mtime_ns == before  # a tolerance changes no number


def test_a_diverged_cell_is_a_result(theory_study, workspace, stage_of):
    plan = workspace(theory_study(10, ["adamw"], [theory_study()["models"][0]]))
    (cell_id,) = plan.cells
    run = {
        "cell": cell_id,
        "status": "diverged",
        "reason": "loss is NaN in step 2",
        "model_sha256": None,
    }
    write_sealed(paths.run_dir(cell_id) / "run.json", run)
    assert stage_of("theory", plan.cells, "--done", str(DONE)) == 0
    record = record_of(cell_id)
    assert (record["status"], record["reason"]) == ("diverged", "loss is NaN in step 2")
    values = values_of(record)
    assert tuple(values) == THEORY_METRICS
    assert all(math.isnan(value) for value in values.values())


def test_a_study_without_the_section_is_told(tiny_study, workspace, stage_of, capsys):
    plan = workspace(tiny_study())
    assert stage_of("theory", list(plan.cells)[:1], "--done", str(DONE)) == 2
    assert (
        "evaluation.theory: not in study 'tiny'; give it, {} for its defaults"
        in capsys.readouterr().err
    )


def test_the_section_and_its_defaults(tiny_study):
    study = tiny_study()
    plain = parse_study(study)
    assert plain.evaluation.theory is None
    assert "theory" not in [stage.name for stage in plain.stages]
    study["evaluation"] |= {"theory": {}}
    theory = parse_study(study)
    assert theory.evaluation.theory == Theory(n_batches=64, record_every=10, replay_tolerance=1e-3)
    assert theory.stages == [*plain.stages, STAGES["theory"]]
    assert list(make_plan(theory).cells) == list(make_plan(plain).cells)
    study["evaluation"]["theory"] = {"n_batches": 0}
    with pytest.raises(ValueError, match=r"evaluation\.theory\.n_batches"):
        parse_study(study)


def test_a_group_s_batch_is_cut_as_its_processes_cut_it(theory_study, workspace, stage_of):
    study = theory_study(4, ["adamw"], [theory_study()["models"][0]], warmup_steps=3)
    plan = workspace(study)
    assert stage_of("train", plan.cells) == 0
    study["execution"] |= {"train_processes": 2}
    part = only(make_plan(parse_study(study)))
    sizes = []

    def watch(module, inputs, _output):
        if isinstance(module, LanguageModel) and module.training:
            sizes.append(len(inputs[0]))

    hook = torch.nn.modules.module.register_module_forward_hook(watch)
    try:
        assert run_stage(STAGES["theory"], list(part.cells.values()), DONE, "cpu") == 0
    finally:
        hook.remove()
    assert sizes == [2] * 8
