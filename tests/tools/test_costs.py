"""What a plan says of hours and memory, beside what was measured and the house before."""

import re
from pathlib import Path

import pytest
import yaml
from tiny import REPOSITORY, tiny_study

from coupled_adam_bench.cli import main
from coupled_adam_bench.study.plan import Cell, Plan
from coupled_adam_bench.study.study import parse_study
from coupled_adam_bench.tools.costs import describe_plan, gpu_bytes, hours

CONFIG = REPOSITORY / "workflow/config"


def plan_of(name: str, **budget: object) -> Plan:
    values = yaml.safe_load((CONFIG / f"{name}.yaml").read_text())
    return Plan(parse_study(values | ({"budget": budget} if budget else {})), "")


def line(plan: Plan, name: str) -> str:
    (found,) = re.findall(rf"^{name} +(.*)$", describe_plan(plan), re.MULTILINE)
    return str(found)


# The ranges follow from steps that were measured on an H200, at widths 768 to 2560.
@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("paper_small", 910, 962),
        ("paper_large", 5730, 6070),
        ("paper_sgd", 422, 446),
        ("paper_scale", 331, 350),
    ],
)
def test_hours_of_the_paper(name: str, least: float, most: float) -> None:
    plan = plan_of(name)
    spent = sum(hours(cell, plan.study) for cell in plan.cells.values())
    assert least <= spent <= most
    assert line(plan, "GPU hours").startswith(f"{float(f'{spent:.3g}'):,.0f} on H200")


def test_quarter_hour_beside_its_cells() -> None:
    """Its cells took 62 to 73 s on an H200, of which a start takes about 12 [docs/gpu.md]."""
    plan = plan_of("quarter_hour")
    for cell in plan.cells.values():
        assert 50 < 3600 * hours(cell, plan.study) < 73


# Sequences at once and GB, as counted layer by layer by the house before.
@pytest.mark.parametrize(
    ("study", "model", "sequences", "gigabytes"),
    [
        ("paper_small", "gpt2-125m", 96, 37.4),
        ("paper_small", "gpt2-355m", 96, 95.5),
        ("paper_small", "gpt2-760m", 48, 82.1),
        ("paper_large", "stablelm-1.3b", 16, 83.8),
        ("paper_large", "stablelm-2.6b", 11, 99.6),
    ],
)
def test_memory(study: str, model: str, sequences: int, gigabytes: float) -> None:
    plan = plan_of(study)

    def counted(cell: Cell) -> float:
        return gpu_bytes(cell, plan.study, sequences) / 1e9

    (found,) = {counted(cell) for cell in plan.cells.values() if cell.model.name == model}
    assert found == pytest.approx(gigabytes, rel=0.07)


def test_no_more_sequences_at_once_than_the_study_says() -> None:
    study = tiny_study(execution={"gpus": 1, "micro_batch_sequences": 2})
    assert line(Plan(parse_study(study), ""), "GPU memory").endswith("2 sequences at once")


def test_a_model_that_fits_nowhere_is_named() -> None:
    large = {"name": "large", "n_layer": 100, "n_head": 32, "d_model": 4096, "learning_rate": 1e-4}
    study = tiny_study(models=[*tiny_study()["models"], large], execution={"gpus": 1})
    study["grid"] = [study["grid"][0] | {"models": ["small", "large"]}]
    said = line(Plan(parse_study(study), ""), "GPU memory")
    assert said.startswith("large")
    assert "GB" not in said


def test_a_faster_card_takes_fewer_hours() -> None:
    spent = []
    for card in ("H200", "H100", "A100"):
        plan = plan_of("paper_small", gpu=card)
        spent.append(sum(hours(cell, plan.study) for cell in plan.cells.values()))
    assert spent == sorted(spent)


def test_plan_needs_no_text(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(CONFIG / "quarter_hour.yaml")]) == 0
    said = capsys.readouterr().out.splitlines()
    assert 9 <= len(said) <= 20
    assert sum(each.startswith("GPU hours") for each in said) == 1
    assert not list(home.iterdir())
    (home / "study.yaml").write_text("study: [\n")
    assert main(["plan", "study.yaml"]) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert "study.yaml:2" in error


def test_a_cpu_takes_no_gpu_hours() -> None:
    plan = Plan(parse_study(tiny_study()), "")
    assert line(plan, "GPU hours").startswith("0;")
