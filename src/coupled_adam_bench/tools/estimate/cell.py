"""What the cells of a study take, each by itself: time, memory and disk, and what ended runs took;
and its data."""

import math
from dataclasses import dataclass, replace
from pathlib import Path

from coupled_adam_bench.store.files import read_sealed
from coupled_adam_bench.study.plan import Plan
from coupled_adam_bench.study.plan.cells import Cell, Trunk
from coupled_adam_bench.study.plan.inputs import text_files
from coupled_adam_bench.study.settings import FilesSource, Study
from coupled_adam_bench.tools.estimate.rental import MEMORY_GB
from coupled_adam_bench.tools.estimate.speed import (
    LONGEST_MINUTES,
    SHORTEST_MINUTES,
    START_SECONDS,
    EndedRun,
    Source,
    Speeds,
    Spread,
    estimated_speed,
    train_minutes,
)
from coupled_adam_bench.training.memory import (
    Memory,
    checkpoint_bytes,
    largest_micro_batch,
    memory_of,
    model_bytes,
    train_mem_mb,
)

# Tokens of GPT-2's tokenizer in a whole dataset: nanoGPT's README (data/openwebtext) and the
# dataset's card.
_DATASET_TOKENS = {"openwebtext": 9_040_000_000, "slimpajama": 627_000_000_000}
_UINT16_VOCABULARY = 2**16
# What preparing text takes at the most: a process made 250,000 tokens of BPE a second of its CPU
# time.
_PREPARED_PER_SECOND = 50_000
_BYTES_PER_TOKEN = 3
_COMPRESSED = 5


def own_parts(plan: Plan) -> dict[str, Cell]:
    """Return by the id of each cell what its own job trains: all of it, or the steps that are not
    its trunk's."""
    trunk_steps = {
        cell: prefix.steps
        for trunk in plan.trunks.values()
        for cell, prefix in trunk.prefixes.items()
    }
    return {
        name: replace(cell, steps=cell.steps - trunk_steps.get(name, 0))
        for name, cell in plan.trained.items()
    }


def trunk_part(trunk: Trunk, step: int) -> Cell:
    """Return what the job trains that takes a trunk to the branch at ``step``."""
    before = max((branch for branch in trunk.branches if branch < step), default=0)
    return replace(trunk.run, steps=step - before)


@dataclass(frozen=True)
class JobEstimate:
    """What a job of training takes."""

    part: Cell
    """What the job trains."""
    seconds: float
    """Its time without its start."""
    spread: Spread
    """Between which shares of ``seconds`` the truth may lie."""

    @property
    def processors(self) -> int:
        """The number of GPUs, or without GPUs of processes, that train."""
        return self.part.study.execution.processes

    @property
    def hours(self) -> float:
        """The hours that all GPUs, or all processes on a CPU, take together."""
        return self.seconds * self.processors / 3600

    @property
    def hours_range(self) -> tuple[float, float]:
        """Between which hours the truth may lie."""
        return self.spread.low * self.hours, self.spread.high * self.hours


@dataclass(frozen=True)
class CellEstimate(JobEstimate):
    """A cell, what training it takes, and what it took if its run has ended."""

    cell: Cell
    source: Source
    """What ``seconds`` rests on."""
    assumed_seconds: float
    """The same without what runs have measured."""
    run: EndedRun | None
    memory: Memory
    micro_batches: dict[int, int | None]
    """The largest micro-batch by GB of GPU memory, None if the cell does not fit; empty on a
    CPU."""
    mem_mb: int
    minutes: int
    checkpoint_bytes: int
    model_bytes: int
    tunes: bool
    """Whether the cell is trained only to choose the settings of others."""

    @property
    def hours_taken(self) -> float:
        """The hours that the ended run took, 0 for one that has not ended."""
        return self.run.seconds * self.run.processes / 3600 if self.run else 0.0


@dataclass(frozen=True)
class BranchEstimate(JobEstimate):
    """A branch of a trunk, and what taking the trunk there from the branch before takes."""

    step: int
    is_trained: bool


@dataclass(frozen=True)
class EstimateRow:
    """Cells of one model and one number of tokens."""

    cells: tuple[CellEstimate, ...]

    @property
    def first(self) -> CellEstimate:
        """One of the cells."""
        return self.cells[0]

    @property
    def fullest(self) -> CellEstimate:
        """The cell that takes most memory: they differ in the state of the optimizer."""
        return max(self.cells, key=lambda estimate: estimate.memory.peak)

    @property
    def n_done(self) -> int:
        """The number of ended runs."""
        return len(self.seconds_taken)

    @property
    def seconds_taken(self) -> list[float]:
        """The seconds of each ended run."""
        return [estimate.run.seconds for estimate in self.cells if estimate.run is not None]


def estimate_cell(cell: Cell, part: Cell, speeds: Speeds, tunes: bool = False) -> CellEstimate:
    """Return the estimate of a cell whose own job trains ``part``; it may be one that only
    ``tunes`` others."""
    execution = cell.study.execution
    speed = speeds.of(cell, execution)
    assumed = estimated_speed(cell, execution, speeds.own)
    sizes = MEMORY_GB if execution.gpus else ()
    return CellEstimate(
        cell=cell,
        part=part,
        seconds=part.n_tokens / speed.tokens_per_second,
        source=speed.source,
        spread=speed.spread,
        assumed_seconds=part.n_tokens / assumed.tokens_per_second,
        run=speeds.runs.get(cell.id),
        memory=memory_of(cell, execution),
        micro_batches={size: largest_micro_batch(cell, execution, size * 1e9) for size in sizes},
        mem_mb=train_mem_mb(cell, execution),
        minutes=train_minutes([part], execution, speeds),
        checkpoint_bytes=checkpoint_bytes(cell),
        model_bytes=model_bytes(cell),
        tunes=tunes,
    )


@dataclass(frozen=True)
class DataSize:
    """Size of a study's data: tokens and bytes of its bins, ``None`` where nobody knows before they
    are prepared."""

    data_id: str
    is_prepared: bool
    n_tokens: int | None
    bytes: int | None

    @property
    def preparing_bytes(self) -> int | None:
        """Return the bytes that preparation needs: about twice those of the bins, and nothing for
        what is there."""
        return 0 if self.is_prepared else self.bytes and 2 * self.bytes


def data_size(study: Study, data_id: str, data_dir: Path) -> DataSize:
    """Return the size of a study's data in the folder ``data_dir``, from its ``meta.json`` if it is
    prepared."""
    try:
        meta = read_sealed(data_dir / "meta.json")
        splits = meta["splits"].values()
        itemsize = int(meta["dtype"][-1])
        n_tokens = sum(split["n_tokens"] for split in splits)
        return DataSize(data_id, True, n_tokens, n_tokens * itemsize)
    except (ValueError, OSError, KeyError, TypeError, AttributeError):
        pass
    known: int | None = None
    source = study.data.source
    if source.kind == "synthetic":
        known = source.n_tokens
    elif source.kind == "hub" and source.preset is not None:
        known = _DATASET_TOKENS.get(source.preset)
    if study.data.max_tokens is not None:
        known = min(study.data.max_tokens, known or study.data.max_tokens)
    itemsize = 2 if study.data.vocab_size <= _UINT16_VOCABULARY else 4
    return DataSize(data_id, False, known, known and known * itemsize)


def prepare_minutes(study: Study, data_dir: Path, attempt: int = 1) -> int:
    """Return the time limit of a job's ``attempt`` (from 1) that prepares a study's data, from the
    size of its text.

    It is the longest limit where nobody knows the size. Preparation goes on with what an earlier
    attempt has finished.
    """
    longest = study.execution.train_minutes or LONGEST_MINUTES
    n_tokens = data_size(study, "", data_dir).n_tokens
    if n_tokens is None and isinstance(study.data.source, FilesSource):
        n_tokens = _tokens_in_files(study.paths.text)
    if n_tokens is None:
        return longest
    minutes = math.ceil(
        (START_SECONDS + n_tokens / (_PREPARED_PER_SECOND * study.execution.data_threads)) / 60
    )
    return min(longest, attempt * max(SHORTEST_MINUTES, minutes))


def _tokens_in_files(patterns: tuple[str, ...]) -> int:
    """Return about the most tokens that text files have, some of which may be compressed."""
    n_bytes = 0
    for _, path in text_files(patterns):
        packed = path.suffix not in (".txt", ".jsonl")
        n_bytes += path.stat().st_size * (_COMPRESSED if packed else 1)
    return n_bytes // _BYTES_PER_TOKEN
