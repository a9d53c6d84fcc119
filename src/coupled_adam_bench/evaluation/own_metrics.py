"""A study's own embedding metrics: loaded by their dotted paths, and tried on a small matrix before the first job."""

import inspect
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coupled_adam_bench.study.config import OwnMetric, Study
from coupled_adam_bench.study.dotted import import_object

Function = Callable[..., Any]
_COUNTS = "unigram_counts"


def load_metrics(study: Study) -> list[tuple[OwnMetric, Function]]:
    """Import the functions of a study's own metrics; a ``ValueError`` names the field of one that is not there."""
    return [
        (metric, _load(f"evaluation.metrics.{index}", metric)) for index, metric in enumerate(study.evaluation.metrics)
    ]


def _load(place: str, metric: OwnMetric) -> Function:
    try:
        function = import_object(metric.path)
    except ValueError as error:
        raise ValueError(f"{place}.{error}") from None
    if not callable(function):
        raise ValueError(f"{place}.path: {metric.path} is {type(function).__name__}, not a function")
    return function  # type: ignore[no-any-return]


def own_value(
    metric: OwnMetric, function: Function, embeddings_VD: NDArray[np.float64], unigram_counts: NDArray[Any]
) -> float:
    """Return the value of a metric for a matrix (vocabulary, width).

    ``ValueError`` with the metric's path if the function fails, changes the matrix, or returns no finite number or NaN.
    """
    takes_counts = _COUNTS in inspect.signature(function).parameters
    given = embeddings_VD.view()
    given.flags.writeable = False  # other metrics see the same matrix
    try:
        value = function(given, **({_COUNTS: unigram_counts} if takes_counts else {}))
        number = float(value)
    except Exception as error:  # the function is the user's
        raise ValueError(f"{metric.path} fails ({type(error).__name__}: {error})") from error
    if math.isinf(number):
        raise ValueError(f"{metric.path} returns {number}, not a finite number")
    return number


def try_metrics(study: Study) -> None:
    """Try a study's own metrics on a small matrix; a ``ValueError`` names the field of one that cannot be used."""
    generator = np.random.default_rng(0)
    embeddings_VD, counts = generator.normal(size=(64, 8)), generator.integers(0, 100, size=64)
    for index, (metric, function) in enumerate(load_metrics(study)):
        try:
            value, again = (own_value(metric, function, embeddings_VD, counts) for _ in range(2))
        except ValueError as error:
            raise ValueError(f"evaluation.metrics.{index}.path: {error} on a matrix of 64 x 8 normal numbers") from None
        if value != again:
            raise ValueError(
                f"evaluation.metrics.{index}.path: {metric.path} returns {value!r} and then {again!r} for the same "
                "matrix; a metric is a pure function"
            )
