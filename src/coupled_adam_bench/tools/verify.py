"""Whether a finished study holds: its files as they were made, and cells of it made again."""

from collections.abc import Sequence
from contextlib import chdir
from dataclasses import replace
from pathlib import Path

import numpy as np
from pandas import DataFrame

from coupled_adam_bench.results.collect import collect
from coupled_adam_bench.results.values import read_results
from coupled_adam_bench.store.runs import data_dir, run_of
from coupled_adam_bench.study.data import Paths
from coupled_adam_bench.study.plan import Cell, Plan, read_plan
from coupled_adam_bench.tools.start import start

NUMBER = ["cell", "task", "metric"]
SHOWN = 5


def verify(file: Path, ids: Sequence[str], folder: Path, tolerance: float = 0.0) -> int:
    """Check a study by its ``plan.json``, say what was found, and return the exit status.

    First the files of its runs are held against their digests, and ``results.csv`` against what was
    measured. Then cells (by default the one with the least work) are trained and measured again in
    ``folder``, unless they are there already. A number may be off by ``tolerance``, relative to it
    where it is above 1; 0 asks for the same bits, which the same kind of processor gives.

    Returns:
        0 if all is as it was, and 1 if something is off.

    Raises:
        ValueError: The folder or a cell is wrong, or a cell could not be made again.
    """
    if folder.resolve() == Path.cwd():
        raise ValueError(f"folder: {folder} is where the study's own runs lie; give another")
    plan = read_plan(file)
    results = read_results(str(file.with_name("results.csv")))
    least = min(plan.cells.values(), key=lambda cell: cell.n_params * cell.n_tokens)
    cells = plan.find(ids or [least.id])
    made = [cell for cell in plan.cells.values() if run_of(cell.id).record.is_file()]
    # Each says what it finds, also behind one that has found something.
    is_good = _is_as_made(made) & _is_near(str(file.parent), plan, made, results, 0.0)
    again = _make_again(plan, cells, folder)
    with chdir(folder):
        for cell in cells:
            is_good &= _is_near(f"{cell.id} again", again, [cell], results, tolerance)
    return 0 if is_good else 1


def _is_as_made(cells: Sequence[Cell]) -> bool:
    """Say which files of runs are not those that their records name, and tell if all are."""
    is_good = True
    for cell in cells:
        try:
            run_of(cell.id).check()
        except (ValueError, OSError) as error:
            print(f"OFF: {error}")
            is_good = False
    return is_good


def _is_near(
    what: str, plan: Plan, cells: Sequence[Cell], results: DataFrame, tolerance: float
) -> bool:
    """Say how far the numbers of cells here are from ``results.csv``, and tell if that is near."""
    ids = [cell.id for cell in cells]
    then, now = (each[each["cell"].isin(ids)] for each in (results, collect(plan, partial=True)))
    far = apart(then, now)
    farthest = float(max([0.0, *far["apart"]]))
    is_near = farthest <= tolerance
    word = "the same bits" if farthest == 0 else f"{'near' if is_near else 'OFF'}, the farthest:"
    print(f"{what}: {len(far)} numbers, {word}")
    if farthest:
        print(far[far["apart"] > 0].head(SHOWN).to_string(index=False))
    return is_near


def apart(then: DataFrame, now: DataFrame) -> DataFrame:
    """Return all numbers of two frames, the farthest apart first, with then, now and distance.

    The distance is relative where numbers are above 1, and infinite where one is missing.
    """
    columns = [*NUMBER, "value"]
    both = then[columns].merge(now[columns], "outer", NUMBER, suffixes=("_then", "_now"))
    one, other = both["value_then"], both["value_now"]
    size = both[["value_then", "value_now"]].abs().max(axis=1).clip(lower=1.0)
    both["apart"] = ((one - other).abs() / size).fillna(np.inf)
    both.loc[one.isna() & other.isna(), "apart"] = 0.0
    return both.sort_values("apart", ascending=False)


def _make_again(plan: Plan, cells: Sequence[Cell], folder: Path) -> Plan:
    """Train and measure cells in ``folder``, and return their plan there.

    ``ValueError`` if that fails.
    """
    data = folder / data_dir(plan.data_id)
    data.parent.mkdir(parents=True, exist_ok=True)
    if data_dir(plan.data_id).exists() and not data.exists():
        data.symlink_to(data_dir(plan.data_id).absolute())
    # The commands work in that folder, and the study's paths are as seen from here.
    here = Path.cwd()
    paths = {
        name: [str(here / each) for each in value] if name == "text" else str(here / value)
        for name, value in plan.study.paths.model_dump(exclude_none=True).items()
    }
    study = plan.study.model_copy(update={"paths": Paths.model_validate(paths)})
    again, given = replace(plan, study=study), ["--plan", "plan.json"]
    again.write(folder / "plan.json")
    named = [*given, "--cells", *(cell.id for cell in cells)]
    start([["prepare", *given]], folder)
    start([["train", *named]], folder)
    # With the study's threads, which training sets itself, since they decide how sums round.
    start([["evaluate", *named]], folder, threads=study.execution.evaluation_threads)
    return again
