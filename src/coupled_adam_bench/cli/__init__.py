"""``python -m coupled_adam_bench STAGE``: one subcommand per stage, what the rules of the workflow
call."""

import argparse
import sys
from pathlib import Path

from coupled_adam_bench import __version__
from coupled_adam_bench.cli import registry, reporting, running, studies, trying
from coupled_adam_bench.cli.command import Command, Handler
from coupled_adam_bench.cli.gpu_leases import leased_gpus
from coupled_adam_bench.store import paths

DESCRIPTION = (
    "Studies are run by snakemake in a clone of the repository, since the package by itself has no"
    " Snakefile, rules and templates. Each command here is one stage of a study, which a rule"
    " calls; measure takes any model."
)


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    top = argparse.ArgumentParser(prog="coupled-adam-bench", description=DESCRIPTION)
    top.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    # The rehearsal runs the other stages.
    top.set_defaults(run_stage=main)
    stages = top.add_subparsers(
        title="stages", metavar="STAGE", required=True, parser_class=Command
    )

    def stage(name: str, handler: Handler, summary: str, plan: bool = True) -> Command:
        sub: Command = stages.add_parser(name, help=summary, description=summary)
        sub.set_defaults(handler=handler)
        if plan:
            sub.add_argument("--plan", type=Path, required=True, help="results/<study>/plan.json")
        return sub

    for module in (trying, studies, running, reporting, registry):
        module.add_commands(stage)
    return top


def main(argv: list[str] | None = None) -> int:
    """Run one stage and return its exit status; 2 for what the user can mend, with one message and
    no traceback."""
    arguments = parser().parse_args(argv)
    handler: Handler = arguments.handler
    try:
        with leased_gpus(getattr(arguments, "lease_gpus", 0), paths.GPU_LEASES):
            return handler(arguments) or 0
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return getattr(error, "status", 2)
