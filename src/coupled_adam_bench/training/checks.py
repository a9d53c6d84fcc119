"""Checks before training that need no torch: whether custom optimizers are installed, and whether a
cell is trained."""

from collections.abc import Iterator
from pathlib import Path

from coupled_adam_bench.data.check import split_checksums
from coupled_adam_bench.machine.progress import say
from coupled_adam_bench.store.runs import cell_damage, finished_run
from coupled_adam_bench.study.plan.cells import Cell
from coupled_adam_bench.study.plan.dotted import code_of
from coupled_adam_bench.study.settings import CustomSettings, Study
from coupled_adam_bench.study.settings.tune import candidates, with_values


def custom_optimizers(study: Study) -> Iterator[tuple[str, CustomSettings]]:
    """Yield the field, such as ``grid.0.optimizers.2``, and the settings of each custom optimizer
    and candidate."""
    for index, block in enumerate(study.grid):
        for position, optimizer in enumerate(block.optimizers):
            tried = [(f"grid.{index}.optimizers.{position}", optimizer)]
            if block.tune:
                place = f"grid.{index}.tune.grids.{optimizer.key}"
                for settings in candidates(
                    block.tune.grid_of(optimizer), study.models[0], optimizer
                ):
                    tried.append((place, with_values(settings, study.models[0], optimizer)[1]))
            for place, one in tried:
                for name, entry in one.entries.items():
                    if isinstance(entry, CustomSettings):
                        yield f"{place}.{name}".removesuffix("."), entry


def check_optimizers(study: Study) -> None:
    """Raise ``ValueError`` for custom optimizers whose code is neither installed nor in the working
    directory."""
    problems = []
    for field, optimizer in custom_optimizers(study):
        try:
            code_of(optimizer.path)
        except ValueError as error:
            problems.append(f"{field}.{error}")
    if problems:
        raise ValueError("\n".join(problems))


def is_trained(cell: Cell, run_dir: Path, data_dir: Path) -> bool:
    """Tell whether a cell's run has ended on the present data and all of its files are whole."""
    run = finished_run(run_dir, model=True)
    try:
        return (
            run is not None
            and cell_damage(run_dir) is None
            and run["cell"] == cell.id
            and run["data_sha256"] == split_checksums(data_dir)
        )
    except (ValueError, KeyError):  # the data or the record is damaged; training reports which
        return False


def say_kept(cell: Cell) -> None:
    """Print on stderr that a cell is trained already."""
    say(f"{cell.id}: kept, trained before")
