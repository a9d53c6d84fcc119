"""Tables of a study's models and training settings, the counterparts of the paper's Tables 5 and
6."""

from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from coupled_adam_bench.page.formats import plural
from coupled_adam_bench.study.catalogue.tables import SETUP_TABLES
from coupled_adam_bench.study.plan import Plan
from coupled_adam_bench.study.plan.cells import Cell
from coupled_adam_bench.study.settings import CustomSettings, Model, Own, Study
from coupled_adam_bench.study.settings.tune import LEARNING_RATE

_OWN = "own optimizers"
_CORE = {
    "adamw": "AdamW",
    "muon": "Muon for the matrices, AdamW for the rest",
}


@dataclass(frozen=True)
class SetupTable:
    """A table of settings as plain text; the first column names the rows, and ``is_text`` tells
    text from numbers."""

    name: str
    title: str
    study: str
    study_name: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    is_text: bool


def _warmup(study: Study) -> str:
    training = study.training
    start = "from 0" if training.warmup_from == "zero" else "from the first step"
    if training.warmup_fraction is None:
        return f"{plural(training.warmup_steps, 'step')}, {start}"
    return f"{100 * training.warmup_fraction:g} % of the steps, {start}"


def _schedule(study: Study) -> str:
    training = study.training
    if training.schedule == "constant":
        return "constant"
    low = training.min_learning_rate
    end = f"to {training.min_lr_ratio:g} of the peak" if low is None else f"to {low:g}"
    if training.schedule == "wsd":
        return f"wsd, {end} in the last {100 * training.decay_fraction:g} %"
    return f"{training.schedule} decay {end}"


def _core(study: Study) -> str:
    core = study.training.core_optimizer
    if isinstance(core, Own):
        return f"{core.code_name} for the matrices, AdamW for the rest"
    return _CORE[core]


def _order(study: Study) -> str:
    order = study.training.data_order
    return order.code_name if isinstance(order, Own) else order.replace("_", " ")


def _initial_weights(study: Study) -> str:
    training = study.training
    if isinstance(training.init, Own):
        return training.init.code_name
    return f"normal, standard deviation {training.init_std:g}"


def _batch(study: Study) -> str:
    training = study.training
    tokens = training.batch_sequences * training.seq_len
    return f"{training.batch_sequences:,} sequences of {training.seq_len:,}, {tokens:,} tokens"


def _seeds(study: Study) -> str:
    return ", ".join(map(str, sorted({seed for block in study.grid for seed in block.seeds})))


def _own_optimizers(study: Study) -> str:
    used: list[Any] = []
    for block in study.grid:
        for optimizer in block.optimizers:
            used += optimizer.entries.values()
    own = [entry for entry in used if isinstance(entry, CustomSettings)]
    return "; ".join(dict.fromkeys(f"{one.label} ({one.code_name})" for one in own))


_SETTINGS: dict[str, Callable[[Study], str]] = {
    "optimizer of the core": _core,
    "betas": lambda study: f"{study.training.beta1:g}, {study.training.beta2:g}",
    "epsilon": lambda study: f"{study.training.eps:g}",
    "weight decay": lambda study: f"{study.training.weight_decay:g}",
    "weight decay of the embedding": lambda study: f"{study.training.embedding_weight_decay:g}",
    "gradient clipping": lambda study: f"{study.training.grad_clip:g}",
    "schedule": _schedule,
    "warmup": _warmup,
    "batch": _batch,
    "order of data": _order,
    "initial weights": _initial_weights,
    _OWN: _own_optimizers,
    "precision": lambda study: study.training.precision,
    "data": lambda study: study.data.name,
    "tokenizer": lambda study: study.data.tokenizer,
    "vocabulary": lambda study: f"{study.data.vocab_size:,}",
    "seeds": _seeds,
    "protocol": lambda study: study.protocol_label,
}
"""The rows of the table of training settings, each with its value in a study; that of own
optimizers if there are."""


def _training(plan: Plan) -> SetupTable:
    studies: dict[tuple[str, ...], list[str]] = {}
    for study in plan.studies.values():
        studies.setdefault(tuple(value(study) for value in _SETTINGS.values()), []).append(
            study.name
        )
    values = ["value"] if len(studies) == 1 else [", ".join(names) for names in studies.values()]
    rows = tuple(
        row for row in zip(_SETTINGS, *studies, strict=True) if row[0] != _OWN or any(row[1:])
    )
    return SetupTable(
        SETUP_TABLES[1],
        "Training settings",
        plan.title or plan.name,
        plan.name,
        ("setting", *values),
        rows,
        True,
    )


def _peak(model: Model, study: Study) -> str:
    """Return the peak learning rate of a model, and whether a trial chooses another for some of its
    cells."""
    tunes = [
        block.tune for block in study.grid if block.tune is not None and model.name in block.models
    ]
    tuned = any(LEARNING_RATE in grid for tune in tunes for grid in tune.grids.values())
    return f"{model.learning_rate:g}, or tuned" if tuned else f"{model.learning_rate:g}"


def _model_row(model: Model, cell: Cell, study: Study) -> tuple[str, ...]:
    """Return the row of a model, given one of its cells: a trial may have chosen another rate for
    this."""
    return (
        cell.size_label,
        f"{cell.n_params:,}",
        f"{model.n_layer:,}",
        f"{model.n_head:,}",
        f"{model.d_model:,}",
        f"{model.d_ffn:,}",
        _peak(model, study),
        "tied" if model.tied else "untied",
        model.family.title.partition(":")[0],
    )


_HEADER = (
    "N",
    "parameters",
    "layers",
    "heads",
    "width",
    "MLP width",
    "peak learning rate",
    "head",
    "family",
)
_SAID_ONCE = ("head", "family")
"""The columns that the title says instead where all models are alike, so that the table fits into
one column of an article."""


def _models(plan: Plan) -> SetupTable:
    # A cell of each model says how large the model is in its study.
    cells = {}
    for planned in plan.blocks:
        for cell in planned.cells:
            cells[planned.study.name, cell.model.name] = cell
    found = dict.fromkeys(
        _model_row(model, cells[study.name, model.name], study)
        for study in plan.studies.values()
        for model in study.models
        if (study.name, model.name) in cells
    )
    columns = zip(*found, strict=True)
    values = {name: set(column) for name, column in zip(_HEADER, columns, strict=True)}
    alike = [name for name in _SAID_ONCE if len(values[name]) == 1]
    shown = [place for place, name in enumerate(_HEADER) if name not in alike]
    rows = tuple(itemgetter(*shown)(row) for row in found)
    header = tuple(_HEADER[place] for place in shown)

    # The title says what the columns that are left out would repeat.
    models = [model for study in plan.studies.values() for model in study.models]
    said = list(dict.fromkeys(model.family.title for model in models))
    if "head" in alike:
        (head,) = values["head"]
        said.append(f"{head} head")
    title = f"Models ({'; '.join(said)})"
    whole = plan.title or plan.name
    return SetupTable(SETUP_TABLES[0], title, whole, plan.name, header, rows, False)


def setup_tables(plan: Plan) -> tuple[SetupTable, SetupTable]:
    """Return the tables of models and of training settings, whose columns are studies that train
    alike."""
    return _models(plan), _training(plan)
