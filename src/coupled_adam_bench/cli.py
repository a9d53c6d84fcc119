"""``python -m coupled_adam_bench STAGE``: one subcommand per stage, what the rules of the workflow call."""

import argparse
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from coupled_adam_bench import paths
from coupled_adam_bench.cells import Cell
from coupled_adam_bench.config import Execution
from coupled_adam_bench.plan import Plan, load_plan

Handler = Callable[[argparse.Namespace], int]


def _plan(arguments: argparse.Namespace) -> Plan:
    return load_plan(arguments.plan)


def _try_optimizers(arguments: argparse.Namespace) -> int:
    from coupled_adam_bench.training.trial import try_optimizers

    for part in _plan(arguments).parts:
        try_optimizers(part.study)
    return 0


def _prepare(arguments: argparse.Namespace) -> int:
    from coupled_adam_bench.data.prepare import prepare

    plan = _plan(arguments)
    for data_id in arguments.data or plan.data_ids:
        prepare(plan.part_with_data(data_id), paths.data_dir(data_id), arguments.workers)
    return 0


def _train_with(
    train: Callable[[list[Cell], Execution, Path, str], int],
    known: Mapping[str, Cell],
    names: list[str],
    arguments: argparse.Namespace,
    stage: str,
    option: str,
) -> int:
    """Train the ``names`` that ``option`` gave among those ``known``, in as many processes as the study asks for."""
    from coupled_adam_bench.training.distributed import launch

    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"--{option}: {', '.join(unknown)} not among the {option} of {arguments.plan}")
    execution = _plan(arguments).part_of(known[name].id for name in names).study.execution
    if execution.processes > 1 and "RANK" not in os.environ:  # not started by torchrun
        options = ["--plan", str(arguments.plan), f"--{option}", *names, "--device", arguments.device]
        return launch(execution.processes, [stage, *options])
    return train([known[name] for name in names], execution, paths.RESULTS, arguments.device)


def _train(arguments: argparse.Namespace) -> int:
    from coupled_adam_bench.training.loop import train_cells

    ids = [Path(cell).parent.name if cell.endswith("/run.json") else cell for cell in arguments.cells]
    return _train_with(train_cells, _plan(arguments).cells, ids, arguments, "train", "cells")


def _train_trunk(arguments: argparse.Namespace) -> int:
    from coupled_adam_bench.training.trunk import train_trunks

    parts = [part for trunk in _plan(arguments).trunks.values() for part in trunk.parts.values()]
    known = {str(paths.branch_file(part.id, part.steps)): part for part in parts}
    return _train_with(train_trunks, known, arguments.branches, arguments, "train-trunk", "branches")


def _evaluate(stage: str) -> Handler:
    def handler(arguments: argparse.Namespace) -> int:
        from coupled_adam_bench.evaluation.stage import STAGES, run_stage

        part = _plan(arguments).part_of(arguments.cells)
        return run_stage(STAGES[stage], part, arguments.cells, arguments.index, arguments.device)

    return handler


def _theory(arguments: argparse.Namespace) -> int:
    from coupled_adam_bench.evaluation.stage import run_stage
    from coupled_adam_bench.theory.stage import STAGE

    part = _plan(arguments).part_of(arguments.cells)
    return run_stage(STAGE, part, arguments.cells, arguments.index, arguments.device)


def _write_plan(arguments: argparse.Namespace) -> int:
    from coupled_adam_bench.config import load_any_study
    from coupled_adam_bench.files import write_json
    from coupled_adam_bench.plan import make_plan

    plan = make_plan(load_any_study(arguments.study), [arguments.study.parent])
    write_json(arguments.out, plan.to_json())
    return 0


def _describe(arguments: argparse.Namespace) -> int:
    from coupled_adam_bench.files import write_text

    text = _plan(arguments).describe()
    write_text(arguments.out, text)
    print(text, end="")
    return 0


def _collect(arguments: argparse.Namespace) -> int:
    from coupled_adam_bench.results.collect import collect, write_results

    write_results(collect(_plan(arguments), partial=arguments.partial), arguments.out)
    return 0


def _tests(arguments: argparse.Namespace) -> int:
    from coupled_adam_bench.statistics.compare import write_tests

    write_tests(_plan(arguments), arguments.results, arguments.out)
    return 0


def _tables(arguments: argparse.Namespace) -> int:
    from coupled_adam_bench.report.render import write_tables

    write_tables(_plan(arguments), arguments.results, arguments.tests, arguments.out, arguments.templates)
    return 0


def _figures(arguments: argparse.Namespace) -> int:
    from coupled_adam_bench.report.figures import write_figures

    write_figures(_plan(arguments), arguments.results, paths.RESULTS / "runs", arguments.out)
    return 0


def _manifest(arguments: argparse.Namespace) -> int:
    from coupled_adam_bench.report.manifest import write_manifest

    plan = _plan(arguments)
    write_manifest(plan, paths.study_dir(plan.name))
    return 0


def _report(arguments: argparse.Namespace) -> int:
    from coupled_adam_bench.report.page import write_report

    plan = _plan(arguments)
    write_report(plan, paths.study_dir(plan.name), arguments.templates)
    return 0


def _track(arguments: argparse.Namespace) -> int:
    from coupled_adam_bench.files import write_json
    from coupled_adam_bench.tracking import import_study

    write_json(arguments.out, import_study(_plan(arguments), arguments.uri))
    return 0


def _schema(arguments: argparse.Namespace) -> int:
    from coupled_adam_bench.schema_json import write_schema

    write_schema(arguments.out)
    return 0


def _protocols(arguments: argparse.Namespace) -> int:
    from coupled_adam_bench.config.protocols import write_ledger

    write_ledger(arguments.out)
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    top = argparse.ArgumentParser(prog="coupled-adam-bench", description=__doc__)
    stages = top.add_subparsers(title="stages", metavar="STAGE", required=True)

    def stage(name: str, handler: Handler, summary: str, plan: bool = True) -> argparse.ArgumentParser:
        sub = stages.add_parser(name, help=summary, description=summary)
        sub.set_defaults(handler=handler)
        if plan:
            sub.add_argument("--plan", type=Path, required=True, help="results/<study>/plan.json")
        return sub

    def out(sub: argparse.ArgumentParser, what: str) -> None:
        sub.add_argument("--out", type=Path, required=True, help=what)

    sub = stage("plan", _write_plan, "validate a study and write its plan", plan=False)
    sub.add_argument("--study", type=Path, required=True, help="a study's YAML file; its parts, if any, lie beside it")
    out(sub, "the plan, JSON")
    out(stage("describe", _describe, "list the cells of a study and what they cost"), "the list, text")
    stage("try-optimizers", _try_optimizers, "try a study's own optimizers on small matrices, before the first job")
    sub = stage("prepare", _prepare, "turn text into token bins under results/data/")
    sub.add_argument("--data", nargs="+", help="data ids (default: all of the study)")
    sub.add_argument("--workers", type=int, default=1, help="processes (default: %(default)s)")
    sub = stage("train", _train, "train cells, or go on with them; exit status 75: stopped on SIGTERM, run again")
    sub.add_argument("--cells", nargs="+", required=True, help="cell ids, or their run.json")
    sub.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"), help="default: %(default)s")
    sub = stage("train-trunk", _train_trunk, "train what wsd cells share before their decay; exit status as of train")
    sub.add_argument("--branches", nargs="+", required=True, help="results/trunks/<trunk id>/branch-<step>.json")
    sub.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"), help="default: %(default)s")
    for name, handler, summary in (
        ("test-loss", _evaluate("test_loss"), "measure the loss of trained cells on the test split"),
        ("embeddings", _evaluate("embeddings"), "measure the embeddings of trained cells, word similarity included"),
        ("downstream", _evaluate("lm_eval"), "run the downstream tasks of lm-evaluation-harness on trained cells"),
        ("theory", _theory, "check the theory in trained cells: gradients, second moments, and a replay of training"),
    ):
        sub = stage(name, handler, summary)
        sub.add_argument("--cells", nargs="+", required=True, help="cell ids")
        sub.add_argument("--index", type=Path, required=True, help="written when all cells succeeded")
        sub.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"), help="default: %(default)s")
    sub = stage("collect", _collect, "gather all evaluations into results.csv")
    sub.add_argument("--partial", action="store_true", help="write NaN where nothing is evaluated yet")
    out(sub, "results.csv")
    sub = stage("tests", _tests, "compute the significance tests of the tables")
    sub.add_argument("--results", type=Path, required=True, help="results.csv")
    out(sub, "tests.csv")
    sub = stage("tables", _tables, "render the tables of a study as LaTeX and HTML")
    sub.add_argument("--results", type=Path, required=True, help="results.csv")
    sub.add_argument("--tests", type=Path, required=True, help="tests.csv")
    sub.add_argument("--templates", type=Path, default=Path("templates"), help="default: %(default)s")
    out(sub, "folder")
    sub = stage("figures", _figures, "draw the figures of a study as SVG and PDF")
    sub.add_argument("--results", type=Path, required=True, help="results.csv")
    out(sub, "folder")
    stage("manifest", _manifest, "write manifest.json: versions, checksums and the record of every cell")
    sub = stage("report", _report, "write report/index.html")
    sub.add_argument("--templates", type=Path, default=Path("templates"), help="default: %(default)s")
    sub = stage("track", _track, "import the study into MLflow")
    sub.add_argument("--uri", help="tracking server or database (default: MLFLOW_TRACKING_URI, else results/mlflow.db)")
    out(sub, "summary of the import, JSON")
    out(stage("schema", _schema, "write the JSON schema of studies", plan=False), "the schema")
    sub = stage("protocols", _protocols, "write the ledger of protocols into its place in a Markdown file", plan=False)
    out(sub, "docs/protocols.md")
    return top


def main(argv: list[str] | None = None) -> int:
    """Run one stage and return its exit status; 2 for what the user can mend, with one message and no traceback."""
    arguments = parser().parse_args(argv)
    handler: Handler = arguments.handler
    try:
        return handler(arguments)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
