"""The stage ``embeddings``: geometry and word similarity of a model's embedding matrix; needs no torch."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coupled_adam_bench import paths
from coupled_adam_bench.cells import Cell
from coupled_adam_bench.embeddings.metrics import embedding_metrics, isotropy
from coupled_adam_bench.embeddings.postprocessing import all_but_the_top, subtract_mean
from coupled_adam_bench.evaluation.pairs import read_pairs, set_files
from coupled_adam_bench.evaluation.record import Evaluation, Evaluator, Row, row
from coupled_adam_bench.evaluation.word_similarity import (
    TokenPairs,
    load_tokenizer,
    r_bar,
    set_correlations,
    single_token_pairs,
    word_similarity_rows,
)
from coupled_adam_bench.files import digest
from coupled_adam_bench.plan import Plan

EMBEDDING_KEY = "transformer.wte.weight"
VARIANTS = {"embeddings_centered": subtract_mean, "embeddings_abtt": all_but_the_top}


def settings(plan: Plan) -> dict[str, Any]:
    """Return what can change the numbers: the contents of the word-similarity sets."""
    return {
        "word_similarity": [
            {"name": spec.name, "pairs_sha256": digest(read_pairs(path, spec), 64)}
            for spec, path in set_files(plan.study, paths.data_dir(plan.data_id))
        ]
    }


@contextmanager
def open_evaluator(plan: Plan, device: str) -> Iterator[Evaluator]:  # noqa: ARG001 - runs on the CPU
    """Yield the evaluator, with the word pairs and unigram counts read once."""
    folder = paths.data_dir(plan.data_id)
    unigram_counts = np.load(folder / "unigram.npy")
    tokenizer = load_tokenizer(folder / "tokenizer")
    word_level = plan.study.data.tokenizer == "word"
    sets = [
        single_token_pairs(spec.name, read_pairs(path, spec), tokenizer, word_level)
        for spec, path in set_files(plan.study, folder)
    ]

    def evaluate(cell: Cell, model: Path) -> Evaluation:  # noqa: ARG001 - the matrix says everything
        embeddings_VD = read_embeddings(model)
        rows = [
            row("embeddings", name, value) for name, value in embedding_metrics(embeddings_VD, unigram_counts).items()
        ]
        similarity_rows, reasons = word_similarity_rows(embeddings_VD, sets)
        for task, transform in VARIANTS.items():
            rows += _variant_rows(task, transform(embeddings_VD), sets)
        return Evaluation(rows + similarity_rows, reasons, {"shape": list(embeddings_VD.shape)})

    yield evaluate


def _variant_rows(task: str, variant_VD: NDArray[np.float64], sets: list[TokenPairs]) -> list[Row]:
    cosines = [set_correlations(variant_VD, pairs)["pearson_cosine"] for pairs in sets]
    return [row(task, "isotropy", isotropy(variant_VD)), row(task, "r_bar", r_bar(cosines))]


def read_embeddings(model: Path) -> NDArray[np.float64]:
    """Return the embedding matrix (V, D) of a model folder in float64."""
    from safetensors import safe_open

    with safe_open(model / "model.safetensors", framework="numpy") as tensors:
        return np.asarray(tensors.get_tensor(EMBEDDING_KEY), dtype=np.float64)
