"""Measures time and memory of all metrics of an embedding matrix, and how many times faster they
are than directly.

The direct way is that of the authors' analysis in float64: a general eigensolver, one product per
eigenvector, and a full singular value decomposition. The matrices are drawn: one like Adam's, with
a mean that dominates and norms that follow the frequency, and one like Coupled Adam's. Both ways
take turns. Prints JSON: seconds and CPU seconds (the minima), their ratios, the largest relative
difference of the isotropy, and the peak memory of our way.

    python benchmarks/embeddings.py
    python benchmarks/embeddings.py --shape 50304x2560 --no-direct
    python benchmarks/embeddings.py --matrices coupled --scale 4
"""

import argparse
import json
import math
import resource
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedding_geometry.correlation import pearson
from embedding_geometry.metrics import embedding_metrics, log_unigram_probability

Array = NDArray[np.float64]


def drawn(kind: str, n_rows: int, width: int) -> tuple[Array, NDArray[np.int64]]:
    """Return a matrix and the counts of its tokens, which follow Zipf's law."""
    rng = np.random.default_rng(0)
    counts = (1e8 / np.arange(1, n_rows + 1)).astype(np.int64)
    # The spectrum falls by a factor of 20; the matrix is made in place, so that the peak of memory
    # is not here.
    embeddings = rng.standard_normal((n_rows, width))
    embeddings *= (
        np.geomspace(1.0, 0.05, width) * (2.0 if kind == "coupled" else 0.5) / math.sqrt(width)
    )
    if kind == "adam":
        embeddings += rng.standard_normal(width) / math.sqrt(width)
    embeddings *= np.linspace(1.2, 0.8, n_rows)[:, None]
    return embeddings, counts


def direct_metrics(embeddings: Array, counts: NDArray[np.int64]) -> dict[str, float]:
    """Return the paper's metrics by their formulas, one after another."""
    directions = np.real(np.linalg.eig(embeddings.T @ embeddings).eigenvectors)
    z = [
        np.exp(signed).sum() for c in directions.T for p in (embeddings @ c,) for signed in (p, -p)
    ]
    singular = np.linalg.svd(embeddings, full_matrices=False)[1]
    lengths = np.linalg.norm(embeddings, axis=1)
    mean = embeddings.mean(axis=0)
    log_p = log_unigram_probability(counts, len(embeddings))
    return {
        "isotropy": float(min(z) / max(z)),
        "kappa": float(100 * singular[-1] / singular[0]),
        "mean_norm_ratio": float(np.linalg.norm(mean) / lengths.mean()),
        "rho": pearson(lengths, log_p),
        "mean_projection_correlation": pearson(embeddings @ mean, log_p),
    }


def timed(function: Callable[[], dict[str, float]]) -> tuple[float, float, dict[str, float]]:
    wall, cpu = time.perf_counter(), time.process_time()
    found = function()
    return time.perf_counter() - wall, time.process_time() - cpu, found


def measure(
    kind: str, shape: tuple[int, int], scale: float, repeats: int, direct: bool
) -> dict[str, Any]:
    embeddings, counts = drawn(kind, *shape)
    embeddings *= scale
    ours = [timed(lambda: embedding_metrics(embeddings, counts, "both_signs"))]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    theirs = []
    for repeat in range(repeats):
        if repeat > 0:
            ours.append(timed(lambda: embedding_metrics(embeddings, counts, "both_signs")))
        if direct:
            theirs.append(timed(lambda: direct_metrics(embeddings, counts)))
    result: dict[str, Any] = {
        "matrix": kind,
        "shape": list(shape),
        "mean_length": ours[0][2]["mean_length"],
        "seconds": min(run[0] for run in ours),
        "cpu_seconds": min(run[1] for run in ours),
        "peak_gib": peak / 2**30,
    }
    if direct:
        metrics, reference = ours[0][2], theirs[0][2]
        result |= {
            "direct_seconds": min(run[0] for run in theirs),
            "direct_cpu_seconds": min(run[1] for run in theirs),
            "largest_relative_difference": max(
                abs(metrics[name] / reference[name] - 1) for name in reference
            ),
        }
        for clock in ("seconds", "cpu_seconds"):
            result[f"times_faster_{clock}"] = result[f"direct_{clock}"] / result[clock]
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--shape", default="50304x768")
    parser.add_argument(
        "--matrices", nargs="+", default=["adam", "coupled"], choices=("adam", "coupled")
    )
    parser.add_argument(
        "--scale", type=float, default=1.0, help="factor of the matrices, which decides their norms"
    )
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--no-direct", action="store_true")
    arguments = parser.parse_args()
    n_rows, width = map(int, arguments.shape.split("x"))
    for kind in arguments.matrices:
        found = measure(
            kind, (n_rows, width), arguments.scale, arguments.repeats, not arguments.no_direct
        )
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
