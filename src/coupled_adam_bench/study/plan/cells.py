"""Cells of a study: (model, tokens, optimizer, seed), each with an id that says what it is and
hashes what it does."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import Any

from coupled_adam_bench.store.files import digest
from coupled_adam_bench.study.catalogue import versions
from coupled_adam_bench.study.plan.inputs import (
    files_of_own_source,
    fingerprints,
    text_files,
    tokenizer_file,
    tokenizer_identity,
    with_code,
)
from coupled_adam_bench.study.settings import GridBlock, Model, Optimizer, Steps, Study, Training
from coupled_adam_bench.study.settings.errors import for_each


@dataclass(frozen=True)
class Cell:
    """One training run: everything that can change its numbers, and the study that it belongs to.

    Two studies may have the same cell; then their cells are equal.
    """

    study: Study = field(compare=False, repr=False)
    id: str
    data_id: str
    vocab_size: int
    model: Model
    training: Training
    optimizer: Optimizer
    steps: int
    seed: int
    """Seed of the initial weights, of the order of the data, and of the random windows of the test
    loss."""
    data_digest: str
    """Hash of everything that can change the data, the end of ``data_id``."""
    tokens_label: str | None = field(compare=False)
    tuning: str | None = field(default=None, compare=False)
    """The id of the tuning that chooses the cell's settings, None for a cell whose study gives them
    all."""
    slot: str | None = field(default=None, compare=False)
    """The name of a tuned cell that is known before its settings are chosen. Until then it is the
    cell's id."""

    @property
    def job_name(self) -> str:
        """The name by which the workflow knows the cell: its slot, or its id."""
        return self.slot or self.id

    @property
    def is_chosen(self) -> bool:
        """Whether the settings are known; the settings of a tuned cell are known after the
        choice."""
        return self.id != self.slot

    @property
    def n_tokens(self) -> int:
        """Tokens seen in training."""
        return self.steps * self.training.batch_sequences * self.training.seq_len

    @property
    def length_label(self) -> str:
        """The number of tokens in print, as the study gives it or, without that, as it is."""
        return self.tokens_label or readable_count(self.n_tokens)

    @property
    def size_label(self) -> str:
        """The size of the model in print: its label or, without one, its number of parameters."""
        return self.model.label or readable_count(self.n_params)

    @property
    def n_params(self) -> int:
        """Parameters, a tied embedding counted once."""
        return self.model.n_params(self.vocab_size, self.training.seq_len)

    @property
    def flops(self) -> int:
        """Model FLOPs of the whole training run."""
        training = self.training
        return (
            self.model.flops_per_step(self.vocab_size, training.seq_len, training.batch_sequences)
            * self.steps
        )

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
            "optimizer_key": self.optimizer.own_key,
            "optimizer": self.optimizer.model_dump(),
            "model": self.model.model_dump(),
            "training": self.training.model_dump(),
        }


@dataclass(frozen=True)
class Trunk:
    """What cells of schedule ``wsd`` that differ only in D share: all steps before their decay,
    trained once."""

    prefixes: dict[str, Cell]
    """The stable steps with which each cell begins, as a separate run, by the id of the cell."""

    @property
    def run(self) -> Cell:
        """The trunk as a run: its longest prefix."""
        return max(self.prefixes.values(), key=lambda prefix: prefix.steps)

    @property
    def branches(self) -> tuple[int, ...]:
        """The steps after which cells leave, ascending."""
        return tuple(sorted({prefix.steps for prefix in self.prefixes.values()}))


def data_inputs(study: Study) -> dict[str, Any]:
    """Return what identifies the files that a study's data are made of: text or tokens, and the
    study's own tokenizer."""
    inputs: dict[str, Any] = {}
    if study.data.source.kind == "files":
        inputs["files"] = fingerprints(text_files(study.paths.text))
    elif study.data.source.kind == "own":
        # Without any, as for a plan or a rehearsal, nothing is prepared or trained.
        inputs["files"] = fingerprints(files_of_own_source(study.paths.text))
    if study.data.tokenizer == "file":
        assert study.paths.tokenizer is not None
        inputs |= tokenizer_identity(study.paths.tokenizer)
    return inputs


def data_digest(study: Study, inputs: Mapping[str, Any] | None = None) -> str:
    """Return a hash of everything that can change a study's token bins: source, contents, tokenizer
    and split.

    ``inputs`` are what :func:`data_inputs` gave, for a reader who has no text.
    """
    found = data_inputs(study) if inputs is None else inputs
    return digest({"version": versions.DATA, **study.data.model_dump(exclude={"name"}), **found})


def with_inputs(study: Study) -> tuple[Study, str]:
    """Return a study with the code of its own classes, and the hash of its data."""
    readings: list[Callable[[], Any]] = [
        partial(with_code, study),
        lambda: data_digest(with_code(study)),
    ]
    if study.paths.tokenizer is not None and study.data.tokenizer == "file":
        # What is wrong here is named beside text that is missing.
        readings.append(partial(tokenizer_file, study.paths.tokenizer))
    complete, digest, *_ = for_each(lambda read: read(), readings)
    return complete, digest


def data_id(study: Study, digest_of_data: str) -> str:
    """Return the id of a study's token bins: their name and their hash."""
    return f"{study.data.name}-{digest_of_data}"


def readable_count(count: int) -> str:
    """Return a count in three digits and K, M, B or T, such as ``125M``."""
    for unit, suffix in ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "K")):
        if count >= 0.9995 * unit:
            # 999,500 and more are 1M: three digits of them would be "1e+03K".
            return f"{count / unit:.3g}{suffix}"
    return str(count)


def _identity(
    data: str, vocab_size: int, model: Model, optimizer: Optimizer, seed: int
) -> dict[str, Any]:
    """Return what the id of a run hashes, apart from its recipe and its length; ``data`` is the
    hash of the data."""
    names = {"key", "label"}
    return {
        "version": versions.TRAIN,
        "data": data,
        "vocab_size": vocab_size,
        "model": model.model_dump(exclude={"name", "label"}),
        # A custom optimizer's key and label are display names, like a model's name: they are not
        # hashed.
        "optimizer": optimizer.model_dump(
            exclude={"key": True, "label": True, "embedding": names, "head": names}
        ),
        "seed": seed,
    }


def make_cell(
    study: Study, data: str, model: Model, tokens: Steps | int, optimizer: Optimizer, seed: int
) -> Cell:
    """Return one cell of ``study``; ``data`` is the hash of its data."""
    training = study.training
    batch_tokens = training.batch_sequences * training.seq_len
    steps = tokens.steps if isinstance(tokens, Steps) else tokens // batch_tokens
    identity = _identity(data, study.data.vocab_size, model, optimizer, seed)
    identity |= {"training": training.model_dump(), "steps": steps}
    names = (model.name, readable_count(steps * batch_tokens), optimizer.own_key, f"s{seed}")
    return Cell(
        study=study,
        id="_".join((*names, digest(identity))),
        data_id=data_id(study, data),
        vocab_size=study.data.vocab_size,
        model=model,
        training=training,
        optimizer=optimizer,
        steps=steps,
        seed=seed,
        data_digest=data,
        tokens_label=tokens.label if isinstance(tokens, Steps) else readable_count(tokens),
    )


def stable_prefix(cell: Cell) -> Cell | None:
    """Return the steps of a cell of schedule ``wsd`` before its decay as a separate run, with a
    constant schedule.

    Its id is the same for all D. The cell keeps at least one step for itself. ``None`` for other
    schedules.
    """
    training = cell.training
    if training.schedule != "wsd":
        return None
    identity = _identity(cell.data_digest, cell.vocab_size, cell.model, cell.optimizer, cell.seed)
    identity["training"] = training.model_dump(
        exclude={"decay_fraction", "min_lr_ratio", "min_learning_rate"}
    )
    return replace(
        cell,
        id=f"{cell.model.name}_stable_{cell.optimizer.own_key}_s{cell.seed}_{digest(identity)}",
        training=training.model_copy(update={"schedule": "constant"}),
        steps=training.decay_start(cell.steps),
        tokens_label=None,
    )


def find_trunks(cells: Iterable[Cell]) -> dict[str, Trunk]:
    """Return by id the trunks that at least two cells share."""
    prefixes: dict[str, dict[str, Cell]] = defaultdict(dict)
    for cell in cells:
        if (prefix := stable_prefix(cell)) is not None:
            prefixes[prefix.id][cell.id] = prefix
    return {trunk_id: Trunk(shared) for trunk_id, shared in prefixes.items() if len(shared) > 1}


def block_cells(study: Study, data: str, block: GridBlock) -> list[Cell]:
    """Return the cells of one block of the grid: models, tokens, optimizers, seeds.

    The last of these changes fastest. ``data`` is the hash of the study's data. Cells of optimizers
    that are tuned have their settings as the block gives them, and the names of their rows.
    """
    models = {model.name: model for model in study.models}
    rows = zip(block.optimizers, block.rows, strict=True)
    combinations = product(block.models, block.tokens, rows, block.seeds)
    return [
        replace(make_cell(study, data, models[name], tokens, optimizer, seed), optimizer=row)
        for name, tokens, (optimizer, row), seed in combinations
    ]


def study_of(cells: Iterable[Cell]) -> Study:
    """Return the study of cells; ``ValueError`` if they belong to none, or to several."""
    studies = {cell.study.name: cell.study for cell in cells}
    if len(studies) != 1:
        raise ValueError(
            f"cells: of {' and '.join(studies) or 'no study'}; give those of one study at a time"
        )
    return next(iter(studies.values()))
