"""The command ``verify``: trains cells of a manifest again, elsewhere, and says whether their
numbers come out."""

import math
import os
import random
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coupled_adam_bench.machine.process import environment
from coupled_adam_bench.machine.progress import say
from coupled_adam_bench.records.stored import measurement_of
from coupled_adam_bench.store import paths
from coupled_adam_bench.store.runs import FINISHED, read_run
from coupled_adam_bench.study.plan.cells import Cell
from coupled_adam_bench.tools.verify.judge import (
    LEVEL,
    Finding,
    MetricKey,
    Numbers,
    Outcome,
    Rerun,
    judge,
)
from coupled_adam_bench.tools.verify.recorded import Recorded, read_recorded
from coupled_adam_bench.tools.verify.rerun import (
    OtherTokensError,
    Run,
    run_in_process,
    train_again,
)

NOT_CHECKED = 3
"""The exit status of a check that does not know; 1 is that of a number that does not come out, 2
that of a mistake in the command."""
_EXIT_STATUS = {
    Outcome.OTHER: 1,
    Outcome.UNCHECKED: NOT_CHECKED,
    Outcome.CLOSE: 0,
    Outcome.EXACT: 0,
}
_SHOWN = 10


@dataclass(frozen=True)
class Verdict:
    """What came out of the check of a cell, and what it rests on."""

    word: Outcome
    notes: Sequence[str]
    findings: Sequence[Finding] = ()


def deciding(cell: Cell) -> set[MetricKey]:
    """Return the numbers that decide: those that the study's tables print, or all metrics where it
    has no table."""
    study = cell.study
    printed = {
        name for table in study.tables_of_blocks.values() for name in table.columns
    } or study.metrics
    return {(metric.task, name) for name, metric in study.metrics.items() if name in printed}


def _measured(cell: Cell, folder: Path) -> dict[str, dict[MetricKey, float]]:
    """Return the numbers of a cell that was evaluated in ``folder``, by stage."""
    runs = folder / paths.RESULTS / paths.RUNS.name
    found = {}
    for stage in cell.study.stages:
        rows = measurement_of(stage, cell.study, cell.data_id, runs).read(cell.id)["results"]
        found[stage.name] = {(row["task"], row["metric"]): row["value"] for row in rows}
    return found


def _compare(recorded: Recorded, cell: Cell, folder: Path) -> tuple[bool, list[str], Rerun | None]:
    """Return whether a cell that was trained again in ``folder`` has the same bits, notes, and the
    numbers to judge.

    There is nothing to judge if training ended in another way.
    """
    files = paths.RunFiles(paths.run_dir(cell.id, folder / paths.RESULTS))
    then, now = recorded.cells[cell.id], read_run(files.record)
    environments = then["environment"], now["environment"]
    notes = [
        f"another {name}: {environments[0].get(name)} then, {environments[1].get(name)} here"
        for name in dict.fromkeys((*environments[0], *environments[1]))
        if environments[0].get(name) != environments[1].get(name)
    ]
    # A run that ended in another way has other numbers, of which no distance says anything.
    for name in ("status", "reason", "step"):
        if then[name] != now[name]:
            return (
                False,
                [f"{name}: {then[name]!r} in the manifest, {now[name]!r} here", *notes],
                None,
            )
    same_weights = then["model_sha256"] == now["model_sha256"]
    known = dict(recorded.values.get(cell.id, {}))
    here: dict[MetricKey, float] = {}
    for name, numbers in _measured(cell, folder).items():
        if name in recorded.other_stages:
            notes.append(f"not compared: {name}, whose mathematics has another version here")
            known = {number: value for number, value in known.items() if number not in numbers}
        else:
            here |= numbers
    rerun = Rerun(cell.id, known, [here], deciding(cell), same_weights)
    said = f"{len(rerun.others)} of {len(here)} numbers have other bits; the weights are "
    return (
        same_weights and not rerun.others,
        [f"{said}{'' if same_weights else 'not '}the same", *notes],
        rerun,
    )


def _repeat(
    recorded: Recorded,
    cell: Cell,
    folder: Path,
    device: str,
    run: Run,
    repeats: int,
    here: list[Numbers],
) -> str | None:
    """Append to ``here`` the numbers of more trainings of a cell, until it has ``repeats``; return
    what prevents it.

    They have smaller micro-batches than the one in ``folder``, and so other orders of their sums.
    """
    record = paths.RunFiles(paths.run_dir(cell.id, folder / paths.RESULTS)).record
    sequences = read_run(record)["train"]["micro_batch_sequences"]
    sizes = list(dict.fromkeys(math.ceil(sequences / parts) for parts in range(2, sequences + 1)))
    for size in sizes[: repeats - 1]:
        again = folder / f"micro-batch-{size}"
        data = again / paths.RESULTS / "data"
        data.parent.mkdir(parents=True, exist_ok=True)
        if not data.exists():
            data.symlink_to(folder / paths.RESULTS / "data")
        if (problem := train_again(recorded, cell, again, device, run, size)) is not None:
            return f"with micro-batches of {size}: {problem}"
        here.append(
            {
                number: value
                for found in _measured(cell, again).values()
                for number, value in found.items()
            }
        )
    return None


def _verify_cell(
    recorded: Recorded,
    cell_id: str,
    folder: Path,
    device: str,
    own: Mapping[str, float],
    repeats: int,
    n_numbers: int,
    run: Run,
) -> Verdict:
    """Train and evaluate a cell again in ``folder``, and return the verdict on it.

    A cell that comes out with other weights is trained ``repeats`` times, which measures what
    rounding does.
    """
    if recorded.cells[cell_id]["status"] not in FINISHED:
        return Verdict(
            Outcome.UNCHECKED, [f"it was not trained: {recorded.cells[cell_id]['reason']}"]
        )
    cell = recorded.plan.cells[cell_id]
    try:
        problem = train_again(recorded, cell, folder, device, run)
    except OtherTokensError as error:
        return Verdict(Outcome.OTHER, [str(error)])
    if problem is not None:
        return Verdict(Outcome.UNCHECKED, [problem])
    exact, notes, rerun = _compare(recorded, cell, folder)
    if rerun is None or exact:
        return Verdict(Outcome.EXACT if exact else Outcome.OTHER, notes)
    # With the same weights, or with a user's tolerance for each number that decides, no repeats are
    # needed to judge.
    decided = rerun.same_weights or all(
        number[1] in own for number in rerun.others if number in rerun.deciding
    )
    if not decided:
        problem = _repeat(recorded, cell, folder, device, run, repeats, rerun.here)
        if problem is not None:
            return Verdict(Outcome.UNCHECKED, [problem, *notes])
    if len(rerun.here) > 1:
        notes.insert(0, f"trained {len(rerun.here)} times, of which the numbers here are the means")
    findings = judge(rerun, recorded.seeds, own, n_numbers)
    return Verdict(worst([finding.word for finding in findings]), notes, findings)


def verify_cells(
    recorded: Recorded,
    cells: Sequence[str],
    folder: Path,
    device: str,
    own: Mapping[str, float],
    repeats: int,
    run: Run,
) -> dict[str, Verdict]:
    """Train and evaluate cells again in ``folder``, print what comes of each, and return the
    verdicts by the cells."""
    # Bonferroni's correction is for all numbers that decide, without those for which a user has
    # tolerances.
    n_numbers = sum(
        number in recorded.values.get(name, {}) and number[1] not in own
        for name in cells
        for number in deciding(recorded.plan.cells[name])
    )
    verdicts = {}
    for name in cells:
        verdict = _verify_cell(recorded, name, folder, device, own, repeats, n_numbers, run)
        shown = [f"{finding.said}: {finding}" for finding in verdict.findings[:_SHOWN]]
        print(f"{name}: {verdict.word}", *shown, *verdict.notes, sep="\n  ", flush=True)
        verdicts[name] = verdict
    return verdicts


def worst(words: Sequence[Outcome]) -> Outcome:
    """Return the worst of the words of a check."""
    return min(words, key=list(Outcome).index, default=Outcome.CLOSE)


def choose(recorded: Recorded, sample: int, seed: int) -> list[str]:
    """Return ``sample`` of the trained cells of a manifest, drawn at random without replacement, in
    its order."""
    trained = [cell_id for cell_id, cell in recorded.cells.items() if cell["status"] in FINISHED]
    if sample > len(trained):
        raise ValueError(f"--sample: {sample}, but the manifest has {len(trained)} trained cells")
    chosen = set(random.Random(seed).sample(trained, sample))
    return [cell_id for cell_id in trained if cell_id in chosen]


def verify(
    manifest: Path,
    cells: Sequence[str],
    sample: int | None,
    *,
    sample_seed: int = 0,
    folder: Path | None = None,
    device: str = "auto",
    own: Mapping[str, float] | None = None,
    given: Mapping[str, Any] | None = None,
    threads: int | None = None,
    repeats: int = 1,
    run: Run = run_in_process,
) -> int:
    """Verify ``cells`` of a manifest, or a ``sample`` of them, print one verdict and return its
    exit status.

    They are trained in ``folder``, in which a start goes on with what an earlier one left, or in a
    temporary one, with ``threads`` in place of the study's, and ``repeats`` times where they lie
    off. ``own`` are tolerances by metric that replace ours, and ``given`` are paths of the user's
    files by their names in a study.
    """
    recorded, own = read_recorded(manifest, given, threads), own or {}
    if unknown := [cell for cell in cells if cell not in recorded.cells]:
        raise ValueError(f"--cells: {', '.join(unknown)} not in {manifest}")
    chosen = (
        choose(recorded, sample, sample_seed) if sample is not None else list(dict.fromkeys(cells))
    )
    home = os.pathsep.join(filter(None, (str(Path.cwd()), os.environ.get("PYTHONPATH"))))
    with ExitStack() as stack:
        # The user's own modules are found from any folder.
        stack.enter_context(environment({"PYTHONPATH": home}))
        if folder is None:
            folder = Path(
                stack.enter_context(tempfile.TemporaryDirectory(prefix="coupled-adam-bench-"))
            )
        folder = folder.absolute()
        say(f"verify: {len(chosen)} of {len(recorded.cells)} cells of {manifest}, in {folder}")
        verdicts = verify_cells(recorded, chosen, folder, device, own, repeats, run)
    word = worst([verdict.word for verdict in verdicts.values()])
    print(f"{len(chosen)} of {len(recorded.cells)} cells: {word}")
    findings = [
        (finding.share, name, finding)
        for name, verdict in verdicts.items()
        for finding in verdict.findings
    ]
    if findings:
        _, farthest, finding = max(findings, key=lambda each: each[0])
        print(f"  the farthest of the numbers that decide: {farthest}: {finding}")
        print(
            f"  if only rounding differs, any of them is called too far in at most {LEVEL:.0%} of"
            " such checks"
        )
    return _EXIT_STATUS[word]
