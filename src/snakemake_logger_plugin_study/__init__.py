"""The logger ``study`` of Snakemake (``--logger study``): one line for a study instead of a block
for each job.

Snakemake finds a logger by the name of its package, ``snakemake_logger_plugin_NAME``, on the path
of Python. It imports all that it finds at each start, whatever the workflow, so what this one needs
is imported when it is chosen.

On a terminal the line is drawn anew every second; in a file there is one a minute, or as often as
``--logger-study-line-seconds`` says. Warnings and errors are printed as Snakemake prints them, but
for a failed job: its rule, and the end of its log. What Snakemake says of each job is in its own
log file, and with ``--printshellcmds`` or ``--verbose`` it is printed. A dry run prints the plan of
the study and the number of jobs of each rule.

A run ends with the line, how long it took, and where the report and the tables are. All of it goes
through :meth:`LogHandler._print`, so that nothing is written behind a line that stands there.
"""

import logging
import re
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, RLock, Thread
from typing import TYPE_CHECKING, TextIO

from snakemake.common import NOTHING_TO_BE_DONE_MSG
from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent
from snakemake_interface_logger_plugins.settings import LogHandlerSettingsBase

if TYPE_CHECKING:
    from coupled_adam_bench.cli.status import Status

STUDY = "coupled_adam_bench_study"
"""The attribute of the record with which the workflow names the folder of the study; its message is
the plan, in a dry run."""
WORKFLOW = "coupled_adam_bench_workflow"
"""The attribute of the record with which the workflow says what it is going to do."""
ENDED = "coupled_adam_bench_ended"
"""The attribute of the record with which the workflow says what it has made."""
_DRAW_SECONDS = 1.0
# What Snakemake says at each start and for each job. All else is printed. The jobs of a dry run
# are counted in its table. After an edit it also advises to wipe the record of what was run, after
# which nothing would notice the edit.
_USUAL = re.compile(
    r"Building DAG of jobs|Assuming unrestricted shared|host: |Using shell|Select jobs to"
    r" execute|Execute \d+ jobs"
    r"|Complete log|Elapsed time|SLURM run ID|Job [\w-]+ has been submitted|Job rate limit|Waiting"
    r" at most|None$"
    r"|Reasons:|This was a dry-run|Cleaning up SLURM log files"
    r"|Some jobs were triggered by provenance|Rules with provenance triggered jobs"
)
# Warnings and errors that tell nothing. After a report that failed there is a warning for each
# file, and the files are what they were (rules/report.smk). On SLURM there are three without an
# account: the plugin's guess always fails, since it hands a pipe to sacct as an argument, and where
# a cluster asks for an account, sbatch says so. That a job has failed is said with its command and
# twice at the end.
_UNTOLD = re.compile(
    r"Restored previous version of|Cannot restore .*: no backup found"
    r"|No SLURM account given|No account was given|Unable to guess SLURM account"
    r"|WorkflowError:\nAt least one job did not complete successfully"
    r"|RuleException:\nCalledProcessError"
)
_INTERRUPTED = (
    "Terminating processes on user request",
    "Will exit after finishing currently running jobs (scheduler)",
)
"""What Snakemake says when it was sent SIGINT or SIGTERM; its jobs then have the signal, too."""


def _check_studies() -> None:
    """Raise Snakemake's error for studies that Snakemake cannot read, before it does."""
    from snakemake.exceptions import CliException

    from coupled_adam_bench.cli.arguments import check_studies

    try:
        check_studies(sys.argv)
    except ValueError as error:
        raise CliException(str(error)) from None


def _number(facts: Mapping[str, object]) -> dict[str, object]:
    """Return the number of a job on a cluster, by the word that users know, if it has one."""
    return {"SLURM job": facts["external_jobid"]} if "external_jobid" in facts else {}


@dataclass
class LogHandlerSettings(LogHandlerSettingsBase):
    """The option of this logger, ``--logger-study-line-seconds``."""

    line_seconds: float = field(
        default=60.0, metadata={"help": "Seconds between two lines of progress in a file."}
    )


class LogHandler(LogHandlerBase):
    """Prints one line for a study, and what went wrong."""

    writes_to_stream = True  # Snakemake prints nothing itself
    writes_to_file = False  # its own log file stays
    has_filter = False  # its filter is used, for options such as --quiet
    has_formatter = True
    needs_rulegraph = False

    def __post_init__(self) -> None:
        from snakemake.logging import ColorizingTextHandler, DefaultFormatter

        common = self.common_settings
        self.stream: TextIO = sys.stdout if common.stdout else sys.stderr
        self._plain = ColorizingTextHandler(nocolor=common.nocolor, stream=self.stream)
        self._plain.setFormatter(DefaultFormatter(common.quiet, common.show_failed_logs))
        self._full = any((common.verbose, common.printshellcmds, common.debug_dag, common.quiet))
        self._is_dry = common.dryrun
        self._has_counts = False
        """Whether the number of jobs of each rule is printed, which a dry run says twice."""
        self._start = time.monotonic()
        self._study_dir: Path | None = None
        self._status: Status | None = None
        self._jobs: dict[int, list[str]] = {}
        """The wildcards of the jobs that have begun."""
        self._told: set[int] = set()
        """The jobs of groups whose failure is told."""
        self._is_drawn = False
        self._is_interrupted = False
        """Whether the user has stopped the run, so that each of its jobs fails."""
        self._lock = RLock()
        self._over = Event()
        self._is_terminal = self.stream.isatty()
        settings = self.settings
        if not isinstance(settings, LogHandlerSettings):
            settings = LogHandlerSettings()
        self._seconds = _DRAW_SECONDS if self._is_terminal else settings.line_seconds
        _check_studies()

    def emit(self, record: logging.LogRecord) -> None:
        """Follow an event, and print what users should see."""
        with self._lock:
            if self._full:
                self._plain.emit(record)
            else:
                self._show(record)
            self._follow(record)

    def _show(self, record: logging.LogRecord) -> None:
        """Print a record, if it is one of those that are seen."""
        event, facts, message = getattr(record, "event", None), record.__dict__, str(record.msg)
        # What the workflow says has an attribute of its own; the rest comes from Snakemake.
        if STUDY in facts:
            self._study_dir = facts[STUDY]
            if self._is_dry:
                self._print(message)
        elif WORKFLOW in facts:
            self._begin(facts[WORKFLOW])
        elif ENDED in facts:
            self._end(message)
        elif message == NOTHING_TO_BE_DONE_MSG:
            self._end("\n".join([message, *self._made()]))
        elif message.startswith(_INTERRUPTED):
            if not self._is_interrupted:
                self._print("Stopping: training finishes its step and writes a checkpoint.")
            self._is_interrupted = True
        elif event == LogEvent.JOB_ERROR:
            if not self._is_interrupted and facts["jobid"] not in self._told:
                self._print_failure(record)
        elif event == LogEvent.GROUP_ERROR:
            if not self._is_interrupted:
                self._print_group_failure(record)
        elif event == LogEvent.RUN_INFO and self._is_dry and not self._has_counts:
            self._has_counts = True
            self._print(f"{message}\nTo list each job with its files and its reason, add -p.")
        elif _UNTOLD.match(message):
            pass
        elif record.levelno >= logging.WARNING or (event is None and not _USUAL.match(message)):
            self._erase()
            self._plain.emit(record)

    def _follow(self, record: logging.LogRecord) -> None:
        """Note which jobs begin and end."""
        event, facts = getattr(record, "event", None), record.__dict__
        if event == LogEvent.JOB_INFO:
            wildcards = dict(facts["wildcards"])
            self._jobs[facts["jobid"]] = list(map(str, wildcards.values()))
            if self._status is not None:
                self._status.begin(facts["jobid"], facts["rule_name"], wildcards)
        elif self._status is not None and event == LogEvent.JOB_FINISHED:
            self._status.end(facts["job_id"], done=True)
        elif self._status is not None and event == LogEvent.JOB_ERROR:
            self._status.end(facts["jobid"], done=False)

    def _begin(self, workflow: object) -> None:
        """Print where the logs are, and begin to draw the line."""
        from coupled_adam_bench.cli.status import Status, Workflow

        assert isinstance(workflow, Workflow)
        self._status = Status(workflow)
        everything = f"; all that Snakemake says: {workflow.full_log}" if workflow.full_log else ""
        self._print(
            f"{workflow.study}: {workflow.n_jobs} jobs, with logs in {workflow.logs}{everything}"
        )
        Thread(target=self._draw_regularly, daemon=True).start()

    def _print_failure(self, record: logging.LogRecord) -> None:
        """Print in red what is said of a failed job."""
        from coupled_adam_bench.cli.status import describe_failure

        facts = record.__dict__
        job = self._jobs.get(facts["jobid"], [])
        text = describe_failure(
            facts["rule_name"], job, facts["log"], _number(facts["aux"]), facts["rule_msg"]
        )
        self._print(self._plain.decorate(record, text))

    def _print_group_failure(self, record: logging.LogRecord) -> None:
        """Print in red what is said of a failed job of several rules, which are then told."""
        from coupled_adam_bench.cli.status import describe_group_failure

        facts = record.__dict__
        jobs = facts["job_error_info"]
        self._told |= {job["jobid"] for job in jobs}
        text = describe_group_failure(facts["groupid"], jobs, facts["aux_logs"], _number(facts))
        self._print(self._plain.decorate(record, text))

    def _draw_regularly(self) -> None:
        while not self._over.wait(self._seconds):
            with self._lock:
                self._draw()

    def _draw(self) -> None:
        """Show the line: on a terminal in the place of the last one, cut to its width."""
        if self._status is None:
            return
        line = self._status.line()
        if self._is_terminal:
            width = shutil.get_terminal_size().columns - 1
            line = line if len(line) <= width else f"{line[: width - 3]}..."
            self._write(f"\r\x1b[K{line}")
            self._is_drawn = True
        else:
            self._print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}")

    def _erase(self) -> None:
        """Clear the line, so that something else can be printed in its place."""
        if self._is_drawn:
            self._write("\r\x1b[K")
            self._is_drawn = False

    def _print(self, text: str) -> None:
        self._erase()
        self._write(f"{text}\n")

    def _write(self, text: str) -> None:
        self.stream.write(text)
        self.stream.flush()

    def _made(self) -> list[str]:
        """Return the lines that name what there is of the study."""
        from coupled_adam_bench.cli.status import ending

        return [] if self._study_dir is None else ending(self._study_dir)

    def _end(self, last: str) -> None:
        """Let the line stand, and print the ``last`` lines and how long the run took below it."""
        from coupled_adam_bench.tools.estimate.quantities import hours

        self._let_stand()
        took = [] if self._is_dry else [f"Time:    {hours(time.monotonic() - self._start)}"]
        self._print("\n".join([last, *took]))

    def _let_stand(self) -> None:
        """Show the line a last time, and draw it no more."""
        self._over.set()
        if self._status is not None:
            self._print(self._status.line())
            self._status = None

    def close(self) -> None:
        """Let the line stand, of a run that has not ended well either."""
        with self._lock:
            self._let_stand()
            if self._is_interrupted:
                self._is_interrupted = False  # Snakemake closes a logger twice
                self._print("Stopped. The same command goes on from here.")
        super().close()
