"""Tries a study's downstream tasks before anything is trained: it loads and tokenizes them, and scores nothing."""

import math
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from coupled_adam_bench.data.bins import load_meta
from coupled_adam_bench.data.check import TOKENIZER
from coupled_adam_bench.evaluation import settings
from coupled_adam_bench.evaluation.downstream import load_tasks, run_tasks, task_rows
from coupled_adam_bench.store import paths
from coupled_adam_bench.store.files import digest
from coupled_adam_bench.study.config import Model, Study
from coupled_adam_bench.study.plan import Plan


def try_tasks(plan: Plan) -> dict[str, Any]:
    """Try the tasks of all studies of a plan, whose data must be prepared; return what was found in each.

    ``ValueError`` for a task that cannot be loaded, has no items or no ``acc``, or has an item that cannot be scored.
    """
    tried: dict[str, dict[str, Any]] = {}
    studies = []
    for study in plan.studies.values():
        if study.evaluation.downstream is None:
            continue
        data_id = plan.data_id(study)
        settings_hash = digest(settings.downstream(study, data_id))
        if (key := settings_hash + data_id) not in tried:
            tried[key] = try_study_tasks(study, data_id)
        studies.append(
            {
                "study": study.name,
                "data_id": data_id,
                "seq_len": study.training.seq_len,
                "settings_hash": settings_hash,
                "tasks": tried[key],
            }
        )
    return {"studies": studies}


def try_study_tasks(study: Study, data_id: str) -> dict[str, Any]:
    """Try the tasks of one study; return by task the number of its items and the lengths of its requests in tokens."""
    with tempfile.TemporaryDirectory(prefix="coupled-adam-bench-") as folder, load_tasks(study, data_id) as loaded:
        _save_small_model(study, paths.data_dir(data_id), Path(folder) / "model")
        from coupled_adam_bench.evaluation.harness_model import ADVICE, HarnessModel, Lengths

        lm = HarnessModel(Path(folder) / "model", study, rehearsal=True)
        scored = run_tasks(loaded, lm, settings.downstream_of(study).limit)
    rows, reasons = task_rows(list(loaded), scored.results, scored.gaps)
    if any(row["metric"] == "acc" and math.isnan(row["value"]) for row in rows):
        raise ValueError(f"evaluation.downstream.tasks: {'; '.join(reasons)}; Acc is the mean of acc: {ADVICE}")
    return {
        name: {"items": counted["effective"], **asdict(lm.lengths.get(name, Lengths()))}
        for name, counted in scored.items.items()
    }


def _save_small_model(study: Study, data: Path, folder: Path) -> None:
    """Write a model of one tiny layer, with the study's tokenizer and sequence length, in the format of training."""
    from coupled_adam_bench.models.build import build_model
    from coupled_adam_bench.models.export import save_model

    meta = load_meta(data)
    small = Model(name="small", n_layer=1, n_head=1, d_model=2, learning_rate=1.0)
    model = build_model(small, study.data.vocab_size, study.training.seq_len)
    model.init_weights(0, 0.02)
    save_model(model, folder, data / TOKENIZER, meta.eot_id)
