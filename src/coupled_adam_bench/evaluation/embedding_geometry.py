"""The stage ``embeddings``: geometry and word similarity of a model's embedding matrix; it needs no torch."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coupled_adam_bench import paths
from coupled_adam_bench.cells import Cell
from coupled_adam_bench.config import Study
from coupled_adam_bench.data.bins import UNIGRAM
from coupled_adam_bench.data.check import TOKENIZER, WORD_SIMILARITY, verified_file, verified_tree
from coupled_adam_bench.embeddings.isotropy import Isotropy, isotropy
from coupled_adam_bench.embeddings.metrics import embedding_metrics
from coupled_adam_bench.embeddings.postprocessing import all_but_the_top, subtract_mean
from coupled_adam_bench.evaluation.own_metrics import load_metrics, own_value
from coupled_adam_bench.evaluation.pairs import read_pairs, set_files
from coupled_adam_bench.evaluation.record import Evaluation, Evaluator, ResultRow, row
from coupled_adam_bench.evaluation.word_similarity import (
    TokenPairs,
    load_tokenizer,
    r_bar,
    set_correlations,
    single_token_pairs,
    word_similarity_rows,
)

# The name of the input embedding in an exported model, by architecture.
EMBEDDING_KEYS = {"gpt2": "transformer.wte.weight", "stablelm": "model.embed_tokens.weight"}
VARIANTS = {"embeddings_centered": subtract_mean, "embeddings_abtt": all_but_the_top}


@contextmanager
def open_evaluator(study: Study, data_id: str, device: str) -> Iterator[Evaluator]:  # noqa: ARG001 - runs on the CPU
    """Yield the evaluator, with the word pairs and unigram counts read once."""
    folder = paths.data_dir(data_id)
    unigram_counts = np.load(verified_file(folder, UNIGRAM))
    verified_tree(folder, TOKENIZER)
    verified_tree(folder, WORD_SIMILARITY)
    tokenizer = load_tokenizer(folder / TOKENIZER)
    word_level = study.data.tokenizer == "word"
    evaluation = study.evaluation
    own = load_metrics(study)
    sets = [
        single_token_pairs(spec.name, read_pairs(path, spec), tokenizer, word_level, evaluation.leading_space)
        for spec, path in set_files(study, folder)
    ]

    def evaluate(cell: Cell, model: Path) -> Evaluation:
        embeddings_VD = read_embeddings(model, EMBEDDING_KEYS[cell.model.architecture])
        metrics = embedding_metrics(embeddings_VD, unigram_counts, evaluation.isotropy)
        rows = [row("embeddings", name, value) for name, value in metrics.items()]
        similarity_rows, reasons = word_similarity_rows(embeddings_VD, sets)
        for metric, function in own:
            value = own_value(metric, function, embeddings_VD, unigram_counts)
            rows.append(row("embeddings", metric.name, value, metric.unit))
            if math.isnan(value):
                reasons.append(f"{metric.name}: {metric.path} is NaN for this matrix")
        for task, transform in VARIANTS.items():
            rows += _variant_rows(task, transform(embeddings_VD), sets, evaluation.isotropy)
        return Evaluation(rows + similarity_rows, reasons, {"shape": list(embeddings_VD.shape)})

    yield evaluate


def _variant_rows(
    task: str, changed_VD: NDArray[np.float64], sets: list[TokenPairs], variant: Isotropy
) -> list[ResultRow]:
    cosines = [set_correlations(changed_VD, pairs)["pearson_cosine"] for pairs in sets]
    return [row(task, "isotropy", isotropy(changed_VD, variant)), row(task, "r_bar", r_bar(cosines))]


def read_embeddings(model: Path, key: str) -> NDArray[np.float64]:
    """Return the embedding matrix (V, D) of a model folder in float64; ``key`` is its name there."""
    from safetensors import safe_open

    with safe_open(model / paths.WEIGHTS, framework="numpy") as tensors:
        return np.asarray(tensors.get_tensor(key), dtype=np.float64)
