"""Compares a cell that was trained again with what its manifest records, and says whether it reproduces."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from coupled_adam_bench.store.files import read_sealed
from coupled_adam_bench.store.paths import RunFiles
from coupled_adam_bench.store.runs import read_run, run_history
from coupled_adam_bench.store.stored import measurement_of
from coupled_adam_bench.store.weights import sha256_without_cell
from coupled_adam_bench.study.catalog.metrics import Metric
from coupled_adam_bench.study.cells import Cell
from coupled_adam_bench.tools.verify.recorded import Number, Recorded

_OF_THE_MACHINE = ("tokens_per_second", "peak_memory_bytes", "seconds_left", "time", "mfu")
"""What a line of a history says of the machine, not of the training."""
_SHOWN = 10
Values = Mapping[Number, float]


class Word(StrEnum):
    """What comes out of the check of a cell."""

    EXACT = "reproduced bit for bit"
    CLOSE = "reproduced within the tolerances"
    OTHER = "NOT reproduced"
    UNCHECKED = "not checked"


@dataclass(frozen=True)
class Difference:
    """A number that came out otherwise; its ``tolerance`` is NaN if it is not judged."""

    name: str
    recorded: float
    here: float
    tolerance: float

    @property
    def is_far(self) -> bool:
        """Whether the number differs by more than its tolerance; NaN and a number always do."""
        if math.isnan(self.tolerance):
            return False
        return not abs(self.here - self.recorded) <= self.tolerance

    @property
    def share(self) -> float:
        """The difference as a share of its tolerance; that of a number that is not judged comes last."""
        return -1.0 if math.isnan(self.tolerance) else abs(self.here - self.recorded) / self.tolerance

    def __str__(self) -> str:
        """Say both values, in full."""
        judged = "not judged" if math.isnan(self.tolerance) else f"tolerance {self.tolerance:g}"
        return f"{self.name}: {self.recorded!r} in the manifest's results, {self.here!r} here ({judged})"


@dataclass
class Verdict:
    """The verdict on a cell.

    ``compared`` names what was compared, ``differing`` the files that are not the same bit for bit, and ``notes`` what
    could not be compared; ``versions`` has what differs in the environment of the training, as (then, here).
    """

    cell: str
    word: Word
    reason: str = ""
    compared: list[str] = field(default_factory=list)
    differing: list[str] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    versions: dict[str, tuple[Any, Any]] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """Return the verdict as lines of text: the verdict first, then what it rests on."""
        far = [difference for difference in self.differences if difference.is_far]
        near = [difference for difference in self.differences if not difference.is_far]
        nearest = sorted(near, key=lambda difference: difference.share, reverse=True)
        rows = [self.reason] if self.reason else []
        rows += [f"compared: {', '.join(self.compared)}"] if self.compared else []
        rows += [f"not the same bit for bit: {', '.join(self.differing)}"] if self.differing else []
        rows += [f"too far: {difference}" for difference in far[:_SHOWN]]
        rows += [f"and {len(far) - _SHOWN} more that are too far"] if len(far) > _SHOWN else []
        rows += [f"{len(near)} numbers differ and are allowed to, such as {nearest[0]}"] if near else []
        rows += [f"not compared: {note}" for note in self.notes]
        rows += [f"another {name}: {then} then, {here} here" for name, (then, here) in self.versions.items()]
        return [f"{self.cell}: {self.word}", *(f"  {row}" for row in rows)]

    def to_json(self) -> dict[str, Any]:
        """Return the verdict as a JSON value."""
        return asdict(self)


def same(a: float, b: float) -> bool:
    """Tell whether two numbers are the same float64; NaN is the same as NaN."""
    return a == b or (math.isnan(a) and math.isnan(b))


def tolerances(metrics: Mapping[str, Metric], spread: Values, own: Mapping[str, float]) -> dict[Number, float]:
    """Return the tolerance of each metric that tables can print, given its standard deviation over seeds.

    It is one unit in the last digit that tables print, or the standard deviation if that is larger: a training that
    rounds otherwise may end as far away, and changes no conclusion. ``own`` are a user's by the name of a metric.
    """
    return {
        (metric.task, metric.name): own.get(
            metric.name, max(10.0**-metric.digits, spread.get((metric.task, metric.name), 0.0))
        )
        for metric in metrics.values()
    }


def compare_numbers(recorded: Values, here: Values, allowed: Values, own: Mapping[str, float]) -> list[Difference]:
    """Return the numbers that differ, in the order of ``here``; a number that only one side has is NaN on the other."""
    differences = []
    for task, metric in dict.fromkeys((*here, *recorded)):
        then, now = (values.get((task, metric), math.nan) for values in (recorded, here))
        if not same(then, now):
            tolerance = allowed.get((task, metric), own.get(metric, math.nan))
            differences.append(Difference(f"{task} {metric}", then, now, tolerance))
    return differences


def compare_histories(recorded: list[dict[str, Any]], here: list[dict[str, Any]]) -> list[Difference]:
    """Return the numbers of two histories that differ, line by line; what a line says of the machine is left out.

    The same weights have the same history, and other weights another one, so no number has a tolerance of its own.
    """
    differences = []
    lines = [{row["step"]: row for row in rows} for rows in (recorded, here)]
    for step in sorted({*lines[0], *lines[1]}):
        then, now = (rows.get(step, {}) for rows in lines)
        for name in dict.fromkeys((*then, *now)):
            old, new = (float(row.get(name, math.nan)) for row in (then, now))
            if name not in _OF_THE_MACHINE and not same(old, new):
                differences.append(Difference(f"history, step {step}, {name}", old, new, math.nan))
    return differences


def _evaluations(recorded: Recorded, cell: Cell, files: RunFiles, verdict: Verdict) -> dict[Number, float]:
    """Return the numbers of a cell's evaluations here; the verdict is told of files beside them that differ.

    A stage whose mathematics has changed since has a note, and is not judged.
    """
    found: dict[Number, float] = {}
    then = recorded.run(cell.id)
    for stage in cell.study.stages:
        measurement = measurement_of(stage, cell.study, cell.data_id, files.folder.parent)
        record = measurement.read(cell.id)
        numbers = {(row["task"], row["metric"]): row["value"] for row in record["results"]}
        if stage.name in recorded.other_stages:
            known = recorded.values.get(cell.id, {})
            both = [same(value, known[key]) for key, value in numbers.items() if key in known]
            verdict.notes.append(
                f"{stage.name}, whose mathematics has another version here: of {len(both)} numbers that both have, "
                f"{sum(both)} are the same bit for bit"
            )
            continue
        found |= numbers
        file = None if then is None else then.folder / "evaluations" / measurement.find(cell.id).name
        if file is not None and file.is_file():
            others = read_sealed(file).get("files", {})
            verdict.differing += [
                name for name, sha256 in record.get("files", {}).items() if others.get(name) != sha256
            ]
    return found


def judge(recorded: Recorded, cell: Cell, files: RunFiles, own: Mapping[str, float]) -> Verdict:
    """Return the verdict on a cell that was trained and evaluated again, with the tolerances that are a user's ``own``.

    What is not recorded, such as a history where the recorded run is not there, is named and not judged.
    """
    then, now = recorded.cells[cell.id], read_run(files.record)
    verdict = Verdict(cell.id, Word.OTHER)
    for name in dict.fromkeys((*then["environment"], *now["environment"])):
        pair = (then["environment"].get(name), now["environment"].get(name))
        if pair[0] != pair[1]:
            verdict.versions[name] = pair
    for name in ("status", "reason", "step"):
        if then[name] != now[name]:
            verdict.reason = f"{name}: {then[name]!r} in the manifest, {now[name]!r} here"
            return verdict
    weights = [now["model_sha256"]]
    if now["model_sha256"] is not None:
        verdict.compared.append("the weights")
        weights.append(sha256_without_cell(files.weights))  # that of manifests of versions that wrote no cell's id
    if not (same_weights := then["model_sha256"] in weights):
        verdict.differing.append("the weights")
    found = _evaluations(recorded, cell, files, verdict)
    verdict.compared.append(f"{len(found)} numbers of evaluations")
    known = recorded.values.get(cell.id, {})
    if recorded.other_stages:  # whose numbers would otherwise be missed here
        known = {key: value for key, value in known.items() if key in found}
    allowed = tolerances(cell.study.metrics, recorded.spread(cell), own)
    verdict.differences += compare_numbers(known, found, allowed, own)
    if (run := recorded.run(cell.id)) is not None:
        rows = run_history(files.folder)
        verdict.compared.append(f"{len(rows)} lines of history")
        of_history = compare_histories(run_history(run.folder), rows)
        verdict.differences += of_history
        if same_weights and of_history:
            verdict.reason = f"the weights are the same, but not their history: {of_history[0]}"
    else:
        verdict.notes.append("the history and the files beside evaluations: the recorded run is not there")
    if not verdict.reason and not any(difference.is_far for difference in verdict.differences):
        verdict.word = Word.CLOSE if verdict.differences or verdict.differing else Word.EXACT
    return verdict
