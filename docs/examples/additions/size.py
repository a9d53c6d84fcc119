# src/coupled_adam_bench/evaluation/size.py
"""How large the exported model is on disk."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from coupled_adam_bench.records.stored import Evaluation, Evaluator, row
from coupled_adam_bench.study.plan.cells import Cell
from coupled_adam_bench.study.settings import Study


def settings(study: Study, data_id: str) -> dict[str, Any]:  # noqa: ARG001
    """Return everything but the model that can change the size: nothing."""
    return {}


@contextmanager
def open_evaluator(study: Study, data_id: str, device: str) -> Iterator[Evaluator]:  # noqa: ARG001
    """Yield the evaluator; there is nothing that all cells share."""

    def evaluate(cell: Cell, model: Path) -> Evaluation:  # noqa: ARG001
        size = sum(path.stat().st_size for path in model.rglob("*") if path.is_file())
        return Evaluation([row("size", "megabytes", size / 1e6, "MB")])

    yield evaluate
