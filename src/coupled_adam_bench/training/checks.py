"""Whether the packages of a study's own optimizers are there, checked with the study: light, nothing is imported."""

import importlib.util
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path

from coupled_adam_bench.config import Custom, Study


def custom_optimizers(study: Study) -> Iterator[tuple[str, Custom]]:
    """Yield the user's own optimizers of a study and the place of each, ``grid.0.optimizers.2``."""
    for index, block in enumerate(study.grid):
        for position, optimizer in enumerate(block.optimizers):
            if isinstance(optimizer, Custom):
                yield f"grid.{index}.optimizers.{position}", optimizer


def check_optimizers(study: Study) -> None:
    """Check that the package of each is installed, or a file or folder here; ``ValueError`` that lists the others."""
    problems = []
    for place, optimizer in custom_optimizers(study):
        package = optimizer.path.partition(".")[0]
        # `python -m`, which the jobs are, looks in the working directory too.
        if not (importlib.util.find_spec(package) or PathFinder.find_spec(package, [str(Path.cwd())])):
            problems.append(
                f"{place}.path: no package or module {package!r} is installed, nor is there one in {Path.cwd()}; "
                "correct the path, or install it into the environment that runs the study"
            )
    if problems:
        raise ValueError("\n".join(problems))
