"""What a run of the workflow shows on one line: cells trained, jobs done, time left, and what
runs."""

import json
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from coupled_adam_bench.data.check import META
from coupled_adam_bench.data.notes import left_out, notes
from coupled_adam_bench.store import paths
from coupled_adam_bench.store.files import read_sealed
from coupled_adam_bench.store.paths import shown_in_mlflow
from coupled_adam_bench.study.plan import Plan
from coupled_adam_bench.study.plan.cells import readable_count
from coupled_adam_bench.tools.estimate.quantities import hours

_TAIL_BYTES = 4096
"""More than the length of a row of a history."""
_SHOWN_RUNS = 2
_LOG_LINES = 12
_LINE_CHARACTERS = 300
_SURE = 10
"""How many times as long as its start a run has trained when its time left is worth saying."""
_ERROR = re.compile(r"error|exception|traceback|killed|cannot|out of memory", re.IGNORECASE)
"""What is in the log of a job that failed by itself, and not in that of one that was ended."""

_OF_SLURM = re.compile(r"(?:slurmstepd|srun)(?:-\S+)?: error: (?!.*Exited with)[* ]*(.*?)[* ]*$")
"""What SLURM writes into the log of a job that it ends, such as for its time limit, and not that a
job has failed by itself. Where a machine has several nodes, the name of its node is added:
``slurmstepd-n1: error:``."""
_BY_RANK = tuple(map(re.compile, ("(?i).*(exceeded .*memory|oom)", "JOB ", "STEP ", "")))
"""SLURM's lines, what tells most first: a lack of memory, why a job ended, how its parts did."""

Kind = Literal["cell", "candidate", "trunk"]
"""What a part belongs to: a cell of the study, a candidate of a tuning, or what cells share."""


@dataclass(frozen=True)
class Part:
    """What a training job trains: the steps of a cell after its trunk, or the steps of a trunk up
    to a branch."""

    label: str
    history: Path
    record: Path
    """The file that is there once the part is trained."""
    start: int
    """The step at which the part begins."""
    end: int
    """The step at which it ends."""
    flops: int
    kind: Kind

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
    total: Mapping[Kind, int]
    """The number of cells of the study, and of candidates of its tunings."""
    trained: Mapping[Kind, int]
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
    _first_progress: float | None = None
    """When the first of that training was seen."""
    _has_ended_job: bool = False
    """Whether a job that trains has ended well."""

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
        _, parts = self._running.pop(job, ("", []))
        self._n_done += done
        self._has_ended_job |= done and bool(parts)

    def line(self) -> str:
        """Return the line: cells, jobs, time left, what trains with loss and speed, and the rules
        of other jobs."""
        for part, share in self._shares.items():
            if share < 1:
                self._shares[part] = part.share()
        counts = f"{self.workflow.study}: {self._trained()} trained"
        counts += f", {self._n_done} of {self.workflow.n_jobs} jobs{self._time_left()}"
        # A job trains its cells one after the other: the first that has not ended.
        trains: list[Part] = []
        others: Counter[str] = Counter()
        for rule, parts in self._running.values():
            open_parts = [part for part in parts if self._shares[part] < 1]
            trains += open_parts[:1]
            if not open_parts:
                others[rule] += 1
        rules = ", ".join(_times(count, rule) for rule, count in others.items())
        return " | ".join(filter(None, (counts, _progress(trains), rules)))

    def _trained(self) -> str:
        """Return how many candidates and cells are trained, each of how many."""
        ended = Counter(part.kind for part, share in self._shares.items() if share == 1)
        counts = []
        for kind in ("candidate", "cell"):
            if total := self.workflow.total.get(kind, 0):
                n_trained = self.workflow.trained.get(kind, 0) + ended[kind]
                counts.append(f"{n_trained} of {total} {kind}s")
        return " and ".join(counts)

    def _time_left(self) -> str:
        """Return how long training takes at its speed in this run.

        The text is empty at the end of training, and while the start of a job is so much of the
        time that it would be taken for slowness: until a job has ended, or ten times as long as the
        start took.
        """
        flops = sum(part.flops * share for part, share in self._shares.items())
        if self._start is None or flops <= self._flops_before or flops >= self.workflow.flops:
            return ""
        now = self.clock()
        if self._first_progress is None:
            self._first_progress = now
        took = now - self._start
        if took < _SURE * (self._first_progress - self._start) and not self._has_ended_job:
            return ""
        seconds = took / (flops - self._flops_before) * (self.workflow.flops - flops)
        return f", {hours(seconds)} of training left"


def _times(count: int, rule: str) -> str:
    return f"{count} {rule}" if count > 1 else rule


def _progress(parts: list[Part]) -> str:
    """Return the losses of two of the parts that are being trained, and the speed of all."""
    rows = [last_row(part.history) for part in parts]
    said = []
    for part, row in zip(parts[:_SHOWN_RUNS], rows[:_SHOWN_RUNS], strict=True):
        said.append(f"{part.label}: loss {row['loss']:.3f}" if row else f"{part.label} starts")
    if len(parts) > _SHOWN_RUNS:
        said.append(f"{len(parts) - _SHOWN_RUNS} more")
    if speed := sum(row.get("tokens_per_second") or 0 for row in rows):
        said.append(f"{readable_count(round(speed))} tokens/s")
    return ", ".join(said)


def ending(study_dir: Path) -> list[str]:
    """Return the lines that name what there is of a study at the end of a run."""
    page = study_dir / "report" / "index.html"
    lines = [f"Report:  {page}", f"Tables:  {study_dir / 'tables'}/"] if page.exists() else []
    return lines + [f"MLflow:  {line}" for line in shown_in_mlflow(study_dir)]


def notes_of_data(plan: Plan, prepared: Collection[str]) -> Iterator[str]:
    """Yield what a user should know of the data that this run has prepared, each thing once."""
    told: dict[str, None] = {}
    for study in plan.studies.values():
        data_id = plan.data_id(study)
        if data_id in prepared:
            meta = read_sealed(paths.data_dir(data_id) / META)
            found = [left_out(study.data.skip, meta["source"]), *notes(study, meta)]
            told |= dict.fromkeys(f"Data:    {study.data.name}: {each}" for each in found if each)
    yield from told


def describe_failure(
    rule: str,
    wildcards: Iterable[str],
    logs: Iterable[str],
    facts: Mapping[str, object],
    said: str | None,
) -> str:
    """Return what is said of a failed job: its rule, what the executor ``said``, ``facts``, the end
    of its logs.

    Facts are such as the job's number on a cluster. Where the executor has said what happened, the
    end of a log is shown only if an error is in it. Where SLURM has ended the job, its own line
    stands in place of what the executor said. Logs behind one with an error are only named: a
    cluster's own log, which comes last, tells again that the job has failed.
    """
    reasons = {log: _reason_of_slurm([log]) for log in map(Path, logs)}
    is_ended = any(reasons.values())
    job = ", ".join(wildcards)
    lines = [f"Error in rule {rule}" + (f" ({job})" if job else "")]
    if not is_ended:
        lines += [f"  {line}" for line in (said or "").splitlines()]
    lines += [f"  {name}: {value}" for name, value in facts.items()]
    is_explained = False
    for log, reason in reasons.items():
        end = _end_of(log)
        has_error = _ERROR.search("\n".join(end)) is not None
        if reason:
            lines.append(f"  {reason}; more in {log}")
        elif is_explained:
            lines.append(f"  more in {log}")
        elif has_error or not (said or is_ended):
            lines += [f"  {log} ends with:", *(f"    {line}" for line in end)]
        elif not is_ended:
            # Of a job that its cluster ended, the log ends in the middle of its work.
            lines.append(f"  {log} names no error")
        is_explained = is_explained or has_error
    return "\n".join(lines)


def describe_group_failure(
    group: str, jobs: Iterable[Mapping[str, Any]], logs: Sequence[str], facts: Mapping[str, object]
) -> str:
    """Return what is said of a failed job of several rules: the group with its rules, ``facts``,
    and what the cluster says in its ``logs``.

    Where the cluster says nothing, one of the ``jobs`` has failed by itself: each whose log names
    an error is described.
    """
    jobs = list(jobs)
    rules = ", ".join(sorted({str(job["rule_name"]) for job in jobs}))
    lines = [f"Error in group {group} ({rules})"]
    lines += [f"  {name}: {value}" for name, value in facts.items()]
    reason = _reason_of_slurm(map(Path, logs))
    if reason:
        return "\n".join([*lines, f"  {reason}; more in {', '.join(logs)}"])
    for job in jobs:
        own = [log for log in job["log"] if _ERROR.search("\n".join(_end_of(Path(log))))]
        if own:
            lines.append(describe_failure(str(job["rule_name"]), [], own, {}, None))
    return "\n".join([*lines, f"  more in {', '.join(logs)}"] if logs else lines)


def _reason_of_slurm(logs: Iterable[Path]) -> str:
    """Return the line of logs that says best why SLURM ended a job, an empty text if it did not."""
    found = [match[1] for log in logs for match in map(_OF_SLURM.search, _lines_of(log)) if match]
    for rank in _BY_RANK:
        of_rank = list(filter(rank.match, found))
        if of_rank:
            return of_rank[-1]
    return ""


def _end_of(log: Path) -> list[str]:
    """Return the last lines of a log, cut to a width, or a sentence for an empty log."""
    if not log.is_file():
        return ["(there is none)"]
    return _lines_of(log)[-_LOG_LINES:] or ["(it is empty)"]


def _lines_of(log: Path) -> list[str]:
    """Return the lines of a log, cut to a width; none where there is no log."""
    if not log.is_file():
        return []
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return [line[:_LINE_CHARACTERS] for line in lines]
