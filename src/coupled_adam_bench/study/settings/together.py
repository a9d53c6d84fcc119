"""What does not go together in a study whose sections are right by themselves."""

import math
from collections.abc import Iterable, Iterator
from fractions import Fraction
from itertools import product
from typing import Any

from coupled_adam_bench.study.catalogue.presets import MODEL_PRESETS
from coupled_adam_bench.study.settings.base import MAX_COUNT, duplicates
from coupled_adam_bench.study.settings.data import CONTINUATION_WORDS
from coupled_adam_bench.study.settings.grid import all_tables, table_errors
from coupled_adam_bench.study.settings.optimizers import CustomSettings
from coupled_adam_bench.study.settings.per_matrix import Optimizer, PerMatrixSettings
from coupled_adam_bench.study.settings.protocols import as_yaml
from coupled_adam_bench.study.settings.sections import Sections


def problems(study: Sections) -> list[str]:
    """Return what is wrong with a study as ``field: message``."""
    of_tables, of_grid = list(_table_errors(study)), []
    if not of_tables:  # without which no block can be looked at
        of_grid = list(_grid_errors(study))
    if not of_tables and not of_grid:
        of_grid = [*_tuning_errors(study), *_cap_errors(study), *_key_errors(study)]
    return [
        *of_tables,
        *of_grid,
        *_source_errors(study),
        *_contexts_errors(study),
        *_pairs_errors(study),
    ]


def _table_errors(study: Sections) -> Iterator[str]:
    yield from table_errors(
        study.tables, study.metrics, {block.table for block in study.grid if block.table}
    )
    if unknown := [name for name in study.statistics.margins if name not in study.metrics]:
        yield (
            f"statistics.margins: {', '.join(unknown)} is nothing that this study measures;"
            f" there are {', '.join(study.metrics)}"
        )


def _grid_errors(study: Sections) -> Iterator[str]:
    names = [model.name for model in study.models]
    if twice := duplicates(names):
        yield f"models: {', '.join(twice)} defined more than once"
    # A protocol has entries for presets that the study may not use.
    known = {
        *names,
        *MODEL_PRESETS,
    }
    if unknown := sorted(set(study.evaluation.test_loss.batch_sequences_of) - known):
        yield (
            f"evaluation.test_loss.batch_sequences_of: {', '.join(unknown)} is not among the"
            f" study's models {', '.join(names)}"
        )
    batch_tokens = study.training.batch_sequences * study.training.seq_len
    for index, block in enumerate(study.grid):
        for message in block.errors(batch_tokens, names, all_tables(study.tables, study.metrics)):
            yield f"grid.{index}.{message}"
        one = [
            model for model in study.models if model.name in block.models and not model.has_own_head
        ]
        for key in block.keys_of_own_heads if one else ():
            remedy = (
                ", or set `tied: false`" if all(model.family.has_layers for model in one) else ""
            )
            yield (
                f"grid.{index}.optimizers: {key} is for models whose head has a matrix of its"
                f" own, and that of {', '.join(model.name for model in one)} is the embedding;"
                f" give one optimizer{remedy}"
            )
        yield from (
            f"grid.{index}.optimizers: {twins}; leave one of them out"
            for twins in _twins(study, block.optimizers)
        )
        for position, count in enumerate(block.steps(batch_tokens)):
            problem = _run_error(study, count) if count else None
            if problem:
                yield f"grid.{index}.tokens.{position}: {problem}"
    if study.training.batch_sequences % study.execution.processes:
        yield (
            f"execution.train_processes: {study.execution.processes} (or gpus) does not divide "
            f"training.batch_sequences {study.training.batch_sequences}"
        )


def _twins(study: Sections, optimizers: Iterable[Optimizer]) -> Iterator[str]:
    """Yield the optimizers that differ only in what they name, one the study's own value of a
    setting and the other nothing; their runs would be the same."""
    training = study.training
    seen: dict[str, str] = {}
    for optimizer in optimizers:
        if isinstance(optimizer, CustomSettings | PerMatrixSettings):
            continue
        defaults = dict(zip(("beta1", "beta2"), training.betas(optimizer), strict=True))
        defaults["weight_decay"] = training.embedding_decay(optimizer)
        own = {name: value for name, value in defaults.items() if hasattr(optimizer, name)}
        key = optimizer.names()[0]
        first = seen.setdefault(optimizer.model_copy(update=own).names()[0], key)
        if first != key:
            named = ", ".join(f"{name} = {value:g}" for name, value in own.items())
            yield f"{first} and {key} are the same in this study ({named})"


def _run_error(study: Sections, steps: int) -> str | None:
    """Return what is wrong with a run of ``steps`` under the study's training settings, or
    None."""
    training = study.training
    if (n_tokens := steps * training.batch_sequences * training.seq_len) > MAX_COUNT:
        return f"{steps:,} steps are {n_tokens:.1e} tokens, more than {MAX_COUNT:.0e}; lower them"
    warmup, decay = training.warmup(steps), training.decay(steps)
    field = "warmup_steps" if training.warmup_fraction is None else "warmup_fraction"
    # A warmup that takes all steps stands first, since a shorter decay would not help there, as
    # the next message says.
    if warmup >= steps:
        return (
            f"the warmup of {warmup} steps (training.{field}) takes all {steps} steps of the"
            " run, which never reaches its learning rate; lower it, or train for longer"
        )
    if warmup + decay > steps:
        return (
            f"the warmup of {warmup} steps (training.{field}) and the decay of {decay}"
            f" (training.decay_fraction) are more than the {steps} steps of the run; lower one,"
            " or train for longer"
        )
    if decay == 1:
        return (
            f"a decay of 1 of the {steps} steps of the run (training.decay_fraction) never"
            " lowers the learning rate, since a decay begins at the peak; raise it, or train"
            " for longer"
        )
    return None


def _tuning_errors(study: Sections) -> Iterator[str]:
    batch_tokens = study.training.batch_sequences * study.training.seq_len
    used = {seed for block in study.grid for seed in block.seeds}
    for index, block in enumerate(study.grid):
        if (tune := block.tune) is None:
            continue
        place = f"grid.{index}.tune"
        models = {model.name: model for model in study.models}
        for message in tune.errors(
            block.optimizers, models, batch_tokens, min(block.steps(batch_tokens))
        ):
            yield f"{place}.{message}"
        if shared := sorted(used & set(tune.seeds)):
            yield (
                f"{place}.seeds: {', '.join(map(str, shared))} is a seed of the grid too; what"
                " is compared must not have been trained to choose: take other seeds"
            )
        # Candidates of another length than the cells have a warmup and a decay of their own.
        steps = tune.steps(batch_tokens)
        problem = _run_error(study, steps) if steps else None
        if problem:
            yield f"{place}.tokens: {problem}"
        if study.evaluation.test_loss.split == "val":
            yield (
                f"{place}: chooses by the split val, on which evaluation.test_loss.split"
                " measures the loss of the chosen too; set evaluation.test_loss.split: test"
            )


def _cap_errors(study: Sections) -> Iterator[str]:
    cap, split = study.data.max_tokens, study.data.split
    if cap is None or study.training.data_order == "pairs":
        return
    largest = study.largest_tokens
    fraction = 1 - Fraction(str(split.val_fraction)) - Fraction(str(split.test_fraction))
    if cap * fraction < largest:
        yield (
            f"data.max_tokens: {cap:,} leaves {int(cap * fraction):,} tokens to train on"
            " without the splits val and test, but the largest run of the grid trains on"
            f" {largest:,}; set at least {math.ceil(largest / fraction):,}, or leave it out"
        )


def _key_errors(study: Sections) -> Iterator[str]:
    settings: dict[tuple[str, str], Any] = {}
    for index, block in enumerate(study.grid):
        for model, (optimizer, row) in product(
            block.models, zip(block.optimizers, block.rows, strict=True)
        ):
            trial = block.tune and block.tune.trial_of(optimizer)
            if settings.setdefault((model, row.key), (optimizer, trial)) != (optimizer, trial):
                yield (
                    f"grid.{index}.optimizers: {row.key} stands for two different settings, and"
                    " results tell optimizers apart by it; make them the same, or use two"
                    " studies"
                )


def _source_errors(study: Sections) -> Iterator[str]:
    downstream = study.evaluation.downstream
    generated = downstream is not None and downstream.tasks == "synthetic"
    if generated and study.training.seq_len < CONTINUATION_WORDS:
        yield (
            f"training.seq_len: {study.training.seq_len}, but the answers of the generated tasks"
            f" have {CONTINUATION_WORDS} words; raise it, or name other"
            " evaluation.downstream.tasks, [] for none"
        )
    if study.data.source.kind == "files" and not study.paths.text:
        yield "paths.text: missing; the source 'files' needs folders, files or globs"
    if study.data.tokenizer == "file" and study.paths.tokenizer is None:
        yield "paths.tokenizer: missing; data.tokenizer 'file' needs a tokenizer.json"
    if study.data.source.kind != "synthetic" and (
        generated or study.evaluation.word_similarity == "synthetic"
    ):
        yield "evaluation: 'synthetic' sets exist for the data source 'synthetic' only"


def _contexts_errors(study: Sections) -> Iterator[str]:
    """Yield what does not go with models without layers."""
    for index, model in enumerate(study.models):
        if model.n_contexts is None:
            continue
        if model.n_contexts > study.data.vocab_size:
            yield (
                f"models.{index}.n_contexts: {model.n_contexts} previous tokens, but"
                f" data.vocab_size is {study.data.vocab_size}; lower it"
            )
        if study.training.core_optimizer != "adamw":
            yield (
                f"training.core_optimizer: {as_yaml(study.training.core_optimizer)} is for matrices"
                f" of layers, and {model.name} has none; use adamw"
            )
        if study.execution.parallel == "fsdp":
            yield f"execution.parallel: fsdp shards layers, and {model.name} has none; use ddp"


def _pairs_errors(study: Sections) -> Iterator[str]:
    """Yield what does not go with a training text that is a source of pairs."""
    if study.training.data_order != "pairs":
        return
    if others := [model.name for model in study.models if model.n_contexts is None]:
        yield (
            "training.data_order: 'pairs' draws only a token and the one before it, and"
            f" {', '.join(others)} reads more of the text; use models of the architecture"
            " contexts, or another order"
        )
    if study.evaluation.test_loss.windows == "random":
        yield (
            "evaluation.test_loss.windows: 'random', but with training.data_order 'pairs' the"
            " loss is the exact mean over all pairs of the source; set windows: all"
        )
