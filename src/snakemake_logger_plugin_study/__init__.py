"""The logger ``study`` of Snakemake (``--logger study``): one line for a study instead of a block for each job.

Snakemake finds a logger by the name of its package, ``snakemake_logger_plugin_NAME``, on the path of Python. It imports
all that it finds at each start, whatever the workflow, so what this one needs is imported when it is chosen.

On a terminal the line is drawn anew every second; in a file there is one a minute. Warnings and errors are printed as
Snakemake prints them, but for a failed job: its rule, and the end of its log. What Snakemake says of each job is in its
own log file, and with ``--logger-study-full`` or ``--verbose`` it is printed. A dry run prints all of it.
"""

import logging
import re
import shutil
import sys
import time
from dataclasses import dataclass, field
from threading import Event, RLock, Thread
from typing import TYPE_CHECKING, TextIO

from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent
from snakemake_interface_logger_plugins.settings import LogHandlerSettingsBase

if TYPE_CHECKING:
    from coupled_adam_bench.cli.status import Status

WORKFLOW = "coupled_adam_bench_workflow"
"""The attribute of the record with which the workflow says what it is going to do."""
_LINE_SECONDS = 60.0
_DRAW_SECONDS = 1.0
_OF_EACH_JOB = {
    LogEvent.WORKFLOW_STARTED,
    LogEvent.RUN_INFO,
    LogEvent.RESOURCES_INFO,
    LogEvent.JOB_INFO,
    LogEvent.JOB_STARTED,
    LogEvent.JOB_FINISHED,
    LogEvent.GROUP_INFO,
    LogEvent.PROGRESS,
    LogEvent.SHELLCMD,
    LogEvent.RULEGRAPH,
}
# What Snakemake says at each start and for each job, and the command of a job that failed. All else is printed.
_USUAL = re.compile(
    r"Building DAG of jobs|Assuming unrestricted shared|host: |Using shell|Select jobs to execute|Execute \d+ jobs"
    r"|Complete log|Elapsed time|SLURM run ID|Job \d+ has been submitted|Job rate limit|Waiting at most|None$"
    r"|RuleException:\nCalledProcessError"
)


@dataclass
class LogHandlerSettings(LogHandlerSettingsBase):
    """The options of the logger, ``--logger-study-NAME``."""

    full: bool = field(
        default=False, metadata={"help": "Print what Snakemake says of each job", "env_var": False, "required": False}
    )


def _log_what_is_said_of_groups() -> None:
    """Have Snakemake log what the executor says of a group of jobs that failed, which its version 9.27 drops."""
    from snakemake.jobs import GroupJob
    from snakemake.logging import logger

    log_error = GroupJob.log_error

    def with_message(self: object, msg: str | None = None, *args: object, **facts: object) -> None:
        if msg:
            logger.error(msg)
        log_error(self, msg, *args, **facts)

    if log_error.__module__ != __name__:
        GroupJob.log_error = with_message


class LogHandler(LogHandlerBase):
    """Prints one line for a study, and what went wrong."""

    def __post_init__(self) -> None:
        from snakemake.logging import ColorizingTextHandler, DefaultFormatter

        common = self.common_settings
        self.stream: TextIO = sys.stdout if common.stdout else sys.stderr
        self._plain = ColorizingTextHandler(nocolor=common.nocolor, stream=self.stream)
        self._plain.setFormatter(DefaultFormatter(common.quiet, common.show_failed_logs))
        self._full = bool(
            getattr(self.settings, "full", False)
            or common.dryrun
            or common.verbose
            or common.printshellcmds
            or common.debug_dag
            or common.quiet
        )
        self._status: Status | None = None
        self._jobs: dict[int, list[str]] = {}
        """The wildcards of the jobs that have begun."""
        self._printing: set[int] = set()
        """The jobs that print themselves, since they have no log: the line would stand between."""
        self._is_drawn = False
        self._lock = RLock()
        self._over = Event()
        self._is_terminal = self.stream.isatty()
        _log_what_is_said_of_groups()

    def emit(self, record: logging.LogRecord) -> None:
        """Follow an event, and print what is to be seen."""
        with self._lock:
            if self._full:
                self._plain.emit(record)
                return
            event = getattr(record, "event", None)
            workflow = getattr(record, WORKFLOW, None)
            if workflow is not None:
                self._begin(workflow)
            elif event == LogEvent.JOB_ERROR:
                self._print(self._failure(record), logging.ERROR)
            elif event not in _OF_EACH_JOB and not _USUAL.match(str(record.msg)):
                self._erase()
                self._plain.emit(record)
            self._follow(event, record)

    def _begin(self, workflow: object) -> None:
        """Print where the logs are, and begin to draw the line."""
        from coupled_adam_bench.cli.status import Status, Workflow

        assert isinstance(workflow, Workflow)
        self._status = Status(workflow)
        everything = f"; all that Snakemake says: {workflow.full_log}" if workflow.full_log else ""
        self._print(f"{workflow.study}: {workflow.n_jobs} jobs, with logs in {workflow.logs}{everything}")
        Thread(target=self._draw_regularly, daemon=True).start()

    def _follow(self, event: LogEvent | None, record: logging.LogRecord) -> None:
        """Keep count of the jobs."""
        facts = record.__dict__
        if event == LogEvent.JOB_INFO:
            wildcards = dict(facts["wildcards"])
            self._jobs[facts["jobid"]] = list(map(str, wildcards.values()))
            if facts["shellcmd"] and not facts["log"]:
                self._printing.add(facts["jobid"])
                self._erase()
            if self._status is not None:
                self._status.begin(facts["jobid"], facts["rule_name"], wildcards)
        elif event in (LogEvent.JOB_FINISHED, LogEvent.JOB_ERROR):
            job = facts["job_id" if event == LogEvent.JOB_FINISHED else "jobid"]
            self._printing.discard(job)
            if self._status is not None:
                self._status.end(job, done=event == LogEvent.JOB_FINISHED)

    def _failure(self, record: logging.LogRecord) -> str:
        from coupled_adam_bench.cli.status import describe_failure

        facts = record.__dict__
        job = self._jobs.get(facts["jobid"], [])
        return describe_failure(facts["rule_name"], job, facts["log"], facts["aux"], facts["rule_msg"])

    def _draw_regularly(self) -> None:
        while not self._over.wait(_DRAW_SECONDS if self._is_terminal else _LINE_SECONDS):
            with self._lock:
                if not self._printing:
                    self._draw()

    def _draw(self) -> None:
        """Show the line: on a terminal in the place of the last one, cut to its width."""
        if self._status is None:
            return
        line = self._status.line()
        if self._is_terminal:
            width = shutil.get_terminal_size().columns - 1
            line = line if len(line) <= width else f"{line[: width - 3]}..."
            self.stream.write(f"\r\x1b[K{line}")
            self.stream.flush()
            self._is_drawn = True
        else:
            self._print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}")

    def _erase(self) -> None:
        """Clear the line, so that something else can be printed in its place."""
        if self._is_drawn:
            self.stream.write("\r\x1b[K")
            self.stream.flush()
            self._is_drawn = False

    def _print(self, text: str, level: int = logging.INFO) -> None:
        self._erase()
        if level > logging.INFO:
            text = self._plain.decorate(logging.LogRecord("snakemake", level, __file__, 0, text, None, None), text)
        self.stream.write(f"{text}\n")
        self.stream.flush()

    def close(self) -> None:
        """Show the line a last time, and let it stand."""
        self._over.set()
        with self._lock:
            if self._status is not None:
                self._erase()
                self._print(self._status.line())
                self._status = None
        super().close()

    @property
    def writes_to_stream(self) -> bool:
        """Say that Snakemake prints nothing itself."""
        return True

    @property
    def writes_to_file(self) -> bool:
        """Say that Snakemake's own log file stays."""
        return False

    @property
    def has_filter(self) -> bool:
        """Say that Snakemake's filter is used, for options such as ``--quiet``."""
        return False

    @property
    def has_formatter(self) -> bool:
        """Say that records are formatted here."""
        return True

    @property
    def needs_rulegraph(self) -> bool:
        """Say that the graph of the rules is not needed."""
        return False
