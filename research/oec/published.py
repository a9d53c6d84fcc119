"""Compares our formulas, on a matrix that the authors trained, with the row that they published.

    python research/oec/published.py MATRIX.npy [--counts COUNTS.npy]

MATRIX.npy is results/embeddings/wor40A-16M-13p1B-100k-bs64-lr10-baseline-g0e+00-s1-output.npy of
https://github.com/flxst/output-embedding-centering; COUNTS.npy has how often each token occurs in
their text. The isotropy has their formula, the eigenvectors in float32.
"""

import argparse
import csv
from pathlib import Path

import numpy as np

from embedding_geometry.metrics import embedding_metrics

PUBLISHED = Path(__file__).parents[2] / "tests" / "golden" / "published_oec.csv"
ROW = {"model_label": "16M", "method": "adamw", "learning_rate": "0.001"}
NEED_COUNTS = ("rho", "mean_projection_correlation")
MEASURED = ("isotropy", "mean_norm", "mean_norm_ratio", "mean_length", "kappa", *NEED_COUNTS)


def published() -> dict[str, str]:
    """Return the row of the matrix among the published runs."""
    with PUBLISHED.open(encoding="utf-8") as file:
        (row,) = (row for row in csv.DictReader(file) if ROW.items() <= row.items())
    return row


def compared(matrix: Path, counts: Path | None) -> list[str]:
    """Return a line for each metric: its name, ours, theirs, and the difference."""
    embeddings_VD = np.load(matrix).astype(np.float64)
    counts_V = None if counts is None else np.load(counts)
    ours = embedding_metrics(embeddings_VD, counts_V, "eig_float32")
    theirs = published()
    lines = [f"{'metric':<30}{'ours':>12}{'theirs':>12}{'difference':>12}"]
    for name in MEASURED:
        if name in ours:
            value, other = ours[name], float(theirs[name])
            lines.append(f"{name:<30}{value:>12.4f}{other:>12.4g}{value - other:>12.4f}")
    if counts is None:
        lines.append(f"{', '.join(NEED_COUNTS)}: need --counts")
    return lines


def main() -> None:
    """Print the comparison for the matrix that the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("matrix", type=Path)
    parser.add_argument("--counts", type=Path)
    arguments = parser.parse_args()
    print("\n".join(compared(arguments.matrix, arguments.counts)))


if __name__ == "__main__":
    main()
