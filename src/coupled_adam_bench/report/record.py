"""The sections on how the numbers came about: runs, protocol, and how to make the page again."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import yaml
from markupsafe import Markup

from coupled_adam_bench.page.blocks import (
    Block,
    Cell,
    Code,
    Column,
    Fold,
    Grid,
    Items,
    Part,
    Terms,
    Text,
)
from coupled_adam_bench.page.formats import MISSING, fixed, plural
from coupled_adam_bench.statistics.declared import Material, Section
from coupled_adam_bench.statistics.preregistered import in_advance, plan_checks
from coupled_adam_bench.study.plan import Plan

COMPLETED = "completed"
"""The status of a run that ended as planned."""


def _status(status: str) -> Cell:
    tone = "good" if status == COMPLETED else "bad"
    return Cell(status, f"status {tone}")


def _steps(done: int | None, planned: int) -> str:
    return f"{MISSING if done is None else done} / {planned}"


_RUNS: tuple[Column[dict[str, Any]], ...] = (
    Column("Run", lambda run: Markup("<code>{}</code>").format(run["cell"]), "row"),
    Column(
        "Status",
        lambda run: _status(run["status"]),
    ),
    Column("steps", lambda run: _steps(run["step"], run["steps"]), "number"),
    Column("seconds", lambda run: fixed(run["train"].get("seconds") or math.nan, 1), "number"),
    Column(
        "tokens/s",
        lambda run: fixed(run["train"].get("tokens_per_second") or math.nan, 0),
        "number",
    ),
    Column("Reason", lambda run: run["reason"] or "", "wrap"),
)


def _runs(material: Material) -> Iterator[Block]:
    runs = material.manifest["cells"]
    lost = [run for run in runs if run["status"] != COMPLETED]
    yield Text("Not completed:" if lost else "All runs completed.")
    sentence = Markup('<span class="status bad">{}</span> <code>{}</code>: {}')
    yield Items([sentence.format(run["status"], run["cell"], run["reason"]) for run in lost])
    yield Fold(plural(len(runs), "run"), [Grid("Runs", _RUNS, runs, tall=True)])


_LEFT_OUT = {
    "n_empty_documents": "documents without text",
    "n_invalid_documents": "rows without valid text",
    "n_files_without_text": "files without text",
    "n_hidden_files": "hidden files and folders",
}


def _left_out(data: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield a term for each text of which something was not read, or was read otherwise, with the
    counts."""
    for one in data:
        source = one["meta"]["source"] if one["meta"] else {}
        counts = [
            f"{what}: {source[name]:,}" for name, what in _LEFT_OUT.items() if source.get(name)
        ]
        counts += [
            f"files {ending}: {number:,}"
            for ending, number in source.get("other_files", {}).items()
        ]
        if counts:
            yield f"left out of {one['id']}", ", ".join(counts)
        if read_back := source.get("read_back"):
            yield f"text of {one['id']} that its tokenizer changes", read_back
        if n_documents := source.get("n_documents_with_end"):
            yield f"documents of {one['id']} with <|endoftext|> as text", f"{n_documents:,}"


def _protocol(material: Material) -> Iterator[Block]:
    manifest = material.manifest

    def named(versions: Mapping[str, Any]) -> str:
        return ", ".join(f"{name} {version}" for name, version in versions.items())

    terms = [
        ("protocol", manifest["protocol"]["name"]),
        ("versions", named(manifest["protocol"]["versions"])),
        ("data", "; ".join(data["id"] for data in manifest["data"])),
        *_left_out(manifest["data"]),
        ("source revision of this report", manifest["git_revision"] or "not in a git repository"),
    ]
    # What differs between runs has all of its values, so that a change on the way can be seen.
    for name, texts in environments(manifest["cells"]).items():
        terms.append((f"runs: {name}", "; ".join(texts)))
    terms.append(("packages of the report", named(manifest["packages"])))
    yield Text("Results are comparable only within a protocol and its versions.")
    yield Terms(terms)
    yield Text(
        Markup(
            "Settings, checksums of results, tables, figures and data, and the record of every run:"
            ' <a href="../manifest.json">manifest.json</a>.'
        )
    )


def environments(cells: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Return every value of every item of the runs' environments."""
    values: dict[str, dict[str, None]] = {}
    for cell in cells:
        for name, value in cell["environment"].items():
            values.setdefault(name, {})[str(value)] = None
    return {name: list(texts) for name, texts in values.items()}


def study_files(plan: Plan) -> dict[str, str]:
    """Return study files that give this plan again, by name; their ``paths`` are left out."""
    files = {
        study.name: study.model_dump(mode="json", exclude={"paths"}, exclude_unset=True)
        for study in plan.studies.values()
    }
    if plan.name not in files:
        files = {
            plan.name: {"study": plan.name, "title": plan.title, "studies": list(files)},
            **files,
        }
    return {
        f"{name}.yaml": yaml.safe_dump(values, sort_keys=False, width=100)
        for name, values in files.items()
    }


def _stated(material: Material) -> str:
    """Return whether hypotheses were stated before the runs."""
    stated = material.plan.stated
    if stated is None:
        return "No plan was stated before the runs: every test of this report is exploratory."
    is_before = in_advance(plan_checks(material))
    return Markup('A plan was stated {}: <code>{}</code>, see <a href="#stated">{}</a>.').format(
        "before the first run" if is_before else "but is not shown to be older than the first run",
        stated.path,
        "Stated in advance",
    )


def _reproduce(material: Material) -> Iterator[Block]:
    cells = material.manifest["cells"]
    statuses = Counter(cell["status"] for cell in cells)
    completed = [cell["cell"] for cell in cells if cell["status"] == COMPLETED]
    values = {
        "revision": material.manifest["git_revision"],
        "name": material.plan.name,
        "statuses": statuses,
        "n_failed": len(cells) - len(completed),
        "cell": next(iter(completed), ""),
        "stated": _stated(material),
    }
    yield Part("reproduce.html.j2", values)
    yield from (Fold(name, [Code(text)]) for name, text in study_files(material.plan).items())


RUNS = Section("runs", "Runs", _runs)
PROTOCOL = Section("protocol", "Protocol and environment", _protocol)
REPRODUCE = Section("reproduce", "This page again", _reproduce)
