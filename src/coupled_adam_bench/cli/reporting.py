"""The commands that read evaluations: results, tests, tables, figures, the report, and the copy in MLflow."""

import argparse
from pathlib import Path

from coupled_adam_bench.cli.command import AddCommand, Command, Handler, plan_of
from coupled_adam_bench.machine.garbage import rarely_collected
from coupled_adam_bench.store import paths
from coupled_adam_bench.store.files import ASIDE
from coupled_adam_bench.store.outputs import NOT_IMPORTED


def _out_file(arguments: argparse.Namespace) -> list[Path]:
    return [arguments.out]


def _in_folder(arguments: argparse.Namespace) -> list[Path]:
    return [path for path in arguments.out.glob("[!.]*") if ASIDE not in path.name]


def _manifest_file(arguments: argparse.Namespace) -> list[Path]:
    return [paths.study_dir(plan_of(arguments).name) / "manifest.json"]


def _report_file(arguments: argparse.Namespace) -> list[Path]:
    return [paths.study_dir(plan_of(arguments).name) / "report" / "index.html"]


def _tuning(arguments: argparse.Namespace) -> None:
    from coupled_adam_bench.results.tuning import write_tuning

    write_tuning(plan_of(arguments), arguments.plan.parent / paths.TUNING, arguments.out)


def _collect(arguments: argparse.Namespace) -> None:
    from coupled_adam_bench.results.collect import collect, write_results

    write_results(collect(plan_of(arguments), partial=arguments.partial), arguments.out)


def _tests(arguments: argparse.Namespace) -> None:
    from coupled_adam_bench.statistics.compare import write_tests

    write_tests(plan_of(arguments), arguments.results, arguments.out)


def _statistics(arguments: argparse.Namespace) -> None:
    from coupled_adam_bench.report.contents import STATISTICS
    from coupled_adam_bench.results.study_results import load_results
    from coupled_adam_bench.statistics.declared import Material
    from coupled_adam_bench.statistics.noise import write_noise
    from coupled_adam_bench.statistics.paired_text import write_paired
    from coupled_adam_bench.statistics.seeds import write_seeds
    from coupled_adam_bench.statistics.summary import write_summary
    from coupled_adam_bench.statistics.trend import write_trend
    from coupled_adam_bench.training.seed_overlap import audit

    plan, results, folder = plan_of(arguments), arguments.results, arguments.out
    write_paired(plan, folder / "paired.csv")
    write_summary(plan, results, folder / "summary.csv")
    write_trend(plan, results, folder / "trend.csv")
    write_seeds(audit(plan), folder / "seeds.csv")
    write_noise(plan, results, folder / "noise.csv")
    material = Material(load_results(plan, results), study_dir=folder)
    for statistic in STATISTICS:
        material.write(statistic)


def _stated(arguments: argparse.Namespace) -> None:
    from coupled_adam_bench.statistics.stated import write_stated

    write_stated(plan_of(arguments), arguments.results, arguments.out)


def _tables(arguments: argparse.Namespace) -> None:
    from coupled_adam_bench.report.render import write_tables

    write_tables(plan_of(arguments), arguments.results, arguments.tests, arguments.out, arguments.templates)


def _figures(arguments: argparse.Namespace) -> None:
    from coupled_adam_bench.report.figures import FIGURE_ENDINGS, write_figures

    wanted = ("svg",) if arguments.svg_only else FIGURE_ENDINGS
    write_figures(plan_of(arguments), arguments.results, paths.RUNS, arguments.out, wanted)


def _manifest(arguments: argparse.Namespace) -> None:
    from coupled_adam_bench.report.manifest import write_manifest

    plan = plan_of(arguments)
    write_manifest(plan, paths.study_dir(plan.name))


def _report(arguments: argparse.Namespace) -> None:
    from coupled_adam_bench.report.page import write_report
    from coupled_adam_bench.results.study_results import load_results
    from coupled_adam_bench.statistics.declared import Material

    plan = plan_of(arguments)
    folder = paths.study_dir(plan.name)
    study = load_results(plan, folder / "results.csv", folder / "tests.csv")
    write_report(Material(study, study_dir=folder), arguments.templates)


def _track(arguments: argparse.Namespace) -> None:
    from coupled_adam_bench.store.files import write_json
    from coupled_adam_bench.tracking.importing import end_live_import, import_study
    from coupled_adam_bench.tracking.uri import ServerError

    plan = plan_of(arguments)
    study_dir = paths.study_dir(plan.name)
    end_live_import(study_dir)
    try:
        summary = import_study(plan, arguments.uri, study_dir=study_dir)
    except ServerError as error:
        if not arguments.may_wait:
            raise
        summary = {NOT_IMPORTED: str(error)}
    write_json(arguments.out, summary)


def _follow(arguments: argparse.Namespace) -> None:
    from coupled_adam_bench.tracking.importing import follow_study

    follow_study(arguments.plan, arguments.seconds)


def add_commands(add: AddCommand) -> None:
    """Add the commands of this module to the command line."""

    def stage(name: str, handler: Handler, summary: str) -> Command:
        return add(name, rarely_collected()(handler), summary)

    sub = stage("tuning", _tuning, "gather the choices of a study, and the losses behind them")
    sub.add_out("tuning.csv")
    sub.add_checksums(_out_file)
    sub = stage("collect", _collect, "gather all evaluations into results.csv")
    sub.add_argument("--partial", action="store_true", help="write NaN where nothing is evaluated yet")
    sub.add_out("results.csv")
    sub.add_checksums(_out_file)
    sub = stage("tests", _tests, "compute the significance tests of the tables")
    sub.add_results()
    sub.add_out("tests.csv")
    sub.add_checksums(_out_file)
    summary = (
        "compute what stands beside the tests: pairs on the same text, summaries, trends, power, shared text, noise"
    )
    sub = stage("statistics", _statistics, summary)
    sub.add_results()
    sub.add_out("folder")
    sub.add_checksums(lambda arguments: [arguments.out / name for name in paths.STATISTICS_FILES])
    sub = stage("stated", _stated, "test the hypotheses of a stated plan at the stated looks")
    sub.add_results()
    sub.add_out("stated.csv")
    sub.add_checksums(_out_file)
    sub = stage("tables", _tables, "render the tables of a study as LaTeX and HTML")
    sub.add_results()
    sub.add_argument("--tests", type=Path, required=True, help="tests.csv")
    sub.add_templates()
    sub.add_out("folder")
    sub.add_checksums(_in_folder)
    sub = stage("figures", _figures, "draw the figures of a study as SVG and PDF")
    sub.add_results()
    sub.add_argument("--svg-only", action="store_true", help="draw only what the report shows, in a third of the time")
    sub.add_out("folder")
    sub.add_checksums(_in_folder)
    sub = stage("manifest", _manifest, "write manifest.json: versions, checksums and the record of every cell")
    sub.add_checksums(_manifest_file)
    sub = stage("report", _report, "write report/index.html")
    sub.add_checksums(_report_file)
    sub.add_templates()
    sub = stage("track", _track, "import the study into MLflow")
    sub.add_argument("--uri", help="tracking server or database (default: MLFLOW_TRACKING_URI, else results/mlflow.db)")
    sub.add_argument("--may-wait", action="store_true", help="exit status 0 where a server does not take the import")
    sub.add_out("summary of the import, JSON")
    sub.add_checksums(_out_file)
    sub = add("follow", _follow, "import the study into MLflow while it trains, until standard input ends")
    sub.add_argument("--seconds", type=float, required=True, help="between two imports")
