"""Downstream tasks of a user's own, as files."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml


def json_lines(rows: Iterable[Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def write_task(
    name: str, content: str | list[dict[str, Any]], ending: str = "jsonl", **changes: Any
) -> None:
    """Write a task of multiple choice into ``tasks``, and its items, each with a prompt ``q``,
    choices ``c`` and the place ``a`` of the right one; ``changes`` are of its YAML."""
    file = Path(f"tasks/{name}.{ending}")
    file.parent.mkdir(exist_ok=True)
    text = content if isinstance(content, str) else json_lines(content)
    file.write_text(text, encoding="utf-8")
    task = {
        "task": name,
        "dataset_path": "csv" if ending == "csv" else "json",
        "dataset_kwargs": {"data_files": {"test": str(file)}},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{q}}",
        "doc_to_choice": "{{c}}",
        "doc_to_target": "{{a}}",
        "metric_list": [mean_of("acc")],
    }
    Path(f"tasks/{name}.yaml").write_text(yaml.safe_dump(task | changes))


def mean_of(metric: str) -> dict[str, Any]:
    return {"metric": metric, "aggregation": "mean", "higher_is_better": True}


def append(name: str, line: str) -> None:
    """Write a line into a task that YAML could not have written, such as one with a function."""
    with Path(f"tasks/{name}.yaml").open("a") as file:
        file.write(f"{line}\n")
