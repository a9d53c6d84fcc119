"""The stage ``embeddings``: geometry and word similarity of a model's embedding matrix; it needs no
torch."""

import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coupled_adam_bench.data.bins import UNIGRAM, load_meta
from coupled_adam_bench.data.check import TOKENIZER, WORD_SIMILARITY, verified_file, verified_tree
from coupled_adam_bench.evaluation.settings import measures_head, read_pairs, set_files
from coupled_adam_bench.records.kept import PAIRS, PairSimilarities, pack_pairs
from coupled_adam_bench.records.stored import (
    LARGEST,
    Evaluation,
    Evaluator,
    ResultRow,
    is_usable,
    row,
)
from coupled_adam_bench.store import paths
from coupled_adam_bench.study.plan.cells import Cell
from coupled_adam_bench.study.plan.dotted import failure, import_object
from coupled_adam_bench.study.settings import OwnMetric, Study
from embedding_geometry.matrix import EMBEDDINGS, matrix_geometry, variant_rows
from embedding_geometry.rows import HEAD
from embedding_geometry.word_similarity import (
    COSINE,
    similarities,
    single_token_pairs,
    subword_pairs,
    word_similarity_rows,
)

Function = Callable[..., Any]


def load_metrics(study: Study) -> list[tuple[OwnMetric, Function]]:
    """Import the functions of a study's own metrics; a ``ValueError`` names the field of one that
    is not there."""
    found = []
    for index, metric in enumerate(study.evaluation.metrics):
        try:
            function = import_object(metric.path)
        except ValueError as error:
            raise ValueError(f"evaluation.metrics.{index}.{error}") from None
        if not callable(function):
            raise ValueError(
                f"evaluation.metrics.{index}.path: {metric.path} is {type(function).__name__}, not"
                " a function"
            )
        found.append((metric, function))
    return found


def own_value(
    metric: OwnMetric,
    function: Function,
    embeddings_VD: NDArray[np.float64],
    unigram_counts: NDArray[Any],
) -> float:
    """Return the value of a metric for a matrix (vocabulary, width).

    ``ValueError`` with the metric's path if the function fails, changes the matrix, or returns what
    statistics cannot use: neither NaN nor a finite number of at most ``LARGEST`` in size.
    """
    takes_counts = "unigram_counts" in inspect.signature(function).parameters
    given = embeddings_VD.view()
    given.flags.writeable = False  # other metrics see the same matrix
    try:
        number = float(
            function(given, unigram_counts=unigram_counts) if takes_counts else function(given)
        )
    except Exception as error:  # the function is the user's
        raise ValueError(f"{metric.path} fails {failure(error)}") from error
    if not is_usable(number):
        raise ValueError(
            f"{metric.path} returns {number:.4g}, not a finite number of at most {LARGEST:g} in"
            " size, which statistics need; return, for example, its logarithm"
        )
    return number


def try_metrics(study: Study) -> None:
    """Try a study's own metrics on a small matrix; a ``ValueError`` names the field of one that
    cannot be used."""
    generator = np.random.default_rng(0)
    embeddings_VD, counts = generator.normal(size=(64, 8)), generator.integers(0, 100, size=64)
    for index, (metric, function) in enumerate(load_metrics(study)):
        try:
            value, again = (own_value(metric, function, embeddings_VD, counts) for _ in range(2))
        except ValueError as error:
            raise ValueError(
                f"evaluation.metrics.{index}.path: for a matrix of 64 x 8 normal numbers, {error}"
            ) from None
        if value != again:
            raise ValueError(
                f"evaluation.metrics.{index}.path: {metric.path} returns {value!r} and then"
                f" {again!r} for the same matrix; a metric is a pure function"
            )


HEAD_KEY = "lm_head.weight"
Matrix = NDArray[np.float64]


@contextmanager
def open_evaluator(study: Study, data_id: str, device: str) -> Iterator[Evaluator]:  # noqa: ARG001 - runs on the CPU
    """Yield the evaluator, with the word pairs and unigram counts read once."""
    from tokenizers import Tokenizer

    folder = paths.data_dir(data_id)
    unigram_counts = np.load(verified_file(folder, UNIGRAM))
    n_vocab = load_meta(folder).n_vocab
    verified_tree(folder, TOKENIZER)
    verified_tree(folder, WORD_SIMILARITY)
    tokenizer = Tokenizer.from_file(str(folder / TOKENIZER / "tokenizer.json"))
    evaluation = study.evaluation
    own = load_metrics(study)
    read = [(spec.name, read_pairs(path, spec)) for spec, path in set_files(study, folder)]
    how = (tokenizer, study.data.tokenizer == "word", evaluation.leading_space)
    sets = [single_token_pairs(name, pairs, *how) for name, pairs in read]
    subword_sets = [subword_pairs(name, pairs, *how) for name, pairs in read]

    def evaluate(cell: Cell, model: Path) -> Evaluation:
        def embeddings() -> Matrix:
            return read_embeddings(model, f"{cell.model.family.embedding}.weight")

        # Each part reads the matrix anew and may overwrite it, so that no more than one is in
        # memory.
        matrix_VD = embeddings()
        own_rows, reasons = [], []
        for metric, function in own:
            value = own_value(metric, function, matrix_VD, unigram_counts)
            own_rows.append(row(EMBEDDINGS, metric.name, value, metric.unit))
            if math.isnan(value):
                reasons.append(f"{metric.name}: {metric.path} is NaN for this matrix")
        similarity_rows, similarity_reasons = word_similarity_rows(matrix_VD, sets, subword_sets)
        kept = [
            PairSimilarities(
                pairs.name, pairs.places, pairs.ratings, similarities(matrix_VD, pairs)[COSINE]
            )
            for pairs in sets
        ]
        geometry = matrix_geometry(
            EMBEDDINGS, matrix_VD, unigram_counts, n_vocab, evaluation.isotropy
        )
        del matrix_VD
        parts = [geometry]
        if measures_head(study):
            head_VD = read_embeddings(model, HEAD_KEY) if cell.model.has_own_head else embeddings()
            parts.append(
                matrix_geometry(HEAD, head_VD, unigram_counts, n_vocab, evaluation.isotropy)
            )
        variants = variant_rows(embeddings, sets, evaluation.isotropy)
        rows: list[ResultRow] = []
        undefined: list[str] = []
        matrices: dict[str, Any] = {}
        for part in parts:
            rows += part.results
            undefined += part.undefined
            matrices |= part.detail
        return Evaluation(
            [*rows, *own_rows, *variants, *similarity_rows],
            [*undefined, *reasons, *similarity_reasons],
            {"matrices": matrices},
            {PAIRS: pack_pairs(kept)},
        )

    yield evaluate


def read_embeddings(model: Path, key: str) -> Matrix:
    """Return a matrix (V, D) of a model folder in float64; ``key`` is its name there."""
    from safetensors import safe_open

    with safe_open(model / paths.WEIGHTS, framework="numpy") as tensors:
        return np.asarray(tensors.get_tensor(key), dtype=np.float64)
