"""What groups of cells are trained on and how: the setups of a plan, and the names that tell them
apart."""

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coupled_adam_bench.study.plan import Plan
from coupled_adam_bench.study.settings import Model, Study
from coupled_adam_bench.study.settings.base import as_seen

# The settings of a study that can change a number, data, models and optimizers left out.
_RECIPE: Any = {
    "training": True,
    "evaluation": True,
    "paths": {"word_similarity", "hub_mirror", "tasks"},
}


@dataclass(frozen=True)
class Setup:
    """What cells have in common that differ in tokens, optimizer and seed only.

    ``model`` is the name of the model; where a plan has two models of that name, it also names the
    study. ``data`` is the id of the data. ``recipe`` is the name of the plan or, in a plan whose
    studies train or evaluate in different ways, the name of the first study that does it this way.
    """

    n_params: int
    model: str
    data: str
    recipe: str


def recipes_of(studies: Sequence[Study], whole: str) -> dict[str, str]:
    """Return the name of each study's recipe; all have that of the ``whole`` plan if there is only
    one recipe."""
    by_settings: dict[str, list[str]] = defaultdict(list)
    for study in studies:
        by_settings[json.dumps(study.model_dump(mode="json", include=_RECIPE))].append(study.name)
    if len(by_settings) == 1:
        return dict.fromkeys((study.name for study in studies), whole)
    return {name: names[0] for names in by_settings.values() for name in names}


def model_names_of(studies: Sequence[Study]) -> dict[tuple[str, str], str]:
    """Return by study and model the model's name, with a study's name where it stands for different
    models."""
    owners: dict[str, dict[str, str]] = defaultdict(dict)
    for study in studies:
        for model in study.models:
            owners[model.name].setdefault(_settings_of(model), study.name)
    names: dict[tuple[str, str], str] = {}
    for study in studies:
        for model in study.models:
            by_settings = owners[model.name]
            name = model.name
            if len(by_settings) > 1:
                name += f" of {by_settings[_settings_of(model)]}"
            names[study.name, model.name] = name
    return names


def _settings_of(model: Model) -> str:
    return model.model_dump_json(exclude={"label"})


def labels_of(
    plan: Plan, setups: Mapping[str, Setup], data_names: Mapping[str, str]
) -> dict[Setup, str]:
    """Return what tables print of each setup: the size of its model and, where that is not enough,
    what else differs.

    ``ValueError`` if two of them would still be printed alike.
    """
    sizes: dict[Setup, str] = {}
    for cell_id, setup in setups.items():
        sizes.setdefault(setup, plan.cells[cell_id].size_label)
    # Two sizes that only a computer tells apart are one to the reader of a table.
    alike: dict[str, list[Setup]] = defaultdict(list)
    for setup, size in sizes.items():
        alike[as_seen(size)].append(setup)
    names_of_data = Counter(data_names.values())
    labels: dict[Setup, str] = {}
    for setup, size in sizes.items():
        others = alike[as_seen(size)]
        name = data_names[setup.data]
        texts = {
            "model": setup.model,
            "data": name if names_of_data[name] == 1 else setup.data,
            "recipe": setup.recipe,
        }
        added = []
        for field, text in texts.items():
            if len({getattr(each, field) for each in others}) > 1:
                added.append(text)
        labels[setup] = f"{size} ({', '.join(added)})" if added else size
    # A label that a study chose can look like one that was made longer here.
    first: dict[str, Setup] = {}
    for setup, label in labels.items():
        other = first.setdefault(as_seen(label), setup)
        if other != setup:
            raise ValueError(
                f"models: {other.model} and {setup.model} are both printed as {label!r}, so tables"
                " could not tell them apart; give one of them another label"
            )
    return labels
