"""What ``plan`` says of a study."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from coupled_adam_bench.tools.estimate.quantities import count, hours, size, span

from coupled_adam_bench.models.build import build_model
from coupled_adam_bench.store.files import write_sealed
from coupled_adam_bench.study.plan import Plan, load_plan, make_plan
from coupled_adam_bench.study.settings import load_any_study, parse_any_study, parse_study
from coupled_adam_bench.tools.estimate.cell import own_parts, prepare_minutes, trunk_part
from coupled_adam_bench.tools.estimate.public_logs import residual_of
from coupled_adam_bench.tools.estimate.speed import (
    START_SECONDS,
    Speeds,
    Spread,
    estimated_mfu,
    read_speeds,
    train_minutes,
)
from coupled_adam_bench.tools.estimate.study import Estimate, estimate_study
from coupled_adam_bench.tools.estimate.text import describe
from coupled_adam_bench.training.memory import memory_of, train_mem_mb

CONFIGS = Path(__file__).parents[4] / "workflow" / "config"
BUDGET = {"gpu": "H200", "gpus": 16, "price_per_gpu_hour": 2.5}


@pytest.fixture(scope="module")
def paper() -> Plan:
    return make_plan(load_any_study(CONFIGS / "paper.yaml"), [CONFIGS])


@pytest.fixture
def paper_estimate(paper: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Estimate:
    monkeypatch.chdir(tmp_path)
    return estimate_study(paper)


def gpu_settings(tiny_study: Callable[..., dict[str, Any]], **changes: Any) -> dict[str, Any]:
    settings = tiny_study(**changes)
    settings["execution"] |= {"gpus": 1}
    return settings


def hours_of(estimate: Estimate) -> float:
    """The hours of all cells and of what they share, as estimated."""
    branches = chain.from_iterable(estimate.trunks.values())
    return sum(each.hours for each in (*estimate.cells, *branches))


def measured(cell_id: str, **facts: Any) -> dict[str, Any]:
    """What the record of a finished run says, for ``stored``."""
    train = {
        "seconds": 90.0,
        "processes": 1,
        "tokens_per_second": 1000.0,
        "mfu": 0.25,
        "joules": None,
    }
    train |= {"device": "cuda"}
    return {"step": 60, "trunk_steps": 0, "train": train | facts, "environment": {"cuda": "13.0"}}


# The paper.


def test_the_plan_of_the_paper_takes_seconds_and_no_torch(tmp_path):
    code = "\n".join(
        (
            "import sys, time",
            "from coupled_adam_bench.cli import main",
            f"main(['plan', '--study', {str(CONFIGS / 'paper.yaml')!r}, '--out', 'plan.json'])",
            "main(['describe', '--plan', 'plan.json', '--out', 'plan.txt'])",
            "assert not {'torch', 'numpy', 'pandas'} & set(sys.modules)",
            "print('seconds', time.process_time())",
        )
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    *text, last = result.stdout.splitlines()
    assert float(last.split()[1]) < 5
    assert "\n".join(text) + "\n" == (tmp_path / "plan.txt").read_text()
    assert len(text) < 60
    assert max(map(len, text)) < 180


def test_flops_are_6nd_and_attention(paper, paper_estimate):
    sizes = {}
    for estimate in paper_estimate.cells:
        cell = estimate.cell
        model, seq_len = cell.model, cell.training.seq_len
        if model.name not in sizes:
            with torch.device("meta"):
                built = build_model(model, cell.vocab_size, seq_len)
            sizes[model.name] = sum(
                p.numel() for name, p in built.named_parameters() if not name.startswith("pos")
            )
        six_nd = 6 * sizes[model.name] * cell.n_tokens
        assert (
            estimate.cell.flops
            == six_nd + 12 * model.n_layer * model.d_model * seq_len * cell.n_tokens
        )
        assert 1 < estimate.cell.flops / six_nd < 1.2
    assert paper_estimate.flops == sum(cell.flops for cell in paper.cells.values())


def test_the_speed_of_the_paper_s_models_by_hand(paper):
    # Products at 0.75 of 989 TFLOP/s, attention at 0.5, compiled 6 bytes a logit and 130 a layer
    # and unit of width, and for the weights 40 bytes and 14 more for each micro-batch, at 0.8 of
    # 4.8 TB/s, all times what the step of this model took more on one H200, or all of them.
    found = {}
    for cell in paper.cells.values():
        found.setdefault(cell.model.name, round(100 * estimated_mfu(cell, cell.study.execution)))
    assert found == {
        "gpt2-125m": 46,
        "gpt2-355m": 51,
        "gpt2-760m": 53,
        "stablelm-1.3b": 57,
        "stablelm-2.6b": 57,
    }
    tokens, n_params = 96 * 1024, 124_373_760
    attention = 12 * 12 * 768 * 1024 * tokens
    products = 6 * (n_params - 1024 * 768) * tokens
    moved = 6 * 50304 * tokens + 130 * 12 * 768 * tokens + (40 + 14) * n_params
    seconds = products / (0.75 * 989e12) + attention / (0.5 * 989e12) + moved / (0.8 * 4.8e12)
    cell = next(iter(paper.cells.values()))
    assert estimated_mfu(cell, cell.study.execution) == pytest.approx(
        (products + attention) / 0.1839 / 989e12, rel=0.002
    )
    assert seconds == pytest.approx(0.1839 / residual_of(cell).factor, rel=0.002)


@pytest.mark.parametrize(
    "name", ["paper_small", "paper_large", "paper_sgd", "paper_scale", "paper"]
)
def test_gpu_hours_are_those_of_the_docs(name, tmp_path, monkeypatch):
    page = (CONFIGS.parents[1] / "docs" / "gpu.md").read_text()
    (line,) = (line for line in page.splitlines() if line.startswith(f"| `{name}` "))
    monkeypatch.chdir(tmp_path)
    estimate = estimate_study(make_plan(load_any_study(CONFIGS / f"{name}.yaml"), [CONFIGS]))
    assert line.endswith(f"| {len(estimate.cells)} | {span(*estimate.hours_range)} |")


@pytest.mark.parametrize(
    ("gpu", "hours", "rests"),
    [
        ("H100", "by steps of one H200", "steps that this bench took on one H200, scaled to the"),
        ("A100", "by public logs of others' code", "an estimate for A100 by public logs of"),
    ],
)
def test_a_card_that_nobody_has_measured_says_what_its_hours_rest_on(
    gpu, hours, rests, tiny_study, tmp_path, monkeypatch
):
    study = gpu_settings(tiny_study, budget={"gpu": gpu})
    text = describe(estimated(study, tmp_path, monkeypatch))
    assert re.search(rf"\nGPU hours  [\d. to]+ {hours}, ", text)
    assert f"The times rest on {rests}" in text


def test_hours_are_a_range_wherever_nobody_has_measured_them(paper_estimate):
    text = describe(paper_estimate)
    low, high = paper_estimate.hours_range
    assert low < hours_of(paper_estimate) < high
    hours = span(low, high)
    assert " to " in hours
    assert f"GPU hours  {hours} by steps of one H200, {hours} of them left" in text
    assert "The times rest on steps that this bench took on one H200 (docs/gpu.md)." in text
    assert re.search(rf"\nH200 .* {hours}  4\.59 USD  [\d,]+ to [\d,]+ USD\n", text)
    assert len(re.findall(r"\d+ to [\d,.]+ +0  +-\n", text)) == len(paper_estimate.rows())


@pytest.mark.parametrize("settings", [{"budget": {"mfu": 0.4}}, {"execution": {"gpus": 0}}])
def test_hours_are_a_number_where_there_is_nothing_to_range_over(
    settings, tiny_study, tmp_path, monkeypatch
):
    study = gpu_settings(tiny_study)
    for section, values in settings.items():
        study[section] = study.get(section, {}) | values
    estimate = estimated(study, tmp_path, monkeypatch)
    assert estimate.hours_range == pytest.approx(2 * (hours_of(estimate),))
    assert "public logs" not in describe(estimate)


def test_the_wall_time_is_that_of_all_gpus_and_at_least_that_of_the_largest_model(paper_estimate):
    name, seconds = paper_estimate.longest
    assert name.startswith("stablelm-2.6b_210B_")
    assert paper_estimate.wall_seconds == pytest.approx(paper_estimate.hours_range[0] * 3600 / 8)
    assert paper_estimate.wall_seconds > seconds
    assert f"on any number, for {name}" in describe(paper_estimate)


def test_gpus_for_rent_have_hours_price_and_the_cells_that_fit_on_one(paper, paper_estimate):
    h100, h200, a100, l40s = paper_estimate.rentals
    assert [each.gpu for each in paper_estimate.rentals] == ["H100", "H200", "A100", "L40S"]
    low = [each.hours_range[0] for each in (h200, h100, a100, l40s)]
    assert low == sorted(low)
    assert h200.hours_range == pytest.approx(paper_estimate.hours_left_range)  # the budget's kind
    assert h100.cost_range[1] == pytest.approx(3.49 * h100.hours_range[1])
    assert (h100.fitting, h100.too_large) == (146, ())
    assert (l40s.fitting, l40s.too_large) == (142, ("stablelm-2.6b",))
    large = next(cell for cell in paper.cells.values() if cell.model.name == "stablelm-2.6b")
    alone = large.study.execution.model_copy(update={"gpus": 1})
    assert memory_of(large, alone, 1).peak > 0.9 * 48e9
    assert re.search(
        r"\nL40S +48\.0 GB +362 TFLOP/s +142, not stablelm-2\.6b ", describe(paper_estimate)
    )


def test_one_gpu_takes_the_price_and_the_measured_speed_of_the_study(
    tiny_study, stored, tmp_path, monkeypatch
):
    before = estimated(
        gpu_settings(tiny_study, budget={**BUDGET, "gpu": "L40S"}), tmp_path, monkeypatch
    )
    rented = {each.gpu: each for each in before.rentals}
    assert (rented["L40S"].price, rented["H100"].price) == (2.5, 3.49)
    done = before.cells[0].cell.id
    stored(before.plan, tmp_path / "results" / "runs").run(done, **measured(done))
    after = estimate_study(before.plan)
    here = {each.gpu: each for each in after.rentals}
    assert here["L40S"].hours_range == pytest.approx(after.hours_left_range)
    share = after.hours_left_range[0] / hours_of(before)
    low, high = rented["H100"].hours_range
    assert here["H100"].hours_range == pytest.approx((share * low, share * high))


@pytest.mark.parametrize(
    ("device", "mfu", "name", "on_gpu"),
    [
        ("cpu", None, "AMD EPYC, AVX-512 with bf16", False),
        ("cuda", None, "NVIDIA GeForce RTX 4090", True),
    ],
)
def test_a_run_is_a_gpu_s_by_its_device_and_not_by_its_build_of_torch(
    device, mfu, name, on_gpu, tiny_study, stored, tmp_path, monkeypatch
):
    plan = estimated(gpu_settings(tiny_study), tmp_path, monkeypatch).plan
    cell, *_ = plan.cells.values()
    on_gpus = cell.study.execution
    on_cpu = on_gpus.model_copy(update={"gpus": 0})
    record = measured(cell.id, mfu=mfu)
    record["environment"]["device"] = (
        name  # beside CUDA's version, which the default build has on every machine
    )
    record["train"] |= {"device": device}
    runs = tmp_path / "results" / "runs"
    stored(plan, runs).run(cell.id, **record)
    speeds = read_speeds([cell], runs)
    same, other = (on_gpus, on_cpu) if on_gpu else (on_cpu, on_gpus)
    assert speeds.of(cell, same) == (1000, "measured", Spread())
    assert speeds.of(cell, other).source == ("one card" if other.gpus else "estimate")


def test_a_study_without_gpus_rents_none(tiny_study, tmp_path, monkeypatch):
    estimate = estimated(tiny_study(), tmp_path, monkeypatch)
    assert estimate.rentals == []
    assert "Rented" not in describe(estimate)


# Any study.


def estimated(settings: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch) -> Estimate:
    monkeypatch.chdir(folder)
    return estimate_study(make_plan(parse_study(settings)))


def test_validation_counts_as_forward_passes(tiny_study, tmp_path, monkeypatch):
    settings = gpu_settings(tiny_study)

    def seconds(**execution: Any) -> float:
        settings["execution"] |= execution
        return estimated(settings, tmp_path, monkeypatch).cells[0].seconds

    without = seconds(eval_every=None)
    # 60 steps of 4 sequences; a forward pass is a third of a step.
    assert seconds(eval_every=1000) == pytest.approx(without * (1 + 1 * 4 / (3 * 60 * 4)))
    assert seconds(eval_every=20) == pytest.approx(without * (1 + 3 * 4 / (3 * 60 * 4)))
    assert seconds(eval_every=25, eval_sequences=50) == pytest.approx(
        without * (1 + 3 * 50 / (3 * 60 * 4))
    )


def test_price_and_mfu_that_are_given(tiny_study, tmp_path, monkeypatch):
    settings = gpu_settings(tiny_study, budget={**BUDGET, "mfu": 0.5, "gpu": "A100"})
    settings["execution"]["eval_every"] = None
    estimate = estimated(settings, tmp_path, monkeypatch)
    assert hours_of(estimate) == pytest.approx(estimate.flops / (0.5 * 312e12) / 3600)
    text = describe(estimate)
    assert f"{span(2.5 * hours_of(estimate), 2.5 * hours_of(estimate))} USD, " in text
    assert "at 2.5 USD an hour" in text
    assert "the MFU that budget.mfu gives for A100." in text
    assert "public logs" not in text
    assert estimate.slots == 16


def test_ended_runs_replace_the_estimate(tiny_study, stored, tmp_path, monkeypatch):
    settings = gpu_settings(tiny_study, budget=BUDGET)
    before = estimated(settings, tmp_path, monkeypatch)
    done, *others = before.cells
    stored(before.plan, tmp_path / "results" / "runs").run(done.cell.id, **measured(done.cell.id))
    after = estimate_study(before.plan)
    assert [cell.run is not None for cell in after.cells] == [True] + 5 * [False]
    assert {cell.source for cell in after.cells} == {"measured"}
    assert {cell.seconds for cell in after.cells} == {60 * 4 * 16 / 1000.0}
    assert after.hours_taken == pytest.approx(90 / 3600)
    assert after.hours_left_range[0] == pytest.approx(len(others) * 3.84 / 3600)
    assert after.longest[0] != done.cell.id
    text = describe(after)
    assert (
        "6, 1 done" in text
        and "The times rest on speeds of ended runs. The ended runs took " in text
    )
    assert "90 s" not in text and "2 min" in text  # what the row's one ended run took


def test_energy_is_of_the_steps_of_ended_runs_and_unknown_if_one_does_not_know_it(
    tiny_study, stored, tmp_path, monkeypatch
):
    before = estimated(gpu_settings(tiny_study), tmp_path, monkeypatch)
    first, second = (cell.cell.id for cell in before.cells[:2])
    runs = stored(before.plan, tmp_path / "results" / "runs")

    def run(cell_id, trunk_steps, **energy):
        runs.run(cell_id, **measured(cell_id, **energy) | {"trunk_steps": trunk_steps})

    run(first, 0, joules=7.2e6)
    run(second, 15, joules=3.6e6)  # of 60 steps
    after = estimate_study(before.plan)
    assert after.kwh_taken == pytest.approx(2 + 0.75)
    assert "2.75 kWh, only the GPUs" in describe(after)
    run(second, 15, joules=None)  # of a GPU whose energy no driver counts
    after = estimate_study(before.plan)
    assert after.kwh_taken is None
    assert re.search(r"energy so far +unknown", describe(after))


def test_an_mfu_of_another_size_is_the_next_best(tiny_study, stored, tmp_path, monkeypatch):
    settings = gpu_settings(tiny_study)
    settings["models"].append({**settings["models"][0], "name": "micro", "d_model": 16})
    settings["grid"][0]["models"] = ["nano", "micro"]
    before = estimated(settings, tmp_path, monkeypatch)
    nano = before.cells[0].cell
    stored(before.plan, tmp_path / "results" / "runs").run(nano.id, **measured(nano.id))
    after = estimate_study(before.plan)
    micro, *_ = [cell for cell in after.cells if cell.cell.model.name == "micro"]
    assert micro.source == "measured"
    assert micro.cell.flops / micro.seconds == pytest.approx(0.25 * 989e12)


@pytest.mark.parametrize("record", [{}, {"train": None}, {"train": {"seconds": 1.0}}], ids=str)
def test_a_record_that_lacks_something_counts_for_nothing(
    record, tiny_study, stored, tmp_path, monkeypatch
):
    before = estimated(gpu_settings(tiny_study), tmp_path, monkeypatch)
    stored(before.plan, tmp_path / "results" / "runs").run(before.cells[0].cell.id, **record)
    assert estimate_study(before.plan).cells[0].run is None


def test_a_study_on_cpus_has_no_gpus_and_no_price(tiny_study, tmp_path, monkeypatch):
    estimate = estimated(tiny_study(budget=BUDGET), tmp_path, monkeypatch)
    text = describe(estimate)
    assert "GPU" not in text and "USD" not in text
    assert "cost" not in text
    assert estimate.cells[0].micro_batches == {}
    (data,) = estimate.data
    assert (data.n_tokens, data.bytes, data.is_prepared) == (40_000, 80_000, False)


def test_prepared_data_are_measured(tiny_study, tiny_data, tmp_path, monkeypatch):
    folder = tmp_path / "results" / "data" / tiny_data.name
    folder.mkdir(parents=True)
    (folder / "meta.json").write_bytes((tiny_data / "meta.json").read_bytes())
    (data,) = estimated(tiny_study(), tmp_path, monkeypatch).data
    assert data.is_prepared and data.preparing_bytes == 0
    assert data.bytes == sum(path.stat().st_size for path in tiny_data.glob("*.bin"))


def test_what_cells_share_is_counted_once(tiny_study, tmp_path, monkeypatch):
    settings = gpu_settings(tiny_study)
    settings["training"]["schedule"] = "wsd"
    settings["grid"][0] |= {
        "table": None,
        "tokens": [{"steps": 20}, {"steps": 40}, {"steps": 60}],
        "seeds": [1],
    }
    estimate = estimated(settings, tmp_path, monkeypatch)
    plan = estimate.plan
    assert len(plan.trunks) == 2
    steps = sum(part.steps for part in own_parts(plan).values())
    steps += sum(
        trunk_part(trunk, step).steps for trunk in plan.trunks.values() for step in trunk.branches
    )
    assert steps == 2 * (49 + 3 + 7 + 11)  # a trunk of 49 steps, and what the cells do alone
    assert estimate.n_tokens == steps * 64
    trunk = sum(branch.seconds for branch in next(iter(estimate.trunks.values())))
    last = max(estimate.cells, key=lambda each: each.cell.steps)
    least = last.spread.low * (trunk + last.seconds)
    assert estimate.longest == (last.cell.id, pytest.approx(least))
    assert hours_of(estimate) * 3600 == pytest.approx(
        sum(cell.seconds for cell in estimate.cells)
        + sum(branch.seconds for branches in estimate.trunks.values() for branch in branches)
    )
    (tmp_path / "results/trunks").mkdir(parents=True)
    for name in estimate.trunks:
        (tmp_path / "results/trunks" / name).mkdir()
        (tmp_path / "results/trunks" / name / "branch-00000017.json").write_text("{}")
    assert estimate_study(plan).hours_left_range < estimate.hours_left_range


def test_a_cell_that_takes_more_gpus_than_there_are(tiny_study, tmp_path, monkeypatch):
    settings = tiny_study(budget={"gpus": 2})
    settings["execution"] |= {"gpus": 4, "parallel": "fsdp"}
    estimate = estimated(settings, tmp_path, monkeypatch)
    assert estimate.slots == 4
    assert "a cell takes 4 GPUs, more than budget.gpus: 2" in describe(estimate)


@pytest.mark.fault(
    "settings",
    "`snakemake plan` runs where fewer processors are than `evaluation_threads`, `train_threads` or"
    " `data_threads`.",
    "The estimate is made: threads are checked where jobs run.",
)
@pytest.mark.parametrize("setting", ["evaluation_threads", "train_threads", "data_threads"])
def test_a_plan_on_a_login_node(setting, tiny_study, tmp_path, monkeypatch):
    monkeypatch.setattr("coupled_adam_bench.tools.estimate.study.n_processors", lambda: 1)
    settings = tiny_study()
    settings["execution"][setting] = 64
    assert "wall time" in describe(estimated(settings, tmp_path, monkeypatch))


def test_studies_on_cpus_and_on_gpus_in_one_folder(tiny_study, tmp_path, monkeypatch):
    for name, gpus in (("cpu", 0), ("gpu", 1)):
        settings = tiny_study(study=name)
        settings["grid"][0]["seeds"] = [7 + gpus, 9 + gpus]
        settings["execution"]["gpus"] = gpus
        (tmp_path / f"{name}.yaml").write_text(json.dumps(settings))
    monkeypatch.chdir(tmp_path)
    plan = make_plan(parse_any_study({"study": "both", "studies": ["cpu", "gpu"]}), [tmp_path])
    assert "GPU hours" in describe(estimate_study(plan))


# What jobs ask for.


@pytest.mark.fault(
    "settings",
    "`train_minutes` is so short that a job is warned of its time limit before Python has started,"
    " again and again.",
    "It is refused with its name; the least value leaves time for a first step before the earliest"
    " warning.",
)
def test_a_time_limit_that_no_job_could_use_is_refused(tiny_study):
    settings = tiny_study()
    settings["execution"]["train_minutes"] = 4
    limit = 60 * parse_study(settings).execution.train_minutes
    assert limit - limit // 4 - 60 >= START_SECONDS  # SLURM may warn a minute too soon
    settings["execution"]["train_minutes"] = 3
    with pytest.raises(
        ValueError, match=r"execution\.train_minutes: must be greater than or equal to 4 \(got 3\)"
    ):
        parse_study(settings)


def test_settings_of_the_study_win(tiny_study, tmp_path, monkeypatch):
    settings = tiny_study()
    settings["execution"] |= {"train_mem_mb": 1234, "train_minutes": 77}
    first, *_ = estimated(settings, tmp_path, monkeypatch).cells
    assert (first.mem_mb, first.minutes) == (1234, 77)
    assert train_minutes([first.part], first.cell.study.execution, Speeds(), attempt=5) == 77


def test_small_cells_ask_for_what_they_did(tiny_study, tmp_path, monkeypatch):
    first, *_ = estimated(tiny_study(), tmp_path, monkeypatch).cells
    assert (first.mem_mb, first.minutes) == (4000, 60)


def test_limits_grow_with_each_attempt_to_a_day(paper):
    cell = next(
        cell
        for cell in paper.cells.values()
        if cell.model.name == "gpt2-355m" and cell.steps == 50_000
    )
    execution = cell.study.execution
    limits = [train_minutes([cell], execution, Speeds(), attempt) for attempt in range(1, 8)]
    assert limits[0] > 1.9 * 60 * 6  # twice the 6.1 hours that the estimate gives
    assert limits[1] == pytest.approx(1.5 * limits[0], abs=1)
    assert limits == sorted(limits) and limits[-1] == 1440
    small = replace(cell, steps=5000)
    alone, together = (train_minutes([small] * n_cells, execution, Speeds()) for n_cells in (1, 3))
    assert together == pytest.approx(3 * alone, abs=5)


def test_memory_of_larger_models_is_larger(paper):
    large = {
        cell.model.name: train_mem_mb(cell, cell.study.execution) for cell in paper.cells.values()
    }
    assert sorted(large, key=large.__getitem__) == [
        "gpt2-125m",
        "gpt2-355m",
        "gpt2-760m",
        "stablelm-1.3b",
        "stablelm-2.6b",
    ]
    assert (
        large["stablelm-2.6b"] / 1.5 * 1e6 > 8 * 4 * 2.66e9 + 12 * 2.66e9
    )  # the model in each process, a checkpoint


# The budget.


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("price_per_gpu_hour", -1, "must be greater than or equal to 0"),
        ("price_per_gpu_hour", "dear", "must be a number"),
        ("mfu", 0, "must be greater than 0"),
        ("mfu", 1.01, "must be less than or equal to 1"),
        ("gpus", 0, "must be greater than 0"),
        ("gpus", 2.5, "must be a whole number"),
        ("gpu", "H300", "must be 'GB200', 'B200', 'H200 NVL', 'GH200'"),
        ("gpu_hours", 3, "unknown key; did you mean 'gpus'?"),
    ],
)
def test_a_wrong_budget_is_refused_by_name(field, value, message, tiny_study):
    with pytest.raises(ValueError, match="1 invalid setting") as raised:
        parse_study(tiny_study(budget={field: value}))
    assert f"budget.{field}: {message}" in str(raised.value)


@pytest.mark.fault("settings", "a price without its card", "refused: the hours differ by card")
def test_a_price_without_its_card_is_refused(tiny_study):
    with pytest.raises(ValueError, match=r"2\.5 is the price of one kind of card") as raised:
        parse_study(tiny_study(budget={"gpus": 16, "price_per_gpu_hour": 2.5}))
    assert "name it with budget.gpu, one of GB200, " in str(raised.value)
    given = parse_study(tiny_study(budget={"gpu": "A100", "price_per_gpu_hour": 2.5}))
    assert parse_study(given.model_dump(mode="json")).budget == given.budget


def test_the_quarter_of_an_hour_says_its_minutes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("data/text").mkdir(parents=True)
    Path("data/text/a.txt").write_text("A text.", encoding="utf-8")
    estimate = estimate_study(make_plan(load_any_study(CONFIGS / "quarter_hour.yaml")))
    assert len(estimate.cells) == 9
    assert 8.5 < 60 * estimate.hours_range[0] < 60 * estimate.hours_range[1] < 9.5
    assert "wall time  at least 9 min on 1 GPU, without evaluation" in describe(estimate)


def test_a_folder_has_one_budget(tiny_study, tmp_path):
    for name, gpus in (("a", 4), ("b", 8)):
        settings = tiny_study(study=name, budget={"gpus": gpus})
        settings["grid"][0]["seeds"] = [gpus, 1, 2]
        (tmp_path / f"{name}.yaml").write_text(json.dumps(settings))
    both = {"study": "both", "studies": ["a", "b"]}
    with pytest.raises(
        ValueError, match=r"budget\.gpus: a has 4, b has 8; a results folder has one"
    ):
        make_plan(parse_any_study(both), [tmp_path])
    plan = make_plan(parse_any_study({**both, "budget": {"gpus": 6}}), [tmp_path])
    assert plan.budget.gpus == 6
    write_sealed(tmp_path / "plan.json", plan.to_json())
    assert load_plan(tmp_path / "plan.json").budget == plan.budget


def test_a_budget_is_part_of_no_cell_and_no_data(tiny_study):
    plain, dear = (
        make_plan(parse_study(tiny_study(**more)))
        for more in ({}, {"budget": {**BUDGET, "mfu": 0.1}})
    )
    assert list(plain.cells) == list(dear.cells)
    assert plain.data_ids == dear.data_ids


# Text.


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (89, "89 s"), (120, "2 min"), (5400, "1.5 h"), (818_406, "9.5 days")],
)
def test_times(seconds, text):
    assert hours(seconds) == text


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [
        (None, "-"),
        (0, "0 kB"),
        (1234, "1 kB"),
        (999_600, "1.00 MB"),
        (1.272e12, "1.27 TB"),
        (36_160_000_000, "36.2 GB"),
    ],
)
def test_sizes(n_bytes, text):
    assert size(n_bytes) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.0049, "0.0049"),
        (1.5, "1.50"),
        (977.7, "978"),
        (5755.5, "5,760"),
        (999.9, "1,000"),
    ],
)
def test_counts(value, text):
    assert count(value) == text


# A study that tunes.


def test_candidates_cost_and_their_cells_come_after_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plan = make_plan(load_any_study(CONFIGS / "tuned.yaml"))
    estimate = estimate_study(plan)
    assert estimate.n_tokens == 64 * 16 * (9 * 585 + 18 * 292)
    assert len(estimate.cells) == 27
    text = describe(estimate)
    assert text.startswith("tuned: 9 cells, and 18 that tune, on synthetic-")
    assert [line.split()[2:5] for line in text.splitlines() if line.startswith("tuned ")][:2] == [
        ["600K", "9", "6.49e+11"],
        ["300K", "(tuning)", "18"],
    ]
    longest = {
        tunes: max(cell.seconds for cell in estimate.cells if cell.tunes == tunes)
        for tunes in (True, False)
    }
    assert estimate.longest[1] == pytest.approx(sum(longest.values()))


# The time limit of a preparation.


@pytest.mark.fault(
    "cluster",
    "A partition ends jobs after some hours, and a study's text is small.",
    "Preparing the data asks for an hour in place of a day; a text of unknown size asks for a day.",
)
def test_preparing_data_asks_for_what_the_text_takes(tiny_study, tmp_path):
    def minutes(changes: dict[str, Any], attempt: int = 1, **execution: Any) -> int:
        settings = tiny_study()
        settings["data"] |= changes
        settings["execution"] |= execution
        if "source" in changes:
            settings["evaluation"] = {"word_similarity": [], "downstream": {"tasks": ["piqa"]}}
            settings["paths"] = {"text": str(tmp_path / "text")}
        return prepare_minutes(parse_study(settings), tmp_path / "none", attempt)

    assert [minutes({}, attempt) for attempt in (1, 2, 3)] == [60, 120, 180]
    assert minutes({}, train_minutes=45) == 45
    (tmp_path / "text").mkdir()
    for name, n_bytes in (("a.txt", 600 * 10**6), ("b.jsonl.gz", 600 * 10**6)):
        with (tmp_path / "text" / name).open("wb") as file:
            file.truncate(n_bytes)
    files = {"source": {"kind": "files"}, "tokenizer": "bpe", "vocab_size": 300}
    # A sixth of it as it is, and five times as much packed: 1.2 billion tokens of three bytes.
    assert minutes(files, data_threads=2) == 2 + 1_200_000_000 // (2 * 50_000 * 60)
    assert minutes(files | {"max_tokens": 6_000_000}, data_threads=1) == 60
    hub = {"source": {"kind": "hub", "preset": "openwebtext"}}
    assert minutes(files | hub) == 1440
    unknown = {"source": {"kind": "hub", "dataset": "someone/corpus"}}
    assert minutes(files | unknown) == 1440
