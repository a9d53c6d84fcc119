"""The jobs of a study as the rules of the workflow name them: their cells, their files and their
resources."""

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, assert_never

from coupled_adam_bench.evaluation.settings import check_evaluation
from coupled_adam_bench.records.stored import Measurement, measurement_of
from coupled_adam_bench.store import paths
from coupled_adam_bench.store.files import digest
from coupled_adam_bench.study.catalog.stages import STAGES, VALIDATION_LOSS
from coupled_adam_bench.study.cells import Cell
from coupled_adam_bench.study.config import Study
from coupled_adam_bench.study.plan import Plan
from coupled_adam_bench.study.tuning import choice_file, chosen_values
from coupled_adam_bench.tools.estimate.cell import own_parts, prepare_minutes, trunk_part
from coupled_adam_bench.tools.estimate.speed import read_speeds, train_minutes
from coupled_adam_bench.training.checks import check_optimizers
from coupled_adam_bench.training.memory import train_mem_mb

Wildcards = Any
"""Snakemake's wildcards of a job: its names are attributes."""
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


class Jobs:
    """The jobs of a plan. Those that train have one cell each, or several where starting takes
    longer than the work."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.study_dir = paths.study_dir(plan.name)
        self.choices = self.study_dir / paths.TUNING
        tuning_cells = list(plan.tuning_cells.values())
        self.training = {
            **self._batches("train_cells_per_job", plan.cells_of, "batch"),
            **self._batches(
                "train_cells_per_job",
                lambda study: [cell for cell in tuning_cells if cell.study is study],
                "tuning",
            ),
        }
        """The cells of each job that trains."""
        self.evaluation = self._batches("evaluation_cells_per_job", plan.cells_of, "batch")
        """The cells of each job that evaluates."""
        self.job_of = {cell: job for job, cells in self.training.items() for cell in cells}
        """The job that trains a cell."""
        self.branch_of = {
            cell: (trunk, prefix.steps)
            for trunk in plan.trunks
            for cell, prefix in plan.trunks[trunk].prefixes.items()
        }
        """The trunk and the step at which each cell leaves it."""
        self.own_parts = own_parts(plan)
        self.measurements = {
            (stage.name, study.name): self._measurement(stage.name, study)
            for study in plan.studies.values()
            for stage in study.stages
        }
        """By stage and study; None where files that belong to them cannot be read."""
        self.most_minutes: dict[str, int] = {}
        """The largest time limits of jobs by their rules, where a cluster has some; a start fills
        it in."""
        self._speeds = read_speeds(
            self.chosen().trained.values(), paths.RUNS
        )  # for the time limits of other runs

    def _batches(
        self, cells_per_job: str, cells_of: Callable[[Study], Iterable[Cell]], name: str
    ) -> dict[str, list[str]]:
        """Split cells into jobs, of cells of one study; ``cells_per_job`` names a setting of its
        execution."""
        jobs: dict[str, list[str]] = {}
        for study in self.plan.studies.values():
            cells, size = (
                [cell.id for cell in cells_of(study)],
                getattr(study.execution, cells_per_job),
            )
            for start in range(0, len(cells), size):
                job = cells[start] if size == 1 else f"{name}-{len(jobs):03d}"
                jobs[job] = cells[start : start + size]
        return jobs

    def _measurement(self, stage: str, study: Study) -> Measurement | None:
        try:
            return measurement_of(STAGES[stage], study, self.plan.data_id(study))
        except ValueError:
            return None

    def chosen(self) -> Plan:
        """Return the plan with the choices that are made so far; the names of jobs are the same
        before and after."""
        try:
            return self.plan.with_choices(chosen_values(self.plan.tunings.values(), self.choices))
        except ValueError:  # a damaged choice, which a start sets aside
            return self.plan

    def ids(self, names: Iterable[str]) -> list[str]:
        """Return the ids of cells, given by the names of their jobs, as far as they are known:
        their run folders."""
        names = list(names)
        tuned = any(self.plan.by_job_name[name].tuning for name in names)
        cells = (self.chosen() if tuned else self.plan).by_job_name
        return [cells[name].id for name in names]

    def find_missing(self) -> dict[str, str]:
        """Return by kind of rule what the study needs and does not find: evaluation sets, packages
        of optimizers."""
        missing = {}
        for kind, check in (("evaluate", check_evaluation), ("train", check_optimizers)):
            problems: dict[str, list[str]] = {}
            for study in self.plan.studies.values():
                try:
                    check(study)
                except ValueError as error:
                    problems.setdefault(str(error), []).append(study.name)
            if problems:
                missing[kind] = "\n".join(
                    f"{', '.join(names)}: {problem}" for problem, names in problems.items()
                )
        return missing

    # Files: markers are empty and say that something is done.

    def prepared(self, data: str) -> Path:
        """Return the marker of data that are prepared."""
        return self.study_dir / "data" / f"{data}.done"

    def trained(self, job: str) -> Path:
        """Return the marker of a job whose cells are trained."""
        return self.study_dir / "training" / f"{job}.done"

    def branch(self, trunk: str, step: int) -> Path:
        """Return the marker of a trunk that is trained to a step."""
        return self.study_dir / "training" / f"{trunk}.step-{step}.done"

    def measured(self, batch: str, stage: str) -> Path:
        """Return the marker of a batch that a stage of evaluation has measured."""
        return self.study_dir / "evaluation" / f"{batch}.{stage}.done"

    def choice(self, tuning: str) -> Path:
        """Return the file with the choice of a tuning."""
        return choice_file(self.choices, tuning)

    def branches_before(self, wildcards: Wildcards) -> list[tuple[str, int]]:
        """Return the branches with which a job's cells begin, or the one from which a trunk goes
        on."""
        if hasattr(wildcards, "trunk"):
            steps = [
                step
                for step in self.plan.trunks[wildcards.trunk].branches
                if step < int(wildcards.step)
            ]
            return [(wildcards.trunk, step) for step in steps[-1:]]
        return sorted(
            {
                self.branch_of[cell]
                for cell in self.training[wildcards.job]
                if cell in self.branch_of
            }
        )

    def choices_before(self, wildcards: Wildcards) -> list[Path]:
        """Return the choices for which a job's cells wait, of those whose settings are tuned."""
        tunings = dict.fromkeys(
            self.plan.trained[cell].tuning for cell in self.training[wildcards.job]
        )
        return [self.choice(tuning) for tuning in tunings if tuning]

    def markers_of(self, cells: Iterable[str]) -> list[Path]:
        """Return the markers of the jobs that train these cells."""
        return list(dict.fromkeys(self.trained(self.job_of[cell]) for cell in cells))

    # What can change a job's numbers.

    def settings(self, stage: str) -> Any:
        """Return a hash of all that can change a stage's numbers, or the function that gives it to
        a job."""

        def of_study(study: Study) -> str | None:
            measurement = self.measurements.get((stage, study.name))
            if measurement is None:
                return None
            return digest([measurement.stage.version, measurement.columns, measurement.settings])

        return self.by_study(of_study)

    def choosing(self, wildcards: Wildcards) -> str:
        """Return a hash of all that can change the losses by which a tuning chooses; a change
        chooses again."""
        first = self.plan.tunings[wildcards.tuning].first
        measurement = measurement_of(VALIDATION_LOSS, first.study, first.data_id)
        return digest([measurement.stage.version, measurement.columns, measurement.settings])

    # Resources.

    def study_of(self, wildcards: Wildcards) -> Study:
        """Return the study that a job works for: that of its data, its batch, its cells or its
        trunk."""
        match dict(wildcards.items()):
            case {"data": data}:
                return self.plan.study_with_data(data)
            case {"trunk": trunk}:
                return self.plan.trained[next(iter(self.plan.trunks[trunk].prefixes))].study
            case {"tuning": tuning}:
                return self.plan.tunings[tuning].first.study
            case {"batch": batch}:
                return self.plan.trained[self.evaluation[batch][0]].study
            case {"job": job}:
                return self.plan.trained[self.training[job][0]].study
            case _:  # a job for all studies
                return next(iter(self.plan.studies.values()))

    def by_study(self, value: Callable[[Study], Any]) -> Any:
        """Return what all studies have for ``value(study)``, or, where they differ, a function that
        gives it to a job.

        Snakemake takes a tenth of its time for planning to call the functions of jobs.
        """
        values = {value(study) for study in self.plan.studies.values()}
        return (
            values.pop() if len(values) == 1 else lambda wildcards: value(self.study_of(wildcards))
        )

    def execution(self, setting: str) -> Any:
        """Return this setting of all studies, or the function that gives that of a job's study."""
        return self.by_study(lambda study: getattr(study.execution, setting))

    def threads(self, kind: Kind) -> Any:
        """Return the processors of the jobs of a kind, or the function that gives them to a job."""
        setting = _THREADS[kind]
        return 1 if setting is None else self.execution(setting)

    def memory(self, kind: Kind) -> Resource:
        """Return the function that gives the memory in MB of a job of a kind.

        It grows, twice at the most, with each attempt before that was killed without a word: a job
        that was cancelled, or has failed by itself, is not short of memory.
        """

        def mem_mb(wildcards: Wildcards, attempt: int, rulename: str) -> int:
            n_killed = min(attempt - 1, 2)
            if n_killed:
                n_killed = min(n_killed, self._n_killed(rulename, wildcards))
            growth = 1.5**n_killed if kind == "train" else 1 + n_killed
            return round(self._least_memory(kind, wildcards) * growth)

        return mem_mb

    def minutes(self, kind: Kind) -> Resource:
        """Return the function that gives the time limit of a job of a kind, at most what its
        partition gives.

        It grows with each attempt, to at most three times as much but for training, which goes on
        in its next job.
        """

        def runtime(wildcards: Wildcards, attempt: int, rulename: str) -> int:
            wanted = self._wanted_minutes(kind, wildcards, attempt)
            return min(wanted, self.most_minutes.get(rulename, wanted))

        return runtime

    def _least_memory(self, kind: Kind, wildcards: Wildcards) -> int:
        execution = self.study_of(wildcards).execution
        match kind:
            case "prepare":
                return 4000
            case "try_tasks":
                return 8000
            case "evaluate":
                return execution.evaluation_mem_mb
            case "train":
                return max(train_mem_mb(part, execution) for part in self.parts(wildcards))
            case _:
                assert_never(kind)

    def _wanted_minutes(self, kind: Kind, wildcards: Wildcards, attempt: int) -> int:
        execution = self.study_of(wildcards).execution
        match kind:
            case "prepare":
                data = dict(wildcards.items())["data"]
                return prepare_minutes(
                    self.plan.study_with_data(data), paths.data_dir(data), attempt
                )
            case "try_tasks":
                return 120
            case "evaluate":
                return min(attempt, 3) * execution.evaluation_minutes
            case "train":
                return train_minutes(self.parts(wildcards), execution, self._speeds, attempt)
            case _:
                assert_never(kind)

    def _n_killed(self, rule: str, wildcards: Wildcards) -> int:
        """Return how many attempts of a job were killed without a word, as :func:`watched` counts
        them."""
        values = " ".join(value for _, value in wildcards.items())
        try:
            return (self.study_dir / "logs" / f"{rule} {values}.killed").read_text().count("\n")
        except OSError:
            return 0

    def parts(self, wildcards: Wildcards) -> list[Cell]:
        """Return what a job trains: cells and their steps."""
        match dict(wildcards.items()):
            case {"trunk": trunk, "step": step}:
                return [trunk_part(self.plan.trunks[trunk], int(step))]
            case names:
                return [self.own_parts[cell] for cell in self.training[names["job"]]]

    def watched(self, command: str, setting: str | None) -> str:
        """Return a job's command with its log, in which one that was killed names a ``setting`` of
        execution.

        A file beside the log has a line for each attempt that was killed, and for the one that
        runs: an attempt that ends in any other way takes its line back. So a retry has more memory
        where a lack of it can have been the reason, and nowhere else.
        """
        said = "killed, most likely for lack of memory" + (
            f" (execution.{setting})" if setting else ""
        )
        folder = shlex.quote(str(self.study_dir / "logs")).replace("{", "{{").replace("}", "}}")
        killed = f'{folder}/"{{rule}} {{wildcards}}.killed"'
        # SIGTERM goes to all processes of a job. Without a trap Bash would end at once, SLURM would
        # end what is left, and training could not write its checkpoint.
        return (
            f"trap : TERM; echo >> {killed}; {command} > {{log:q}} 2>&1"
            f" || {{{{ status=$?; if [ $status = 137 ]; then echo {said!r} >> {{log:q}};"
            f" else sed -i '$d' {killed}; fi; exit $status; }}}}; rm -f {killed}"
        )

    def asked(self) -> list[list[str]]:
        """Return the table of what jobs of each rule ask a cluster for, the header first.

        Times are those of the first attempt and, where later ones ask for more, of the third.
        """
        table = [["rule", "jobs", "processors", "GPUs", "memory in MB", "minutes", "at most"]]
        for rule, (kind, jobs) in self._by_rule().items():
            if not jobs:
                continue
            executions = [self.study_of(job).execution for job in jobs]
            setting = _THREADS[kind]
            threads = [
                1 if setting is None else getattr(execution, setting) for execution in executions
            ]
            gpus = [
                execution.gpus if kind == "train" else min(execution.gpus, 1)
                for execution in executions
            ]
            if kind in ("prepare", "try_tasks") or (rule in STAGES and not STAGES[rule].gpu):
                gpus = [0]
            memory = [self._least_memory(kind, job) for job in jobs]
            minutes, most = (
                [self._wanted_minutes(kind, job, attempt) for job in jobs] for attempt in (1, 3)
            )
            table.append(
                [
                    rule,
                    str(len(jobs)),
                    *map(_range, (threads, gpus, memory, minutes)),
                    str(max(most)),
                ]
            )
        return table

    def _by_rule(self) -> dict[str, tuple[Kind, list[dict[str, str]]]]:
        """Return by rule what its jobs do, and their wildcards."""
        studies = self.plan.studies.values()
        is_tried = any(study.evaluation.downstream_of_files for study in studies)
        steps = [
            (trunk, str(step))
            for trunk in self.plan.trunks
            for step in self.plan.trunks[trunk].branches
        ]
        rules: dict[str, tuple[Kind, list[dict[str, str]]]] = {
            "prepare": ("prepare", [{"data": data} for data in self.plan.data_ids]),
            "try_tasks": ("try_tasks", [{}] if is_tried else []),
            "train_trunk": ("train", [{"trunk": trunk, "step": step} for trunk, step in steps]),
            "train_cells": ("train", [{"job": job} for job in self.training]),
            "choose": ("evaluate", [{"tuning": tuning} for tuning in self.plan.tunings]),
        }
        for stage in STAGES.values():
            batches = [
                {"batch": batch}
                for batch in self.evaluation
                if stage in self.study_of({"batch": batch}).stages
            ]
            rules[stage.name] = ("evaluate", batches)
        return rules


def _range(values: Sequence[int]) -> str:
    """Return the smallest and the largest value as text, one where they are the same."""
    return " to ".join(str(value) for value in sorted({min(values), max(values)}))


def switch(config: Mapping[str, Any], name: str) -> bool:
    """Return a switch of ``--config``; ``ValueError`` for what is neither true nor false."""
    text = str(config.get(name, False)).lower()
    if text not in ("true", "false"):
        raise ValueError(f"{name}: {config[name]!r} must be true or false")
    return text == "true"
