"""What a run of the workflow shows on one line: cells trained, jobs done, time left, and what
runs."""

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coupled_adam_bench.study.cells import readable_count
from coupled_adam_bench.tools.estimate.text import hours

_TAIL_BYTES = 4096
"""More than the length of a row of a history."""
_SHOWN_RUNS = 2
_LOG_LINES = 12
_LINE_CHARACTERS = 300


@dataclass(frozen=True)
class Part:
    """What a training job trains: the own steps of a cell, or those of a trunk up to a branch."""

    label: str
    history: Path
    record: Path
    """The file that is there once the part is trained."""
    start: int
    """The step at which the part begins."""
    end: int
    """The step at which it ends."""
    flops: int
    is_cell: bool
    """Whether it is a cell of the study, and not a trunk or a candidate of a tuning."""

    def share(self) -> float:
        """Return how much of it is trained, 1 once its record is there."""
        if self.record.exists():
            return 1.0
        share: float = (last_row(self.history).get("step", self.start) - self.start) / (
            self.end - self.start
        )
        return min(max(share, 0.0), 0.999)  # its evaluation and export are left


@dataclass(frozen=True)
class Workflow:
    """What a run of the workflow is going to do."""

    study: str
    n_cells: int
    """The number of cells of the study."""
    n_trained: int
    """The number of those that are trained already."""
    n_jobs: int
    flops: int
    """The work of all training jobs of this run."""
    logs: Path
    """The folder with the logs of the jobs."""
    full_log: str
    """The file with all that Snakemake says; empty if there is none."""
    parts: Callable[[str, Mapping[str, str]], list[Part]]
    """The function that returns what a job trains, given its rule and its wildcards."""


def last_row(history: Path) -> dict[str, Any]:
    """Return the last whole row of a history, an empty one if there is none that can be read."""
    try:
        with history.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            return dict(json.loads(file.read().rpartition(b"\n")[0].rpartition(b"\n")[2]))
    except (OSError, ValueError, TypeError):
        return {}


@dataclass
class Status:
    """Follows the jobs of a run of the workflow, and says on one line how far they are."""

    workflow: Workflow
    clock: Callable[[], float] = time.monotonic
    _running: dict[int, tuple[str, list[Part]]] = field(default_factory=dict)
    _n_done: int = 0
    _shares: dict[Part, float] = field(default_factory=dict)
    """How much of each part is trained, of those whose job has begun."""
    _flops_before: float = 0.0
    """The work on these parts that was done when their jobs began."""
    _start: float | None = None
    """When the first job that trains began."""

    def begin(self, job: int, rule: str, wildcards: Mapping[str, str]) -> None:
        """Note that a job begins."""
        parts = self.workflow.parts(rule, wildcards)
        self._running[job] = rule, parts
        for part in parts:
            if part not in self._shares:  # this is no second attempt
                self._shares[part] = part.share()
                self._flops_before += part.flops * self._shares[part]
        if parts and self._start is None:
            self._start = self.clock()

    def end(self, job: int, done: bool) -> None:
        """Note that a job has ended, ``done`` or with an error."""
        self._running.pop(job, None)
        self._n_done += done

    def line(self) -> str:
        """Return the line: cells, jobs, time left, what trains with loss and speed, and the rules
        of other jobs."""
        self._shares |= {part: part.share() for part, share in self._shares.items() if share < 1}
        workflow = self.workflow
        trained = workflow.n_trained + sum(
            share == 1 for part, share in self._shares.items() if part.is_cell
        )
        counts = f"{workflow.study}: {trained} of {workflow.n_cells} cells trained"
        counts += f", {self._n_done} of {workflow.n_jobs} jobs{self._time_left()}"
        # A job trains its cells one after the other: the first that has not ended.
        open_parts = [
            [part for part in parts if self._shares[part] < 1][:1]
            for _, parts in self._running.values()
        ]
        rows = [(part.label, last_row(part.history)) for first in open_parts for part in first]
        said = [
            f"{label}: loss {row['loss']:.3f}" if row else f"{label} starts"
            for label, row in rows[:_SHOWN_RUNS]
        ]
        said += [f"{len(rows) - _SHOWN_RUNS} more"] if len(rows) > _SHOWN_RUNS else []
        speed = sum(row.get("tokens_per_second") or 0 for _, row in rows)
        said += [f"{readable_count(round(speed))} tokens/s"] if speed else []
        rules = Counter(
            rule
            for first, (rule, _) in zip(open_parts, self._running.values(), strict=True)
            if not first
        )
        others = [f"{count} {rule}" if count > 1 else rule for rule, count in rules.items()]
        return " | ".join(filter(None, (counts, ", ".join(said), ", ".join(others))))

    def _time_left(self) -> str:
        """Return how long training takes at its speed in this run; empty while that is unknown, and
        at its end."""
        flops = sum(part.flops * share for part, share in self._shares.items())
        if self._start is None or flops <= self._flops_before or flops >= self.workflow.flops:
            return ""
        seconds = (
            (self.clock() - self._start)
            / (flops - self._flops_before)
            * (self.workflow.flops - flops)
        )
        return f", {hours(seconds)} of training left"


def describe_failure(
    rule: str,
    wildcards: Iterable[str],
    logs: Iterable[str],
    facts: Mapping[str, object],
    said: str | None,
) -> str:
    """Return what is said of a failed job: its rule, what the executor ``said``, ``facts``, the end
    of its logs.

    Facts are such as the job's number on a cluster.
    """
    job = ", ".join(wildcards)
    lines = [f"Error in rule {rule}" + (f" ({job})" if job else "")]
    lines += [f"  {line}" for line in (said or "").splitlines()]
    lines += [f"  {name}: {value}" for name, value in facts.items()]
    for log in map(Path, logs):
        text = (
            log.read_text(encoding="utf-8", errors="replace")
            if log.is_file()
            else "(there is none)"
        )
        end = text.splitlines()[-_LOG_LINES:] or ["(it is empty)"]
        lines += [f"  {log} ends with:", *(f"    {line[:_LINE_CHARACTERS]}" for line in end)]
    return "\n".join(lines)
