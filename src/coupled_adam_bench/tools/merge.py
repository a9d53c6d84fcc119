"""The command ``merge``: takes the runs of other results folders into this one, after checking
them."""

import math
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from coupled_adam_bench.data.check import META, data_is_damaged, split_checksums
from coupled_adam_bench.machine.progress import say
from coupled_adam_bench.records.stored import read_evaluation
from coupled_adam_bench.store import paths
from coupled_adam_bench.store.files import ASIDE, move_aside, read_sealed, remove
from coupled_adam_bench.store.locks import LOCK, FolderLock, folder_lock
from coupled_adam_bench.store.runs import cell_damage, finished_run, read_run, run_damage
from coupled_adam_bench.study.catalogue.stages import STAGES, VALIDATION_LOSS

_LOCK = ".merge.lock"
_NOT_COPIED = shutil.ignore_patterns(LOCK, f"*{ASIDE}*", ".*.tmp")
_BITS = ("status", "reason", "step", "model_sha256", "data_sha256")
"""What two runs of a cell have in common if they are the same; their histories hold speeds, too."""


def _refuse_links(folder: Path) -> None:
    """Raise ``ValueError`` for a link in a folder: what it points to was written by nobody that its
    records name."""
    for path in (folder, *sorted(folder.rglob("*"))):
        if path.is_symlink():
            raise ValueError(
                f"{path} is a link, which merge does not follow; put what it points to in its place"
            )


def _take(source: Path, target: Path, damage: Callable[[Path], str | None]) -> None:
    """Copy a folder to ``target``, which is not there; ``ValueError`` for ``damage`` of the copy,
    which is not kept."""
    copy = paths.RESULTS / ".merging" / target.name  # files know the name of their folder
    remove(copy)
    shutil.copytree(source, copy, ignore=_NOT_COPIED)
    try:
        if (problem := damage(copy)) is not None:
            raise ValueError(problem)
        target.parent.mkdir(parents=True, exist_ok=True)
        copy.rename(target)
    finally:
        remove(copy.parent)


def _take_data(run_dir: Path, results: Path, expected: dict[str, str] | None = None) -> None:
    """Copy the data of a run in other ``results`` if they are not here; ``ValueError`` if it has
    others than here."""
    data_id = read_sealed(paths.RunFiles(run_dir).cell)["data_id"]
    source, target = paths.data_dir(data_id, results), paths.data_dir(data_id)
    if not (target / META).is_file():
        if not (source / META).is_file():
            raise ValueError(
                f"{source}: no data there, and none here; prepare them with `snakemake data`"
            )
        _refuse_links(source)
        remove(target)
        _take(source, target, lambda copy: data_is_damaged(copy, math.inf))
    if expected is not None and split_checksums(target) != expected:
        raise ValueError(f"{target}: not the tokens that it was trained on")


def _evaluations(run_dir: Path, model_sha256: str | None) -> Iterator[tuple[Path, str | None]]:
    """Yield the evaluations of a run, each with the reason why it does not count here, or
    ``None``."""
    versions = {stage.name: stage.version for stage in (*STAGES.values(), VALIDATION_LOSS)}
    for path in sorted((run_dir / "evaluations").glob("*.json")):
        try:
            version = versions.get(read_sealed(path)["stage"])
            read_evaluation(
                path, {"cell": run_dir.name, "model_sha256": model_sha256, "version": version}
            )
            yield path, None
        except (ValueError, OSError, KeyError) as error:
            yield path, str(error)


def _take_run(source: Path, results: Path) -> bool:
    """Take a run of other ``results``, or its evaluations if the same run is here; return whether
    it was not here.

    ``ValueError`` for a run that is left out.
    """
    target, run = paths.run_dir(source.name), read_run(paths.RunFiles(source).record)
    _take_data(source, results, run["data_sha256"])
    here = finished_run(target, model=True)
    if here is not None and any(here[name] != run[name] for name in _BITS):
        raise ValueError(
            "the run here ended with other bits, and stays; to take this one, move that one away"
        )
    if here is None:
        if target.exists():
            lock = FolderLock(target)
            if not lock.acquire(0):
                raise ValueError("a process trains this cell here; merge again when it has ended")
            say(f"{target}: not whole, kept as {move_aside(target).name}")
            lock.release()
        _take(source, target, lambda copy: run_damage(copy, model=True) or cell_damage(copy))
    # The runs are now the same, so evaluations of one are those of the other.
    for path, problem in _evaluations(source, run["model_sha256"]):
        for file in path.parent.glob(f"{path.stem}.*"):
            place = target / path.parent.name / file.name
            if problem is not None and here is None:
                remove(place)
            elif problem is None and not place.exists():
                place.parent.mkdir(exist_ok=True)
                shutil.copy2(file, place)
        if problem is not None:
            say(f"{problem}; left out, and measured anew")
    return here is None


def _take_trunk(source: Path, results: Path) -> bool:
    """Take a trunk of other ``results``, unless one is here; return whether it was taken."""
    target = paths.trunk_dir(source.name)
    if target.exists():
        return False
    from coupled_adam_bench.training.checkpoint import checkpoints, damage

    def trunk_damage(copy: Path) -> str | None:
        for branch in copy.glob("branch-*.json"):
            read_run(branch)
        return cell_damage(copy) or next(
            filter(None, map(damage, checkpoints(paths.RunFiles(copy).checkpoints))), None
        )

    _take_data(source, results)
    _take(source, target, trunk_damage)
    return True


def merge(folders: Sequence[Path]) -> int:
    """Take the runs of other results ``folders`` into this one; return 1 if one of them was left
    out, else 0.

    If another process merges into this folder, this waits for it.
    """
    for results in folders:
        if not (results / paths.RUNS.name).is_dir():
            raise ValueError(
                f"{results}: has no folder {paths.RUNS.name}; give the folder `results` of another"
                " place"
            )
    with folder_lock(
        paths.RESULTS, _LOCK, f"{paths.RESULTS}: waits for the merge that works in this folder"
    ):
        n_left_out = [_merge_folder(results) for results in folders]
    return 1 if any(n_left_out) else 0


def _merge_folder(results: Path) -> int:
    """Take the runs of other ``results``, and return how many were left out."""
    count: Counter[str] = Counter()
    for place, take in (
        ("trunks/*/branch-*.json", _take_trunk),
        (f"{paths.RUNS.name}/*/run.json", _take_run),
    ):
        for source in sorted({record.parent for record in results.glob(place)}):
            try:
                _refuse_links(source)
                count["taken" if take(source, results) else "here"] += 1
            except Exception as error:  # whatever is wrong with one run, the others are taken
                known = isinstance(error, (ValueError, OSError))
                say(f"{source}: left out: {error if known else repr(error)}")
                count["left out"] += 1
    say(
        f"{results}: {count['taken']} taken, {count['here']} were here before, {count['left out']}"
        " left out"
    )
    return count["left out"]
