"""What the rules ask of the jobs of a study, and what a start refuses; the workflow's own tests run them for real."""

import sys
from types import SimpleNamespace

import pytest

from coupled_adam_bench.cli import start
from coupled_adam_bench.cli.jobs import Jobs, switch
from coupled_adam_bench.study.config import parse_study
from coupled_adam_bench.study.plan import make_plan


class Wildcards(SimpleNamespace):
    def items(self):
        return vars(self).items()


@pytest.fixture
def jobs(tiny_plan, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Jobs(tiny_plan)


def test_each_cell_is_trained_and_evaluated_by_one_job(jobs):
    cells = list(jobs.plan.cells)
    assert [cell for of_job in jobs.training.values() for cell in of_job] == cells
    assert [cell for of_job in jobs.evaluation.values() for cell in of_job] == cells
    assert jobs.ids(cells) == cells
    assert set(jobs.markers_of(cells)) == {jobs.trained(job) for job in jobs.training}


def test_memory_grows_with_each_attempt_to_a_bound(jobs):
    wildcards = Wildcards(job=next(iter(jobs.training)))
    assert [jobs.growing(1000)(wildcards, attempt) for attempt in (1, 2, 3, 9)] == [1000, 2000, 3000, 3000]
    least, *more = (jobs.training_memory(wildcards, attempt) for attempt in (1, 2, 3, 9))
    assert more == [round(1.5 * least), round(2.25 * least), round(2.25 * least)]


@pytest.mark.fault(
    "cluster",
    "`train_minutes` is shorter than the warning that a cluster sends two minutes before the limit.",
    "The warning comes a quarter of the limit before its end, so that most of the time goes into training.",
)
@pytest.mark.parametrize(("minutes", "seconds"), [(4, 60), (9, 121), (1440, 121)])
def test_the_warning_before_a_short_limit(minutes, seconds, tiny_study):
    settings = tiny_study()
    settings["execution"]["train_minutes"] = minutes
    jobs = Jobs(make_plan(parse_study(settings)))
    wildcards = Wildcards(job=next(iter(jobs.training)))
    assert jobs.training_minutes(wildcards, 1) == minutes
    assert jobs.warning_before_the_limit(wildcards, 1) == f"'--signal=TERM@{seconds}'"


@pytest.mark.parametrize(
    ("planned", "missing", "message"),
    [({"test_loss"}, {"evaluate": "no word lists"}, "no word lists"), ({"track"}, {}, "MLFLOW_TRACKING_URI")],
)
def test_what_planned_jobs_would_find_wrong_is_said_first(jobs, planned, missing, message, monkeypatch):
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
    assert [switch(config, "partial") for config in ({}, {"partial": "True"}, {"partial": False})] == [
        False,
        True,
        False,
    ]
    with pytest.raises(ValueError, match="partial: 'maybe' must be true or false"):
        switch({"partial": "maybe"}, "partial")
