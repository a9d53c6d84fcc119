"""The checks of gpu_proof share these rows, cells and tokens, and this way of measuring time and
memory."""

import contextlib
import gc
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from coupled_adam_bench.data.bins import SPLITS, UNIGRAM, Bin, Meta, token_dtype, write_meta
from coupled_adam_bench.data.check import TOKENIZER
from coupled_adam_bench.machine.gpus import GPUS, find_gpu
from coupled_adam_bench.models.base import LanguageModel
from coupled_adam_bench.models.build import build_model
from coupled_adam_bench.study.plan import Plan, make_plan
from coupled_adam_bench.study.plan.cells import Cell
from coupled_adam_bench.study.settings import Execution, parse_study
from coupled_adam_bench.tools.estimate.public_logs import log_line
from coupled_adam_bench.tools.estimate.roofline import step_parts
from coupled_adam_bench.training.distributed import WorkerGroup
from coupled_adam_bench.training.trainer import Trainer

VOCAB_SIZE = 50304
TINY = {"name": "tiny", "n_layer": 2, "n_head": 2, "d_model": 32, "learning_rate": 1e-3}
TINY_VOCAB = 1024
SHARE = 0.15
"""How far a speed or a size may be from that of the first run."""
_KINDS = ("architecture", "tied", "qk_norm")


@dataclass(frozen=True)
class Row:
    """A number that a check has found, and what it may be."""

    what: str
    value: float
    at_most: float | None = None
    at_least: float | None = None
    is_recorded: bool = False
    """Whether it is a speed or a size: the first run on a card records it, and later ones must come
    near."""
    log: dict[str, Any] | None = None
    """The line of a step's time for ``plan``."""

    def beside(self, frozen: dict[str, float]) -> "Row":
        """Return the row with the bounds that follow from what the first run has recorded."""
        if not self.is_recorded or self.what not in frozen:
            return self
        ends = sorted((1 + sign * SHARE) * frozen[self.what] for sign in (-1, 1))
        return replace(self, at_least=ends[0], at_most=ends[1])

    def to_json(self) -> dict[str, Any]:
        """Return the row with its verdict; a number that is not finite is null and within no
        bounds."""
        low = -math.inf if self.at_least is None else self.at_least
        high = math.inf if self.at_most is None else self.at_most
        finite, bounded = math.isfinite(self.value), low > -math.inf or high < math.inf
        passed = (finite and low <= self.value <= high) or not bounded
        return asdict(self) | {"value": self.value if finite else None, "passed": passed}


Rows = Iterator[Row]


def record(what: str, value: float, **more: Any) -> Row:
    """Return a row of a speed or a size."""
    return Row(what, value, is_recorded=True, **more)


@dataclass
class At:
    """A check gets its device, its folder, and what earlier checks of its part have found."""

    device: torch.device
    folder: Path
    rehearsed: bool = False
    known: dict[str, float] = field(default_factory=dict)
    references: Path | None = None
    """The file of what a CPU has computed for the comparison."""

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    def size(self, full: Any, tiny: Any) -> Any:
        """Return the first, or in a rehearsal the second."""
        return tiny if self.rehearsed else full

    def plan(
        self, model: Any, training: dict[str, Any], execution: dict[str, Any], **block: Any
    ) -> Plan:
        """Return a plan of one model, in a rehearsal a tiny one, with its defaults from the
        settings themselves."""
        if self.rehearsed:
            kept = (
                {key: value for key, value in model.items() if key in _KINDS}
                if isinstance(model, dict)
                else {}
            )
            model = TINY | kept
            sizes = {"seq_len": 16, "batch_sequences": 4}
            training = training | {key: min(training[key], value) for key, value in sizes.items()}
        kind = find_gpu(torch.cuda.get_device_name(self.device)) if self.on_gpu else None
        grid = {"tokens": [{"steps": 10_000}], "optimizers": ["coupled_adam"], "seeds": [1]} | block
        values: dict[str, Any] = {
            "study": "gpu-proof",
            "data": {"name": "zipf", "source": {"kind": "synthetic"}, "tokenizer": "word"},
            "models": [model],
            "training": training,
            "grid": [grid | {"models": [model if isinstance(model, str) else model["name"]]}],
            "execution": {"gpus": int(self.on_gpu), "eval_every": None} | execution,
            "budget": {}
            if kind is None
            else {"gpu": next(name for name, gpu in GPUS.items() if gpu == kind)},
        }
        values["data"]["vocab_size"] = self.size(VOCAB_SIZE, TINY_VOCAB)
        return make_plan(parse_study(values))

    def cell(self, *arguments: Any, **block: Any) -> Cell:
        """Return the first cell of :meth:`plan`."""
        return next(iter(self.plan(*arguments, **block).cells.values()))

    def model(self, cell: Cell, std: float, soft_cap: float | None = None) -> LanguageModel:
        """Return the model of a cell on the device, with initial weights of this standard
        deviation."""
        with self.device:
            model = build_model(cell.model, cell.vocab_size, cell.training.seq_len, soft_cap)
        model.init_weights(cell.seed, std)
        return model

    @contextlib.contextmanager
    def trainer(self, cell: Cell, **execution: Any) -> Iterator[Trainer]:
        """Yield a trainer of the cell on the device, with some settings of execution changed."""
        data = self.folder / "data" / cell.data_id
        if not data.exists():
            write_tokens(data, cell)
        changed: Execution = cell.study.execution.model_copy(update=execution)
        with contextlib.closing(
            Trainer(cell, changed, data, self.folder / "run", WorkerGroup(self.device))
        ) as made:
            yield made

    def wait(self) -> None:
        """Wait for the GPU."""
        if self.on_gpu:
            torch.cuda.synchronize()

    def forget(self) -> None:
        """Free what nothing refers to, so that the next measurement of memory is its own."""
        torch.compiler.reset()
        gc.collect()
        if self.on_gpu:
            torch.cuda.empty_cache()

    def seconds(self, function: Callable[[], object], times: int) -> float:
        """Return the seconds of one of ``times`` calls in a row: see :func:`seconds`."""
        return seconds(self.device, function, times)

    def peak_bytes(self, function: Callable[[], object]) -> int:
        """Return the most bytes that tensors take on the GPU during a call; 0 on a CPU."""
        if self.on_gpu:
            torch.cuda.reset_peak_memory_stats()
        function()
        return torch.cuda.max_memory_allocated() if self.on_gpu else 0


def seconds(device: torch.device, function: Callable[[], object], times: int) -> float:
    """Return the seconds of one of ``times`` calls in a row, on a GPU by events around all that
    they queue."""
    if device.type != "cuda":
        start = time.perf_counter()
        for _ in range(times):
            function()
        return (time.perf_counter() - start) / times
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    for _ in range(times):
        function()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1000 / times


def zipf_tokens(n_tokens: int, vocab_size: int, seed: int) -> np.ndarray[Any, Any]:
    """Return tokens of which number r has a probability in proportion to 1 / (r + 1)."""
    shares = np.cumsum(1 / np.arange(1, vocab_size + 1))
    return np.searchsorted(shares, np.random.default_rng(seed).random(n_tokens) * shares[-1])


def write_tokens(folder: Path, cell: Cell) -> None:
    """Write the token bins of a cell, with the empty files of a tokenizer that nothing reads."""
    (folder / TOKENIZER).mkdir(parents=True)
    config, counts = folder / TOKENIZER / "tokenizer_config.json", folder / UNIGRAM
    config.write_text("{}\n", encoding="utf-8")
    dtype, bins = token_dtype(cell.vocab_size), {}
    for seed, split in enumerate(SPLITS):
        tokens = zipf_tokens(
            max(64 * cell.training.seq_len, 2**20 if split == "train" else 2**16),
            cell.vocab_size,
            seed,
        )
        contents = tokens.astype(dtype).tobytes()
        (folder / f"{split}.bin").write_bytes(contents)
        bins[split] = Bin(f"{split}.bin", len(tokens), 1, sha256(contents).hexdigest())
        if split == "train":
            np.save(counts, np.bincount(tokens, minlength=cell.vocab_size))
    write_meta(
        folder,
        Meta(cell.data_id, cell.vocab_size, cell.vocab_size, 0, dtype.str, "word", bins, {}),
        [config, counts],
    )


def relative_error(found: Tensor, exact: Tensor) -> float:
    """Return the norm of the difference over that of what is exact, computed in float64 on the
    CPU's side."""
    exact = exact.double().to(found.device)
    return ((found.double() - exact).norm() / exact.norm().clamp(min=1e-300)).item()


def roofline(cell: Cell, execution: Execution) -> dict[str, float]:
    """Return the estimated seconds of a step by its parts, from the one place that computes
    them."""
    return step_parts(cell, execution)


def graphs() -> int:
    """Return the number of graphs that the compiler has made in this process."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


@contextlib.contextmanager
def set_up(
    rehearse: bool, folder: Path, known: dict[str, float], references: Path | None = None
) -> Iterator[At]:
    """Yield where a check runs: the GPU, or in a rehearsal the CPU."""
    if not rehearse:
        yield At(torch.device("cuda", 0), folder, False, known, references)
    else:
        with compiled_by("eager"):
            yield At(torch.device("cpu"), folder, True, known, references)


def step_log(cell: Cell, micro_batch: int, milliseconds: float) -> dict[str, Any]:
    """Return the line of a step's time for ``plan``, on the card of this process."""
    execution = cell.study.execution.model_copy(update={"micro_batch_sequences": micro_batch})
    used = replace(cell, study=cell.study.model_copy(update={"execution": execution}))
    card = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    return log_line(used, "benchmarks/gpu_proof.py", card, milliseconds, cell.model.name)


@contextlib.contextmanager
def compiled_by(backend: str) -> Iterator[None]:
    """Let a backend compile that needs no compiler of C++."""
    compile_module, compile_any = torch.nn.Module.compile, torch.compile

    def on_backend(function: Any, **_: Any) -> Any:
        return compile_any(function, backend=backend)

    def module_on_backend(module: torch.nn.Module, **_: Any) -> None:
        compile_module(module, backend=backend)

    with (
        patch.object(torch, "compile", on_backend),
        patch.object(torch.nn.Module, "compile", module_on_backend),
    ):
        yield
