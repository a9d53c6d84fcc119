"""The driver of the evaluation stages: for each cell one file beside its model, and an index of them."""

import sys
import time
import traceback
from pathlib import Path
from typing import Any

from coupled_adam_bench import paths, protocol
from coupled_adam_bench.evaluation import downstream, embedding_geometry, test_loss
from coupled_adam_bench.evaluation.record import Evaluation, Stage, table_columns
from coupled_adam_bench.files import digest, read_json, sha256_file, write_json
from coupled_adam_bench.plan import Part

STAGES = {
    stage.name: stage
    for stage in (
        Stage("test_loss", protocol.TEST_LOSS, table_columns("test"), test_loss.settings, test_loss.open_evaluator),
        Stage(
            "embeddings",
            protocol.EMBEDDINGS,
            table_columns("embeddings", "word_similarity"),
            embedding_geometry.settings,
            embedding_geometry.open_evaluator,
        ),
        Stage("lm_eval", protocol.DOWNSTREAM, table_columns("average"), downstream.settings, downstream.open_evaluator),
    )
}


def run_stage(stage: Stage, part: Part, cell_ids: list[str], index: Path, device: str = "auto") -> int:
    """Evaluate trained cells and write ``results/runs/<cell>/<stage>.json`` of each, then ``index``; return 0 or 1.

    A file that is there with the same settings, version and model is kept; a diverged cell gets NaN and its reason. If
    a cell fails, its error goes to stderr, the others are evaluated, no index is written and the result is 1. ``index``
    is a JSON object: cell id -> {"file", "sha256"}. ``ValueError`` for an unknown cell.
    """
    if unknown := [cell_id for cell_id in cell_ids if cell_id not in part.cells]:
        raise ValueError(f"cells: {', '.join(unknown)} not in study {part.study.study!r}")
    index.unlink(missing_ok=True)
    settings = stage.settings(part)
    failed = []
    pending: dict[str, str] = {}
    for cell_id in cell_ids:
        try:
            if (model_sha256 := _prepare(stage, cell_id, settings)) is not None:
                pending[cell_id] = model_sha256
        except Exception as error:
            failed.append(_report(stage, cell_id, error))
    if pending:
        with stage.open(part, device) as evaluate:
            for cell_id, model_sha256 in pending.items():
                start = time.perf_counter()
                try:
                    evaluation = evaluate(part.cells[cell_id], paths.run_dir(cell_id) / "model")
                    record = _record(stage, cell_id, settings, model_sha256, evaluation)
                    write_json(_file(stage, cell_id), record | {"seconds": time.perf_counter() - start})
                except Exception as error:
                    failed.append(_report(stage, cell_id, error))
                else:
                    seconds = time.perf_counter() - start
                    _say(f"{stage.name}: {cell_id}: {_summary(stage, evaluation)} ({seconds:.1f} s)")
    if failed:
        _say(f"{stage.name}: {len(failed)} of {len(cell_ids)} cells failed: {', '.join(failed)}")
        return 1
    files = {cell_id: _file(stage, cell_id) for cell_id in cell_ids}
    write_json(index, {cell_id: {"file": str(file), "sha256": sha256_file(file)} for cell_id, file in files.items()})
    return 0


def _prepare(stage: Stage, cell_id: str, settings: dict[str, Any]) -> str | None:
    """Return the SHA-256 of the cell's model if it is to be evaluated, None if its file is there or was written now."""
    folder = paths.run_dir(cell_id)
    run = read_json(folder / "run.json")
    if run["status"] == "diverged":
        if not _is_current(stage, cell_id, settings, None):
            record = _record(stage, cell_id, settings, None, Evaluation(stage.undefined_rows()))
            write_json(_file(stage, cell_id), record | {"status": "diverged", "reason": run["reason"]})
        _say(f"{stage.name}: {cell_id}: diverged ({run['reason']})")
        return None
    if run["status"] != "completed":
        raise ValueError(f"{folder / 'run.json'}: status {run['status']!r}, neither completed nor diverged")
    weights = folder / "model" / "model.safetensors"
    advice = f"delete {folder / 'run.json'} and run the training of this cell again"
    if not weights.is_file():
        raise ValueError(f"{weights}: missing, though {folder / 'run.json'} says completed; {advice}")
    expected: str = run["model_sha256"]
    if (actual := sha256_file(weights)) != expected:
        raise ValueError(f"{weights}: SHA-256 {actual}, but run.json says {expected}; {advice}")
    if _is_current(stage, cell_id, settings, expected):
        _say(f"{stage.name}: {cell_id}: kept, evaluated before with the same settings")
        return None
    return expected


def _record(
    stage: Stage, cell_id: str, settings: dict[str, Any], model_sha256: str | None, evaluation: Evaluation
) -> dict[str, Any]:
    return {
        "cell": cell_id,
        "stage": stage.name,
        "status": "ok",
        "reason": "; ".join(evaluation.undefined) or None,
        "version": stage.version,
        "settings": settings,
        "settings_hash": digest(settings),
        "model_sha256": model_sha256,
        "results": evaluation.results,
        **evaluation.detail,
    }


def _is_current(stage: Stage, cell_id: str, settings: dict[str, Any], model_sha256: str | None) -> bool:
    """Tell whether the cell's file has these settings, this version and this model; a broken file has not."""
    try:
        found = read_json(_file(stage, cell_id))
        return (found["settings_hash"], found["version"], found["model_sha256"]) == (
            digest(settings),
            stage.version,
            model_sha256,
        )
    except (ValueError, KeyError, TypeError):
        return False


def _file(stage: Stage, cell_id: str) -> Path:
    return paths.run_dir(cell_id) / f"{stage.name}.json"


def _summary(stage: Stage, evaluation: Evaluation) -> str:
    """Return the values of the stage's columns, for the log."""
    columns = [row for row in evaluation.results if (row["task"], row["metric"]) in stage.columns]
    return ", ".join(f"{row['metric']} {row['value']:.4g}" for row in columns)


def _report(stage: Stage, cell_id: str, error: Exception) -> str:
    """Print the traceback of what is not a user's error, and a line that says which cell failed; return its id."""
    if not isinstance(error, ValueError):
        traceback.print_exception(error)
    _say(f"{stage.name}: {cell_id}: FAILED: {type(error).__name__}: {error}")
    return cell_id


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
