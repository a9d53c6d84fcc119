"""The commands for somebody who has an optimizer and no study yet: a comparison in minutes, and a
folder to begin with."""

import argparse
import sys
from typing import Any

from coupled_adam_bench.cli.command import AddCommand, positive


def _optimizer(text: str) -> Any:
    """Return what stands for an optimizer on the command line; ``ValueError`` if it is no YAML."""
    import yaml

    from coupled_adam_bench.study.settings.reading import read_text

    try:
        return read_text(text)
    except yaml.YAMLError:
        raise ValueError(
            f"OPTIMIZER: {text!r} is no YAML; put braces and what is between them into quotes, such"
            " as '{name: adamw, beta2: 0.999}'"
        ) from None


def _compare(arguments: argparse.Namespace) -> int:
    from coupled_adam_bench.tools.compare import compare

    options = ("seeds", "name", "cores")
    given = {name: getattr(arguments, name) for name in options if name in arguments}
    try:
        print(compare([_optimizer(text) for text in arguments.optimizers], **given))
    except RuntimeError as error:
        # Snakemake has said why, and a traceback of ours would hide it.
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _new(arguments: argparse.Namespace) -> None:
    from coupled_adam_bench.tools.new import write_folder

    print(*write_folder(arguments.name), sep="\n")


def add_commands(add: AddCommand) -> None:
    """Add the commands of this module to the command line."""
    sub = add(
        "compare",
        _compare,
        "compare optimizers on a head without a transformer, in minutes on two processors",
        plan=False,
    )
    sub.add_argument(
        "optimizers",
        nargs="+",
        metavar="OPTIMIZER",
        help="adamw, my_module.MyOptimizer, or an entry of a study: '{name: adamw, beta2: 0.999}';"
        " the others are compared with the first",
    )
    sub.add_argument(
        "--seeds", type=positive, metavar="N", default=argparse.SUPPRESS, help="default: 3"
    )
    sub.add_argument(
        "--name",
        default=argparse.SUPPRESS,
        help="of the study and of its folder in results/ (default: compare)",
    )
    sub.add_argument(
        "--cores", type=positive, metavar="N", default=argparse.SUPPRESS, help="default: all"
    )
    sub = add(
        "new",
        _new,
        "write a folder to begin an optimizer with: class, test, study, and the way to a bundle",
        plan=False,
    )
    sub.add_argument("name", metavar="NAME", help="of the folder and of its module: my_optimizer")
