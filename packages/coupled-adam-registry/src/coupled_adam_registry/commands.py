"""The commands about results of others: a bundle is made, bundles are checked, and one page shows
them. The command line of the bench adds them, with the exports, to its own."""

import argparse
from pathlib import Path

from coupled_adam_bench.cli.command import AddCommand, templates_in
from coupled_adam_registry.exports import command


def _bundle(arguments: argparse.Namespace) -> None:
    from coupled_adam_registry.bundle import write_bundle

    given = (
        arguments.study_dir,
        arguments.registry,
        arguments.submitter,
        arguments.notes,
        arguments.reproduces,
    )
    print(write_bundle(*given))


def _registry(arguments: argparse.Namespace) -> int:
    if arguments.action == "check":
        from coupled_adam_bench.tools.verify.options import parse_config

        from coupled_adam_registry.check import check

        given = (arguments.registry, arguments.bundles, arguments.again, arguments.device)
        return check(*given, parse_config(arguments.config))
    from coupled_adam_registry.page import write_registry

    templates = templates_in(arguments.templates)
    refused = write_registry(arguments.registry, arguments.out, templates)
    print(*(f"LEFT OUT: {reason}" for reason in refused), sep="\n", end="\n" if refused else "")
    return 1 if refused else 0


def add_commands(add: AddCommand) -> None:
    """Add the commands of this package to the command line."""
    sub = add(
        "bundle",
        _bundle,
        "pack the results of a finished study, below 1 MB and without weights",
        plan=False,
    )
    sub.add_argument(
        "study_dir", type=Path, metavar="STUDY", help="results/STUDY, beside results/runs"
    )
    sub.add_argument("--submitter", required=True, help="who hands it in")
    sub.add_argument("--notes", required=True, help="a few words about it")
    sub.add_argument(
        # Whoever trains another's cells again says whose they are.
        "--reproduces",
        metavar="BUNDLE",
        help="the name of the bundle whose cells were trained again",
    )
    sub.add_argument("--registry", type=Path, default="registry", help="default: %(default)s")
    summary = (
        "check bundles, or write a page with all of them; exit status 1 if one is refused, 3 if"
        " cells could not be trained again"
    )
    sub = add("registry", _registry, summary, plan=False)
    sub.add_argument("action", choices=("check", "page"))
    sub.add_argument(
        "bundles", nargs="*", type=Path, metavar="BUNDLE", help="folders to check (default: all)"
    )
    what = (
        "cells of each bundle to train again, which runs the code of its own optimizers (default:"
        " %(default)s)"
    )
    sub.add_argument("--again", type=int, default=0, metavar="K", help=what)
    what = "paths of studies with text, as 'paths={text: FOLDER}'"
    sub.add_argument(
        "--config", action="extend", nargs="+", default=[], metavar="KEY=VALUE", help=what
    )
    sub.add_argument(
        "--out", type=Path, default="registry.html", help="the page (default: %(default)s)"
    )
    sub.add_argument("--registry", type=Path, default="registry", help="default: %(default)s")
    sub.add_device()
    sub.add_argument(
        "--templates", type=Path, default="templates", help="of the page (default: %(default)s)"
    )
    command.add_commands(add)
