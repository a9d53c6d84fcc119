"""What the commands share: how one is declared, and the options that several of them have.

Modules with commands import a study's settings in their functions, so that ``--help`` needs no
package of the pipeline.
"""

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from coupled_adam_bench.study.plan import Plan

Handler = Callable[[argparse.Namespace], int | None]
"""A function that runs a stage and returns its exit status, None for 0."""


class Command(argparse.ArgumentParser):
    """A subcommand, to which the options that several have are added by name."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # A shell puts the home in place of ~ in `--out ~/a`, but not in `--out=~/a`.
        self.register("type", Path, lambda text: Path(os.path.expanduser(text)))  # noqa: PTH111

    def add_out(self, what: str) -> None:
        """Add the place of the output."""
        self.add_argument("--out", type=Path, required=True, help=what)

    def add_templates(self) -> None:
        """Add the folder of the templates."""
        self.add_argument(
            "--templates", type=_templates, default="templates", help="default: %(default)s"
        )

    def add_device(self) -> None:
        """Add the device on which torch computes."""
        what = (
            "default: a GPU if the study has one (execution.gpus), and for your own model if there"
            " is one"
        )
        self.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"), help=what)

    def add_leases(self) -> None:
        """Add the number of GPUs that this job has for itself."""
        self.add_argument(
            "--lease-gpus",
            type=int,
            default=0,
            help="use so many GPUs of the machine, and no other job's",
        )

    def add_requeue(self) -> None:
        """Add the way back into the queue of a cluster."""
        self.add_argument(
            "--requeue",
            action="store_true",
            help="if stopped in a SLURM job, put it back into the queue",
        )


class AddCommand(Protocol):
    """A function that adds a command to the command line; it has ``--plan`` unless ``plan`` is
    false."""

    def __call__(self, name: str, handler: Handler, summary: str, plan: bool = True) -> Command:
        """Return the command."""
        ...


_CLONE = Path(__file__).parents[3]


def templates_in(text: str | Path) -> Path:
    """Return the folder of the templates, here or in the clone that this package is installed from;
    ``ValueError`` if there is none."""
    for place in (Path(text), _CLONE / text):
        if place.is_dir():
            return place
    raise ValueError(
        f"--templates: no folder {str(text)!r}; a clone of the repository has it, where studies"
        " are run"
    )


def _templates(text: str) -> Path:
    try:
        return templates_in(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("--templates: ")) from None


def positive(text: str) -> int:
    """Return a whole number of at least 1, for an option of the command line."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def plan_of(arguments: argparse.Namespace) -> "Plan":
    """Return the plan that a command is given."""
    from coupled_adam_bench.study.plan import load_plan

    return load_plan(arguments.plan)
