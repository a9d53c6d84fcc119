"""Cells of a study: (model, tokens, optimizer, seed), each with an id that says what it is and hashes what it does."""

import glob
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from coupled_adam_bench import protocol
from coupled_adam_bench.config import Block, Data, Model, Optimizer, Study, Tokens, Training
from coupled_adam_bench.files import digest, sha256_file

TEXT_SUFFIXES = tuple(
    kind + packing for kind in (".txt", ".jsonl", ".parquet") for packing in ("", ".gz", ".xz", ".zst")
)
_SAMPLE_BYTES = 65536


@dataclass(frozen=True)
class Cell:
    """One training run and everything that can change its numbers."""

    id: str
    data_id: str
    vocab_size: int
    model: Model
    training: Training
    optimizer: Optimizer
    steps: int
    seed: int
    tokens_label: str | None = field(compare=False)

    @property
    def n_tokens(self) -> int:
        """Tokens seen in training."""
        return self.steps * self.training.batch_sequences * self.training.seq_len

    @property
    def n_params(self) -> int:
        """Parameters, a tied embedding counted once."""
        return self.model.n_params(self.vocab_size, self.training.seq_len)

    @property
    def flops(self) -> int:
        """Model FLOPs of the whole training run."""
        return self.model.flops_per_token(self.vocab_size, self.training.seq_len) * self.n_tokens

    def to_json(self) -> dict[str, Any]:
        """Return the cell as a JSON value, the content of ``cell.json``."""
        return {
            "id": self.id,
            "data_id": self.data_id,
            "n_params": self.n_params,
            "n_tokens": self.n_tokens,
            "seed": self.seed,
            "steps": self.steps,
            "vocab_size": self.vocab_size,
            "tokens_label": self.tokens_label,
            "optimizer_key": self.optimizer.key,
            "optimizer": self.optimizer.model_dump(),
            "model": self.model.model_dump(),
            "training": self.training.model_dump(),
        }


@dataclass(frozen=True)
class Trunk:
    """What cells of schedule ``wsd`` that differ only in D share: all steps before their decay, trained once."""

    parts: dict[str, Cell]
    """By id of the cell, the part of the trunk that it begins with."""

    @property
    def run(self) -> Cell:
        """The trunk as a run: its longest part."""
        return max(self.parts.values(), key=lambda part: part.steps)

    @property
    def branches(self) -> tuple[int, ...]:
        """The steps after which cells leave, ascending."""
        return tuple(sorted({part.steps for part in self.parts.values()}))


def text_files(patterns: tuple[str, ...]) -> list[tuple[str, Path]]:
    """Return the text files behind folders, files and globs as sorted (name within the pattern's root, path) pairs.

    Raises ``ValueError`` for a pattern that matches no text file.
    """
    found: dict[Path, str] = {}
    for pattern in patterns:
        path = Path(pattern)
        if path.is_dir():
            matches = [(str(p.relative_to(path)), p) for p in path.rglob("*")]
        else:
            root = Path(re.split(r"[*?\[]", pattern, maxsplit=1)[0])
            root = root if root.is_dir() else root.parent
            matches = [(str(Path(p).relative_to(root)), Path(p)) for p in glob.glob(pattern, recursive=True)]  # noqa: PTH207
        matches = [(name, p) for name, p in matches if p.is_file() and p.name.endswith(TEXT_SUFFIXES)]
        if not matches:
            raise ValueError(
                f"paths.text: {pattern!r} matches no text file; allowed endings: {', '.join(TEXT_SUFFIXES)}"
            )
        found.update({p: name for name, p in matches})
    return sorted((name, path) for path, name in found.items())


def _fingerprint(name: str, path: Path) -> list[Any]:
    """Identify a file by name, size and its first and last 64 KiB: contents, not place, at any corpus size."""
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(_SAMPLE_BYTES)
        file.seek(max(size - _SAMPLE_BYTES, 0))
        tail = file.read(_SAMPLE_BYTES)
    return [name, size, digest([head.hex(), tail.hex()], 64)]


def tokenizer_file(path: str) -> Path:
    """Return the ``tokenizer.json`` at ``path``, a file or its folder; ``ValueError`` if there is none."""
    file = Path(path)
    if file.is_dir():
        file = file / "tokenizer.json"
    if not file.is_file():
        raise ValueError(f"paths.tokenizer: {file} does not exist; give a tokenizer.json or its folder")
    return file


def data_id(study: Study) -> str:
    """Return the id of the study's token bins: its name and a hash of source, contents, tokenizer and split."""
    data: Data = study.data
    identity: dict[str, Any] = {"version": protocol.DATA, **data.model_dump(exclude={"name"})}
    if data.source.kind == "files":
        identity["files"] = [_fingerprint(name, path) for name, path in text_files(study.paths.text)]
    if data.tokenizer == "file":
        assert study.paths.tokenizer is not None
        identity["tokenizer_sha256"] = sha256_file(tokenizer_file(study.paths.tokenizer))
    return f"{data.name}-{digest(identity)}"


def readable_count(count: int) -> str:
    """Return a count in three digits and K, M, B or T, such as ``125M``."""
    for unit, suffix in ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "K")):
        if count >= 0.9995 * unit:  # 999,500 and more are 1M: three digits of them would be "1e+03K"
            return f"{count / unit:.3g}{suffix}"
    return str(count)


def _identity(data: str, vocab_size: int, model: Model, optimizer: Optimizer, seed: int) -> dict[str, Any]:
    return {
        "version": protocol.TRAIN,
        "data": data.rsplit("-", 1)[1],
        "vocab_size": vocab_size,
        "model": model.model_dump(exclude={"name", "label"}),
        "optimizer": optimizer.model_dump(exclude={"key", "label"}),  # a user's own names its optimizer, as models
        "seed": seed,
    }


def make_cell(study: Study, data: str, model: Model, tokens: Tokens | int, optimizer: Optimizer, seed: int) -> Cell:
    """Return one cell of ``study`` on the bins ``data``."""
    training = study.training
    batch_tokens = training.batch_sequences * training.seq_len
    steps = tokens.steps if isinstance(tokens, Tokens) else tokens // batch_tokens
    identity = _identity(data, study.data.vocab_size, model, optimizer, seed)
    identity |= {"training": training.model_dump(), "steps": steps}
    cell_id = f"{model.name}_{readable_count(steps * batch_tokens)}_{optimizer.key}_s{seed}_{digest(identity)}"
    label = tokens.label if isinstance(tokens, Tokens) else readable_count(tokens)
    return Cell(cell_id, data, study.data.vocab_size, model, training, optimizer, steps, seed, label)


def stable_part(cell: Cell) -> Cell | None:
    """Return the steps of a cell of schedule ``wsd`` before its decay as a run of its own, with a constant schedule.

    Its id is the same for all D. The last step is always the cell's own; ``None`` if there is no other, and for other
    schedules.
    """
    training = cell.training
    steps = min(training.decay_start(cell.steps), cell.steps - 1)
    if training.schedule != "wsd" or steps == 0:
        return None
    identity = _identity(cell.data_id, cell.vocab_size, cell.model, cell.optimizer, cell.seed)
    identity["training"] = training.model_dump(exclude={"decay_fraction", "min_lr_ratio"})
    return replace(
        cell,
        id=f"{cell.model.name}_stable_{cell.optimizer.key}_s{cell.seed}_{digest(identity)}",
        training=training.model_copy(update={"schedule": "constant"}),
        steps=steps,
        tokens_label=None,
    )


def find_trunks(cells: Iterable[Cell]) -> dict[str, Trunk]:
    """Return by id the trunks that at least two cells share."""
    parts: dict[str, dict[str, Cell]] = defaultdict(dict)
    for cell in cells:
        if (part := stable_part(cell)) is not None:
            parts[part.id][cell.id] = part
    return {trunk_id: Trunk(shared) for trunk_id, shared in parts.items() if len(shared) > 1}


def block_cells(study: Study, data: str, block: Block) -> list[Cell]:
    """Return the cells of one block of the grid: models, tokens, optimizers, seeds, the last one fastest."""
    models = {model.name: model for model in study.models}
    return [
        make_cell(study, data, models[name], tokens, optimizer, seed)
        for name in block.models
        for tokens in block.tokens
        for optimizer in block.optimizers
        for seed in block.seeds
    ]


def expand(study: Study, data: str) -> dict[str, Cell]:
    """Return the cells of a study on the bins ``data`` by id, each once, in the order of the grid."""
    return {cell.id: cell for block in study.grid for cell in block_cells(study, data, block)}
