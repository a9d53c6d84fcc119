"""The logger ``study`` of Snakemake: what it prints of the events that Snakemake sends."""

import contextlib
import io
import logging
from pathlib import Path

import pytest

pytest.importorskip("snakemake")
from snakemake_interface_logger_plugins.common import LogEvent
from snakemake_interface_logger_plugins.registry import LoggerPluginRegistry
from snakemake_interface_logger_plugins.tests import MockOutputSettings, TestLogHandlerBase

import snakemake_logger_plugin_study as plugin
from coupled_adam_bench.cli.status import Workflow


class TestContract(TestLogHandlerBase):
    """Snakemake's own tests of a logger."""

    __test__ = True

    def get_log_handler_cls(self):
        return plugin.LogHandler

    def get_log_handler_settings(self):
        return None


class Terminal(io.StringIO):
    def isatty(self):
        return True


def handler(monkeypatch, stream, **options):
    monkeypatch.setattr("sys.stderr", stream)
    settings = MockOutputSettings()
    for name, value in {"printshellcmds": False, "nocolor": True, **options}.items():
        setattr(settings, name, value)
    monkeypatch.setattr(
        plugin, "Thread", lambda **_: type("NoThread", (), {"start": lambda self: None})()
    )
    return plugin.LogHandler(settings, None)


@pytest.fixture
def stream():
    """What a file gets that the logger prints into."""
    return io.StringIO()


@pytest.fixture
def to(monkeypatch, stream):
    """The logger of a start without options."""
    return handler(monkeypatch, stream)


def send(to, event, message="", level=logging.INFO, **facts):
    record = logging.LogRecord("snakemake", level, __file__, 0, message, None, None)
    record.__dict__.update({"event": event} if event else {}, **facts)
    to.emit(record)


def begin(to, n_jobs=2):
    cells = {"cell": 1}
    workflow = Workflow(
        "s", cells, cells, n_jobs, 0, Path("results/s/logs"), "all.log", lambda rule, wildcards: []
    )
    send(to, None, "s: 2 jobs", **{plugin.WORKFLOW: workflow})


def info(to, job, rule="embeddings", log=("a.log",), shellcmd="python"):
    facts = {
        "jobid": job,
        "rule_name": rule,
        "wildcards": {"batch": "b"},
        "log": list(log),
        "shellcmd": shellcmd,
    }
    send(to, LogEvent.JOB_INFO, "a block", **facts)


def test_snakemake_finds_it():
    assert LoggerPluginRegistry().get_plugin("study").log_handler is plugin.LogHandler


def test_after_ctrl_c_no_job_fails_and_the_last_line_says_how_to_go_on(tmp_path, stream, to):
    begin(to)
    info(to, 1)
    send(to, None, "Terminating processes on user request, this might take some time.")
    (tmp_path / "a.log").write_text("KeyboardInterrupt\n")
    facts = {"rule_name": "embeddings", "log": [str(tmp_path / "a.log")], "aux": {}}
    send(to, LogEvent.JOB_ERROR, "Error", logging.ERROR, jobid=1, rule_msg=None, **facts)
    send(to, None, "RuleException:\nCalledProcessError in file", logging.ERROR)
    to.close()
    to.close()
    assert stream.getvalue().splitlines()[1:] == [
        "Stopping: training finishes its step and writes a checkpoint.",
        "s: 1 of 1 cells trained, 0 of 2 jobs",
        "Stopped. The same command goes on from here.",
    ]


def test_in_a_file_there_is_one_line_and_what_matters(tmp_path, stream, to):
    send(to, None, "Building DAG of jobs...")
    begin(to)
    info(to, 1)
    send(to, LogEvent.SHELLCMD, "python", shellcmd="python")
    to._draw()
    log = tmp_path / "a.log"
    log.write_text("working\nerror: no such thing\n")
    facts = {"jobid": 1, "rule_name": "embeddings", "log": [str(log)], "aux": {}, "rule_msg": None}
    send(to, LogEvent.JOB_ERROR, "Error", logging.ERROR, **facts)
    send(to, None, "Trying to restart job 1.")
    send(to, None, "a warning", logging.WARNING)
    info(to, 1)
    send(to, LogEvent.JOB_FINISHED, "Finished", job_id=1)
    to.close()
    lines = stream.getvalue().splitlines()
    assert lines[0] == "s: 2 jobs, with logs in results/s/logs; all that Snakemake says: all.log"
    assert lines[1].endswith(" s: 1 of 1 cells trained, 0 of 2 jobs | embeddings")
    assert lines[2:] == [
        "Error in rule embeddings (b)",
        f"  {log} ends with:",
        "    working",
        "    error: no such thing",
        "Trying to restart job 1.",
        "a warning",
        "s: 1 of 1 cells trained, 1 of 2 jobs",
    ]


def test_on_a_terminal_the_line_is_one_and_gives_way(monkeypatch):
    stream = Terminal()
    to = handler(monkeypatch, stream)
    monkeypatch.setenv("COLUMNS", "30")
    begin(to)
    info(to, 1)
    stream.truncate(0), stream.seek(0)
    to._draw()
    assert stream.getvalue() == "\r\x1b[Ks: 1 of 1 cells trained, 0..."
    assert len(stream.getvalue()) - len("\r\x1b[K") == 29
    send(to, None, "a warning", logging.WARNING)
    assert stream.getvalue().endswith("\r\x1b[Ka warning\n")


def test_what_tells_nothing_is_not_printed(stream, to):
    """Three warnings are what version 2.8 of the plugin for SLURM says on every cluster if no
    account is set."""
    warnings = [
        "No SLURM account given, trying to guess.",
        "No account was given, not able to get a SLURM account via sacct: sacct: invalid option",
        "Unable to guess SLURM account. Trying to proceed without.",
    ]
    for warning in warnings:
        send(to, None, warning, logging.WARNING)
    send(to, None, "Cleaning up SLURM log files older than 10 day(s).")
    twice = "WorkflowError:\nAt least one job did not complete successfully."
    send(to, LogEvent.ERROR, twice, logging.ERROR, exception="WorkflowError")
    assert stream.getvalue() == ""


def test_the_end_stands_below_the_line(monkeypatch):
    stream = Terminal()
    to = handler(monkeypatch, stream)
    begin(to)
    to._draw()
    stream.truncate(0), stream.seek(0)
    send(to, None, "Report:  index.html", **{plugin.ENDED: True})
    to.close()
    line = "s: 1 of 1 cells trained, 0 of 2 jobs"
    assert stream.getvalue() == f"\r\x1b[K{line}\nReport:  index.html\nTime:    0 s\n"


def test_the_end_is_the_same_where_nothing_was_to_be_done(tmp_path, stream, to):
    page = tmp_path / "report" / "index.html"
    page.parent.mkdir()
    page.write_text("")
    send(to, None, "s: 3 cells", **{plugin.STUDY: tmp_path})
    send(to, None, plugin.NOTHING_TO_BE_DONE_MSG)
    to.close()
    assert stream.getvalue().splitlines() == [
        plugin.NOTHING_TO_BE_DONE_MSG,
        f"Report:  {page}",
        f"Tables:  {tmp_path / 'tables'}/",
        "Time:    0 s",
    ]


def test_a_dry_run_is_the_plan_and_a_table(monkeypatch, tmp_path, stream):
    to = handler(monkeypatch, stream, dryrun=True)
    send(to, None, "s: a title\ncells  3", **{plugin.STUDY: tmp_path})
    for _ in range(2):
        send(to, LogEvent.RUN_INFO, "Job stats:\ntotal 1")
        info(to, 1)
    send(to, None, "Reasons:\n    many")
    send(to, None, "This was a dry-run (flag -n).")
    to.close()
    assert stream.getvalue().splitlines() == [
        "s: a title",
        "cells  3",
        "Job stats:",
        "total 1",
        "To list each job with its files and its reason, add -p.",
    ]


@pytest.mark.fault(
    "settings",
    "A target stands behind `--configfile`, which Snakemake takes for a second study.",
    "One sentence says so, and what to type.",
)
@pytest.mark.parametrize(
    ("words", "is_taken"), [("tables --configfile A", 1), ("--cores 1 --configfile A tables", 0)]
)
def test_targets_stand_before_the_study(words, is_taken, monkeypatch, tmp_path):
    from snakemake.exceptions import CliException

    monkeypatch.chdir(tmp_path)
    (tmp_path / "A").touch()
    monkeypatch.setattr("sys.argv", ["snakemake", *words.split()])
    with (
        contextlib.nullcontext()
        if is_taken
        else pytest.raises(CliException, match=r"tables: no such file.*first")
    ):
        handler(monkeypatch, io.StringIO())


@pytest.mark.parametrize(
    "options",
    [{"printshellcmds": True}, {"verbose": True}, {"quiet": {"progress"}}],
)
def test_everything_is_printed_where_that_is_asked_for(options, monkeypatch, stream):
    to = handler(monkeypatch, stream, **options)
    send(to, None, "Building DAG of jobs...")
    send(to, LogEvent.JOB_FINISHED, "Finished jobid: 1", job_id=1)
    begin(to)
    to.close()
    assert "Building DAG of jobs...\n" in stream.getvalue()
    assert "Finished jobid: 1\n" in stream.getvalue()
    assert "cells trained" not in stream.getvalue()


def test_a_dry_run_after_an_edit_does_not_advise_to_wipe_records(monkeypatch, stream):
    to = handler(monkeypatch, stream, dryrun=True)
    send(to, None, "Some jobs were triggered by provenance information, see ... --cleanup-metadata")
    send(to, None, "Rules with provenance triggered jobs: embeddings")
    assert stream.getvalue() == ""


def test_lines_in_a_file_come_as_often_as_the_option_says(monkeypatch):
    monkeypatch.setattr("sys.stderr", io.StringIO())
    assert handler(monkeypatch, io.StringIO())._seconds == 60
    settings = MockOutputSettings()
    settings.printshellcmds, settings.nocolor = False, True
    assert plugin.LogHandler(settings, plugin.LogHandlerSettings(10))._seconds == 10
    assert LoggerPluginRegistry().get_plugin("study").settings_cls is plugin.LogHandlerSettings


def group_failed(to, tmp_path, of_slurm, of_job):
    """Send what Snakemake says of a failed job of two rules, which it says of each of them, too."""
    slurm = tmp_path / "12.log"
    slurm.write_text(of_slurm)
    jobs = []
    for number, rule in enumerate(("test_loss", "downstream"), 1):
        log = tmp_path / f"{rule}.log"
        log.write_text(of_job if number == 1 else "scoring\n" * 40)
        jobs.append({"rule_name": rule, "jobid": number, "log": [str(log)]})
        info(to, number, rule, [str(log)])
    facts = {"groupid": "measure-b", "aux_logs": [str(slurm)], "job_error_info": jobs}
    send(to, LogEvent.GROUP_ERROR, "Error in group", logging.ERROR, external_jobid="12", **facts)
    for job in jobs:
        facts = {"rule_msg": None, "aux": {}, **job}
        send(to, LogEvent.JOB_ERROR, "Error in rule", logging.ERROR, **facts)


@pytest.mark.parametrize("daemon", ["slurmstepd", "slurmstepd-n1", "srun"])
def test_a_group_that_slurm_ended_has_three_lines(daemon, tmp_path, stream, to):
    begin(to)
    before = stream.getvalue()
    ended = f"{daemon}: error: *** JOB 12 ON node1 CANCELLED AT 2026-11-27T12:00:00 ***\n"
    ended += "Shutting down\n" * 100 + "srun: error: n1: task 0: Terminated\n"
    group_failed(to, tmp_path, "Building DAG of jobs\n" * 100 + ended, "scoring\n" * 40)
    assert stream.getvalue().removeprefix(before).splitlines() == [
        "Error in group measure-b (downstream, test_loss)",
        "  SLURM job: 12",
        f"  JOB 12 ON node1 CANCELLED AT 2026-11-27T12:00:00; more in {tmp_path / '12.log'}",
    ]


def test_of_a_group_that_failed_by_itself_the_rule_with_the_error_is_shown(tmp_path, stream, to):
    begin(to)
    before = stream.getvalue()
    of_slurm = "RuleException in test_loss\nsrun: error: n1: task 0: Exited with exit code 1\n"
    group_failed(to, tmp_path, of_slurm, "reading\nerror: no such task\n")
    assert stream.getvalue().removeprefix(before).splitlines() == [
        "Error in group measure-b (downstream, test_loss)",
        "  SLURM job: 12",
        "Error in rule test_loss",
        f"  {tmp_path / 'test_loss.log'} ends with:",
        "    reading",
        "    error: no such task",
        f"  more in {tmp_path / '12.log'}",
    ]
