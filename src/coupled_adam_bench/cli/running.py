"""The commands that make data, cells and evaluations."""

import argparse
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from coupled_adam_bench.cli.command import AddCommand, Handler, plan_of
from coupled_adam_bench.machine.process import rarely_collected
from coupled_adam_bench.machine.surroundings import is_launched
from coupled_adam_bench.store import paths
from coupled_adam_bench.study.catalogue.stages import STAGES, VALIDATION_LOSS, Stage

if TYPE_CHECKING:
    from coupled_adam_bench.study.plan.cells import Cell
    from coupled_adam_bench.study.settings import Execution


def _try_code(arguments: argparse.Namespace) -> None:
    from coupled_adam_bench.evaluation.embedding_geometry import try_metrics
    from coupled_adam_bench.machine.device import check_gpus
    from coupled_adam_bench.report.plug_ins import own_figures
    from coupled_adam_bench.statistics.plug_ins import own_statistics
    from coupled_adam_bench.training.plug_ins import try_measurements
    from coupled_adam_bench.training.trial import try_optimizers

    if arguments.gpus:
        check_gpus(arguments.gpus)
    plan = plan_of(arguments)
    for study in plan.studies.values():
        try_optimizers(study)
        try_metrics(study)
        try_measurements(study)
    own_statistics(plan)
    own_figures(plan)


def _prepare(arguments: argparse.Namespace) -> None:
    from coupled_adam_bench.data.prepare import prepare
    from coupled_adam_bench.evaluation.settings import described_sets
    from coupled_adam_bench.machine.progress import say
    from coupled_adam_bench.store.files import write_text

    plan = plan_of(arguments)
    for data_id in arguments.data or plan.data_ids:
        study = plan.study_with_data(data_id)
        prepare(study, data_id, paths.data_dir(data_id), arguments.workers)
        for said in described_sets(study):
            say(f"word list {said}")
    if arguments.done is not None:
        write_text(arguments.done, "")


def _try_tasks(arguments: argparse.Namespace) -> None:
    from coupled_adam_bench.evaluation.downstream import try_tasks
    from coupled_adam_bench.store.files import write_json

    write_json(arguments.out, try_tasks(plan_of(arguments)))


def _device(arguments: argparse.Namespace, execution: "Execution") -> str:
    """Return the device of a job: by default GPUs if the study has some, and otherwise the CPU."""
    device: str = arguments.device
    if device != "auto":
        return device
    return "cuda" if execution.gpus else "cpu"


def _train_with(
    train: "Callable[[list[Cell], Execution, Path, str], int]",
    known: "Mapping[str, Cell]",
    names: list[str],
    arguments: argparse.Namespace,
    stage: str,
    option: str,
) -> int:
    """Train the ``names`` that ``option`` gave among those ``known``, in as many processes as the
    study asks for.

    The marker ``--done`` is written last, by the process that was started, not by those that it
    starts. It also puts its job back into the queue, if it was asked to stop and ``--requeue`` is
    given.
    """
    from coupled_adam_bench.data.bins import open_tokens
    from coupled_adam_bench.machine.requeue import stop_before_the_limit
    from coupled_adam_bench.study.plan import study_of
    from coupled_adam_bench.training.distributed import launch
    from coupled_adam_bench.training.memory import stop_seconds

    if unknown := [name for name in names if name not in known]:
        raise ValueError(
            f"--{option}: {', '.join(unknown)} not among the {option} of {arguments.plan}"
        )
    cells = [known[name] for name in names]
    execution = study_of(cells).execution
    device = _device(arguments, execution)
    if arguments.requeue:
        stop_before_the_limit(stop_seconds(cells))
    if execution.processes > 1 and not is_launched():
        options = ["--plan", str(arguments.plan), f"--{option}", *names, "--device", device]
        # Compares the data once, while no process waits for another.
        open_tokens(paths.data_dir(cells[0].data_id), "train")
        status = launch(execution.processes, [stage, *options], stop_seconds(cells))
    else:
        status = train(cells, execution, paths.RESULTS, device)
    return _end_training(status, arguments)


def _end_training(status: int, arguments: argparse.Namespace) -> int:
    """Write the marker of a job, or put it back into the queue, as :func:`_train_with` says; return
    its status."""
    from coupled_adam_bench.machine.requeue import requeue_own_job
    from coupled_adam_bench.store.files import write_text
    from coupled_adam_bench.training.stop_requests import RESUME_ME

    if status == RESUME_ME and arguments.requeue:
        requeue_own_job()
    if status == 0 and arguments.done is not None:
        write_text(arguments.done, "")
    return status


def _train(arguments: argparse.Namespace) -> int:
    from coupled_adam_bench.training.checks import is_trained, say_kept

    cells = plan_of(arguments).by_job_name
    if waiting := [name for name in arguments.cells if name in cells and not cells[name].is_chosen]:
        raise ValueError(
            f"--cells: {waiting[0]} waits for the choice of {cells[waiting[0]].tuning}; make it"
            " first"
        )
    # Not in processes that were launched: they decide together.
    if not is_launched() and all(
        name in cells
        and is_trained(
            cells[name], paths.run_dir(cells[name].id), paths.data_dir(cells[name].data_id)
        )
        for name in arguments.cells
    ):
        for name in arguments.cells:
            say_kept(cells[name])
        return _end_training(0, arguments)  # without the seconds that torch takes to start
    with rarely_collected():
        from coupled_adam_bench.training.jobs import train_cells

    return _train_with(train_cells, cells, arguments.cells, arguments, "train", "cells")


def _train_trunk(arguments: argparse.Namespace) -> int:
    with rarely_collected():
        from coupled_adam_bench.training.jobs import train_cells

    prefixes = [
        prefix for trunk in plan_of(arguments).trunks.values() for prefix in trunk.prefixes.values()
    ]
    known = {str(paths.branch_file(prefix.id, prefix.steps)): prefix for prefix in prefixes}
    return _train_with(
        partial(train_cells, trunk=True),
        known,
        arguments.branches,
        arguments,
        "train-trunk",
        "branches",
    )


def _evaluate(stage: Stage) -> Handler:
    def handler(arguments: argparse.Namespace) -> int:
        from coupled_adam_bench.evaluation.stage import run_stage
        from coupled_adam_bench.study.plan import study_of

        cells = plan_of(arguments).find(arguments.cells)
        return run_stage(
            stage, cells, arguments.done, _device(arguments, study_of(cells).execution)
        )

    return handler


def _choose(arguments: argparse.Namespace) -> int:
    from coupled_adam_bench.evaluation.stage import run_stage
    from coupled_adam_bench.machine.progress import say
    from coupled_adam_bench.results.choices import describe_settings, write_choice

    tunings = plan_of(arguments).tunings
    if arguments.tuning not in tunings:
        raise ValueError(
            f"--tuning: {arguments.tuning} is not among {', '.join(tunings) or 'none'}"
        )
    tuning = tunings[arguments.tuning]
    done = arguments.out.with_suffix(".done")
    if status := run_stage(
        VALIDATION_LOSS, tuning.cells, done, _device(arguments, tuning.first.study.execution)
    ):
        return status
    done.unlink()
    chosen = write_choice(tuning, arguments.out)
    say(f"{tuning.id}: chosen: {describe_settings(tuning.candidates[chosen].settings)}")
    return 0


def add_commands(stage: AddCommand) -> None:
    """Add the commands of this module to the command line."""
    summary = "try a study's own optimizers, metrics and plug-ins before the first job"
    sub = stage("try-code", _try_code, summary)
    sub.add_argument("--gpus", type=int, default=0, help="see that torch can use so many")
    sub = stage("prepare", _prepare, "turn text into token bins under results/data/")
    sub.add_argument(
        "--data", action="extend", nargs="+", help="data ids (default: all of the study)"
    )
    sub.add_argument("--workers", type=int, default=1, help="processes (default: %(default)s)")
    sub.add_argument("--done", type=Path, help="an empty file, written when all data are prepared")
    summary = "load the downstream tasks and build their requests, before anything is trained"
    stage("try-tasks", _try_tasks, summary).add_out("the number of items by study and task, JSON")
    sub = stage(
        "train",
        _train,
        "train cells, or go on with them; exit status 75: stopped on request, run again",
    )
    sub.add_argument("--cells", action="extend", nargs="+", required=True, help="cell ids")
    sub.add_argument("--done", type=Path, help="an empty file, written when all cells are trained")
    sub.add_requeue()
    sub.add_leases()
    sub.add_device()
    sub = stage(
        "train-trunk",
        _train_trunk,
        "train what wsd cells share before their decay; exit status as of train",
    )
    sub.add_argument(
        "--branches",
        action="extend",
        nargs="+",
        required=True,
        help="results/trunks/<trunk id>/branch-<step>.json",
    )
    sub.add_argument("--done", type=Path, help="an empty file, written when all branches are there")
    sub.add_requeue()
    sub.add_leases()
    sub.add_device()
    # Each stage of evaluation is a command of its own, with the same options.
    for evaluation in STAGES.values():
        sub = stage(evaluation.command, _evaluate(evaluation), evaluation.summary)
        sub.add_argument("--cells", action="extend", nargs="+", required=True, help="cell ids")
        sub.add_argument(
            "--done",
            type=Path,
            required=True,
            help="an empty file, written when all cells succeeded",
        )
        sub.add_leases()
        sub.add_device()
    sub = stage(
        "choose",
        _choose,
        "measure the validation loss of a tuning's candidates, and choose one of them",
    )
    sub.add_argument("--tuning", required=True, help="the id of a tuning")
    sub.add_leases()
    sub.add_device()
    sub.add_out("the choice, results/<study>/tuning/<tuning id>.json")
