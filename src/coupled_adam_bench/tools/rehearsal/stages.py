"""Every stage of a plan's miniature for real, from the text to the report, in a folder of its own."""

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from coupled_adam_bench.machine.process import environment
from coupled_adam_bench.store import paths
from coupled_adam_bench.store.files import seal, write_sealed
from coupled_adam_bench.study.plan import PLAN_SHA256, Plan, load_plan
from coupled_adam_bench.study.tuning import choice_file
from coupled_adam_bench.tools.rehearsal.miniature import miniature
from coupled_adam_bench.tools.rehearsal.watch import Finding
from coupled_adam_bench.training.checks import custom_optimizers

Run = Callable[[list[str]], int]
"""Runs a command of the package and returns its exit status."""
_LOG_LINES = 15


def commands(plan: Plan, templates: Path) -> Iterator[list[str]]:
    """Yield the commands that take a plan to its tables and its report, as the rules of the workflow call them."""
    folder = paths.study_dir(plan.name)
    given = ["--plan", str(folder / "plan.json")]
    on_cpu = ["--device", "cpu"]
    if any(list(custom_optimizers(study)) for study in plan.studies.values()):
        yield ["try-optimizers", *given]
    if any(study.evaluation.metrics for study in plan.studies.values()):
        yield ["try-metrics", *given]
    yield ["prepare", *given]
    yield ["try-tasks", *given, "--out", str(folder / "tasks.json")]
    for trunk_id, trunk in plan.trunks.items():
        branches = [str(paths.branch_file(trunk_id, step)) for step in trunk.branches]
        yield ["train-trunk", *given, "--branches", *branches, *on_cpu]
    for study in plan.studies.values():
        if cells := [cell.id for cell in plan.tuning_cells.values() if cell.study is study]:
            yield ["train", *given, "--cells", *cells, *on_cpu]
    for tuning in plan.tunings:
        out = str(choice_file(folder / paths.TUNING, tuning))
        yield ["choose", *given, "--tuning", tuning, "--out", out, *on_cpu]
    for study in plan.studies.values():
        if cells := [cell.id for cell in plan.cells_of(study)]:
            yield ["train", *given, "--cells", *cells, *on_cpu]
            for stage in study.stages:
                done = str(folder / f"{study.name}.{stage.name}.done")
                yield [stage.name.replace("_", "-"), *given, "--cells", *cells, "--done", done, *on_cpu]
    yield ["report", *given, "--templates", str(templates), "--svg-only"]


def run_miniature(plan: Plan, templates: Path, run: Run, on_stage: Callable[[str], None]) -> Finding | None:
    """Run all stages of the miniature of ``plan`` by ``run``, and return what stopped one of them.

    ``on_stage`` is told the name of each stage before it begins. Nothing is written into the user's results.
    """
    templates, home = templates.absolute(), str(Path.cwd())
    with tempfile.TemporaryDirectory(prefix="coupled-adam-bench-") as folder, contextlib.chdir(folder):
        plan_file = paths.plan_file(plan.name)
        small = miniature(plan)
        write_sealed(plan_file, small)
        log = Path(folder) / "log.txt"
        # Processes that a stage starts find the user's own modules where the study was started.
        modules = os.pathsep.join(filter(None, (home, os.environ.get("PYTHONPATH"))))
        with environment({"PYTHONPATH": modules, PLAN_SHA256: seal(small)}):
            for command in commands(load_plan(plan_file), templates):
                on_stage(command[0])
                start = log.stat().st_size if log.exists() else 0
                with _output_to(log):
                    try:
                        status = run(command)
                    except Exception as error:
                        status, said = 1, f"{type(error).__name__}: {error}"
                    else:
                        said = ""
                if status:
                    lines = log.read_bytes()[start:].decode(errors="replace").splitlines()
                    print(*lines[-_LOG_LINES:], sep="\n", file=sys.stderr)
                    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
                    return Finding(said or (errors or lines or [f"exit status {status}"])[-1], f"stage {command[0]}")
    return None


@contextlib.contextmanager
def _output_to(log: Path) -> Iterator[None]:
    """Write what this process and those that it starts print into a file."""
    sys.stdout.flush()
    sys.stderr.flush()
    saved = [(number, os.dup(number)) for number in (1, 2)]
    with log.open("a", encoding="utf-8") as target:
        try:
            for number, _ in saved:
                os.dup2(target.fileno(), number)
            with contextlib.redirect_stdout(target), contextlib.redirect_stderr(target):
                yield
        finally:
            for number, copy in saved:
                os.dup2(copy, number)
                os.close(copy)


def stage_names(plan: Plan, templates: Path) -> Sequence[str]:
    """Return the names of the stages that :func:`run_miniature` runs, in their order."""
    return [command[0] for command in commands(plan, templates)]
