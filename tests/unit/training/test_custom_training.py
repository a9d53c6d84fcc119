"""A user's own optimizer from the study to the trained cell: tried before, stopped and gone on
with, on one and on two processes, and recorded."""

import json
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from coupled_adam_bench.study.plan import make_plan
from coupled_adam_bench.study.settings import AdamWSettings, CustomSettings, Training, parse_study
from coupled_adam_bench.training.checks import check_optimizers
from coupled_adam_bench.training.distributed import WorkerGroup
from coupled_adam_bench.training.jobs import train
from coupled_adam_bench.training.monitor import environment
from coupled_adam_bench.training.trainer import Trainer
from coupled_adam_bench.training.trial import try_optimizer, try_optimizers

ROOT = Path(__file__).parents[3]
ALONE = WorkerGroup(torch.device("cpu"))
LION = {
    "name": "custom",
    "path": "pytorch_optimizer.Lion",
    "key": "lion",
    "label": "Lion",
    "arguments": {"betas": [0.9, 0.99]},
    "lr_factor": 0.3,
}


def settings_of(tiny_study, *optimizers, steps=30, **execution):
    settings = tiny_study()
    settings["grid"][0] |= {
        "table": None,
        "optimizers": [*optimizers],
        "tokens": [{"steps": steps}],
        "seeds": [1],
    }
    settings["execution"] |= execution
    return settings


# What is tried before the first job.


@pytest.mark.parametrize("name", ["Lion", "Prodigy", "SOAP", "AggMo", "RAdam"])
def test_an_optimizer_that_can_be_stopped_passes(name):
    """States of tensors in lists (SOAP), in mappings by number (AggMo), numbers in groups
    (Prodigy), no step at first (RAdam)."""
    try_optimizer(
        CustomSettings(**LION | {"path": f"pytorch_optimizer.{name}", "arguments": {}}),
        Training(),
        1e-2,
    )


@pytest.mark.parametrize(
    ("path", "changes", "message"),
    [
        (
            "pytorch_optimizer.ScheduleFreeAdamW",
            {},
            r"path: .* has two modes, train\(\) and eval\(\)",
        ),
        (
            "torch.optim.LBFGS",
            {},
            r"path: torch.optim.LBFGS: step\(\) fails .*; optimizers that need a closure",
        ),
        ("pytorch_optimizer.SAM", {}, "arguments: missing a required argument: 'base_optimizer'"),
        (
            "pytorch_optimizer.MADGRAD",
            {},
            "path: the state of .*MADGRAD cannot be saved .* k in the state of",
        ),
        (
            "pytorch_optimizer.Kron",
            {},
            "path: .*Kron, stopped, saved and loaded, does not go on with the same bits",
        ),
        (
            "torch.optim.SGD",
            {"lr_factor": 1e40},
            r"lr_factor: 1e\+40 makes weights that are not finite",
        ),
        (
            "torch.optim.SGD",
            {"lr_factor": 1e-40},
            "path: torch.optim.SGD leaves weights as they are",
        ),
    ],
)
def test_an_optimizer_that_would_go_wrong_is_refused(path, changes, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        try_optimizer(
            CustomSettings(**LION | {"path": path, "arguments": {}} | changes), Training(), 1e-2
        )


def test_all_problems_of_a_study_are_listed_with_their_places(tiny_study):
    broken = {**LION, "key": "b", "arguments": {"betas": [0.9, 1.5]}}
    other = {**LION, "key": "c", "path": "pytorch_optimizer.Lio"}
    with pytest.raises(ValueError) as raised:
        try_optimizers(parse_study(settings_of(tiny_study, "adamw", LION, broken, other)))
    first, second = str(raised.value).splitlines()
    assert first.startswith(
        "grid.0.optimizers.2.arguments: pytorch_optimizer.Lion refuses them (ValueError: "
    )
    assert second.startswith(
        "grid.0.optimizers.3.path: 'pytorch_optimizer' has no 'Lio'; did you mean 'Lion'?"
    )


def test_a_package_that_is_not_there_is_found_without_torch(tmp_path, tiny_study):
    missing = {**LION, "key": "b", "path": "no_such_package.optimizers.Lion"}
    own = {**LION, "key": "c", "path": "my_optimizers.Lion"}
    with pytest.raises(
        ValueError,
        match=(
            r"^grid\.0\.optimizers\.1\.path: no package or module 'no_such_package\.optimizers' is"
        ),
    ) as raised:
        check_optimizers(parse_study(settings_of(tiny_study, LION, missing)))
    assert "my_optimizers" not in str(raised.value)
    (tmp_path / "study.json").write_text(json.dumps(settings_of(tiny_study, LION, own)))
    code = (
        "import sys; from pathlib import Path; from coupled_adam_bench.study.settings import"
        " load_study\nfrom coupled_adam_bench.training.checks import"
        " check_optimizers\nsys.path.remove('');"
        " check_optimizers(load_study(Path('study.json')))\nsys.exit(sorted({'torch', 'numpy',"
        " 'pytorch_optimizer', 'my_optimizers'} & set(sys.modules)) or None)"
    )

    def check():
        return subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True
        ).stderr

    assert "no package or module 'my_optimizers' is installed, nor is there one in" in check()
    (tmp_path / "my_optimizers.py").write_text("1 / 0\n")
    assert check() == ""


def test_the_documentation_s_forms_are_what_it_says(tiny_study):
    text = (ROOT / "docs" / "optimizers.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(.+?)` \| `(\w+?[\w.]*)` \| (.+?) \|", text, re.MULTILINE)
    assert len(rows) >= 5
    block = next(
        found
        for found in re.findall(r"^    optimizers:\n(?:      .*\n)+", text, re.MULTILINE)
        if "Lion" in found
    )
    *_, own = yaml.safe_load(block)["optimizers"]
    settings = settings_of(tiny_study, *(yaml.safe_load(form) for form, _, _ in rows), own)
    settings["models"][0]["tied"] = False  # some forms are for a head of its own
    study = parse_study(settings)
    found = [(optimizer.key, optimizer.label) for optimizer in study.grid[0].optimizers]
    assert found == [*((key, label) for _, key, label in rows), ("lion", "Lion")]
    try_optimizers(study)


# Trained.


@pytest.mark.parametrize("name", ["Lion", "SOAP"])
def test_a_stopped_cell_goes_on_with_the_same_bits(name, tiny_study, goes_on):
    optimizer = {**LION, "path": f"pytorch_optimizer.{name}", "arguments": {}}
    (cell,) = make_plan(parse_study(settings_of(tiny_study, optimizer, steps=60))).cells.values()
    history = goes_on(cell, 23) / "history.jsonl"
    losses = [json.loads(line)["loss"] for line in history.read_text().splitlines()]
    assert losses[-1] < losses[0] - 0.1


def losses_of(workspace):
    (cell_id,) = workspace.plan.cells
    lines = (workspace.run_dir(cell_id) / "history.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines]


@pytest.fixture(scope="module")
def alone(make_workspace_in, shared_nursery, tiny_study, tmp_path_factory):
    """The losses of the cell trained by one process."""
    workspace = make_workspace_in(tmp_path_factory.mktemp("alone"), settings_of(tiny_study, LION))
    return losses_of(shared_nursery.train(workspace))


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_processes_give_the_same_curve(parallel, alone, make_workspace, nursery, tiny_study):
    settings = settings_of(tiny_study, LION, parallel=parallel, train_processes=2)
    workspace = nursery.train(make_workspace(settings))
    # The sign of a gradient near 0 is a matter of rounding.
    np.testing.assert_allclose(losses_of(workspace), alone, rtol=1e-4)


def test_the_run_knows_the_version_of_the_package(tiny_study):
    (optimizer,) = (
        make_plan(parse_study(settings_of(tiny_study, LION))).studies["tiny"].grid[0].optimizers
    )
    expected = {
        "path": "pytorch_optimizer.Lion",
        "code": {"pytorch_optimizer": version("pytorch-optimizer")},
    }
    assert environment(torch.device("cpu"), optimizer)["optimizer"] == expected
    assert "optimizer" not in environment(torch.device("cpu"), AdamWSettings(name="adamw"))


OWN = """
import torch

class Sign(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p -= group["lr"] * p.grad.sign()
"""


@pytest.mark.fault(
    "training",
    "the file of a study's own optimizer is edited between two attempts of a job",
    "the job stops with a sentence that names the file; the next start trains new cells",
)
def test_a_stopped_cell_does_not_go_on_with_other_code(
    tiny_data, tiny_study, tmp_path, monkeypatch
):
    monkeypatch.syspath_prepend(str(tmp_path))
    own = {"name": "custom", "path": "sign_optimizers.Sign", "key": "sign", "label": "Sign"}
    file = tmp_path / "sign_optimizers.py"
    file.write_text(OWN)
    (cell,) = make_plan(parse_study(settings_of(tiny_study, own, steps=20))).cells.values()
    execution, run = cell.study.execution, tmp_path / cell.id
    trainer = Trainer(cell, execution, tiny_data, run, ALONE)
    for step in range(5):
        trainer.train_step(step)
        trainer.state.step += 1
    trainer.save()
    trainer.checkpoints.wait()
    file.write_text(OWN + "# a comment\n")
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*/*") if path.is_file()}
    message = (
        r"^path: sign_optimizers\.Sign is not the code with which the study was started"
        rf" \({file}\); start the "
    )
    with pytest.raises(ValueError, match=message):
        train(cell, execution, tiny_data, run, ALONE)
    assert (
        before
        == {path: path.stat().st_mtime_ns for path in run.rglob("*/*") if path.is_file()}
        != {}
    )
    file.write_text(OWN)
    assert train(cell, execution, tiny_data, run, ALONE) == 0


def test_identity_is_path_and_arguments(tiny_study):
    def id_of(**changes):
        (cell_id,) = make_plan(parse_study(settings_of(tiny_study, {**LION, **changes}))).cells
        return cell_id

    assert "_lion_s1_" in id_of()
    others = [
        {"path": "lion_pytorch.Lion"},
        {"arguments": {"betas": [0.9, 0.98]}},
        {"lr_factor": 0.2},
    ]
    assert len({id_of(), *(id_of(**other) for other in others), id_of(weight_decay=0.0)}) == 5
    assert id_of(label="other") == id_of()
    assert id_of(key="l2") == id_of().replace("_lion_", "_l2_")
