"""The commands that show what was measured: the report with its tables and figures, and the copy in
MLflow."""

import argparse
from pathlib import Path

from coupled_adam_bench.cli.command import AddCommand, plan_of
from coupled_adam_bench.machine.process import rarely_collected
from coupled_adam_bench.store import paths
from coupled_adam_bench.store.paths import NOT_IMPORTED


def _report(arguments: argparse.Namespace) -> None:
    from coupled_adam_bench.report.make import FIGURE_ENDINGS, Places, report

    plan = plan_of(arguments)
    places = Places(arguments.templates, paths.study_dir(plan.name), results=arguments.results)
    endings = ("svg",) if arguments.svg_only else FIGURE_ENDINGS
    report(plan, places, arguments.only, arguments.partial, arguments.made_for, endings)


def _track(arguments: argparse.Namespace) -> None:
    from coupled_adam_bench.store.files import write_json
    from coupled_adam_bench.tracking.importing import import_study
    from coupled_adam_bench.tracking.place import TrackingError

    plan = plan_of(arguments)
    try:
        summary = import_study(plan, arguments.uri, study_dir=paths.study_dir(plan.name))
    except TrackingError as error:
        if not arguments.may_wait:
            raise
        summary = {NOT_IMPORTED: str(error)}
    write_json(arguments.out, summary)


def _follow(arguments: argparse.Namespace) -> None:
    from coupled_adam_bench.tracking.importing import follow_study

    follow_study(arguments.plan, arguments.seconds)


def add_commands(add: AddCommand) -> None:
    """Add the commands of this module to the command line."""
    sub = add(
        "report",
        rarely_collected()(_report),
        "write results, statistics, tables, figures and report",
    )
    sub.add_templates()
    sub.add_argument("--only", choices=("tables", "figures"), help="only results, tests and this")
    sub.add_argument(
        "--results", type=Path, help="take the results from this file, not from the runs"
    )
    sub.add_argument(
        "--partial", action="store_true", help="write NaN where nothing is evaluated yet"
    )
    # With this hash, the next start tells a report that was made from another plan.
    sub.add_argument(
        "--made-for", default="", help="a hash of what the results show, which the manifest notes"
    )
    sub.add_argument(
        "--svg-only",
        action="store_true",
        help="draw only what the report shows, in a third of the time",
    )
    sub = add("track", rarely_collected()(_track), "import the study into MLflow")
    sub.add_argument(
        "--uri",
        help="tracking server or database (default: MLFLOW_TRACKING_URI, else results/mlflow.db)",
    )
    sub.add_argument(
        "--may-wait",
        action="store_true",
        help="exit status 0 where MLflow does not take the import",
    )
    sub.add_out("summary of the import, JSON")
    sub = add(
        "follow", _follow, "import the study into MLflow while it trains, until standard input ends"
    )
    sub.add_argument("--seconds", type=float, required=True, help="between two imports")
