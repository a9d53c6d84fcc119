"""``benchmarks/gpu_proof.py`` without a GPU: each check at a tiny size on the CPU."""

import contextlib
import importlib
import itertools
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from coupled_adam import optimizer

BENCHMARKS = Path(__file__).parents[4] / "benchmarks"
REAL_UPDATE = optimizer.update
IN_THIS_PROCESS = [
    *(("right", name) for name in ("loss", "deterministic")),
    *(
        ("fast", name)
        for name in ("reference", "training", "profile", "waits", "optimizer", "head")
    ),
    *(("large", name) for name in ("sizes", "evaluation")),
]


@pytest.fixture(autouse=True)
def modules(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)


@pytest.fixture
def proof():
    return importlib.import_module("gpu_proof")


@pytest.fixture
def stub(proof, tmp_path, monkeypatch):
    """The function that puts a program in the place of the checks of a part, with their limits."""

    def put(program, device="none", **limits):
        file = tmp_path / "stub.py"
        file.write_text(program)
        monkeypatch.setattr(proof, "COMMAND", [sys.executable, str(file)])
        monkeypatch.setattr(proof, "machine", lambda: {"device": device})
        monkeypatch.setattr(proof, "CHECKS", limits)

    return put


@pytest.fixture
def common():
    return importlib.import_module("gpu_checks.common")


@pytest.fixture
def right():
    return importlib.import_module("gpu_checks.right")


def rows_of(part, name, common, folder):
    check = getattr(importlib.import_module(f"gpu_checks.{part}"), name)
    with common.set_up(True, folder, {"tokens a second": 1.0}) as at:
        return [row.to_json() for row in check(at)]


@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"
)  # torch's own
@pytest.mark.parametrize(("part", "name"), IN_THIS_PROCESS)
def test_checks_run_at_a_tiny_size(part, name, common, tmp_path):
    rows = rows_of(part, name, common, tmp_path)
    assert rows
    if part == "right":
        assert [row for row in rows if not row["passed"]] == []


def test_the_real_command_takes_the_plan_of_a_check(common, tmp_path):
    command = importlib.import_module("gpu_checks.command")
    with common.set_up(True, tmp_path, {}) as at:
        training = {"seq_len": 16, "batch_sequences": 4, "warmup_steps": 1}
        trained = command.Command(at, "short", "gpu-model", training, 3, {"checkpoint_every": 2})
        assert trained.start().wait() == 0
    assert trained.lines() == 1
    assert len(trained.history()) == 1
    assert trained.speeds()[0] > 0
    assert trained.saved()


def rehearse(proof, part, out, *only):
    """Run the checks of a part as the command does, each in a process of its own, and return what
    came of them."""
    words = ["--part", part, "--out", str(out), "--rehearse", *(["--only", *only] if only else [])]
    done = subprocess.run([*proof.COMMAND, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + (out / f"{part}.log").read_text()
    report = json.loads((out / f"{part}.json").read_text())
    assert {each["verdict"] for each in report["checks"].values()} == {
        "passed" if part == "right" else "rehearsed"
    }
    assert (out / f"{part}.md").read_text() in done.stdout
    return report["checks"]


def test_kernels_are_checked_in_tritons_interpreter(proof, tmp_path):
    # Triton is for Linux on x86-64, and older interpreters cannot read arrays of NumPy 2.4.
    pytest.importorskip("triton", "3.7")
    checks = rehearse(proof, "right", tmp_path, "kernels")
    assert list(checks) == ["kernels"]
    assert [row["what"] for row in checks["kernels"]["rows"] if row["value"] > 1e-9]


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", ["right", "fast", "large"])
def test_the_whole_script_runs_at_a_tiny_size(part, proof, tmp_path):
    assert list(rehearse(proof, part, tmp_path)) == list(proof.CHECKS[part])


def test_each_part_ends_in_time_and_has_its_checks(proof):
    # Those of a part that run side by side take as long as the one with the longest limit.
    assert proof.longest("right") == max(proof.CHECKS["right"].values())
    assert proof.longest("large") == sum(proof.CHECKS["large"].values())
    assert sum(map(proof.longest, proof.CHECKS)) <= 60 * proof.MINUTES
    for part, limits in proof.CHECKS.items():
        module = importlib.import_module(f"gpu_checks.{part}")
        assert all(callable(getattr(module, name)) for name in limits)


def test_the_page_has_each_check_with_its_limit(proof):
    page = (BENCHMARKS.parent / "docs" / "gpu.md").read_text(encoding="utf-8")
    for limits in proof.CHECKS.values():
        assert all(f"| `{name}` | {limit:.0f} | " in page for name, limit in limits.items())


STUB = """
import json, subprocess, sys, time
words = dict(zip(sys.argv[1::2], sys.argv[2::2]))
name, out = words["--check"], open(words["--out"], "a")
row = {"what": name, "value": None if name == "wrong" else 1.0, "at_most": 2.0, "at_least": None}
print(json.dumps(row | {"passed": name != "wrong"}), file=out, flush=True)
if name == "hangs":
    child = subprocess.Popen(["sleep", "60"])
    print("child", child.pid, flush=True)
    time.sleep(60)
sys.exit(3 if name == "breaks" else 0)
"""


SPEED_STUB = """
import json, os, sys
words = dict(zip(sys.argv[1::2], sys.argv[2::2]))
speed, frozen = float(os.environ["SPEED"]), json.loads(os.environ["GPU_PROOF_GIVEN"])["frozen"]
row = {"what": "ms", "value": speed, "at_most": None, "at_least": None, "is_recorded": True}
passed = speed <= 1.15 * frozen.get("ms", speed)
print(json.dumps(row | {"passed": passed}), file=open(words["--out"], "a"))
"""


def is_alive(pid):
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


def test_a_check_that_hangs_fails_or_breaks_leaves_the_others_and_its_rows(
    proof, stub, tmp_path, monkeypatch
):
    limits = {"fine": 30, "hangs": 1.5, "wrong": 30, "breaks": 30, "late": 30}
    stub(STUB, right=limits)
    monkeypatch.setattr(proof, "TOGETHER", ())
    monkeypatch.setattr(proof, "_LEAST_SECONDS", 0.01)
    written = []
    write = proof.write

    def slow_write(path, text):
        write(path, text)
        written.append(json.loads((tmp_path / "right.json").read_text())["checks"].keys())
        if "breaks" in written[-1]:
            time.sleep(max(0, 6 - (time.perf_counter() - begun)))

    monkeypatch.setattr(proof, "write", slow_write)
    begun = time.perf_counter()
    assert not proof.run_part("right", tmp_path, list(limits), False, seconds=6)
    checks = json.loads((tmp_path / "right.json").read_text())["checks"]
    assert {name: check["verdict"] for name, check in checks.items()} == {
        "fine": "passed",
        "hangs": "killed after 2 s",
        "wrong": "failed",
        "breaks": "broke with status 3",
        "late": "not run: no time is left",
    }
    assert [len(check["rows"]) for check in checks.values()] == [1, 1, 1, 1, 0]
    assert [len(names) for names in written[::2]] == [1, 2, 3, 4, 5]  # after each check
    child = int((tmp_path / "right.log").read_text().partition("child ")[2].split()[0])
    assert not is_alive(child)
    table = (tmp_path / "right.md").read_text()
    assert "| wrong | wrong | - | ≤ 2 | **no** |" in table
    assert "| late | | 0.0 s | 30 s | not run: no time is left |" in table


MEETING = """
import json, sys, time
from pathlib import Path
words = dict(zip(sys.argv[1::2], sys.argv[2::2]))
name, out = words["--check"], Path(words["--out"])
place = Path(sys.argv[0]).parent / "met"
place.mkdir(exist_ok=True)
(place / name).touch()
print("began", name, flush=True)
while name != "hangs" and len(list(place.iterdir())) < 3:
    time.sleep(0.02)
if name == "hangs":
    time.sleep(60)
row = {"what": name, "value": 1.0, "at_most": 2.0, "at_least": None, "passed": True}
out.write_text(json.dumps(row))
"""


def test_checks_that_are_right_or_wrong_run_side_by_side(proof, stub, tmp_path):
    limits = {"one": 60, "hangs": 5, "other": 60}
    stub(MEETING, right=limits)
    # Each of them ends only once all have begun.
    assert not proof.run_part("right", tmp_path, list(limits), False, seconds=60)
    checks = json.loads((tmp_path / "right.json").read_text())["checks"]
    found = {name: check["verdict"] for name, check in checks.items()}
    assert found == {"one": "passed", "hangs": "killed after 5 s", "other": "passed"}
    assert list(found) == list(limits)
    log = (tmp_path / "right.log").read_text()
    for name in limits:  # what each has printed stands together
        assert f"== {name}\nbegan {name}\n" in log


def run_stub(proof, out, minutes, *names, again=False):
    return proof.run_part("fast", out, list(names), False, 60 * minutes, again)


def test_the_first_run_freezes_speeds_and_a_later_one_must_come_near(
    proof, stub, tmp_path, monkeypatch
):
    stub(SPEED_STUB, "NVIDIA H100", fast={"speed": 30, "other": 30})
    monkeypatch.setenv("SPEED", "100")
    assert run_stub(proof, tmp_path, 1, "speed")
    frozen = json.loads((tmp_path / proof.FROZEN).read_text())
    assert frozen == {"NVIDIA H100": {"speed": {"ms": 100.0}}}
    # What has passed does not run again, unless it shall; what did not run does.
    monkeypatch.setenv("SPEED", "130")
    assert run_stub(proof, tmp_path, 1, "speed", "other")
    assert not run_stub(proof, tmp_path, 1, "speed", again=True)
    monkeypatch.setenv("SPEED", "110")
    assert run_stub(proof, tmp_path, 1, "speed", again=True)
    assert json.loads((tmp_path / proof.FROZEN).read_text())["NVIDIA H100"]["speed"] == {"ms": 100}


def test_a_speed_is_bounded_by_the_first_run_s_and_an_error_is_not(common):
    speed, error = common.record("ms", 100.0), common.Row("error", 0.5, at_most=1.0)
    assert speed.to_json()["passed"]
    near = speed.beside({"ms": 110.0})
    assert (near.at_least, near.at_most) == (pytest.approx(93.5), pytest.approx(126.5))
    assert near.to_json()["passed"] and not speed.beside({"ms": 80.0}).to_json()["passed"]
    assert error.beside({"error": 0.1}) == error


@pytest.mark.fault(
    "settings", "a package that the proof needs is too old", "said before a check runs"
)
def test_a_package_that_is_too_old_is_said_before_the_first_check(proof, tmp_path, monkeypatch):
    (tmp_path / "typing_extensions.py").write_text("")  # without what Pydantic imports from it
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(proof, "MACHINE", "import pydantic\n")
    with pytest.raises(ValueError, match=r"cannot be imported: ImportError: .*; docs/gpu\.md"):
        proof.machine()


def test_losses_in_bf16_are_left_to_a_processor_that_has_it(
    common, right, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(right, "lacks_bf16", lambda: True)
    monkeypatch.setattr(right, "OPTIMIZERS", {"adamw": ("adamw", {})})
    place = tmp_path / "references.json"
    with common.set_up(True, tmp_path, {}, place) as at:
        right.make_references(at)
        cells = [right._cpu_cell(at, precision, "adamw").id for precision in right.LIMITS]
    known = json.loads(place.read_text())
    assert cells[0] in known and cells[1] not in known
    assert len(known) == 1 + 2 * right.N_DRAWS
    assert "left to the machine with the GPU: this one has no bf16" in capsys.readouterr().out


class Simulated:
    """A simulation of other kernels on a CPU: their gradients round otherwise in each step."""

    def __init__(self, at, rounding):
        self._at, self._rounding = at, rounding

    def __getattr__(self, name):
        return getattr(self._at, name)

    @contextlib.contextmanager
    def trainer(self, cell, **execution):
        generator = torch.Generator().manual_seed(7)

        def round_otherwise(weight):
            noise = torch.randn(weight.shape, generator=generator)
            weight.grad.mul_(1 + self._rounding * noise)

        with self._at.trainer(cell, **execution) as trainer:
            for weight in trainer.model.parameters():
                weight.register_post_accumulate_grad_hook(round_otherwise)
            yield trainer


def without_a_column(parameter, exp_avg, grad, row, dim, **settings):
    before = parameter[:, -1].clone()
    REAL_UPDATE(parameter, exp_avg, grad, row, dim, **settings)
    parameter[:, -1] = before


def with_beta2_for_beta1(*arguments, beta1, **settings):
    REAL_UPDATE(*arguments, beta1=0.95, **settings)


def without_bias_correction():
    steps = itertools.count(1)

    def update(parameter, exp_avg, grad, row, dim, **settings):
        step = next(steps)
        correction = (1 - 0.9**step) / (1 - 0.95**step) ** 0.5
        REAL_UPDATE(parameter, exp_avg, grad, row * correction, dim, **settings)

    return update


def test_wrong_kernels_are_found_and_others_rounding_is_none(common, right, tmp_path, monkeypatch):
    monkeypatch.setattr(right, "N_STEPS", (40, 40))
    with common.set_up(True, tmp_path, {}, tmp_path / "references.json") as at:
        cell = right._cpu_cell(at, "fp32", "coupled_adam")
        wanted = right.reference_losses(at, "fp32", "coupled_adam")
        allowed = right.allowed_differences(at, "fp32", "coupled_adam")

        def share(update, rounding=1e-7):
            monkeypatch.setattr(optimizer, "update", update)
            found = right._losses(Simulated(at, rounding), cell, len(wanted))
            return right.furthest(right.relative_differences(found, wanted), allowed)

        assert share(REAL_UPDATE) < 0.5
        assert share(REAL_UPDATE, 1e-6) < 1
        for wrong in (without_a_column, with_beta2_for_beta1, without_bias_correction()):
            assert share(wrong) > 2
    assert allowed == sorted(allowed) and allowed[0] < 2 * right.LIMITS["fp32"]
    assert right.furthest([float("nan"), 0.0], [1.0, 1.0]) == float("inf")


def test_references_are_made_once_and_brought_as_a_file(common, right, tmp_path, monkeypatch):
    place = tmp_path / "references.json"
    with common.set_up(True, tmp_path, {}, place) as at:
        made = right.reference_losses(at, "fp32", "adamw")
        monkeypatch.setattr(right, "_losses", None)  # nothing is trained a second time
        assert right.reference_losses(at, "fp32", "adamw") == made
    assert list(json.loads(place.read_text()).values()) == [made]


def test_kernels_are_told_apart_by_name_and_range():
    fast = importlib.import_module("gpu_checks.fast")
    names = {  # as the profiler of PyTorch has them on Hopper
        "nvjet_tst_256x128_64x4_2x1_v_bz_coopA_TNN": "products",
        "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu>(Params)": "products",
        "void cublasLt::splitKreduce_kernel<32, 16, int, float>(cublasSplitKParams)": "products",
        "void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd>(params)": (
            "attention"
        ),
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_6": "attention",
        "triton_per_fused_add_native_layer_norm_2": "layers",
        "triton_poi_fused__to_copy_gelu_5": "layers",
        "triton_poi_fused__to_copy_5": "weights",
    }
    kernels = [fast.Event(name, 10.0 * index, 10.0 * index + 2) for index, name in enumerate(names)]
    found = fast.by_part(kernels, [])
    assert {part: round(1e6 * seconds / 2) for part, seconds in found.items()} == {
        part: list(names.values()).count(part) for part in found
    }
    elementwise = (
        "void at::native::vectorized_elementwise_kernel<4, at::native::exp_kernel_cuda>(int)"
    )
    kernels = [fast.Event(elementwise, start, start + 1) for start in (0.0, 10.0, 20.0)]
    kernels.append(fast.Event("nvjet_tst_head", 12.0, 13.0))
    found = fast.by_part(
        kernels, [fast.Event("logits", 9.0, 14.0), fast.Event("weights", 19.0, 22.0)]
    )
    assert found == pytest.approx(
        {"products": 1e-6, "attention": 0, "logits": 1e-6, "layers": 1e-6, "weights": 1e-6}
    )
