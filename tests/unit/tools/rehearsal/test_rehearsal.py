"""Rehearsals: shipped studies are clean, seeded faults are found, memory is that of a real process."""

import json
import re
import subprocess
import sys
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_iter

from coupled_adam_bench.cli import main
from coupled_adam_bench.models import stablelm
from coupled_adam_bench.store.files import write_sealed
from coupled_adam_bench.study.config import load_any_study, parse_study
from coupled_adam_bench.study.plan import load_plan, make_plan
from coupled_adam_bench.tools.rehearsal import fake, fake_gpu
from coupled_adam_bench.tools.rehearsal.combinations import Combination, combinations
from coupled_adam_bench.tools.rehearsal.fake import rehearse
from coupled_adam_bench.tools.rehearsal.miniature import miniature
from coupled_adam_bench.tools.rehearsal.rehearse import table
from coupled_adam_bench.tools.rehearsal.stages import run_miniature
from coupled_adam_bench.tools.rehearsal.watch import Watch
from coupled_adam_bench.training.memory import memory_of
from coupled_adam_bench.training.trainer import Trainer

ROOT = Path(__file__).parents[4]
STUDIES = ROOT / "workflow" / "config"
GPU = 80e9
CPU = torch.device("cpu")
ON_FAKE_CUDA = pytest.mark.skipif(not fake_gpu.is_possible(), reason="this PyTorch is built without CUDA")


def shipped(name: str):
    return make_plan(load_any_study(STUDIES / f"{name}.yaml"), [STUDIES])


def shallow(combination: Combination, n_layer: int = 2, **training) -> Combination:
    """The combination with few layers, which fake tensors pass through in the same way as through all."""
    cell = combination.cell
    model = cell.model.model_copy(update={"n_layer": n_layer})
    return Combination(replace(cell, model=model, training=cell.training.model_copy(update=training)), 1)


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


@pytest.mark.parametrize("name", ["demo", "optimizers", "theory"])
def test_the_small_shipped_studies_are_clean(name):
    for combination in combinations(shipped(name)):
        result = rehearse(combination, GPU)
        assert result.findings == []
        assert result.device == "cpu"
        assert sum(result.parts.values()) == result.peak_bytes > result.evaluation_bytes > 0


# By day a third of them, of both architectures and with each optimizer.
@pytest.mark.parametrize("number", [n if n % 3 == 1 else pytest.param(n, marks=pytest.mark.nightly) for n in range(11)])
def test_the_papers_studies_are_clean(number):
    found = combinations(shipped("paper"))
    assert len(found) == 11
    assert sum(combination.n_cells for combination in found) == 146
    combination = shallow(found[number])
    result = rehearse(combination, GPU)
    assert result.findings == []
    assert result.device == ("cuda" if fake_gpu.is_possible() else "cpu")
    # The plan's formula counts the same memory from the sizes alone; the deeper the model, the closer they are.
    planned = memory_of(combination.cell, combination.execution, result.micro_batch_sequences)
    assert 0.9 < planned.peak / result.peak_bytes < 1.02


def test_an_optimizer_argument_that_does_not_exist_is_found(one_optimizer):
    optimizer = {"name": "custom", "path": "torch.optim.Adagrad", "key": "adagrad", "label": "Adagrad"}
    (finding,) = rehearse(only(one_optimizer(optimizer | {"arguments": {"momentun": 0.9}})), GPU).findings
    assert "momentun" in finding.what
    assert "torch.optim.Adagrad takes" in finding.what
    assert "optim/custom.py:" in finding.place


@ON_FAKE_CUDA
def test_a_tensor_left_on_the_cpu_is_found(monkeypatch):
    def tables(seq_len, d_head, base, device):
        return real(seq_len, d_head, base, torch.device("cpu"))

    real = stablelm.rope_tables
    monkeypatch.setattr(stablelm, "rope_tables", tables)
    (combination, *_) = (each for each in combinations(shipped("paper_large")))
    (finding,) = rehearse(shallow(combination), GPU).findings
    assert re.search("two( different)? devices", finding.what)  # PyTorch's words, which change
    assert "models/stablelm.py:" in finding.place


def test_an_operation_that_fails_is_found_by_its_line(one_optimizer, monkeypatch):
    def loss(self, inputs_BT, targets_BT, n_tokens):
        return real(self, inputs_BT, targets_BT[:, 1:], n_tokens)

    real = Trainer._losses
    monkeypatch.setattr(Trainer, "_losses", loss)
    (finding,) = rehearse(only(one_optimizer()), GPU).findings
    assert "models/cross_entropy.py:" in finding.place


@pytest.mark.parametrize(
    "optimizer",
    [
        "ember",
        {"name": "adamw", "amsgrad": True, "mu_loss": 0.1},
        {"name": "adamw", "mu_centering": True, "soft_cap": 9},
    ],
    ids=str,
)
def test_rivals_are_clean_and_are_combinations_of_their_own(one_optimizer, optimizer):
    combination = only(one_optimizer(optimizer))
    given = ["ember"] if optimizer == "ember" else ["adamw", *(name for name in optimizer if name != "name")]
    assert f", {', '.join(given)}, " in combination.label
    assert rehearse(combination, GPU).findings == []


def test_optimizers_that_keep_their_step_as_a_number_are_clean(one_optimizer):
    optimizer = {"name": "custom", "path": "torch.optim.RAdam", "key": "radam", "label": "RAdam"}
    assert rehearse(only(one_optimizer(optimizer)), GPU).findings == []


def test_memory_counts_storages_while_they_live():
    watch = Watch(CPU)
    with FakeTensorMode(), watch:
        first = torch.empty(1000)
        view = first[:10]
        assert watch.bytes == 4000
        second = first + 1
        assert watch.bytes == 8000
        del first
        assert watch.bytes == 8000  # the view holds it
        del view
        assert watch.bytes == 4000
        second.untyped_storage().resize_(0)  # as FSDP2 frees weights
        assert watch.bytes == 0
    assert watch.peak == 8000


def test_the_states_of_the_optimizers_are_those_of_their_formulas(one_optimizer):
    states = {}
    for optimizer in ("adamw", "coupled_adam"):
        result = rehearse(only(one_optimizer(optimizer)), GPU)
        states[optimizer] = result.parts["states"]
        n_params = make_plan(parse_study(one_optimizer(optimizer))).cells.popitem()[1].n_params
        assert result.parts["weights"] == 4 * n_params
    # AdamW has two numbers for each weight of the embedding, 64 x 8, and Coupled Adam one and a row.
    assert states["adamw"] - states["coupled_adam"] == 4 * (64 - 1) * 8


def test_fsdp_holds_an_eighth():
    (combination, *_) = (each for each in combinations(shipped("paper_large")))
    result = rehearse(shallow(combination), GPU)
    assert result.combination.execution.processes == 8
    cell = shallow(combination).cell
    assert result.parts["weights"] == pytest.approx(4 * cell.n_params / 8, rel=1e-3)
    assert result.parts["states"] == pytest.approx(8 * cell.n_params / 8, rel=1e-3)


def test_fsdp_keeps_shards_of_gradients_between_micro_batches():
    (combination, *_) = (each for each in combinations(shipped("paper_large")))
    cell = shallow(combination).cell
    execution = cell.study.execution.model_copy(update={"micro_batch_sequences": 4})
    result = rehearse(Combination(replace(cell, study=cell.study.model_copy(update={"execution": execution})), 1), GPU)
    assert result.findings == []
    assert result.parts["gradients"] == pytest.approx(4 * cell.n_params / 8, rel=1e-3)
    assert 0.9 < memory_of(cell, execution).peak / result.peak_bytes < 1.02


class OfRealTensors(Watch):
    """The watch without its answers to fake tensors."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        result = func(*args, **(kwargs or {}))
        for tensor in tree_iter(result):
            if isinstance(tensor, torch.Tensor):
                self._see(tensor.untyped_storage())
        return result


@pytest.mark.parametrize("micro", [2, 1])
def test_fsdp_holds_of_fake_tensors_what_it_holds_of_real_ones(micro, one_optimizer, tmp_path):
    settings = one_optimizer(execution={"train_processes": 2, "parallel": "fsdp", "micro_batch_sequences": micro})
    settings["models"][0] |= {"n_layer": 4, "d_model": 128}
    cell = only(settings).cell
    fake._write_data(tmp_path, cell)
    peaks = []
    for watch, mode in ((OfRealTensors, nullcontext()), (Watch, FakeTensorMode(allow_non_fake_inputs=True))):
        with (
            fake._group(CPU, 2) as group,
            mode,
            watch(CPU) as watched,
            closing(Trainer(cell, cell.study.execution, tmp_path, tmp_path / "run", group)) as trainer,
        ):
            trainer.train_step(0)
            watched.reset()
            trainer.train_step(1)
        peaks.append(watched.peak)
    assert peaks[0] == pytest.approx(peaks[1], abs=64)  # real steps are tensors, fake ones numbers


def test_ddp_holds_all_gradients_from_the_start(one_optimizer):
    execution = {"train_processes": 2, "micro_batch_sequences": 1}
    settings = one_optimizer(execution=execution)
    alone = rehearse(only(one_optimizer(training=settings["training"] | {"batch_sequences": 2})), GPU)
    result = rehearse(only(settings), GPU)
    assert result.findings == []
    assert result.parts["gradients"] == result.parts["weights"] == alone.parts["weights"]
    assert "cannot pass through DistributedDataParallel" in table([result], 80)


def test_auto_takes_the_most_pieces_that_fit():
    found = {each.label: each for each in combinations(shipped("paper_small"))}
    combination = shallow(found["gpt2-125m, adamw, 1 process, bf16"])
    small, large = (rehearse(combination, gpu) for gpu in (10e9, 20e9))
    assert small.micro_batch_sequences < large.micro_batch_sequences
    for result, gpu in ((small, 10e9), (large, 20e9)):
        assert 0.4 * gpu < result.peak_bytes < gpu


REAL = """
import json, re, sys
import torch
from pathlib import Path
from coupled_adam_bench.study.config import parse_study
from coupled_adam_bench.study.plan import make_plan
from coupled_adam_bench.tools.rehearsal.fake import _write_data
from coupled_adam_bench.training.distributed import WorkerGroup
from coupled_adam_bench.training.trainer import Trainer
peaks = []
for number, settings in enumerate(json.loads(sys.argv[1])):
    (cell,) = make_plan(parse_study(settings)).cells.values()
    folder = Path(sys.argv[2]) / str(number)
    folder.mkdir()
    _write_data(folder, cell)
    trainer = Trainer(cell, cell.study.execution, folder, folder / "run", WorkerGroup(torch.device("cpu")))
    for step in range(2):
        trainer.train_step(step)
    trainer.close()
    # Not ru_maxrss, which begins with the memory of the process that started this one.
    peaks.append(1024 * int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]))
print(peaks[1] - peaks[0])
"""


def test_memory_is_that_of_a_real_process(one_optimizer, tmp_path):
    """The real process, which first trains a tiny model to load its code, also has what its allocator keeps unused."""
    settings = one_optimizer("coupled_adam")
    settings["training"] |= {"seq_len": 256, "batch_sequences": 8}
    tiny = json.loads(json.dumps(settings))
    settings["models"][0] |= {"n_layer": 4, "n_head": 4, "d_model": 256}
    arguments = [sys.executable, "-c", REAL, json.dumps([tiny, settings]), str(tmp_path)]
    result = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert 0.75 < rehearse(only(settings), GPU).peak_bytes / int(result.stdout) < 1.05


@pytest.mark.parametrize("name", ["demo", "optimizers", "theory", "tuned", "paper", "paper_large"])
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
    assert shape(small, {}) == shape(plan, {"table1": 2, "table2": 1, "table7": 2, "scale": 2, None: 1})
    assert max(cell.n_params for cell in small.cells.values()) < 3e7
    assert {cell.steps for cell in small.cells.values()} == set(
        range(2, 2 + len({c.steps for c in plan.cells.values()}))
    )


def test_the_command_rehearses_a_study_and_leaves_no_results(tiny_study, tmp_path, monkeypatch, capsys):
    settings = tiny_study()
    grids = {key: {"learning_rate": [0.1, 0.01]} for key in ("adamw", "coupled_adam")}
    settings["grid"][0] |= {"seeds": [1, 2], "tune": {"seeds": [11], "tokens": {"steps": 30}, "grids": grids}}
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
    optimizer = {"name": "custom", "path": "torch.optim.Adagrad", "key": "a", "label": "A", "arguments": {"no": 1}}
    values = tiny_study()
    values["grid"][0] |= {"table": None, "optimizers": [optimizer]}
    write_sealed(tmp_path / "plan.json", make_plan(parse_study(values)).to_json())
    assert main(["rehearse", "--plan", "plan.json", "--templates", str(ROOT / "templates")]) == 1
    out = capsys.readouterr().out
    assert "optim/custom.py:" in out
    assert "stopped: stage try-optimizers: " in out


def test_the_table_names_parts_and_what_does_not_fit(one_optimizer):
    combination = only(one_optimizer(execution={"gpus": 1}))
    result = fake.Rehearsed(combination, "cuda", 4, 90 * 10**9, {"weights": 10**9}, 10**9)
    text = table([result], 80)
    assert "ok, but more than 80 GB" in text
    assert "1.000" in text
    assert "90.000" in text
    assert table([result], 90).splitlines()[1].endswith("  ok")
