"""Rehearsals: shipped studies are clean, seeded faults are found, and the count of memory is what
fake tensors hold."""

import gc
import re
import sys
import weakref
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_iter

from coupled_adam_bench.cli import main
from coupled_adam_bench.store.files import write_sealed
from coupled_adam_bench.study.config import load_any_study, parse_study
from coupled_adam_bench.study.plan import load_plan, make_plan
from coupled_adam_bench.tools.rehearsal import fake
from coupled_adam_bench.tools.rehearsal.fake import Combination, combinations, rehearse
from coupled_adam_bench.tools.rehearsal.miniature import miniature, run_miniature
from coupled_adam_bench.tools.rehearsal.rehearse import table
from coupled_adam_bench.training.memory import largest_micro_batch, optimizer_bytes
from coupled_adam_bench.training.trainer import Trainer

ROOT = Path(__file__).parents[4]
STUDIES = ROOT / "workflow" / "config"
GPU = 80e9


def shipped(name: str):
    files = (STUDIES / f"{name}.yaml", ROOT / "research" / name / f"{name}.yaml")
    (file,) = (file for file in files if file.exists())
    return make_plan(load_any_study(file), [STUDIES])


def shallow(combination: Combination, n_layer: int = 2, **training) -> Combination:
    """The combination with few layers, which fake tensors pass through in the same way as through
    all."""
    cell = combination.cell
    model = cell.model.model_copy(update={"n_layer": n_layer})
    return Combination(
        replace(cell, model=model, training=cell.training.model_copy(update=training)), 1
    )


def only(settings) -> Combination:
    (combination,) = combinations(make_plan(parse_study(settings)))
    return combination


@pytest.fixture
def one_optimizer(tiny_study):
    """The settings of the tiny study with one optimizer."""

    def settings(optimizer="adamw", **changes):
        values = tiny_study(**changes)
        values["grid"][0] |= {"table": None, "optimizers": [optimizer], "seeds": [1]}
        return values

    return settings


def test_the_shortest_run_of_a_miniature_has_the_decay_of_two_steps_that_wsd_needs(tiny_study):
    settings = tiny_study()
    settings["training"] |= {"schedule": "wsd", "decay_fraction": 0.2}
    (cut,) = miniature(make_plan(parse_study(settings)))["studies"]
    training = parse_study(cut["study"]).training
    assert [training.decay(steps) for steps in (2, 3, 4)] == [2, 2, 3]


@pytest.mark.parametrize("name", ["demo", "optimizers"])
def test_the_small_shipped_studies_are_clean(name):
    for combination in combinations(shipped(name)):
        result = rehearse(combination, GPU)
        assert result.findings == []
        # The first process holds the row that Coupled Adam has for all tokens.
        assert result.memory.optimizer == optimizer_bytes(combination.cell)


@pytest.fixture
def counted(monkeypatch):
    """The count of the storages that live: it has the peak of the second step of the last
    combination."""

    class Counted(fake._Numbers):
        live, peak, bytes = {}, 0, 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = super().__torch_dispatch__(func, types, args, kwargs)
            for tensor in tree_iter(result):
                if isinstance(tensor, FakeTensor):
                    storage = tensor.untyped_storage()
                    if storage._cdata not in self.live:
                        weakref.finalize(storage, self.set, storage._cdata, 0, forget=True)
                    self.set(storage._cdata, storage.nbytes())
            return result

        @classmethod
        def set(cls, key, size, forget=False):
            cls.bytes += size - cls.live.get(key, 0)
            cls.live[key] = size
            cls.peak = max(cls.peak, cls.bytes)
            if forget:
                del cls.live[key]

    resize, step = torch.UntypedStorage.resize_, fake._Trainer.step_short

    def resized(storage, size):  # how FSDP2 frees weights
        result = resize(storage, size)
        if storage._cdata in Counted.live:
            Counted.set(storage._cdata, storage.nbytes())
        return result

    def twice(trainer):
        step(trainer)
        gc.collect()
        Counted.peak = Counted.bytes
        step(trainer)
        Counted.found = Counted.peak

    monkeypatch.setattr(torch.UntypedStorage, "resize_", resized)
    monkeypatch.setattr(fake._Trainer, "step_short", twice)
    monkeypatch.setattr(fake, "_Numbers", Counted)
    return Counted


# By day a third of them, of both architectures and with each optimizer.
@pytest.mark.parametrize(
    "number", [n if n % 3 == 1 else pytest.param(n, marks=pytest.mark.nightly) for n in range(11)]
)
def test_the_papers_studies_are_clean(number, counted):
    found = combinations(shipped("paper"))
    assert len(found) == 11
    assert sum(combination.n_cells for combination in found) == 146
    result = rehearse(shallow(found[number]), GPU)
    assert result.findings == []
    # The deeper the model, the closer they are.
    assert 0.9 < result.memory.peak / counted.found < 1.02


def test_an_optimizer_argument_that_does_not_exist_is_found(one_optimizer):
    optimizer = {
        "name": "custom",
        "path": "torch.optim.Adagrad",
        "key": "adagrad",
        "label": "Adagrad",
    }
    (finding,) = rehearse(
        only(one_optimizer(optimizer | {"arguments": {"momentun": 0.9}})), GPU
    ).findings
    assert re.search(r"optim/custom\.py:\d+: .*momentun.* torch\.optim\.Adagrad takes", finding)


def test_an_operation_that_fails_is_found_by_its_line(one_optimizer, monkeypatch):
    def loss(self, inputs_BT, targets_BT, n_tokens):
        return real(self, inputs_BT, targets_BT[:, 1:], n_tokens)

    real = Trainer._losses
    monkeypatch.setattr(Trainer, "_losses", loss)
    (finding,) = rehearse(only(one_optimizer()), GPU).findings
    assert "models/cross_entropy.py:" in finding


@pytest.mark.parametrize(
    "optimizer",
    [
        "ember",
        {"name": "adamw", "mu_loss": 0.1, "amsgrad": True},
        {"name": "adamw", "mu_centering": True, "soft_cap": 9},
    ],
    ids=str,
)
def test_rivals_are_clean_and_are_combinations_of_their_own(one_optimizer, optimizer):
    combination = only(one_optimizer(optimizer))
    given = (
        ["ember"]
        if optimizer == "ember"
        else ["adamw", *(name for name in optimizer if name != "name")]
    )
    assert f", {', '.join(given)}, " in combination.label
    assert rehearse(combination, GPU).findings == []


def test_an_optimizer_for_each_matrix_is_clean(one_optimizer):
    head = {"name": "normalized_sgd", "by": "row", "momentum": 0.9, "soft_cap": 9}
    settings = one_optimizer({"embedding": "adam_mini", "head": head})
    settings["models"][0]["tied"] = False
    combination = only(settings)
    assert ", embedding adam_mini, head normalized_sgd, soft_cap, " in combination.label
    assert rehearse(combination, GPU).findings == []


def test_optimizers_that_keep_their_step_as_a_number_are_clean(one_optimizer):
    optimizer = {"name": "custom", "path": "torch.optim.RAdam", "key": "radam", "label": "RAdam"}
    assert rehearse(only(one_optimizer(optimizer)), GPU).findings == []


def test_states_that_no_formula_knows_are_counted_as_they_are_made(one_optimizer):
    own = {"name": "custom", "path": "torch.optim.Adagrad", "key": "adagrad", "label": "Adagrad"}
    combination = only(one_optimizer(own))
    result, cell = rehearse(combination, GPU), combination.cell
    assert (
        result.memory.optimizer == optimizer_bytes(cell) - 4 * 64 * 8
    )  # one number for each weight, not two


def test_fsdp_holds_an_eighth_and_shards_of_gradients_between_micro_batches(counted):
    (combination, *_) = (each for each in combinations(shipped("paper_large")))
    assert combination.execution.processes == 8
    cell = shallow(combination).cell
    execution = cell.study.execution.model_copy(update={"micro_batch_sequences": 4})
    result = rehearse(
        Combination(replace(cell, study=cell.study.model_copy(update={"execution": execution})), 1),
        GPU,
    )
    assert result.findings == []
    assert result.memory.optimizer == pytest.approx(8 * cell.n_params / 8, rel=1e-3)
    assert 0.9 < result.memory.peak / counted.found < 1.02


def test_auto_takes_the_most_pieces_that_fit():
    found = {each.label: each for each in combinations(shipped("paper_small"))}
    combination = shallow(found["gpt2-125m, adamw, 1 process, bf16"])
    small, large = (rehearse(combination, gpu) for gpu in (10e9, 20e9))
    assert small.memory.micro_batch_sequences < large.memory.micro_batch_sequences
    for result, gpu in ((small, 10e9), (large, 20e9)):
        assert 0.4 * gpu < result.memory.peak < gpu


@pytest.mark.parametrize("name", ["demo", "optimizers", "tuned", "paper", "paper_large"])
def test_a_miniature_has_the_same_tables_with_the_fewest_seeds(name, tmp_path):
    plan = shipped(name)
    write_sealed(tmp_path / "plan.json", miniature(plan))
    small = load_plan(tmp_path / "plan.json")

    def shape(plan, seeds_of_tables):
        return [
            [
                (cell.model.name, cell.optimizer.key, cell.seed, planned.block.table)
                for cell in planned.cells
                if cell.seed in planned.block.seeds[: seeds_of_tables.get(planned.block.table)]
            ]
            for planned in plan.blocks
        ]

    # A t-test needs two.
    assert shape(small, {}) == shape(
        plan, {"table1": 2, "table2": 1, "table7": 2, "control": 2, "scale": 2, None: 1}
    )
    assert max(cell.n_params for cell in small.cells.values()) < 3e7
    assert {cell.steps for cell in small.cells.values()} == set(
        range(2, 2 + len({c.steps for c in plan.cells.values()}))
    )


def test_the_command_rehearses_a_study_and_leaves_no_results(
    tiny_study, tmp_path, monkeypatch, capsys
):
    settings = tiny_study()
    grids = {key: {"learning_rate": [0.1, 0.01]} for key in ("adamw", "coupled_adam")}
    settings["grid"][0] |= {
        "seeds": [1, 2],
        "tune": {"seeds": [11], "tokens": {"steps": 30}, "grids": grids},
    }
    monkeypatch.chdir(tmp_path)
    write_sealed(tmp_path / "plan.json", make_plan(parse_study(settings)).to_json())
    assert main(["rehearse", "--plan", "plan.json", "--templates", str(ROOT / "templates")]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]
    out = capsys.readouterr().out
    assert "nano, coupled_adam, 1 process, fp32" in out
    assert "stages ok, from the text to the report" in out
    assert "rehearsed tiny: nothing was found" in out


def test_the_command_fails_where_something_was_found(tiny_study, tmp_path, monkeypatch, capsys):
    def run(command):
        if command[0] == "report":
            print("error: evaluations: none is there", file=sys.stderr)
            return 2
        return 0

    monkeypatch.chdir(tmp_path)
    plan = make_plan(parse_study(tiny_study()))
    finding = run_miniature(plan, ROOT / "templates", run, lambda _name: None)
    assert str(finding) == "stage report: evaluations: none is there"
    optimizer = {
        "name": "custom",
        "path": "torch.optim.Adagrad",
        "key": "a",
        "label": "A",
        "arguments": {"no": 1},
    }
    values = tiny_study()
    values["grid"][0] |= {"table": None, "optimizers": [optimizer]}
    write_sealed(tmp_path / "plan.json", make_plan(parse_study(values)).to_json())
    assert main(["rehearse", "--plan", "plan.json", "--templates", str(ROOT / "templates")]) == 1
    out = capsys.readouterr().out
    assert "optim/custom.py:" in out
    assert "stopped: stage try-code: " in out


def test_the_table_says_what_does_not_fit(one_optimizer):
    result = rehearse(only(one_optimizer(execution={"gpus": 1})), GPU)
    gpu_gb = result.memory.peak / 1e9
    assert (
        table([result], 0.99 * gpu_gb)
        .splitlines()[1]
        .endswith(f"ok, but more than {0.99 * gpu_gb:g} GB")
    )
    assert table([result], 1.01 * gpu_gb).splitlines()[1].endswith("  ok")


def test_a_cell_that_no_micro_batch_lets_fit_is_found_by_plan_and_rehearsal_alike():
    (largest, *_) = (each for each in combinations(shipped("paper_large")))
    combination = shallow(largest)
    assert largest_micro_batch(combination.cell, combination.execution, 1e9) is None
    assert "ok, but more than 1 GB" in table([rehearse(combination, 1e9)], 1)
