"""Disk that data, checkpoints and models take."""

from dataclasses import dataclass
from pathlib import Path

from coupled_adam_bench.store.files import read_sealed
from coupled_adam_bench.study.cells import Cell
from coupled_adam_bench.study.config import Study
from coupled_adam_bench.tools.estimate.memory import FP32, optimizer_bytes

# Tokens of GPT-2's tokenizer in a whole dataset: nanoGPT's README (data/openwebtext) and the dataset's card.
_DATASET_TOKENS = {"openwebtext": 9_040_000_000, "slimpajama": 627_000_000_000}
_UINT16_VOCABULARY = 2**16


@dataclass(frozen=True)
class DataSize:
    """Size of a study's data: tokens and bytes of its bins, ``None`` where nobody knows before they are prepared."""

    data_id: str
    is_prepared: bool
    n_tokens: int | None
    bytes: int | None

    @property
    def preparing_bytes(self) -> int | None:
        """Return the bytes that preparation needs: about twice those of the bins, and nothing for what is there."""
        return 0 if self.is_prepared else self.bytes and 2 * self.bytes


def data_size(study: Study, data_id: str, data_dir: Path) -> DataSize:
    """Return the size of a study's data in the folder ``data_dir``, from its ``meta.json`` if it is prepared."""
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


def checkpoint_bytes(cell: Cell) -> int:
    """Return the bytes of a checkpoint: weights and optimizer states in float32."""
    return FP32 * cell.n_params + optimizer_bytes(cell)


def model_bytes(cell: Cell) -> int:
    """Return the bytes of the exported weights in float32; transformers' classes also have biases, which are 0."""
    model = cell.model
    in_layer, in_mlp, at_end = model.family.biases
    biases = model.n_layer * (in_layer * model.d_model + in_mlp * model.d_ffn) + at_end * model.d_model
    return FP32 * (cell.n_params + biases)
