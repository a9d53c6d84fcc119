"""Every stage of a plan for real, from the text to the report, at a size that a CPU trains in
seconds.

The miniature of a plan has its optimizers, numbers of tokens and tables, on a small language.
"""

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from coupled_adam_bench.machine.process import environment
from coupled_adam_bench.machine.progress import Progress
from coupled_adam_bench.store import paths
from coupled_adam_bench.store.files import seal, write_sealed
from coupled_adam_bench.study.plan import PLAN_SHA256, Plan, load_plan
from coupled_adam_bench.study.plan.cells import data_digest
from coupled_adam_bench.study.plan.tuning import choice_file
from coupled_adam_bench.study.settings import Model, Study, parse_study
from coupled_adam_bench.training.checks import custom_optimizers

Run = Callable[[list[str]], int]
"""Runs a command of the package and returns its exit status."""
_LOG_LINES = 15
_STEPS = 2
"""Steps of the shortest cells; each larger number of tokens has one more, so that the tables have
the same rows."""
_VALUES = 1  # of each field of a grid that is tuned: every optimizer has one candidate
_LAYERS, _WIDTH = 2, 12  # this many layers, of a twelfth of the width
_CONTEXTS = 16
_SEQ_LEN, _SEQUENCES = 16, 4
_PROCESSES = 2  # of a study that has several, so that its way of sharing is rehearsed
_LANGUAGE = {
    "kind": "synthetic",
    "n_words": 60,
    "n_classes": 4,
    "n_topics": 4,
    "n_tokens": 40_000,
    "document_tokens": 40,
    "n_word_pairs": 40,
    "n_task_items": 10,
}
_VOCAB_SIZE = 64


def rehearse_plan(plan: Plan, templates: Path, run: Run) -> int:
    """Rehearse a plan, print what was found, and return 1 if a stage stopped, else 0.

    ``run`` runs a command of the package.
    """
    started = time.perf_counter()
    stages = stage_names(plan, templates)
    with Progress(len(stages), "stages", "rehearse in miniature") as progress:
        stopped = run_miniature(plan, templates, run, lambda name: progress.update(1, stage=name))
    seconds = time.perf_counter() - started
    if stopped:
        print(f"rehearsed {plan.name}: stopped in {stopped} ({seconds:.0f} s)")
        return 1
    print(
        f"rehearsed {plan.name}: {len(stages)} stages ran on the CPU, from the text to the report,"
        f" and nothing was found ({seconds:.0f} s)"
    )
    return 0


def miniature(plan: Plan) -> dict[str, Any]:
    """Return the miniature of a plan as a JSON value (see ``Plan.to_json``).

    It has the plan's cells, but tiny, and only as many of their seeds as the tables need.
    """
    counts = sorted({cell.steps for cell in plan.cells.values()})
    steps = {count: _STEPS + index for index, count in enumerate(counts)}
    cut = [
        _cut(study, steps, plan.data_ids.index(plan.data_id(study)))
        for study in plan.studies.values()
    ]
    studies = [parse_study(values, f"the miniature of {values['study']}") for values in cut]
    return {
        "name": plan.name,
        "title": plan.title,
        "studies": [
            {"study": study.model_dump(mode="json"), "data": data_digest(study)}
            for study in studies
        ],
        "stated": None,
    }


def _cut(study: Study, steps: dict[int, int], data: int) -> dict[str, Any]:
    """Return the settings of a study's miniature; ``data`` is the number of its data among those of
    the plan."""
    values: dict[str, Any] = study.model_dump(mode="json")
    values["data"] = {
        "name": study.data.name,
        "source": _LANGUAGE | {"seed": data},  # what differs stays different
        "tokenizer": "word",
        "vocab_size": _VOCAB_SIZE,
        "split": {"val_fraction": 0.05, "test_fraction": 0.05},
    }
    values["paths"] = {}
    values["models"] = _models(study)
    training, several = study.training, study.execution.processes > 1
    sequences = _SEQUENCES * (training.data_ranks if training.data_order == "per_rank" else 1)
    values["training"] |= {
        "seq_len": _SEQ_LEN,
        "batch_sequences": sequences,
        "warmup_fraction": None,
    }
    values["training"]["warmup_steps"] = int(
        training.schedule != "wsd" and training.warmup(_STEPS) > 0
    )
    # More than half, so that the decay of the shortest run of `wsd` has the two steps that it
    # needs.
    values["training"]["decay_fraction"] = max(training.decay_fraction, 0.6)
    batch_tokens = training.batch_sequences * training.seq_len
    tables = study.tables_of_blocks
    for block, written in zip(study.grid, values["grid"], strict=True):
        written["seeds"] = block.seeds[: tables[block.table].rules.min_seeds if block.table else 1]
        written["tokens"] = []
        for tokens, count in zip(block.tokens, block.steps(batch_tokens), strict=True):
            label = None if isinstance(tokens, int) else tokens.label
            written["tokens"].append({"steps": steps[count], "label": label})
        if block.tune is not None:
            budget = None
            if block.tune.tokens is not None:
                least = min(entry["steps"] for entry in written["tokens"])
                budget = {"steps": least, "label": None}
            grids = {}
            for key, grid in block.tune.grids.items():
                grids[key] = {factor: values[:_VALUES] for factor, values in grid.items()}
            written["tune"] |= {
                "seeds": block.tune.seeds[:1],
                "tokens": budget,
                "grids": grids,
                "equal_budgets": False,
            }
    evaluation = values["evaluation"]
    evaluation["word_similarity"] = "synthetic"
    if evaluation["downstream"] is not None:
        evaluation["downstream"] |= {"tasks": "synthetic", "limit": None}
    evaluation["test_loss"] |= {"n_batches": 2, "batch_sequences": 2, "batch_sequences_of": {}}
    values["execution"] |= {
        "gpus": 0,
        "train_processes": _PROCESSES if several else None,
        "train_threads": 1,
        "evaluation_threads": 1,
        "data_threads": 1,
        "compile": False,
        "log_every": 1,
        "checkpoint_every": _STEPS,
    }
    return values


def _models(study: Study) -> list[dict[str, Any]]:
    """Return the models with a twelfth of their width, even in each of two heads, and two
    layers."""
    cut: list[dict[str, Any]] = []
    sizes: set[tuple[Any, ...]] = set()
    for model in study.models:
        width = _even_heads(model.d_model // _WIDTH)
        while (size := _size(model, width)) in sizes:
            width += 8
        sizes.add(size)
        smaller: dict[str, Any] = {"d_model": width}
        if model.n_contexts is None:
            smaller |= {"n_layer": min(_LAYERS, model.n_layer), "n_head": 2}
        else:
            smaller["n_contexts"] = min(_CONTEXTS, model.n_contexts)
        if model.rope_fraction < 1:
            smaller["rope_fraction"] = 0.5  # which leaves pairs in heads of these widths
        if model.ffn_dim is not None:
            smaller["ffn_dim"] = max(8, model.ffn_dim // _WIDTH)
        cut.append(model.model_dump(mode="json") | smaller)
    return cut


def _even_heads(width: int) -> int:
    return max(8, width // 8 * 8)


def _size(model: Model, width: int) -> tuple[Any, ...]:
    return model.architecture, model.tied, model.ffn_dim, width


def commands(plan: Plan, templates: Path) -> Iterator[list[str]]:
    """Yield the commands that take a plan to its tables and its report, as the rules of the
    workflow call them."""
    folder = paths.study_dir(plan.name)
    given = ["--plan", str(folder / "plan.json")]
    on_cpu = ["--device", "cpu"]
    if any(
        list(custom_optimizers(study)) or study.evaluation.metrics
        for study in plan.studies.values()
    ):
        yield ["try-code", *given]
    yield ["prepare", *given]
    yield ["try-tasks", *given, "--out", str(folder / "tasks.json")]
    for trunk_id, trunk in plan.trunks.items():
        branches = [str(paths.branch_file(trunk_id, step)) for step in trunk.branches]
        yield ["train-trunk", *given, "--branches", *branches, *on_cpu]
    # Candidates end before the choice, and the choice is made before the cells that wait for it.
    for study in plan.studies.values():
        if cells := [cell.id for cell in plan.tuning_cells.values() if cell.study is study]:
            yield ["train", *given, "--cells", *cells, *on_cpu]
    for tuning in plan.tunings:
        out = str(choice_file(folder / paths.TUNING, tuning))
        yield ["choose", *given, "--tuning", tuning, "--out", out, *on_cpu]
    for study in plan.studies.values():
        if cells := [cell.id for cell in plan.cells_of(study)]:
            yield ["train", *given, "--cells", *cells, *on_cpu]
            for stage in study.stages:
                done = str(folder / f"{study.name}.{stage.name}.done")
                yield [stage.command, *given, "--cells", *cells, "--done", done, *on_cpu]
    yield ["report", *given, "--templates", str(templates), "--svg-only"]


def run_miniature(
    plan: Plan, templates: Path, run: Run, on_stage: Callable[[str], None]
) -> str | None:
    """Run all stages of the miniature of ``plan`` by ``run``, and return what stopped one of them.

    ``on_stage`` is told the name of each stage before it begins. Nothing is written into the user's
    results.
    """
    templates, home = templates.absolute(), str(Path.cwd())
    with (
        tempfile.TemporaryDirectory(prefix="coupled-adam-bench-") as folder,
        contextlib.chdir(folder),
    ):
        plan_file = paths.plan_file(plan.name)
        small = miniature(plan)
        write_sealed(plan_file, small)
        log = Path(folder) / "log.txt"
        # Processes that a stage starts find the user's own modules where the study was started.
        modules = os.pathsep.join(filter(None, (home, os.environ.get("PYTHONPATH"))))
        with environment({"PYTHONPATH": modules, PLAN_SHA256: seal(small)}):
            for command in commands(load_plan(plan_file), templates):
                on_stage(command[0])
                start = log.stat().st_size if log.exists() else 0
                with _output_to(log):
                    try:
                        status = run(command)
                    except Exception as error:
                        status, said = 1, f"{type(error).__name__}: {error}"
                    else:
                        said = ""
                if status:
                    lines = log.read_bytes()[start:].decode(errors="replace").splitlines()
                    print(*lines[-_LOG_LINES:], sep="\n", file=sys.stderr)
                    errors = [
                        line.removeprefix("error: ") for line in lines if line.startswith("error: ")
                    ]
                    said = said or (errors or lines or [f"exit status {status}"])[-1]
                    return f"stage {command[0]}: {said}"
    return None


@contextlib.contextmanager
def _output_to(log: Path) -> Iterator[None]:
    """Write what this process and those that it starts print into a file."""
    sys.stdout.flush()
    sys.stderr.flush()
    saved = [(number, os.dup(number)) for number in (1, 2)]
    with log.open("a", encoding="utf-8") as target:
        try:
            for number, _ in saved:
                os.dup2(target.fileno(), number)
            with contextlib.redirect_stdout(target), contextlib.redirect_stderr(target):
                yield
        finally:
            for number, copy in saved:
                os.dup2(copy, number)
                os.close(copy)


def stage_names(plan: Plan, templates: Path) -> Sequence[str]:
    """Return the names of the stages that :func:`run_miniature` runs, in their order."""
    return [command[0] for command in commands(plan, templates)]
