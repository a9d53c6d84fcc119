"""The commands about whole studies and whole models, and those that write parts of the
documentation."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from coupled_adam_bench.cli.command import AddCommand, plan_of, positive
from embedding_geometry import command as measuring

if TYPE_CHECKING:
    from coupled_adam_bench.study.plan import Plan

_FIGURE_ENDINGS = (".png", ".svg", ".pdf")


def _write_plan(arguments: argparse.Namespace) -> None:
    from coupled_adam_bench.store.files import write_sealed
    from coupled_adam_bench.study.plan import make_plan
    from coupled_adam_bench.study.settings import load_any_study

    plan = make_plan(load_any_study(arguments.study), [arguments.study.parent])
    write_sealed(arguments.out, plan.to_json())


def _describe(arguments: argparse.Namespace) -> None:
    from coupled_adam_bench.store.files import write_text
    from coupled_adam_bench.tools.estimate.study import estimate_study
    from coupled_adam_bench.tools.estimate.text import describe

    plan = plan_of(arguments)
    text = describe(estimate_study(plan)) + _describe_jobs(plan) + _describe_stated(plan)
    if arguments.all:
        text += _describe_cells(plan)
    if arguments.out is not None:
        write_text(arguments.out, text)
    print(text, end="")


def _describe_jobs(plan: "Plan") -> str:
    """Return the table of what jobs ask a cluster for."""
    from coupled_adam_bench.cli.jobs import Jobs
    from coupled_adam_bench.cli.resources import JobResources
    from embedding_geometry.table import align

    title = (
        "What jobs ask a cluster for, before the profile's set-resources and the limits of its"
        " partitions"
    )
    return "\n".join(["", title, *align(JobResources(Jobs(plan)).asked(), n_left=1), ""])


def _describe_cells(plan: "Plan") -> str:
    """Return a table of all cells that are trained, and on how many tokens."""
    from embedding_geometry.table import align

    rows = [["cell", "parameters", "tokens", "steps", "FLOPs"]]
    for cell in plan.trained.values():
        rows.append(
            [
                cell.id,
                f"{cell.n_params:,}",
                f"{cell.n_tokens:,}",
                f"{cell.steps:,}",
                f"{cell.flops:.2e}",
            ]
        )
    shared = [
        prefix.n_tokens for trunk in plan.trunks.values() for prefix in trunk.prefixes.values()
    ]
    once = [trunk.run.n_tokens for trunk in plan.trunks.values()]
    trained = sum(cell.n_tokens for cell in plan.trained.values()) - sum(shared) + sum(once)
    note = f"{trained:,} tokens are trained on, those that cells share before their decay once"
    return "\n".join(["", *align(rows, n_left=1), "", note, ""])


def _describe_stated(plan: "Plan") -> str:
    """Return what the seeds of a stated plan can find; without one an empty text."""
    if plan.stated is None:
        return ""
    from coupled_adam_bench.results.groups import layout_of
    from coupled_adam_bench.statistics.preregistered import stated_table
    from embedding_geometry.table import align

    title = (
        f"Stated in {plan.stated.path} (SHA-256 {plan.stated.sha256[:12]}); the power is that at"
        " one place"
    )
    return "\n".join(["", title, *align(stated_table(layout_of(plan)), n_left=3), ""])


def _fetch(arguments: argparse.Namespace) -> None:
    from coupled_adam_bench.data.sources import BYTES_PER_TOKEN
    from coupled_adam_bench.tools.fetch import fetch

    fetch(
        plan_of(arguments),
        dry_run=arguments.dry_run,
        bytes_per_token=arguments.bytes_per_token or BYTES_PER_TOKEN,
    )


def _rehearse(arguments: argparse.Namespace) -> int:
    from coupled_adam_bench.tools.rehearsal.miniature import rehearse_plan

    return rehearse_plan(plan_of(arguments), arguments.templates, arguments.run_stage)


def _measure(arguments: argparse.Namespace) -> int:
    from coupled_adam_bench.store.files import write_json
    from coupled_adam_bench.study.settings import Paths
    from coupled_adam_bench.tools.measure import known_of
    from embedding_geometry import compare
    from embedding_geometry.word_lists import read_word_lists

    if arguments.figure is not None and arguments.figure.suffix not in _FIGURE_ENDINGS:
        raise ValueError(f"--figure: {arguments.figure} must end in {' or '.join(_FIGURE_ENDINGS)}")
    lists = read_word_lists(arguments.word_similarity, Path(Paths().word_similarity))
    models, failed = compare.measure_models(
        arguments.models, lists, arguments.text, arguments.tokenizer, known_of
    )
    if models:
        print(compare.table_of(models), end="")
        if arguments.json is not None:
            write_json(arguments.json, compare.to_json(models))
        if arguments.figure is not None:
            from coupled_adam_bench.report.figures.curves import write_spectra

            write_spectra(compare.details_of(models), arguments.figure)
    return 1 if failed else 0


def _verify(arguments: argparse.Namespace) -> int:
    from coupled_adam_bench.tools.verify.options import parse_config, parse_tolerances
    from coupled_adam_bench.tools.verify.verify import verify

    return verify(
        arguments.manifest,
        arguments.cells or [],
        arguments.sample,
        sample_seed=arguments.sample_seed,
        folder=arguments.folder,
        device=arguments.device,
        own=parse_tolerances(arguments.tolerance),
        given=parse_config(arguments.config),
        threads=arguments.threads,
        repeats=arguments.repeats,
    )


def _merge(arguments: argparse.Namespace) -> int:
    from coupled_adam_bench.tools.merge import merge

    return merge(arguments.folders)


def _schema(arguments: argparse.Namespace) -> None:
    from coupled_adam_bench.cli.schema_json import write_schemas

    write_schemas(arguments.out)


def add_commands(stage: AddCommand) -> None:
    """Add the commands of this module to the command line."""
    sub = stage("plan", _write_plan, "validate a study and write its plan", plan=False)
    sub.add_argument(
        "--study",
        type=Path,
        required=True,
        help="a study's YAML file; its parts, if any, lie in the same folder",
    )
    sub.add_out("the plan, JSON")
    sub = stage(
        "describe", _describe, "say what a study takes: time, memory, disk, money, and what is done"
    )
    sub.add_argument("--out", type=Path, help="where to write the text")
    sub.add_argument("--all", action="store_true", help="list every cell as well")
    sub = stage(
        "fetch",
        _fetch,
        "download all that a study needs into paths.hub_mirror and paths.word_similarity",
    )
    sub.add_argument(
        "--dry-run",
        action="store_true",
        help="only say how much it takes, and whether the disk has it",
    )
    sub.add_argument(
        "--bytes-per-token",
        type=float,
        help="text to fetch for each token of data.max_tokens (default: 5)",
    )
    sub = stage(
        "rehearse",
        _rehearse,
        "rehearse a study without a GPU; exit status 1 if something was found",
    )
    sub.add_templates()
    sub = stage("measure", _measure, measuring.DESCRIPTION, plan=False)
    # Those who measure a model without a study need no plan.
    lists = "what fetch has written, if it is there"
    measuring.add_arguments(sub, default_lists=lists, default_counts="those of the data of a cell")
    sub.add_argument(
        "--figure",
        type=Path,
        help=f"where to draw spectra and curves: {', '.join(_FIGURE_ENDINGS)}",
    )
    summary = (
        "train and evaluate cells of a manifest again, elsewhere; exit status 0: they reproduce, 1:"
        " one does not, 3: one could not be checked"
    )
    sub = stage("verify", _verify, summary, plan=False)
    sub.add_argument("manifest", type=Path, help="results/<study>/manifest.json")
    which = sub.add_mutually_exclusive_group(required=True)
    which.add_argument("--cells", action="extend", nargs="+", help="cell ids")
    which.add_argument(
        "--sample", type=positive, metavar="K", help="K of the trained cells, drawn at random"
    )
    sub.add_argument(
        "--sample-seed", type=int, default=0, help="seed of that draw (default: %(default)s)"
    )
    sub.add_argument(
        "--folder", type=Path, help="where to train, and go on later (default: a temporary folder)"
    )
    sub.add_argument(
        "--tolerance",
        action="extend",
        nargs="+",
        default=[],
        metavar="METRIC=NUMBER",
        help="in place of the default's",
    )
    sub.add_argument(
        "--config",
        action="extend",
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        help="the study's paths, as 'paths={text: FOLDER}'",
    )
    sub.add_argument(
        "--threads", type=positive, help="threads of training and evaluation (default: the study's)"
    )
    what = (
        "trainings of a cell whose numbers lie off, to measure how far rounding moves them"
        " (default: %(default)s)"
    )
    sub.add_argument("--repeats", type=positive, default=3, metavar="K", help=what)
    sub.add_device()
    summary = (
        "take runs that were trained elsewhere into results/; exit status 1 if one was left out"
    )
    sub = stage("merge", _merge, summary, plan=False)
    sub.add_argument(
        "folders", nargs="+", type=Path, metavar="FOLDER", help="a results folder of another place"
    )
    stage(
        "schema", _schema, "write the JSON schemas of studies, bundles and results", plan=False
    ).add_out("their folder")
