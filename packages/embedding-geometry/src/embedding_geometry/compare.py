"""Measures several models, also over the word pairs that all of them have, and prints them side by
side."""

import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from embedding_geometry.matrix import EMBEDDINGS, SEEN, UNPADDED, VARIANTS
from embedding_geometry.metrics import METRICS
from embedding_geometry.model import Known, Measured, measure_model, nothing_known
from embedding_geometry.place import MATRIX_ENDING
from embedding_geometry.rows import HEAD, SUBWORDS, row
from embedding_geometry.table import align
from embedding_geometry.word_lists import WordLists
from embedding_geometry.word_similarity import correlations_of, r_bar

SHARED = "_shared"
"""Ending of the tasks over the pairs that all models have."""
_MISSING = "-"
_TIED = {True: "yes", False: "no", None: _MISSING}
_EXPORTED = "model"
"""A last folder of this name tells no models apart."""
_ENDS = ("", "_low", "_high")
_KINDS = ((SUBWORDS, "of pieces"), (SHARED, "of shared pairs"))


def measure_models(
    names: Sequence[str],
    lists: WordLists,
    text: list[Path],
    tokenizer: Path | None = None,
    known_of: Callable[[Path], Known] = nothing_known,
) -> tuple[list[Measured], int]:
    """Measure models; return those that could be measured, and how many could not.

    Errors, and what was read of the word lists, go to stderr.
    ``tokenizer`` is that of the matrices of NumPy among them; ``ValueError`` if there are none.
    ``known_of`` is that of ``measure_model``.
    """
    if tokenizer is not None:
        if not any(name.endswith(MATRIX_ENDING) for name in names):
            raise ValueError(
                f"--tokenizer: only for matrices in {MATRIX_ENDING} files; a model has its own"
            )
        if not tokenizer.exists():
            raise ValueError(
                f"--tokenizer: {tokenizer} does not exist; give a tokenizer.json, or a folder"
                " with one"
            )
    for read in lists.read:
        print(f"word list {read}", file=sys.stderr)
    found = []
    for name in dict.fromkeys(names):
        try:
            found.append(measure_model(name, lists, text, tokenizer, known_of))
        except (ValueError, OSError) as error:
            print(f"error: {error}", file=sys.stderr)
    if len(found) > 1:
        add_shared_pairs(found)
    return found, len(dict.fromkeys(names)) - len(found)


def add_shared_pairs(models: Sequence[Measured]) -> None:
    """Add to each model the correlations over the pairs that all models keep, for each set and
    their mean."""
    in_each = [set(model.pairs) for model in models]
    names = [name for name in models[0].pairs if name in set.intersection(*in_each)]
    places = {}
    for name in names:
        kept_of_each = [set(model.pairs[name][0].places.tolist()) for model in models]
        places[name] = set.intersection(*kept_of_each)
    # Each model is measured anew on the pairs that all of them have kept.
    for model in models:
        cosines = []
        for name in names:
            pairs, found = model.pairs[name]
            kept_P = np.isin(pairs.places, list(places[name]))
            found_kept = {kind: of_pairs[kept_P] for kind, of_pairs in found.items()}
            values = correlations_of(found_kept, pairs.ratings[kept_P])
            model.results += [row(name + SHARED, metric, value) for metric, value in values.items()]
            model.results.append(row(name + SHARED, "n_pairs", len(places[name])))
            cosines.append(values["pearson_cosine"])
            if any(math.isnan(value) for value in values.values()):
                model.undefined.append(
                    f"{name + SHARED}: not defined for the {len(places[name])} pairs of all models"
                )
        if names:
            model.results.append(row("word_similarity" + SHARED, "r_bar", r_bar(cosines)))


def table_of(models: Sequence[Measured]) -> str:
    """Return the main numbers of models side by side, with the reasons for what is missing."""
    sets = list(dict.fromkeys(name for model in models for name in model.pairs))
    lines = [("architecture", [model.matrices.architecture for model in models])]
    lines.append(("tied", [_TIED[model.matrices.tied] for model in models]))
    lines.append(("rows x width", [_shape(model, EMBEDDINGS) for model in models]))
    lines += [(f"embeddings {name}", _values(models, EMBEDDINGS, name)) for name in METRICS]
    lines.append(("head rows x width", [_shape(model, HEAD) for model in models]))
    lines += [(f"head {name}", _values(models, HEAD, name)) for name in METRICS]
    for ending, words in ((UNPADDED, "no padding"), (SEEN, "seen tokens")):
        parts = ("n_rows", "isotropy", "mean_norm_ratio")
        lines += [
            (f"{words}: {name}", _values(models, EMBEDDINGS + ending, name)) for name in parts
        ]
    lines += [(f"{task} isotropy", _values(models, task, "isotropy")) for task in VARIANTS]
    for name in sets:
        lines.append((f"{name} pairs", [_kept(model, name) for model in models]))
    lines += [(f"{name} pearson_cosine", _values(models, name, "pearson_cosine")) for name in sets]
    lines += [
        (f"r_bar{name}", _values(models, "word_similarity", f"r_bar{name}")) for name in _ENDS
    ]
    lines += [
        (f"r_bar {words}", _values(models, "word_similarity" + ending, "r_bar"))
        for ending, words in _KINDS
    ]
    lines += [(f"{task} r_bar", _values(models, task, "r_bar")) for task in VARIANTS]
    # A line that no model has is left out, and each reason is told once for all that it is of.
    shown = [(name, *texts) for name, texts in lines if set(texts) != {_MISSING}]
    text = align([("", *labels_of(models)), *shown], n_left=1)
    notes: dict[str, list[str]] = {}
    for label, model in zip(labels_of(models), models, strict=True):
        for reason in dict.fromkeys(model.undefined):
            notes.setdefault(reason, []).append(label)
    for reason, labels in notes.items():
        whose = "" if len(labels) == len(models) else f"{', '.join(labels)}: "
        text.append(f"{_MISSING}  {whose}{reason}")
    return "".join(f"{line}\n" for line in text)


def to_json(models: Sequence[Measured]) -> dict[str, Any]:
    """Return everything that was measured as a JSON value."""
    return {"models": [model.to_json() for model in models]}


def details_of(models: Sequence[Measured]) -> dict[str, dict[str, Any]]:
    """Return what a figure shows of each matrix, by its label."""
    details = {}
    for label, model in zip(labels_of(models), models, strict=True):
        for name, detail in model.detail.items():
            details[label if name == EMBEDDINGS else f"{label} {name}"] = detail
    return details


def labels_of(models: Sequence[Measured]) -> list[str]:
    """Return the shortest end of each model's path that tells all apart, without what all paths end
    in."""
    names = [model.model for model in models]
    parts = [_parts_of(name) for name in names]
    # The last folder tells nothing where it is the same in all paths.
    while len(parts) > 1 and min(map(len, parts)) > 1 and len(_last_of(parts)) == 1:
        parts = [each[:-1] for each in parts]
    for length in range(1, max(map(len, parts)) + 1):
        ends = ["/".join(each[-length:]) for each in parts]
        if len(set(ends)) == len(ends):
            return ends
    return names


def _parts_of(name: str) -> tuple[str, ...]:
    """Return the parts of a model's path, without the folder that every trained cell has."""
    parts = Path(name).parts or (name,)
    return parts[:-1] if len(parts) > 1 and parts[-1] == _EXPORTED else parts


def _last_of(parts: Sequence[tuple[str, ...]]) -> set[str]:
    """Return the different last parts of paths."""
    return {each[-1] for each in parts}


def _shape(model: Measured, matrix: str) -> str:
    return (
        " x ".join(map(str, model.detail[matrix]["shape"])) if matrix in model.detail else _MISSING
    )


def _kept(model: Measured, name: str) -> str:
    if name not in model.pairs:
        return _MISSING
    pairs = model.pairs[name][0]
    return f"{pairs.n_pairs} of {pairs.n_read}"


def _values(models: Sequence[Measured], task: str, metric: str) -> list[str]:
    return [_shown(model.value(task, metric)) for model in models]


def _shown(value: float | None) -> str:
    return _MISSING if value is None or math.isnan(value) else f"{value:.4g}"
