"""The jobs of a study as the rules of the workflow name them: their cells, their files and their
commands. What they ask for is in ``resources.py``."""

import shlex
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from coupled_adam_bench.evaluation.settings import check_evaluation
from coupled_adam_bench.records.stored import Measurement, measurement_of
from coupled_adam_bench.store import paths
from coupled_adam_bench.store.files import digest
from coupled_adam_bench.study.catalogue.stages import STAGES, VALIDATION_LOSS
from coupled_adam_bench.study.plan import Plan
from coupled_adam_bench.study.plan.cells import Cell
from coupled_adam_bench.study.plan.tuning import choice_file, chosen_values
from coupled_adam_bench.study.settings import Study
from coupled_adam_bench.tools.estimate.cell import own_parts, trunk_part
from coupled_adam_bench.training.checks import check_optimizers

Wildcards = Any
"""Snakemake's wildcards of a job: its names are attributes."""
Ending = Literal["killed", "late"]
"""How an attempt of a job ended that needs more in the next one: killed without a word, or at its
time limit."""
KILLED: Ending = "killed"
LATE: Ending = "late"
# SLURM ends a job at its limit as `scancel` does, and says how much time was left. Training stops
# two minutes before its limit, hence five. Where nobody tells the time, each failure counts.
_IF_LATE = (
    "case $(squeue --noheader --states=all --format=%L --jobs=${{{{SLURM_JOB_ID:-0}}}} 2> /dev/null"
    " || :) in UNLIMITED | *-* | *:*:* | [1-9][0-9]:* | [5-9]:*) ;; *) {};; esac"
)


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
        # The other way round: where a cell comes from.
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
        self.missing_in_short: dict[str, str] = {}
        """What :meth:`find_missing` has found, in a line for each study."""

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
        self.missing_in_short.clear()
        for kind, check in (("evaluate", check_evaluation), ("train", check_optimizers)):
            problems: dict[str, list[str]] = {}
            shorts: dict[str, list[str]] = {}
            for study in self.plan.studies.values():
                try:
                    check(study)
                except ValueError as error:
                    problems.setdefault(str(error), []).append(study.name)
                    short = getattr(error, "in_short", str(error))
                    shorts.setdefault(short, []).append(study.name)
            if problems:
                missing[kind] = _by_studies(problems)
                self.missing_in_short[kind] = _by_studies(shorts)
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

    # The settings of a job's study.

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

        Files beside the log count attempts. ``.killed`` has a line for each that was killed, and
        for the one that runs: an attempt that ends in any other way takes its line back. ``.late``
        has one for each that failed at its time limit, or where no scheduler tells a limit. So a
        retry has more memory or more time where a lack of it can have been the reason, and nowhere
        else.
        """
        said = "killed, most likely for lack of memory" + (
            f" (execution.{setting})" if setting else ""
        )
        folder = shlex.quote(str(self.study_dir / "logs")).replace("{", "{{").replace("}", "}}")
        # Without !s some versions of Snakemake write names beside the values (job=batch-000).
        killed = f'{folder}/"{{rule}} {{wildcards!s}}.{KILLED}"'
        late = f'{folder}/"{{rule}} {{wildcards!s}}.{LATE}"'
        if_late = _IF_LATE.format(f"echo >> {late}")
        # SIGTERM goes to all processes of a job, and Ctrl-C to those of a terminal. Without a trap
        # Bash would end at once, SLURM would end what is left, and training could not write its
        # checkpoint.
        return (
            f"trap : TERM INT; echo >> {killed}; {command} > {{log:q}} 2>&1"
            f" || {{{{ status=$?; if [ $status = 137 ]; then echo {said!r} >> {{log:q}};"
            f" else sed -i '$d' {killed}; fi; {if_late}; exit $status; }}}};"
            f" rm -f {killed} {late}"
        )


def _by_studies(problems: Mapping[str, list[str]]) -> str:
    return "\n".join(f"{', '.join(names)}: {problem}" for problem, names in problems.items())


def switch(config: Mapping[str, Any], name: str) -> bool:
    """Return a switch of ``--config``; ``ValueError`` for what is neither true nor false."""
    text = str(config.get(name, False)).lower()
    if text not in ("true", "false"):
        raise ValueError(f"{name}: {config[name]!r} must be true or false")
    return text == "true"
