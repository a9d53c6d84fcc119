"""The stage ``embeddings``: geometry and word similarity of a model's embedding matrix; it needs no torch."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coupled_adam_bench.data.bins import UNIGRAM, load_meta
from coupled_adam_bench.data.check import TOKENIZER, WORD_SIMILARITY, verified_file, verified_tree
from coupled_adam_bench.embeddings.isotropy import Isotropy, isotropy
from coupled_adam_bench.embeddings.postprocessing import (
    remove_directions,
    subtract_mean,
    subtract_scaled_mean,
    top_directions,
)
from coupled_adam_bench.embeddings.spectrum import principal_directions
from coupled_adam_bench.evaluation.matrix_geometry import matrix_geometry
from coupled_adam_bench.evaluation.own_metrics import load_metrics, own_value
from coupled_adam_bench.evaluation.pair_similarities import FILE, PairSimilarities, pack
from coupled_adam_bench.evaluation.pairs import read_pairs, set_files
from coupled_adam_bench.evaluation.settings import measures_head
from coupled_adam_bench.evaluation.word_similarity import COSINE, r_bar_of, similarities, word_similarity_rows
from coupled_adam_bench.evaluation.words import TokenPairs, load_tokenizer, single_token_pairs, subword_pairs
from coupled_adam_bench.store import paths
from coupled_adam_bench.store.record import Evaluation, Evaluator, ResultRow, row
from coupled_adam_bench.study.architectures import ARCHITECTURES
from coupled_adam_bench.study.catalog.names import HEAD
from coupled_adam_bench.study.cells import Cell
from coupled_adam_bench.study.config import Study

EMBEDDINGS = "embeddings"
# The names of the input embedding and of an untied head in an exported model, by architecture.
EMBEDDING_KEYS = {name: f"{architecture.embedding}.weight" for name, architecture in ARCHITECTURES.items()}
HEAD_KEY = "lm_head.weight"
CENTERED, SCALED, TOP, TOP_2 = (f"{EMBEDDINGS}_{name}" for name in ("centered", "norm_scaled", "abtt", "abtt2"))
VARIANTS = (CENTERED, SCALED, TOP, TOP_2)
"""Tasks of the embedding matrix after post-processing."""

Matrix = NDArray[np.float64]


@contextmanager
def open_evaluator(study: Study, data_id: str, device: str) -> Iterator[Evaluator]:  # noqa: ARG001 - runs on the CPU
    """Yield the evaluator, with the word pairs and unigram counts read once."""
    folder = paths.data_dir(data_id)
    unigram_counts = np.load(verified_file(folder, UNIGRAM))
    n_vocab = load_meta(folder).n_vocab
    verified_tree(folder, TOKENIZER)
    verified_tree(folder, WORD_SIMILARITY)
    tokenizer = load_tokenizer(folder / TOKENIZER)
    evaluation = study.evaluation
    own = load_metrics(study)
    read = [(spec.name, read_pairs(path, spec)) for spec, path in set_files(study, folder)]
    how = (tokenizer, study.data.tokenizer == "word", evaluation.leading_space)
    sets = [single_token_pairs(name, pairs, *how) for name, pairs in read]
    subword_sets = [subword_pairs(name, pairs, *how) for name, pairs in read]

    def evaluate(cell: Cell, model: Path) -> Evaluation:
        def embeddings() -> Matrix:
            return read_embeddings(model, EMBEDDING_KEYS[cell.model.architecture])

        # Each part reads the matrix anew and may overwrite it, so that no more than one is in memory.
        matrix_VD = embeddings()
        own_rows, reasons = [], []
        for metric, function in own:
            value = own_value(metric, function, matrix_VD, unigram_counts)
            own_rows.append(row(EMBEDDINGS, metric.name, value, metric.unit))
            if math.isnan(value):
                reasons.append(f"{metric.name}: {metric.path} is NaN for this matrix")
        similarity_rows, similarity_reasons = word_similarity_rows(matrix_VD, sets, subword_sets)
        kept = [
            PairSimilarities(pairs.name, pairs.places, pairs.ratings, similarities(matrix_VD, pairs)[COSINE])
            for pairs in sets
        ]
        geometry = matrix_geometry(EMBEDDINGS, matrix_VD, unigram_counts, n_vocab, evaluation.isotropy)
        del matrix_VD
        parts = [geometry]
        if measures_head(study):
            read_head = embeddings if cell.model.tied else lambda: read_embeddings(model, HEAD_KEY)
            parts.append(matrix_geometry(HEAD, read_head(), unigram_counts, n_vocab, evaluation.isotropy))
        variants = variant_rows(embeddings, sets, evaluation.isotropy)
        return Evaluation(
            [each for part in parts for each in part.results] + own_rows + variants + similarity_rows,
            [reason for part in parts for reason in part.undefined] + reasons + similarity_reasons,
            {"matrices": {name: found for part in parts for name, found in part.detail.items()}},
            {FILE: pack(kept)},
        )

    yield evaluate


def variant_rows(read: Callable[[], Matrix], sets: Sequence[TokenPairs], variant: Isotropy) -> list[ResultRow]:
    """Return isotropy and ``r_bar`` of a matrix after each post-processing; ``read`` gives the matrix anew."""

    def rows(task: str, changed_VD: Matrix, directions_DD: Matrix | None = None) -> list[ResultRow]:
        value = isotropy(changed_VD, variant, directions_DD)
        return [row(task, "isotropy", value), row(task, "r_bar", r_bar_of(changed_VD, sets))]

    matrix_VD = read()
    subtract_scaled_mean(matrix_VD, out=matrix_VD)
    found = {SCALED: rows(SCALED, matrix_VD)}
    del matrix_VD
    matrix_VD = read()
    width = matrix_VD.shape[1]
    subtract_mean(matrix_VD, out=matrix_VD)
    # Without its largest components, a matrix has the same directions.
    directions_DD = principal_directions(matrix_VD)
    found[CENTERED] = rows(CENTERED, matrix_VD, directions_DD)
    removed = {TOP: top_directions(width), TOP_2: min(2, width)}
    for task in sorted(removed, key=lambda task: removed[task]):
        remove_directions(matrix_VD, directions_DD[:, width - removed[task] :], out=matrix_VD)
        found[task] = rows(task, matrix_VD, directions_DD)
    return [each for task in VARIANTS for each in found[task]]


def read_embeddings(model: Path, key: str) -> Matrix:
    """Return a matrix (V, D) of a model folder in float64; ``key`` is its name there."""
    from safetensors import safe_open

    with safe_open(model / paths.WEIGHTS, framework="numpy") as tensors:
        return np.asarray(tensors.get_tensor(key), dtype=np.float64)
