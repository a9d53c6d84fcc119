"""The line of a study: what it counts, what is left, and what it shows of jobs that run or fail."""

import json
from pathlib import Path

import pytest

from coupled_adam_bench.cli.status import (
    Part,
    Status,
    Workflow,
    describe_failure,
    describe_group_failure,
    ending,
    last_row,
)


def write_row(history: Path, step: int, loss: float = 3.0, **values) -> None:
    history.parent.mkdir(parents=True, exist_ok=True)
    with history.open("a") as file:
        file.write(
            json.dumps({"step": step, "loss": loss, "tokens_per_second": 1000.0} | values) + "\n"
        )


@pytest.fixture
def study(tmp_path):
    """Cells a and b of one job, c of another, each of 100 steps, c's first 40 from a trunk; c has
    twice the work."""
    numbers = {"a": (0, 100, 10), "b": (0, 100, 10), "c": (40, 100, 20)}
    parts = {
        name: Part(
            f"cell {name}",
            tmp_path / name / "history.jsonl",
            tmp_path / name / "run.json",
            *of,
            "cell",
        )
        for name, of in numbers.items()
    }
    jobs = {"first": [parts["a"], parts["b"]], "second": [parts["c"]]}

    def parts_of(rule, wildcards):
        return jobs[wildcards["job"]] if rule == "train_cells" else []

    workflow = Workflow("s", {"cell": 5}, {"cell": 2}, 9, 40, tmp_path, "", parts_of)
    now = [0.0]
    return Status(workflow, clock=lambda: now[0]), parts, now


def test_cells_jobs_and_the_time_that_is_left(study):
    status, parts, now = study
    assert status.line() == "s: 2 of 5 cells trained, 0 of 9 jobs"
    status.begin(1, "prepare", {"data": "d"})
    assert status.line() == "s: 2 of 5 cells trained, 0 of 9 jobs | prepare"
    status.end(1, done=True)
    status.begin(2, "train_cells", {"job": "first"})
    assert status.line() == "s: 2 of 5 cells trained, 1 of 9 jobs | cell a starts"
    now[0] = 3.0
    write_row(parts["a"].history, 1)
    # The start took nearly all of these 3 s: its speed would say that 20 min are left.
    assert "left" not in status.line()
    now[0] = 30.0
    write_row(parts["a"].history, 50, 3.25, tokens_per_second=1234.5)
    # 5 of 40 units of work took 30 s, so the other 35 take 210 s.
    line = (
        "s: 2 of 5 cells trained, 1 of 9 jobs, 4 min of training left | cell a: loss 3.250, 1.23K"
        " tokens/s"
    )
    assert status.line() == line
    parts["a"].record.write_text("")
    write_row(parts["b"].history, 20)
    now[0] = 60.0  # 12 of 40
    line = (
        "s: 3 of 5 cells trained, 1 of 9 jobs, 2 min of training left | cell b: loss 3.000, 1K"
        " tokens/s"
    )
    assert status.line() == line
    parts["b"].record.write_text("")
    assert (
        status.line() == "s: 4 of 5 cells trained, 1 of 9 jobs, 60 s of training left | train_cells"
    )
    status.end(2, done=True)
    status.begin(3, "train_cells", {"job": "second"})
    for number in (4, 5):
        status.begin(number, "embeddings", {"batch": str(number)})
    write_row(parts["c"].history, 40)  # the trunk's
    assert status.line().endswith(
        "60 s of training left | cell c: loss 3.000, 1K tokens/s | 2 embeddings"
    )
    write_row(parts["c"].history, 70)
    assert "20 s of training left" in status.line()  # 30 of 40 units in 60 s
    parts["c"].record.write_text("")
    for number in (3, 4, 5):
        status.end(number, done=True)
    assert status.line() == "s: 5 of 5 cells trained, 5 of 9 jobs"


def test_a_resumed_cell_counts_from_where_it_was(study):
    status, parts, now = study
    write_row(parts["c"].history, 70)
    status.begin(1, "train_cells", {"job": "second"})
    now[0] = 10.0
    assert "left" not in status.line()  # nothing is trained yet in this run
    write_row(parts["c"].history, 85)
    assert "left" not in status.line()  # the start was all of it
    now[0] = 100.0
    write_row(parts["c"].history, 97)
    # 9 units in 100 s; 19 are done, and 21 left.
    assert "4 min of training left" in status.line()
    status.end(1, done=False)
    status.begin(1, "train_cells", {"job": "second"})  # Snakemake's second attempt
    assert "4 min of training left" in status.line()


def test_the_time_left_is_said_once_a_job_has_ended(study):
    status, parts, now = study
    status.begin(1, "train_cells", {"job": "first"})
    now[0] = 10.0
    for name in "ab":
        write_row(parts[name].history, 50)
    assert "left" not in status.line()
    for name in "ab":
        parts[name].record.write_text("")
    status.end(1, done=True)
    assert "10 s of training left" in status.line()


def test_a_trial_counts_its_candidates(tmp_path):
    part = Part("a", tmp_path / "h", tmp_path / "r", 0, 10, 1, "candidate")
    total, trained = {"candidate": 9, "cell": 2}, {"candidate": 3}
    workflow = Workflow("s", total, trained, 7, 9, tmp_path, "", lambda rule, wildcards: [part])
    status = Status(workflow, lambda: 0.0)
    status.begin(1, "train_cells", {})
    part.record.write_text("")
    assert status.line().startswith("s: 4 of 9 candidates and 0 of 2 cells trained, 0 of 7 jobs")


def test_many_cells_are_two_and_a_number(tmp_path):
    part = Part("a", tmp_path / "h", tmp_path / "r", 0, 10, 1, "cell")
    workflow = Workflow("s", {"cell": 9}, {}, 9, 9, tmp_path, "", lambda rule, wildcards: [part])
    status = Status(workflow, lambda: 0.0)
    write_row(part.history, 1)
    for job in range(200):
        status.begin(job, "train_cells", {})
    assert status.line().endswith(" | a: loss 3.000, a: loss 3.000, 198 more, 200K tokens/s")


@pytest.mark.parametrize(
    ("text", "row"),
    [
        ("", {}),
        ('{"step": 1, "loss": 2.0}\n{"step": 2, "lo', {"step": 1, "loss": 2.0}),
        ("damaged\n", {}),
        ("\n" * 10_000 + '{"step": 3}\n', {"step": 3}),
    ],
)
def test_the_last_row_of_a_history(text, row, tmp_path):
    (tmp_path / "history.jsonl").write_text(text)
    assert last_row(tmp_path / "history.jsonl") == row
    assert last_row(tmp_path / "none") == {}


def test_a_failed_job_shows_the_end_of_its_log(tmp_path):
    log = tmp_path / "a.log"
    log.write_text("".join(f"line {number}\n" for number in range(30)) + "x" * 1000)
    said = describe_failure(
        "train_cells", ["job_1"], [str(log), "missing.log"], {"external_jobid": 77}, None
    )
    assert said.splitlines()[:4] == [
        "Error in rule train_cells (job_1)",
        "  external_jobid: 77",
        f"  {log} ends with:",
        "    line 19",
    ]
    assert said.splitlines()[-3:] == [
        f"    {'x' * 300}",
        "  missing.log ends with:",
        "    (there is none)",
    ]
    assert describe_failure("plan", [], [], {}, None) == "Error in rule plan"
    log.write_text("")
    assert describe_failure("a", [], [str(log)], {}, None).endswith("    (it is empty)")


@pytest.mark.parametrize(
    ("end", "shown"),
    [
        ("cell a: 40.0 %, loss=3.2", ["  LOG names no error"]),
        ("error: no such thing", ["  LOG ends with:", "    error: no such thing"]),
        ("Killed", ["  LOG ends with:", "    Killed"]),
    ],
)
def test_the_log_of_a_cluster_s_job_is_shown_if_an_error_is_in_it(end, shown, tmp_path):
    log = tmp_path / "a.log"
    log.write_text(f"{end}\n")
    said = "SLURM-job '77' failed, SLURM status is: 'TIMEOUT'."
    lines = describe_failure("train_cells", [], [str(log)], {}, said).splitlines()
    expected = ["Error in rule train_cells", f"  {said}"]
    assert lines == expected + [line.replace("LOG", str(log)) for line in shown]


def test_one_log_explains_a_failed_job(tmp_path):
    ends = {"rule.log": "error: a bug", "6.log": "WorkflowError: at least one job failed"}
    for name, end in ends.items():
        (tmp_path / name).write_text(f"{end}\n")
    logs = [str(tmp_path / name) for name in ends]
    assert describe_failure("train_cells", [], logs, {}, "SLURM-job '6' failed").splitlines() == [
        "Error in rule train_cells",
        "  SLURM-job '6' failed",
        f"  {logs[0]} ends with:",
        "    error: a bug",
        f"  more in {logs[1]}",
    ]


@pytest.mark.parametrize(
    ("of_rule", "is_shown"),
    [("cell a: 40.0 %", False), ("killed, most likely for lack of memory", True)],
)
def test_a_job_that_slurm_ended_has_three_lines_and_its_own_error(of_rule, is_shown, tmp_path):
    rule, slurm = tmp_path / "rule.log", tmp_path / "2.log"
    rule.write_text(f"{of_rule}\n")
    slurm.write_text(
        "Building DAG of jobs\n"
        "slurmstepd-n1: error: *** JOB 2 ON n1 CANCELLED AT 2026-11-27T17:56:23 ***\n"
        "slurmstepd-n1: error: *** STEP 2.0 ON n1 CANCELLED AT 2026-11-27T17:56:23 ***\n"
        "WorkflowError:\nsrun: error: n1: task 0: Killed\n"
    )
    logs = [str(rule), str(slurm)]
    said = "SLURM-job '2' failed, SLURM status is: 'CANCELLED'. Detailed failure reason unavailable"
    lines = describe_failure("train_cells", ["batch-001"], logs, {"SLURM job": "2"}, said)
    own = [f"  {rule} ends with:", f"    {of_rule}"] if is_shown else []
    assert lines.splitlines() == [
        "Error in rule train_cells (batch-001)",
        "  SLURM job: 2",
        *own,
        f"  JOB 2 ON n1 CANCELLED AT 2026-11-27T17:56:23; more in {slurm}",
    ]


@pytest.mark.parametrize(
    "line",
    [
        "StepId=1.0 exceeded memory limit (433156096 > 104857600), being killed",
        "Exceeded job memory limit",
        "Detected 1 oom_kill event in StepId=1.batch. Some of the step tasks have been OOM Killed.",
    ],
)
def test_a_lack_of_memory_tells_more_than_that_its_job_was_cancelled(line, tmp_path):
    slurm = tmp_path / "1.log"
    slurm.write_text(
        f"slurmstepd-n1: error: {line}\n"
        "slurmstepd-n1: error: *** JOB 1 ON n1 CANCELLED AT 2026-11-27T18:47:40 ***\n"
        "slurmstepd-n1: error: *** STEP 1.0 ON n1 CANCELLED AT 2026-11-27T18:47:40 ***\n"
        "srun: error: n1: task 0: Killed\n"
    )
    assert f"  {line}; more in {slurm}" in describe_failure("a", [], [str(slurm)], {}, None)
    assert f"  {line}; more in {slurm}" in describe_group_failure("a", [], [str(slurm)], {})


def test_the_last_lines_name_what_there_is(tmp_path):
    assert ending(tmp_path) == []
    page = tmp_path / "report" / "index.html"
    page.parent.mkdir()
    page.write_text("")
    made = [f"Report:  {page}", f"Tables:  {tmp_path / 'tables'}/"]
    assert ending(tmp_path) == made
    (tmp_path / "mlflow.json").write_text('{"shown": ["mlflow ui", "http://here"]}')
    assert ending(tmp_path) == [*made, "MLflow:  mlflow ui", "MLflow:  http://here"]
