"""What the rules ask of the jobs of a study, and what a start refuses; the workflow's own tests run
them for real."""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from coupled_adam_bench.cli import start
from coupled_adam_bench.cli.jobs import Jobs, switch
from coupled_adam_bench.cli.planned import planned_work
from coupled_adam_bench.cli.resources import JobResources
from coupled_adam_bench.machine import device
from coupled_adam_bench.store import paths
from coupled_adam_bench.study.plan import make_plan
from coupled_adam_bench.study.settings import parse_any_study, parse_study
from coupled_adam_bench.study.settings.reading import read_study_file


class Wildcards(SimpleNamespace):
    def items(self):
        return vars(self).items()


@pytest.fixture
def jobs(tiny_plan, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Jobs(tiny_plan)


@pytest.fixture
def asks(jobs):
    return JobResources(jobs)


def test_each_cell_is_trained_and_evaluated_by_one_job(jobs):
    cells = list(jobs.plan.cells)
    assert [cell for of_job in jobs.training.values() for cell in of_job] == cells
    assert [cell for of_job in jobs.evaluation.values() for cell in of_job] == cells
    assert jobs.ids(cells) == cells
    assert set(jobs.markers_of(cells)) == {jobs.trained(job) for job in jobs.training}


def test_cells_that_a_job_finds_trained_count_from_the_start(tiny_study, tmp_path, monkeypatch):
    """A job of several cells is planned as long as one of them is not trained."""
    monkeypatch.chdir(tmp_path)
    plan = make_plan(parse_study(tiny_study(execution={"train_cells_per_job": 2})))
    jobs = Jobs(plan)
    first, second, *_ = cells = list(plan.cells.values())
    record = paths.RunFiles(paths.run_dir(first.id)).record
    record.parent.mkdir(parents=True)
    record.touch()
    planned = [("train_cells", {"job": job}) for job in jobs.training]
    workflow = planned_work(jobs, planned, "")
    assert workflow.trained["cell"] == 1
    assert workflow.total["cell"] == len(cells)
    assert workflow.flops == sum(cell.flops for cell in cells) - first.flops
    (part,) = workflow.parts(*planned[0])
    assert part.record == paths.RunFiles(paths.run_dir(second.id)).record


CONFIG = Path(__file__).parents[3] / "workflow" / "config"


@pytest.mark.parametrize("name", ["demo", "optimizers", "averaging", "tuned", "submission"])
def test_no_evaluations_start_for_a_few_cells(name, monkeypatch):
    """A last batch of two cells would start as many processes as one of eighteen."""
    monkeypatch.chdir(CONFIG.parents[1])
    study = parse_any_study(read_study_file(CONFIG / f"{name}.yaml"))
    sizes = [len(cells) for cells in Jobs(make_plan(study, [CONFIG])).evaluation.values()]
    assert min(sizes) >= max(sizes) / 2


def test_the_demo_starts_few_processes_and_gives_two_processors_work_until_the_end(monkeypatch):
    """Each start of torch takes as long as a hundred steps of the demo."""
    monkeypatch.chdir(CONFIG.parents[1])
    plan = make_plan(parse_any_study(read_study_file(CONFIG / "demo.yaml")), [CONFIG])
    jobs = Jobs(plan)
    assert len(jobs.training) <= 4
    assert len(jobs.evaluation) == 1
    work = [sum(plan.cells[cell].flops for cell in cells) for cells in jobs.training.values()]
    busy = [0, 0]
    for flops in sorted(work, reverse=True):  # the longest job comes first (rules/train.smk)
        busy[busy.index(min(busy))] += flops
    assert max(busy) < 0.55 * sum(work)
    # Nothing is imported into MLflow beside the jobs, by a process of its own.
    assert start.start_live_import(jobs, ["train_cells"]) is None


def run_killed(jobs, wildcards, tmp_path, ends: list[str]) -> None:
    """Run a job's command once for each of these ends, as Snakemake would."""
    (jobs.study_dir / "logs").mkdir(parents=True, exist_ok=True)
    values = " ".join(vars(wildcards).values())
    for end in ends:
        command = jobs.watched(f"bash -c {end!r}", None).format(
            rule="rule", wildcards=values, log=Quoted("log")
        )
        subprocess.run(["bash", "-euc", command], check=False, cwd=tmp_path)


def test_snakemake_names_the_file_of_killed_attempts_as_resources_read_it(jobs, asks, tmp_path):
    command = jobs.watched("kill -9 $$", None)
    (tmp_path / "Snakefile").write_text(
        "rule train_trunk:\n    output: '{trunk}.{step}.txt'\n    log: '{trunk}.{step}.log'\n"
        f"    shell: {command!r}\n"
    )
    (jobs.study_dir / "logs").mkdir(parents=True)
    words = ["--cores", "1", "--quiet", "all", "--", "a.2.txt"]
    done = subprocess.run(
        [sys.executable, "-m", "snakemake", *words], capture_output=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 1
    assert asks._n_ended("killed", 2, "train_trunk", Wildcards(trunk="a", step="2")) == 1


class Quoted(str):
    def __format__(self, spec):
        return self


@pytest.mark.fault(
    "cluster",
    "A job is cancelled, fails by itself, or is killed without a word, as for lack of memory.",
    "Only after the last its retry asks for more memory.",
)
@pytest.mark.parametrize(
    ("ends", "growth"),
    [
        (["kill -9 $$"], 1),
        (
            ["kill -9 $PPID"],
            1,
        ),  # the script with all that it runs, as SLURM does where there are no cgroups
        (["kill -9 $$"] * 2, 2),
        (["kill -9 $$"] * 5, 2),
        (["kill $PPID; kill $$"], 0),
        (["exit 2"], 0),
        (["exit 75"], 0),
        (["kill -9 $$", "kill $$"], 1),
        (["kill -9 $$", "exit 0"], 0),
    ],
)
def test_memory_grows_where_a_job_was_killed_without_a_word(ends, growth, jobs, asks, tmp_path):
    wildcards = Wildcards(job=next(iter(jobs.training)), batch=next(iter(jobs.evaluation)))
    run_killed(jobs, wildcards, tmp_path, ends)
    memory = asks.memory("evaluate")
    first = memory(wildcards, 1, "rule")
    assert memory(wildcards, len(ends) + 1, "rule") == (1 + growth) * first
    training = asks.memory("train")
    assert training(wildcards, len(ends) + 1, "rule") == round(
        1.5**growth * training(wildcards, 1, "rule")
    )
    assert memory(wildcards, len(ends) + 1, "another_rule") == first


def fail_late(jobs: Jobs, rule: str, batch: str, times: int) -> None:
    """Leave what attempts of a job leave that fail at their time limit."""
    logs = jobs.study_dir / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    (logs / f"{rule} {batch}.late").write_text("\n" * times)


def test_no_job_asks_for_more_time_than_its_partition_gives(jobs, asks):
    batch = next(iter(jobs.evaluation))
    for rule in ("test_loss", "embeddings"):
        fail_late(jobs, rule, batch, 8)
    wildcards = Wildcards(batch=batch)
    minutes = asks.minutes("evaluate")
    assert [minutes(wildcards, attempt, "test_loss") for attempt in (1, 2, 3, 9)] == [
        240,
        480,
        720,
        720,
    ]
    asks.most_minutes["test_loss"] = 300
    assert [minutes(wildcards, attempt, "test_loss") for attempt in (1, 2, 9)] == [240, 300, 300]
    assert minutes(wildcards, 2, "embeddings") == 480


@pytest.mark.fault(
    "cluster",
    "A job is cancelled (`scancel`), fails by itself, or fails at its time limit.",
    "Only after the last its retry asks for more time.",
)
@pytest.mark.parametrize(
    ("left", "growth"),
    [
        ("3:59:50", 0),
        ("1-00:00:00", 0),
        ("59:46", 0),
        ("9:05", 0),
        ("UNLIMITED", 0),
        ("4:59", 1),
        ("0:00", 1),
        ("INVALID", 1),
        (None, 1),
    ],
)
def test_time_grows_where_a_job_failed_at_its_limit(
    left, growth, jobs, asks, tmp_path, monkeypatch
):
    squeue = tmp_path / "bin" / "squeue"
    squeue.parent.mkdir()
    squeue.write_text("#!/bin/sh\nexit 1\n" if left is None else f"#!/bin/sh\necho {left}\n")
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{squeue.parent}:{os.environ['PATH']}")
    wildcards = Wildcards(job=next(iter(jobs.training)), batch=next(iter(jobs.evaluation)))
    # Both SLURM's time limit and `scancel` send the processes of a job SIGTERM.
    run_killed(jobs, wildcards, tmp_path, ["kill $PPID; kill $$"])
    minutes = asks.minutes("evaluate")
    assert minutes(wildcards, 1, "rule") == 240
    assert minutes(wildcards, 2, "rule") == 240 * (1 + growth)
    training = asks.minutes("train")
    assert training(wildcards, 2, "rule") == 60 * (1 + growth / 2)
    run_killed(jobs, wildcards, tmp_path, ["exit 0"])
    assert minutes(wildcards, 2, "rule") == 240


def test_rules_of_one_job_share_its_time(jobs):
    """Snakemake adds the times of a group up, and ``plan`` says 240 minutes."""
    groups = {"test_loss": "measure", "downstream": "measure"}
    wildcards = Wildcards(batch=next(iter(jobs.evaluation)))
    minutes = JobResources(jobs, lambda: groups).minutes("evaluate")
    assert sum(minutes(wildcards, 1, rule) for rule in groups) == 240
    assert minutes(wildcards, 1, "embeddings") == 240


def test_the_plan_shows_what_each_rule_asks_for(jobs, asks, tiny_plan):
    header, *rows = asks.asked()
    asked = {row[0]: dict(zip(header, row, strict=True)) for row in rows}
    (study,) = tiny_plan.studies.values()
    assert list(asked) == ["prepare", "train_cells", *(stage.name for stage in study.stages)]
    assert asked["train_cells"]["jobs"] == str(len(jobs.training))
    assert asked["test_loss"]["minutes"] == "240" and asked["test_loss"]["at most"] == "720"
    for rule, wildcards in (
        ("prepare", {"data": tiny_plan.data_ids[0]}),
        ("train_cells", {"job": next(iter(jobs.training))}),
    ):
        kind = "prepare" if rule == "prepare" else "train"
        assert asked[rule]["minutes"] == str(asks.minutes(kind)(wildcards, 1, rule))
        assert asked[rule]["memory in MB"] == str(asks.memory(kind)(wildcards, 1, rule))


@pytest.mark.parametrize(
    ("planned", "missing", "message"),
    [
        ({"test_loss"}, {"evaluate": "no word lists"}, "no word lists"),
        ({"track"}, {}, "MLFLOW_TRACKING_URI"),
    ],
)
def test_what_planned_jobs_would_find_wrong_is_said_first(
    jobs, planned, missing, message, monkeypatch
):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nowhere")
    start.check_start(jobs, {"train_cells"}, True, missing)
    with pytest.raises(ValueError, match=message):
        start.check_start(jobs, planned, True, missing)


def test_a_cluster_starts_no_python_in_a_folder_with_a_space(jobs, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/my env/python")
    start.check_start(jobs, {"train_cells"}, True, {})
    with pytest.raises(ValueError, match="Snakemake does not quote its path"):
        start.check_start(jobs, {"train_cells"}, False, {})


def test_a_switch_is_true_or_false():
    assert [
        switch(config, "partial") for config in ({}, {"partial": "True"}, {"partial": False})
    ] == [
        False,
        True,
        False,
    ]
    with pytest.raises(ValueError, match="partial: 'maybe' must be true or false"):
        switch({"partial": "maybe"}, "partial")


def test_a_start_says_which_letters_of_labels_need_another_latex(tiny_study):
    settings = tiny_study(title="κ ≤ ½")
    assert list(start.letters_of_tables(make_plan(parse_study(settings)))) == []
    settings["models"][0]["label"] = "語"
    assert list(start.letters_of_tables(make_plan(parse_study(settings)))) == [
        "tiny: in the tables for LaTeX the letters 語 need XeLaTeX or LuaLaTeX with a font that"
        " has them"
    ]


@pytest.mark.parametrize(
    ("precision", "gpus", "flags", "said"),
    [
        ("bf16", 0, "avx2 fma", True),
        ("fp32", 0, "avx2 fma", False),
        ("bf16", 1, "avx2 fma", False),
        ("bf16", 0, "avx2 avx512f", False),
        ("bf16", 0, "asimd bf16", False),
        ("bf16", 0, "", False),  # not Linux
    ],
)
def test_a_start_says_that_a_processor_has_no_bf16(
    precision, gpus, flags, said, tiny_study, tmp_path, monkeypatch
):
    monkeypatch.setattr(device, "_PROCESSOR", tmp_path / "cpuinfo")
    (tmp_path / "cpuinfo").write_text(f"flags\t\t: {flags}\n" if flags else "")
    settings = tiny_study(execution={"gpus": gpus})
    settings["training"] |= {"precision": precision}
    plan = make_plan(parse_study(settings))
    found = list(start.slow_precision(plan, {"train_cells"}))
    assert [text.partition(" takes")[0] for text in found] == (
        ["tiny: training.precision: bf16"] if said else []
    )
    assert not list(start.slow_precision(plan, {"report_of_study"}))


@pytest.mark.fault(
    "settings",
    "An optimizer or a metric of the user fails in its trial before the first job.",
    "The start ends with what the trial said, once, and not with Snakemake's words of a command.",
)
@pytest.mark.parametrize(
    ("status", "said", "told"),
    [
        (2, "error: grid.0: step() fails\n", "grid.0: step() fails"),
        (-9, "", "the trial of own code ended with status -9"),
    ],
)
def test_a_trial_that_fails_is_the_error_of_the_start(
    status, said, told, tiny_study, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    jobs = Jobs(make_plan(parse_study(tiny_study(execution={"gpus": 1}))))
    commands = []

    def run(command, **_):
        commands.append(command)
        return subprocess.CompletedProcess(command, status, stderr=said)

    monkeypatch.setattr(start.subprocess, "run", run)
    start.try_code(jobs, {"report_of_study"}, is_local=True)
    assert commands == []  # nothing is trained or evaluated
    with pytest.raises(ValueError, match=rf"^{re.escape(told)}$"):
        start.try_code(jobs, {"train_cells"}, is_local=True)
    assert commands[0][2:4] == ["coupled_adam_bench", "try-code"]
