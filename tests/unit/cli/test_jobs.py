"""What the rules ask of the jobs of a study, and what a start refuses; the workflow's own tests run them for real."""

import sys
from types import SimpleNamespace

import pytest

from coupled_adam_bench.cli import start
from coupled_adam_bench.cli.jobs import Jobs, switch


class Wildcards(SimpleNamespace):
    def items(self):
        return vars(self).items()


@pytest.fixture
def jobs(tiny_plan, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Jobs(tiny_plan, lambda rule, wildcards: f"{wildcards.job}.{rule}.log")


def test_each_cell_is_trained_and_evaluated_by_one_job(jobs):
    cells = list(jobs.plan.cells)
    assert [cell for of_job in jobs.training.values() for cell in of_job] == cells
    assert [cell for of_job in jobs.evaluation.values() for cell in of_job] == cells
    assert jobs.ids(cells) == cells
    assert set(jobs.markers_of(cells)) == {jobs.trained(job) for job in jobs.training}


def test_memory_grows_with_each_attempt_that_was_killed(jobs, tmp_path):
    job = next(iter(jobs.training))
    wildcards, memory = Wildcards(job=job), jobs.memory(1000)
    (tmp_path / f"{job}.train_cells.log.attempts").write_text("begun\nended\nbegun\n")
    assert memory(wildcards, 1, "train_cells") == 1000  # before this run's first failure none counts
    assert memory(wildcards, 2, "train_cells") == 2000
    least = jobs.training_memory(wildcards, 1, "train_cells")
    assert jobs.training_memory(wildcards, 2, "train_cells") == round(1.5 * least)


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
