"""``python -m coupled_adam_bench STAGE``: one subcommand per stage, what the rules of the workflow call."""

import argparse
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from coupled_adam_bench import paths
from coupled_adam_bench.catalog.stages import STAGES, VALIDATION_LOSS, Stage
from coupled_adam_bench.cells import Cell
from coupled_adam_bench.config import Execution, Paths
from coupled_adam_bench.data.mirror import BYTES_PER_TOKEN
from coupled_adam_bench.gpu_leases import leased_gpus
from coupled_adam_bench.outputs import NOT_IMPORTED, check_outputs, write_checksums
from coupled_adam_bench.plan import Plan, load_plan, study_of

if TYPE_CHECKING:
    from coupled_adam_bench.estimate.study import Estimate

Handler = Callable[[argparse.Namespace], int | None]
"""A function that runs a stage and returns its exit status, None for 0."""
FIGURE_ENDINGS = (".png", ".svg", ".pdf")
Outputs = Callable[[argparse.Namespace], list[Path]]
"""A function that names the files that a stage has written."""


def _positive(text: str) -> int:
    """Return a whole number of at least 1, for an option of the command line."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def _plan(arguments: argparse.Namespace) -> Plan:
    return load_plan(arguments.plan)


def _try_optimizers(arguments: argparse.Namespace) -> None:
    from coupled_adam_bench.training.trial import try_optimizers

    for study in _plan(arguments).studies.values():
        try_optimizers(study)


def _try_metrics(arguments: argparse.Namespace) -> None:
    from coupled_adam_bench.evaluation.own_metrics import try_metrics

    for study in _plan(arguments).studies.values():
        try_metrics(study)


def _prepare(arguments: argparse.Namespace) -> None:
    from coupled_adam_bench.data.prepare import prepare
    from coupled_adam_bench.files import write_text

    plan = _plan(arguments)
    for data_id in arguments.data or plan.data_ids:
        prepare(plan.study_with_data(data_id), data_id, paths.data_dir(data_id), arguments.workers)
    if arguments.done is not None:
        write_text(arguments.done, "")


def _try_tasks(arguments: argparse.Namespace) -> None:
    from coupled_adam_bench.evaluation.trial import try_tasks
    from coupled_adam_bench.files import write_sealed

    write_sealed(arguments.out, try_tasks(_plan(arguments)))


def _train_with(
    train: Callable[[list[Cell], Execution, Path, str], int],
    known: Mapping[str, Cell],
    names: list[str],
    arguments: argparse.Namespace,
    stage: str,
    option: str,
) -> int:
    """Train the ``names`` that ``option`` gave among those ``known``, in as many processes as the study asks for.

    The marker ``--done`` is written last, by the process that was started, not by those that it starts. It also puts
    its job back into the queue, if it was asked to stop and ``--requeue`` is given.
    """
    from coupled_adam_bench.files import write_text
    from coupled_adam_bench.requeue import requeue_own_job
    from coupled_adam_bench.training.distributed import RESUME_ME, launch

    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"--{option}: {', '.join(unknown)} not among the {option} of {arguments.plan}")
    execution = study_of(known[name] for name in names).execution
    if execution.processes > 1 and "RANK" not in os.environ:  # not started by torchrun
        options = ["--plan", str(arguments.plan), f"--{option}", *names, "--device", arguments.device]
        status = launch(execution.processes, [stage, *options])
    else:
        status = train([known[name] for name in names], execution, paths.RESULTS, arguments.device)
    if status == RESUME_ME and arguments.requeue:
        requeue_own_job()
    if status == 0 and arguments.done is not None:
        write_text(arguments.done, "")
    return status


def _train(arguments: argparse.Namespace) -> int:
    from coupled_adam_bench.files import write_text
    from coupled_adam_bench.training.checks import is_trained, say_kept

    cells = _plan(arguments).by_job_name
    if waiting := [name for name in arguments.cells if name in cells and not cells[name].is_chosen]:
        raise ValueError(f"--cells: {waiting[0]} waits for the choice of {cells[waiting[0]].tuning}; make it first")
    # Not in processes that torchrun started: they decide together.
    if "RANK" not in os.environ and all(
        name in cells and is_trained(cells[name], paths.run_dir(cells[name].id), paths.data_dir(cells[name].data_id))
        for name in arguments.cells
    ):
        for name in arguments.cells:
            say_kept(cells[name])
        if arguments.done is not None:
            write_text(arguments.done, "")
        return 0  # without the seconds that torch takes to start

    from coupled_adam_bench.training.loop import train_cells

    return _train_with(train_cells, cells, arguments.cells, arguments, "train", "cells")


def _train_trunk(arguments: argparse.Namespace) -> int:
    from coupled_adam_bench.training.trunk import train_trunks

    prefixes = [prefix for trunk in _plan(arguments).trunks.values() for prefix in trunk.prefixes.values()]
    known = {str(paths.branch_file(prefix.id, prefix.steps)): prefix for prefix in prefixes}
    return _train_with(train_trunks, known, arguments.branches, arguments, "train-trunk", "branches")


def _evaluate(stage: Stage) -> Handler:
    def handler(arguments: argparse.Namespace) -> int:
        from coupled_adam_bench.evaluation.stage import run_stage

        return run_stage(stage, _plan(arguments).find(arguments.cells), arguments.done, arguments.device)

    return handler


def _choose(arguments: argparse.Namespace) -> int:
    from coupled_adam_bench.evaluation.stage import run_stage
    from coupled_adam_bench.progress import say
    from coupled_adam_bench.results.tuning import describe_settings, write_choice

    tunings = _plan(arguments).tunings
    if arguments.tuning not in tunings:
        raise ValueError(f"--tuning: {arguments.tuning} is not among {', '.join(tunings) or 'none'}")
    tuning = tunings[arguments.tuning]
    done = arguments.out.with_suffix(".done")
    if status := run_stage(VALIDATION_LOSS, tuning.cells, done, arguments.device):
        return status
    done.unlink()
    chosen = write_choice(tuning, arguments.out)
    say(f"{tuning.id}: chosen: {describe_settings(tuning.candidates[chosen])}")
    return 0


def _tuning(arguments: argparse.Namespace) -> None:
    from coupled_adam_bench.results.tuning import write_tuning

    write_tuning(_plan(arguments), arguments.plan.parent / paths.TUNING, arguments.out)


def _write_plan(arguments: argparse.Namespace) -> None:
    from coupled_adam_bench.config import load_any_study
    from coupled_adam_bench.files import write_json
    from coupled_adam_bench.plan import make_plan

    plan = make_plan(load_any_study(arguments.study), [arguments.study.parent])
    write_json(arguments.out, plan.to_json())


def _describe(arguments: argparse.Namespace) -> None:
    from coupled_adam_bench.estimate.study import estimate_study
    from coupled_adam_bench.estimate.text import describe
    from coupled_adam_bench.files import write_json, write_text

    plan = _plan(arguments)
    estimate = estimate_study(plan)
    text = describe(estimate) + _describe_power(plan, estimate) + ("\n" + plan.describe() if arguments.all else "")
    if arguments.out is not None:
        write_text(arguments.out, text)
    if arguments.json is not None:
        write_json(arguments.json, estimate.to_json())
    print(text, end="")


def _describe_power(plan: Plan, estimate: "Estimate") -> str:
    """Return what seeds can find, by the stated plan and by the results that are there; without both an empty text."""
    from coupled_adam_bench.report.power import describe_power
    from coupled_adam_bench.report.stated import describe_stated
    from coupled_adam_bench.results.groups import layout_of

    power_csv = paths.study_dir(plan.name) / "power.csv"
    stated = describe_stated(layout_of(plan), estimate) if plan.stated else ""
    return stated + (describe_power(layout_of(plan), power_csv, estimate) if power_csv.is_file() else "")


def _fetch(arguments: argparse.Namespace) -> None:
    from coupled_adam_bench.fetch import fetch

    fetch(_plan(arguments), dry_run=arguments.dry_run, bytes_per_token=arguments.bytes_per_token)


def _rehearse(arguments: argparse.Namespace) -> int:
    from coupled_adam_bench.rehearsal.rehearse import rehearse_plan

    return rehearse_plan(_plan(arguments), arguments.templates, arguments.gpu_gb, main)


def _measure(arguments: argparse.Namespace) -> int:
    from coupled_adam_bench.files import write_json
    from coupled_adam_bench.measure import compare, inputs

    if arguments.figure is not None and arguments.figure.suffix not in FIGURE_ENDINGS:
        raise ValueError(f"--figure: {arguments.figure} must end in {' or '.join(FIGURE_ENDINGS)}")
    lists = inputs.read_word_lists(arguments.word_similarity, Path(Paths().word_similarity))
    counts = None if arguments.counts is None else inputs.read_counts(arguments.counts)
    models, failed = compare.measure_models(arguments.models, lists, arguments.text, counts)
    if models:
        print(compare.table_of(models), end="")
        if arguments.json is not None:
            write_json(arguments.json, compare.to_json(models))
        if arguments.figure is not None:
            from coupled_adam_bench.report.spectrum_figure import write_spectrum_figure

            write_spectrum_figure(compare.details_of(models), arguments.figure)
    return 1 if failed else 0


def _verify(arguments: argparse.Namespace) -> int:
    from coupled_adam_bench.verify.verify import parse_tolerances, verify

    return verify(
        arguments.manifest,
        arguments.cells or [],
        arguments.sample,
        sample_seed=arguments.sample_seed,
        folder=arguments.folder,
        device=arguments.device,
        threads=arguments.threads,
        own=parse_tolerances(arguments.tolerance),
        json=arguments.json,
    )


def _collect(arguments: argparse.Namespace) -> None:
    from coupled_adam_bench.results.collect import collect, write_results

    write_results(collect(_plan(arguments), partial=arguments.partial), arguments.out)


def _tests(arguments: argparse.Namespace) -> None:
    from coupled_adam_bench.statistics.compare import write_tests

    write_tests(_plan(arguments), arguments.results, arguments.out)


def _statistics(arguments: argparse.Namespace) -> None:
    from coupled_adam_bench.results.seeds import write_seeds
    from coupled_adam_bench.statistics.noise import write_noise
    from coupled_adam_bench.statistics.paired_text import write_paired
    from coupled_adam_bench.statistics.power import write_power
    from coupled_adam_bench.statistics.summary import write_summary
    from coupled_adam_bench.statistics.target import write_target
    from coupled_adam_bench.statistics.trend import write_trend
    from coupled_adam_bench.training.seed_overlap import audit

    plan, results, folder = _plan(arguments), arguments.results, arguments.out
    write_paired(plan, folder / "paired.csv")
    write_summary(plan, results, folder / "summary.csv")
    write_trend(plan, results, folder / "trend.csv")
    write_power(plan, results, folder / "power.csv")
    write_seeds(audit(plan), folder / "seeds.csv")
    write_noise(plan, results, folder / "noise.csv")
    write_target(plan, folder / "target.csv")


def _stated(arguments: argparse.Namespace) -> None:
    from coupled_adam_bench.statistics.stated import write_stated

    write_stated(_plan(arguments), arguments.results, arguments.out)


def _tables(arguments: argparse.Namespace) -> None:
    from coupled_adam_bench.report.render import write_tables

    write_tables(_plan(arguments), arguments.results, arguments.tests, arguments.out, arguments.templates)


def _figures(arguments: argparse.Namespace) -> None:
    from coupled_adam_bench.report.figures import write_figures

    write_figures(_plan(arguments), arguments.results, paths.RUNS, arguments.out, arguments.noise)


def _manifest(arguments: argparse.Namespace) -> None:
    from coupled_adam_bench.report.manifest import write_manifest

    plan = _plan(arguments)
    write_manifest(plan, paths.study_dir(plan.name))


def _report(arguments: argparse.Namespace) -> None:
    from coupled_adam_bench.report.page import write_report

    plan = _plan(arguments)
    write_report(plan, paths.study_dir(plan.name), arguments.templates)


def _track(arguments: argparse.Namespace) -> None:
    from coupled_adam_bench.files import write_json
    from coupled_adam_bench.tracking import import_study
    from coupled_adam_bench.tracking_live import end_live_import
    from coupled_adam_bench.tracking_uri import ServerError

    plan = _plan(arguments)
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
    from coupled_adam_bench.tracking_live import follow_study

    follow_study(arguments.plan, arguments.seconds)


def _schema(arguments: argparse.Namespace) -> None:
    from coupled_adam_bench.schema_json import write_schema

    write_schema(arguments.out)


def _protocols(arguments: argparse.Namespace) -> None:
    from coupled_adam_bench.config.protocols import write_ledger

    write_ledger(arguments.out)


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

    def checksums(sub: argparse.ArgumentParser, outputs: Outputs) -> None:
        sub.set_defaults(outputs=outputs)
        sub.add_argument("--given", nargs="+", type=Path, default=[], help="checksums that the inputs must have")
        sub.add_argument("--checksums", type=Path, help="where to write the checksums of the outputs")

    def made_for(sub: argparse.ArgumentParser) -> None:
        sub.add_argument("--made-for", help="a hash of what the outputs show, noted with their checksums")

    def out_file(arguments: argparse.Namespace) -> list[Path]:
        return [arguments.out]

    def in_folder(arguments: argparse.Namespace) -> list[Path]:
        return list(arguments.out.glob("[!.]*"))

    def leases(sub: argparse.ArgumentParser) -> None:
        sub.add_argument(
            "--lease-gpus", type=int, default=0, help="use so many GPUs of the machine, and no other job's"
        )

    def requeue(sub: argparse.ArgumentParser) -> None:
        sub.add_argument("--requeue", action="store_true", help="if stopped in a SLURM job, put it back into the queue")

    def in_study(name: str) -> Outputs:
        return lambda arguments: [paths.study_dir(_plan(arguments).name) / name]

    sub = stage("plan", _write_plan, "validate a study and write its plan", plan=False)
    sub.add_argument("--study", type=Path, required=True, help="a study's YAML file; its parts, if any, lie beside it")
    out(sub, "the plan, JSON")
    sub = stage("describe", _describe, "say what a study takes: time, memory, disk, money, and what is done")
    sub.add_argument("--out", type=Path, help="where to write the text")
    sub.add_argument("--json", type=Path, help="where to write everything, of each cell too")
    sub.add_argument("--all", action="store_true", help="list every cell as well")
    checksums(sub, lambda arguments: [path for path in (arguments.out, arguments.json) if path is not None])
    made_for(sub)
    sub = stage("fetch", _fetch, "download all that a study needs into paths.hub_mirror and paths.word_similarity")
    sub.add_argument("--dry-run", action="store_true", help="only say how much it takes, and whether the disk has it")
    sub.add_argument("--bytes-per-token", type=float, default=BYTES_PER_TOKEN, help="default: %(default)s")
    sub = stage("rehearse", _rehearse, "rehearse a study without a GPU; exit status 1 if something was found")
    sub.add_argument("--templates", type=Path, default=Path("templates"), help="default: %(default)s")
    sub.add_argument("--gpu-gb", type=float, default=80, help="memory of a GPU in 10^9 bytes (default: %(default)s)")
    stage("try-optimizers", _try_optimizers, "try a study's own optimizers on small matrices, before the first job")
    stage("try-metrics", _try_metrics, "try a study's own metrics on a small matrix, before the first job")
    sub = stage("prepare", _prepare, "turn text into token bins under results/data/")
    sub.add_argument("--data", nargs="+", help="data ids (default: all of the study)")
    sub.add_argument("--workers", type=int, default=1, help="processes (default: %(default)s)")
    sub.add_argument("--done", type=Path, help="an empty file, written when all data are prepared")
    summary = "load the downstream tasks and build their requests, before anything is trained"
    out(stage("try-tasks", _try_tasks, summary), "what the tasks are made of, JSON")
    sub = stage("train", _train, "train cells, or go on with them; exit status 75: stopped on SIGTERM, run again")
    sub.add_argument("--cells", nargs="+", required=True, help="cell ids")
    sub.add_argument("--done", type=Path, help="an empty file, written when all cells are trained")
    requeue(sub)
    leases(sub)
    sub.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"), help="default: %(default)s")
    sub = stage("train-trunk", _train_trunk, "train what wsd cells share before their decay; exit status as of train")
    sub.add_argument("--branches", nargs="+", required=True, help="results/trunks/<trunk id>/branch-<step>.json")
    sub.add_argument("--done", type=Path, help="an empty file, written when all branches are there")
    requeue(sub)
    leases(sub)
    sub.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"), help="default: %(default)s")
    for evaluation in STAGES.values():
        sub = stage(evaluation.name.replace("_", "-"), _evaluate(evaluation), evaluation.summary)
        sub.add_argument("--cells", nargs="+", required=True, help="cell ids")
        sub.add_argument("--done", type=Path, required=True, help="an empty file, written when all cells succeeded")
        leases(sub)
        sub.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"), help="default: %(default)s")
    summary = (
        "measure the embeddings of any causal or masked language model; exit status 1 if one could not be measured"
    )
    sub = stage("measure", _measure, summary, plan=False)
    sub.add_argument("models", nargs="+", metavar="MODEL", help="the folder of a model, or its name on the hub")
    frequencies = sub.add_mutually_exclusive_group()
    frequencies.add_argument("--text", nargs="+", type=Path, default=[], help="text files, for the counts of tokens")
    frequencies.add_argument("--counts", type=Path, help="the counts of tokens, as results/data/<data id>/unigram.npy")
    lists = "a list of word pairs, or a folder with the paper's lists"
    sub.add_argument(
        "--word-similarity", type=Path, help=f"{lists} (default: {Paths().word_similarity}, if it is there)"
    )
    sub.add_argument("--json", type=Path, help="where to write all numbers, spectra and curves")
    sub.add_argument("--figure", type=Path, help=f"where to draw spectra and curves: {', '.join(FIGURE_ENDINGS)}")
    summary = (
        "train and evaluate cells of a manifest again, elsewhere; exit status 0: they reproduce, 1: one does not, "
        "2: one could not be checked"
    )
    sub = stage("verify", _verify, summary, plan=False)
    sub.add_argument("manifest", type=Path, help="results/<study>/manifest.json")
    which = sub.add_mutually_exclusive_group(required=True)
    which.add_argument("--cells", nargs="+", help="cell ids")
    which.add_argument("--sample", type=_positive, metavar="K", help="K of the trained cells, drawn at random")
    sub.add_argument("--sample-seed", type=int, default=0, help="seed of that draw (default: %(default)s)")
    sub.add_argument("--folder", type=Path, help="where to train, and go on later (default: a temporary folder)")
    sub.add_argument("--threads", type=_positive, help="threads of training and evaluation (default: the study's)")
    sub.add_argument("--tolerance", nargs="+", default=[], metavar="METRIC=NUMBER", help="in place of the default's")
    sub.add_argument("--json", type=Path, help="where to write the verdicts")
    sub.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"), help="default: %(default)s")
    sub = stage("choose", _choose, "measure the validation loss of a tuning's candidates, and choose one of them")
    sub.add_argument("--tuning", required=True, help="the id of a tuning")
    leases(sub)
    sub.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"), help="default: %(default)s")
    out(sub, "the choice, results/<study>/tuning/<tuning id>.json")
    sub = stage("tuning", _tuning, "gather the choices of a study, and the losses behind them")
    out(sub, "tuning.csv")
    checksums(sub, out_file)
    sub = stage("collect", _collect, "gather all evaluations into results.csv")
    sub.add_argument("--partial", action="store_true", help="write NaN where nothing is evaluated yet")
    out(sub, "results.csv")
    checksums(sub, out_file)
    made_for(sub)
    sub = stage("tests", _tests, "compute the significance tests of the tables")
    sub.add_argument("--results", type=Path, required=True, help="results.csv")
    out(sub, "tests.csv")
    checksums(sub, out_file)
    summary = (
        "compute what stands beside the tests: pairs on the same text, summaries, trends, power, shared text, noise"
    )
    sub = stage("statistics", _statistics, summary)
    sub.add_argument("--results", type=Path, required=True, help="results.csv")
    out(sub, "folder")
    checksums(sub, lambda arguments: [arguments.out / name for name in paths.STATISTICS_FILES])
    sub = stage("stated", _stated, "test the hypotheses of a stated plan at the stated looks")
    sub.add_argument("--results", type=Path, required=True, help="results.csv")
    out(sub, "stated.csv")
    checksums(sub, out_file)
    sub = stage("tables", _tables, "render the tables of a study as LaTeX and HTML")
    sub.add_argument("--results", type=Path, required=True, help="results.csv")
    sub.add_argument("--tests", type=Path, required=True, help="tests.csv")
    sub.add_argument("--templates", type=Path, default=Path("templates"), help="default: %(default)s")
    out(sub, "folder")
    checksums(sub, in_folder)
    sub = stage("figures", _figures, "draw the figures of a study as SVG and PDF")
    sub.add_argument("--results", type=Path, required=True, help="results.csv")
    sub.add_argument("--noise", type=Path, help="noise.csv; without it, its figure is empty")
    out(sub, "folder")
    checksums(sub, in_folder)
    sub = stage("manifest", _manifest, "write manifest.json: versions, checksums and the record of every cell")
    checksums(sub, in_study("manifest.json"))
    sub = stage("report", _report, "write report/index.html")
    checksums(sub, in_study("report/index.html"))
    sub.add_argument("--templates", type=Path, default=Path("templates"), help="default: %(default)s")
    sub = stage("track", _track, "import the study into MLflow")
    sub.add_argument("--uri", help="tracking server or database (default: MLFLOW_TRACKING_URI, else results/mlflow.db)")
    sub.add_argument("--may-wait", action="store_true", help="exit status 0 where a server does not take the import")
    out(sub, "summary of the import, JSON")
    checksums(sub, out_file)
    sub = stage("follow", _follow, "import the study into MLflow while it trains, until standard input ends")
    sub.add_argument("--seconds", type=float, required=True, help="between two imports")
    out(stage("schema", _schema, "write the JSON schema of studies", plan=False), "the schema")
    sub = stage("protocols", _protocols, "write the ledger of protocols into its place in a Markdown file", plan=False)
    out(sub, "docs/protocols.md")
    return top


def main(argv: list[str] | None = None) -> int:
    """Run one stage and return its exit status; 2 for what the user can mend, with one message and no traceback."""
    arguments = parser().parse_args(argv)
    handler: Handler = arguments.handler
    try:
        check_outputs(getattr(arguments, "given", []))
        with leased_gpus(getattr(arguments, "lease_gpus", 0), paths.GPU_LEASES):
            status = handler(arguments) or 0
        if status == 0 and getattr(arguments, "checksums", None) is not None:
            made_for = getattr(arguments, "made_for", None)
            write_checksums(arguments.checksums, arguments.outputs(arguments), made_for)
        return status
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
