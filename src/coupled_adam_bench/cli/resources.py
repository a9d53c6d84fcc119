"""What the jobs of a study ask a cluster or a machine for: processors, memory and time."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, assert_never

from coupled_adam_bench.cli.jobs import KILLED, LATE, Ending, Jobs, Wildcards
from coupled_adam_bench.store import paths
from coupled_adam_bench.study.catalogue.stages import STAGES
from coupled_adam_bench.tools.estimate.cell import prepare_minutes
from coupled_adam_bench.tools.estimate.speed import read_speeds, train_minutes
from coupled_adam_bench.training.memory import train_mem_mb

Resource = Callable[..., Any]
"""A function that Snakemake calls with the wildcards of a job for a resource or a parameter."""
Kind = Literal["prepare", "try_tasks", "train", "evaluate"]
"""What jobs do, as far as their resources differ."""
_THREADS: dict[Kind, str | None] = {
    "prepare": "data_threads",
    "try_tasks": None,
    "train": "training_threads",
    "evaluate": "evaluation_threads",
}
"""The setting of execution with the processors of a job; one where there is none."""


class JobResources:
    """What each job of a study asks for.

    ``groups`` returns by rule its group, whose rules share a job of a cluster. Snakemake knows them
    after it has read the rules.
    """

    def __init__(self, jobs: Jobs, groups: Callable[[], Mapping[str, str]] = dict) -> None:
        self._jobs = jobs
        self._groups = groups
        self.most_minutes: dict[str, int] = {}
        """The largest time limits of jobs by their rules, where a cluster has some; a start fills
        it in."""
        # For the time limits of other runs.
        self._speeds = read_speeds(jobs.chosen().trained.values(), paths.RUNS)

    def threads(self, kind: Kind) -> Any:
        """Return the processors of the jobs of a kind, or the function that gives them to a job."""
        setting = _THREADS[kind]
        return 1 if setting is None else self._jobs.execution(setting)

    def memory(self, kind: Kind) -> Resource:
        """Return the function that gives the memory in MB of a job of a kind.

        It grows, twice at the most, with each attempt before that was killed without a word: a job
        that was cancelled, or has failed by itself, is not short of memory.
        """

        def mem_mb(wildcards: Wildcards, attempt: int, rulename: str) -> int:
            n_killed = self._n_ended(KILLED, attempt, rulename, wildcards)
            growth = 1.5**n_killed if kind == "train" else 1 + n_killed
            return round(self._least_memory(kind, wildcards) * growth)

        return mem_mb

    def minutes(self, kind: Kind) -> Resource:
        """Return the function that gives the time limit of a job of a kind, at most what its
        partition gives.

        It grows, twice at the most, with each attempt before that failed at its limit: a job that
        was cancelled, or has failed by itself, is not short of time. Rules of one group share it,
        since their times add up.
        """

        def runtime(wildcards: Wildcards, attempt: int, rulename: str) -> int:
            n_late = self._n_ended(LATE, attempt, rulename, wildcards)
            wanted = self._wanted_minutes(kind, wildcards, 1 + n_late)
            groups = self._groups()
            if rulename in groups:
                wanted = math.ceil(wanted / Counter(groups.values())[groups[rulename]])
            return min(wanted, self.most_minutes.get(rulename, wanted))

        return runtime

    def _least_memory(self, kind: Kind, wildcards: Wildcards) -> int:
        execution = self._jobs.study_of(wildcards).execution
        match kind:
            case "prepare":
                return 4000
            case "try_tasks":
                return 8000
            case "evaluate":
                return execution.evaluation_mem_mb
            case "train":
                return max(train_mem_mb(part, execution) for part in self._jobs.parts(wildcards))
            case _:
                assert_never(kind)

    def _wanted_minutes(self, kind: Kind, wildcards: Wildcards, attempt: int) -> int:
        execution = self._jobs.study_of(wildcards).execution
        match kind:
            case "prepare":
                data = dict(wildcards.items())["data"]
                return prepare_minutes(
                    self._jobs.plan.study_with_data(data), paths.data_dir(data), attempt
                )
            case "try_tasks":
                return 120
            case "evaluate":
                return attempt * execution.evaluation_minutes
            case "train":
                return train_minutes(self._jobs.parts(wildcards), execution, self._speeds, attempt)
            case _:
                assert_never(kind)

    def _n_ended(self, how: Ending, attempt: int, rule: str, wildcards: Wildcards) -> int:
        """Return how many attempts of a job before this one, at most two, :meth:`Jobs.watched` has
        counted as ended so."""
        most = min(attempt - 1, 2)
        if most == 0:
            return 0
        values = " ".join(value for _, value in wildcards.items())
        try:
            attempts = self._jobs.study_dir / "logs" / f"{rule} {values}.{how}"
            return min(most, attempts.read_text().count("\n"))
        except OSError:
            return 0

    def asked(self) -> list[list[str]]:
        """Return the table of what jobs of each rule ask a cluster for, the header first.

        Times are those of the first attempt and, where later ones ask for more, of the third.
        """
        table = [["rule", "jobs", "processors", "GPUs", "memory in MB", "minutes", "at most"]]
        for rule, (kind, jobs) in self._by_rule().items():
            if not jobs:
                continue
            executions = [self._jobs.study_of(job).execution for job in jobs]
            # Only training takes all GPUs of a study, and some stages take none.
            gpus = [execution.gpus for execution in executions]
            if kind in ("prepare", "try_tasks") or (rule in STAGES and not STAGES[rule].gpu):
                gpus = [0]
            elif kind != "train":
                gpus = [min(number, 1) for number in gpus]
            setting = _THREADS[kind]
            threads = [1]
            if setting is not None:
                threads = [getattr(execution, setting) for execution in executions]
            memory = [self._least_memory(kind, job) for job in jobs]
            minutes = [self._wanted_minutes(kind, job, 1) for job in jobs]
            most = [self._wanted_minutes(kind, job, 3) for job in jobs]
            ranges = map(_range, (threads, gpus, memory, minutes))
            table.append([rule, str(len(jobs)), *ranges, str(max(most))])
        return table

    def _by_rule(self) -> dict[str, tuple[Kind, list[dict[str, str]]]]:
        """Return by rule what its jobs do, and their wildcards."""
        studies = self._jobs.plan.studies.values()
        is_tried = any(study.evaluation.downstream_of_files for study in studies)
        branches: list[dict[str, str]] = []
        for name, trunk in self._jobs.plan.trunks.items():
            branches += [{"trunk": name, "step": str(step)} for step in trunk.branches]
        data = [{"data": name} for name in self._jobs.plan.data_ids]
        training = [{"job": name} for name in self._jobs.training]
        tunings = [{"tuning": name} for name in self._jobs.plan.tunings]
        rules: dict[str, tuple[Kind, list[dict[str, str]]]] = {
            "prepare": ("prepare", data),
            "try_tasks": ("try_tasks", [{}] if is_tried else []),
            "train_trunk": ("train", branches),
            "train_cells": ("train", training),
            "choose": ("evaluate", tunings),
        }
        # A study has only the stages of evaluation that it asks for.
        for stage in STAGES.values():
            batches = [
                {"batch": batch}
                for batch in self._jobs.evaluation
                if stage in self._jobs.study_of({"batch": batch}).stages
            ]
            rules[stage.name] = ("evaluate", batches)
        return rules


def _range(values: Sequence[int]) -> str:
    """Return the smallest and the largest value as text, one where they are the same."""
    return " to ".join(str(value) for value in sorted({min(values), max(values)}))
