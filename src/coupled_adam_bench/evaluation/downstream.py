"""The stage ``downstream``: tasks of the lm-evaluation-harness, loaded once for all cells."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from coupled_adam_bench.data.check import TOKENIZER
from coupled_adam_bench.evaluation import settings
from coupled_adam_bench.evaluation.task_loading import load_tasks
from coupled_adam_bench.evaluation.task_scores import run_tasks, task_rows
from coupled_adam_bench.machine.device import pick_device
from coupled_adam_bench.machine.process import rarely_collected
from coupled_adam_bench.machine.progress import say
from coupled_adam_bench.records.kept import DOCUMENTS, pack_documents
from coupled_adam_bench.records.stored import Evaluation, Evaluator
from coupled_adam_bench.store import paths
from coupled_adam_bench.store.files import digest
from coupled_adam_bench.study.plan import Plan
from coupled_adam_bench.study.plan.cells import Cell
from coupled_adam_bench.study.settings import Study


@contextmanager
def open_evaluator(study: Study, data_id: str, device: str) -> Iterator[Evaluator]:
    """Import lm-eval, load the tasks with their data and yield the evaluator.

    ``ValueError`` for a task that cannot be loaded, such as one whose dataset is on an unreachable
    hub.
    """
    device = pick_device(device)
    with load_tasks(study, data_id) as loaded:
        with rarely_collected():
            from coupled_adam_bench.evaluation.harness_model import HarnessModel, KnownTokens
        tokens: KnownTokens = {}

        def evaluate(cell: Cell, model: Path) -> Evaluation:
            lm = HarnessModel(model, study, device, tokens, cell=cell)
            scored = run_tasks(
                loaded, lm, settings.downstream_of(study).limit, f" of cell {cell.id}"
            )
            rows, reasons = task_rows(list(loaded), scored.results, scored.gaps)
            detail = {"tasks": scored.items, "lm_eval": version("lm_eval"), "device": device}
            return Evaluation(rows, reasons, detail, {DOCUMENTS: pack_documents(scored.documents)})

        yield evaluate


def try_tasks(plan: Plan) -> dict[str, dict[str, int]]:
    """Load and tokenize the tasks of all studies of a plan, whose data must be prepared, before
    anything is trained.

    Returns by study and task the number of items, and prints which have choices of the same tokens.
    Nothing is scored. ``ValueError`` for a task that cannot be loaded, has no items or no ``acc``,
    or has an item that cannot be scored, or whose answer lm-eval does not understand.
    """
    tried: dict[str, dict[str, int]] = {}
    found = {}
    for study in plan.studies.values():
        if study.evaluation.downstream is None:
            continue
        data_id = plan.data_id(study)
        key = digest(settings.downstream(study, data_id)) + data_id
        if key not in tried:
            tried[key] = _try_study(study, data_id)
        found[study.name] = tried[key]
    return found


def _try_study(study: Study, data_id: str) -> dict[str, int]:
    with load_tasks(study, data_id) as loaded:
        from coupled_adam_bench.evaluation.harness_model import ADVICE, HarnessModel
        from coupled_adam_bench.evaluation.items import check_acc

        lm = HarnessModel(paths.data_dir(data_id) / TOKENIZER, study, rehearsal=True)
        scored = run_tasks(loaded, lm, settings.downstream_of(study).limit)
    for said in scored.ties:
        say(f"try-tasks: {said}")
    for name, tasks in loaded.items():
        if "acc,none" in scored.results[name]:
            check_acc(name, tasks["tasks"], scored.documents)
    rows, reasons = task_rows(list(loaded), scored.results, scored.gaps)
    if any(row["metric"] == "acc" and math.isnan(row["value"]) for row in rows):
        raise ValueError(
            f"evaluation.downstream.tasks: {'; '.join(reasons)}; Acc is the mean of acc: {ADVICE}"
        )
    return {name: counted["effective"] for name, counted in scored.items.items()}
