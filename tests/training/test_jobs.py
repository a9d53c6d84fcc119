"""The cells of a job: one that crashes, one that diverges, one that another process trains."""

import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock
from nano import losses, plan_of, train
from torch import Tensor

from coupled_adam_bench.models.base import LanguageModel
from coupled_adam_bench.store.runs import run_of
from coupled_adam_bench.training.jobs import train_cells

RULES = """
import torch


class AtStep30(torch.optim.SGD):
    calls = 0

    def step(self, closure=None):
        self.calls += 1
        if self.calls == 30:
            self.happens()
        super().step(closure)


class Fails(AtStep30):
    def happens(self):
        raise RuntimeError("no")


class Diverges(AtStep30):
    def happens(self):
        self.param_groups[0]["params"][0].data.fill_(float("nan"))
"""


def own(name: str) -> dict[str, Any]:
    return {"name": "custom", "path": f"rules_of_jobs.{name}", "key": name.lower(), "label": name}


@pytest.fixture
def rules(nano: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (nano / "rules_of_jobs.py").write_text(RULES)
    monkeypatch.syspath_prepend(nano)


@pytest.mark.usefixtures("rules")
def test_a_cell_that_crashes_leaves_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    plan = plan_of([own("Fails"), "sgd"])
    fails, sgd = plan.cells.values()
    assert train_cells(plan.cells.values(), plan.study.execution) == 1
    assert fails.id in capsys.readouterr().err
    assert not run_of(fails.id).record.exists()
    assert run_of(sgd.id).read()["status"] == "completed"


@pytest.mark.usefixtures("rules")
def test_a_run_that_diverges_is_a_result_with_its_first_bad_step() -> None:
    (cell,) = train([own("Diverges")])
    run = run_of(cell.id)
    record = run.check()
    # The weights of step 30 are not finite, which the loss of the next step shows.
    assert (record["status"], record["step"]) == ("diverged", 31)
    assert "step 31 of 60" in record["reason"]
    assert max(losses(cell)) == 30
    assert not run.model.exists()


@pytest.mark.usefixtures("rules")
def test_weights_that_only_the_last_step_spoils_are_no_model() -> None:
    (cell,) = train([own("Diverges")], steps=30)
    assert run_of(cell.id).read()["status"] == "diverged"
    assert not run_of(cell.id).model.exists()


@pytest.mark.usefixtures("nano")
def test_a_second_process_waits_for_the_first() -> None:
    plan = plan_of(["sgd"])
    (cell,) = plan.cells.values()
    run = run_of(cell.id)
    run.folder.mkdir(parents=True)
    found: list[Path] = []
    is_held = threading.Event()

    def hold() -> None:
        with FileLock(run.folder / ".lock"):
            is_held.set()
            time.sleep(1)
            found.extend(run.folder.iterdir())

    holder = threading.Thread(target=hold)
    holder.start()
    is_held.wait()
    assert train_cells([cell], plan.study.execution) == 0
    assert [path.name for path in found] == [".lock"]
    holder.join()
    assert run.record.exists()


@pytest.mark.usefixtures("nano")
def test_a_trained_cell_is_left_as_it_is() -> None:
    (cell,) = train(["adamw"])
    files = sorted(run_of(cell.id).folder.rglob("*"))
    before = [(path, path.stat().st_mtime_ns) for path in files if path.suffix != ".lock"]
    train(["adamw"])
    after = [(path, path.stat().st_mtime_ns) for path, _ in before]
    assert after == before


@pytest.mark.parametrize("micro_batch", [1, 3])
@pytest.mark.usefixtures("nano")
def test_micro_batches_change_rounding_alone(micro_batch: int) -> None:
    (cell,) = train(["coupled_adam"], steps=20)
    whole = losses(cell)
    run_of(cell.id).folder.rename("whole")
    train(["coupled_adam"], steps=20, micro_batch_sequences=micro_batch)
    assert losses(cell) == pytest.approx(whole, rel=2e-5)


@pytest.mark.usefixtures("nano")
def test_a_micro_batch_that_does_not_fit_is_halved_and_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (cell,) = train(["coupled_adam"], steps=20)
    whole, run = losses(cell), run_of(cell.id)
    run.folder.rename("whole")
    forward = LanguageModel.forward

    def needs_memory(model: LanguageModel, tokens_BT: Tensor, *others: Any, **more: Any) -> Tensor:
        # Once there is a line of history, more than one sequence needs more than any machine has.
        if len(tokens_BT) > 1 and len(run.rows()) > 0:
            torch.empty(2**60)
        return forward(model, tokens_BT, *others, **more)

    with monkeypatch.context() as patch:
        patch.setattr(LanguageModel, "forward", needs_memory)
        train(["coupled_adam"], steps=20, checkpoint_every=6)
    assert run.read()["train"]["micro_batch_sequences"] == 1
    assert losses(cell) == pytest.approx(whole, rel=2e-5)

    # The next start begins with what fitted.
    shutil.rmtree(run.checkpoints)
    run.record.unlink()
    train(["coupled_adam"], steps=20)
    assert run.read()["train"]["micro_batch_sequences"] == 1
