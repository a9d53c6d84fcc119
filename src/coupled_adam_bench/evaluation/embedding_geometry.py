"""The stage ``embeddings``: geometry and word similarity of a model's embedding matrix; needs no torch."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coupled_adam_bench import paths
from coupled_adam_bench.cells import Cell
from coupled_adam_bench.embeddings.metrics import Isotropy, embedding_metrics, isotropy
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
from coupled_adam_bench.plan import Part

# By architecture; the input's where the head is untied.
EMBEDDING_KEYS = {"gpt2": "transformer.wte.weight", "stablelm": "model.embed_tokens.weight"}
VARIANTS = {"embeddings_centered": subtract_mean, "embeddings_abtt": all_but_the_top}


def settings(part: Part) -> dict[str, Any]:
    """Return what can change the numbers: the protocol's settings and the contents of the word-similarity sets."""
    return part.study.evaluation.protocol_settings()["embeddings"] | {
        "word_similarity": [
            {"name": spec.name, "pairs_sha256": digest(read_pairs(path, spec), 64)}
            for spec, path in set_files(part.study, paths.data_dir(part.data_id))
        ]
    }


@contextmanager
def open_evaluator(part: Part, device: str) -> Iterator[Evaluator]:  # noqa: ARG001 - runs on the CPU
    """Yield the evaluator, with the word pairs and unigram counts read once."""
    folder = paths.data_dir(part.data_id)
    unigram_counts = np.load(folder / "unigram.npy")
    tokenizer = load_tokenizer(folder / "tokenizer")
    word_level = part.study.data.tokenizer == "word"
    evaluation = part.study.evaluation
    sets = [
        single_token_pairs(spec.name, read_pairs(path, spec), tokenizer, word_level, evaluation.leading_space)
        for spec, path in set_files(part.study, folder)
    ]

    def evaluate(cell: Cell, model: Path) -> Evaluation:
        embeddings_VD = read_embeddings(model, EMBEDDING_KEYS[cell.model.architecture])
        metrics = embedding_metrics(embeddings_VD, unigram_counts, evaluation.isotropy)
        rows = [row("embeddings", name, value) for name, value in metrics.items()]
        similarity_rows, reasons = word_similarity_rows(embeddings_VD, sets)
        for task, transform in VARIANTS.items():
            rows += _variant_rows(task, transform(embeddings_VD), sets, evaluation.isotropy)
        return Evaluation(rows + similarity_rows, reasons, {"shape": list(embeddings_VD.shape)})

    yield evaluate


def _variant_rows(task: str, changed_VD: NDArray[np.float64], sets: list[TokenPairs], variant: Isotropy) -> list[Row]:
    cosines = [set_correlations(changed_VD, pairs)["pearson_cosine"] for pairs in sets]
    return [row(task, "isotropy", isotropy(changed_VD, variant)), row(task, "r_bar", r_bar(cosines))]


def read_embeddings(model: Path, key: str) -> NDArray[np.float64]:
    """Return the embedding matrix (V, D) of a model folder in float64; ``key``: its name there."""
    from safetensors import safe_open

    with safe_open(model / "model.safetensors", framework="numpy") as tensors:
        return np.asarray(tensors.get_tensor(key), dtype=np.float64)
