"""How often two equal models come out different by their loss on held-out documents, by simulation.

    python benchmarks/held_out_documents.py [FIRST.windows.csv.gz SECOND.windows.csv.gz] [--texts
    5000]

The two files are those that lie beside the test losses of two cells,
results/runs/<cell>/evaluations/: of one seed and study, so that both have the same windows. Without
files, texts are drawn alone. A row is a kind of text in which the true difference is known, and the
columns are how often p < 5 % says otherwise, in percent:

- documents: the test of ``paired.csv``;
- G - 1: its error with one degree of freedom fewer than documents;
- windows: the t-test over windows as if they were independent.
"""

import argparse
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from coupled_adam_bench.records.kept import unpack_windows
from coupled_adam_bench.statistics.student import ALPHA
from coupled_adam_bench.statistics.units import Estimate, document_means, of_held_out

WINDOW = 128
Floats = NDArray[np.float64]
Text = tuple[NDArray[np.int64], NDArray[np.int64], Floats]
"""The document, the targets and the difference of each piece of a window; the true mean difference
is 0."""
Draw = Callable[[np.random.Generator], Text]


def rates(draw: Draw, n_texts: int) -> tuple[float, float, list[float]]:
    """Return the number of documents, the mean degrees of freedom, and how often each test is
    wrong."""
    rng = np.random.default_rng(0)
    wrong, df = np.zeros(3), 0.0
    for _ in range(n_texts):
        documents_P, n_targets_P, differences_P = draw(rng)
        n_targets_G, (differences_G,) = document_means(documents_P, n_targets_P, differences_P)
        found = of_held_out(differences_G, n_targets_G)
        full = Estimate(found.n, found.difference, found.standard_error, found.n - 1)
        wrong += (
            found.p_value < ALPHA,
            full.p_value < ALPHA,
            stats.ttest_1samp(differences_P, 0).pvalue < ALPHA,
        )
        df += found.df / n_texts
    return found.n, df, (100 * wrong / n_texts).tolist()


def drawn(lengths_G: NDArray[np.int64], correlation: float) -> Draw:
    """Return what draws normal differences for documents of these lengths, each in windows of its
    own.

    ``correlation`` is that of two windows of a document.
    """
    counts_G = -(-lengths_G // WINDOW)
    documents_P = np.repeat(np.arange(len(lengths_G)), counts_G)
    n_targets_P = np.full(len(documents_P), WINDOW)
    n_targets_P[np.cumsum(counts_G) - 1] = lengths_G - WINDOW * (counts_G - 1)
    own = np.sqrt((1 - correlation) * WINDOW / n_targets_P)

    def draw(rng: np.random.Generator) -> Text:
        shared_G = math.sqrt(correlation) * rng.normal(size=len(lengths_G))
        return (
            documents_P,
            n_targets_P,
            shared_G[documents_P] + own * rng.normal(size=len(documents_P)),
        )

    return draw


def with_signs(text: Text) -> Draw:
    """Return what gives the differences of each document of a real text a random sign."""
    documents_P, n_targets_P, differences_P = text
    _, place_P = np.unique(documents_P, return_inverse=True)

    def draw(rng: np.random.Generator) -> Text:
        return (
            documents_P,
            n_targets_P,
            differences_P * rng.choice((-1.0, 1.0), size=place_P.max() + 1)[place_P],
        )

    return draw


def resampled(text: Text, n_documents: int) -> Draw:
    """Return what draws whole documents of a real text with replacement: long ones, too, by
    chance."""
    _, place_P, counts_G = np.unique(text[0], return_inverse=True, return_counts=True)
    pieces = np.split(np.argsort(place_P, kind="stable"), np.cumsum(counts_G)[:-1])

    def draw(rng: np.random.Generator) -> Text:
        chosen = [pieces[document] for document in rng.integers(len(pieces), size=n_documents)]
        every = np.concatenate(chosen)
        documents_P = np.repeat(np.arange(n_documents), [len(each) for each in chosen])
        return documents_P, text[1][every], text[2][every]

    return draw


def real_text(files: list[Path]) -> Text:
    """Return the differences of two models on a real text, less their mean."""
    first, second = (unpack_windows(file.read_bytes(), file) for file in files)
    if not (
        np.array_equal(first.starts, second.starts)
        and np.array_equal(first.n_targets, second.n_targets)
    ):
        raise ValueError(
            f"{files[0]} and {files[1]} have other windows; take two cells of one study and seed"
        )
    differences_P = first.losses - second.losses
    return (
        first.documents,
        first.n_targets,
        differences_P - np.average(differences_P, weights=first.n_targets),
    )


def main() -> None:
    """Print the table of drawn texts, and that of a text of the user."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("files", nargs="*", type=Path)
    options.add_argument("--texts", type=int, default=5000)
    chosen = options.parse_args()
    texts: dict[str, Draw] = {}
    if chosen.files:
        text = real_text(chosen.files)
        lengths_G = document_means(*text)[0].astype(np.int64)
        texts["these documents, normal differences"] = drawn(lengths_G, 0.1)
        texts["these documents, their differences with random signs"] = with_signs(text)
        for n in (64, len(lengths_G)):
            texts[f"{n} documents drawn from these"] = resampled(text, n)
    rng = np.random.default_rng(1)
    for n in (20, 64, 200, 1000):
        for spread, name in ((1.0, "lognormal lengths, sd 1"), (1.7, "lognormal lengths, sd 1.7")):
            lengths_G = np.exp(rng.normal(6.5, spread, n)).astype(np.int64) + 1
            for correlation in (0.0, 0.1, 0.9):
                texts[f"{name}, correlation {correlation:g}, {n} documents"] = drawn(
                    lengths_G, correlation
                )
        texts[f"lengths of 30 to 90, {n} documents"] = drawn(rng.integers(30, 90, n), 0.1)
    print(
        "| text | documents | degrees of freedom | documents | G - 1 | windows"
        " |\n|---|---|---|---|---|---|"
    )
    for name, draw in texts.items():
        n, df, wrong = rates(draw, chosen.texts)
        print(
            f"| {name} | {n} | {df:.1f} | {' | '.join(f'{rate:.1f}' for rate in wrong)} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
