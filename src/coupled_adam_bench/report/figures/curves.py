"""Figures of the curves that evaluations of the runs of one size keep: by frequency, of matrices
and of word pairs."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rcParams
from matplotlib.figure import Figure
from numpy.typing import NDArray

from coupled_adam_bench.records.kept import PairSimilarities, read_pair_similarities
from coupled_adam_bench.records.stored import Measurement, measured_cells
from coupled_adam_bench.report.figures import largest_size, plain
from coupled_adam_bench.report.figures.files import save, say_no_data
from coupled_adam_bench.report.figures.style import (
    RC,
    STYLES,
    Style,
    add_legend,
    bars,
    curve,
    drawing_with,
    optimizer_styles,
    panels,
    thin,
    zero_line,
)
from coupled_adam_bench.statistics.declared import Material
from coupled_adam_bench.study.catalogue.bands import BANDS
from coupled_adam_bench.study.catalogue.metrics import METRICS
from coupled_adam_bench.study.plan.cells import Cell

Points = list[tuple[float, float]]
_BESIDE = 0.12  # distance of the optimizers' points in a band


def measured(
    material: Material, cells: Collection[Cell], stage: str
) -> Iterator[tuple[Cell, Measurement]]:
    """Yield those of some cells that a stage has measured; the report's list of runs says why
    others are not."""
    wanted = {cell.id for cell in cells}
    for cell, measurements in measured_cells(material.plan, material.runs):
        for measurement in measurements:
            if (
                measurement.stage.name == stage
                and cell.id in wanted
                and measurement.is_there(cell.id)
            ):
                yield cell, measurement


def details(
    material: Material, cells: Collection[Cell], stage: str, field: str
) -> Iterator[tuple[Cell, Any]]:
    """Yield some cells with a field of their evaluation by a stage; one that has diverged has
    none."""
    for cell, measurement in measured(material, cells, stage):
        record = measurement.read(cell.id)
        if field in record:
            yield cell, record[field]


def differences(found: Points, reference: Points) -> Points:
    """Return (place, difference to the reference) at the places that both have."""
    theirs = dict(reference)
    return [(place, value - theirs[place]) for place, value in found if place in theirs]


def loss_by_frequency(material: Material) -> Figure:
    """Draw the loss of each band, and its difference to the first optimizer's, for the largest size
    at most tokens."""
    shown, styles = largest_size(material.study.layout), optimizer_styles(material.plan)
    values = material.study.values_of({band.metric: METRICS[band.metric].task for band in BANDS})
    losses: dict[str, dict[int, Points]] = {key: {} for key in shown.labels}
    for cell in shown.cells:
        found: Points = [
            (place, values.get((cell.id, band.metric), math.nan))
            for place, band in enumerate(BANDS)
        ]
        losses[cell.optimizer.key][cell.seed] = found
    # Points of a band stand beside each other; those of the same seed are subtracted.
    first = next(iter(losses))
    figure, axes = panels(2)
    for index, (key, by_seed) in enumerate(losses.items()):
        places = [place + _BESIDE * (index - (len(losses) - 1) / 2) for place in range(len(BANDS))]
        pairs = [
            differences(found, losses[first][seed])
            for seed, found in by_seed.items()
            if seed in losses[first]
        ]
        for ax, curves in zip(axes, (list(by_seed.values()), pairs), strict=True):
            samples = []
            for of_band in zip(*curves, strict=True):
                samples.append([value for _, value in of_band])
            bars(
                ax,
                places[: len(samples)],
                samples,
                shown.labels[key],
                **{**styles[key], "linestyle": ""},
            )
    zero_line(axes[1])
    for ax, label in zip(axes, ("test loss", f"difference to {shown.labels[first]}"), strict=True):
        ax.set_xticks(
            range(len(BANDS)),
            labels=[band.label for band in BANDS],
            fontsize=rcParams["font.size"] - 1,
        )
        ax.set(
            xlabel="share of the text, rarest tokens first",
            ylabel=f"{label} (nat/token)",
            title=shown.title,
        )
    add_legend(figure)
    return figure


def _draw_spectra(lines: Sequence[tuple[str, Style, Mapping[str, Any]]], title: str = "") -> Figure:
    """Draw the singular values over the largest one, and the mean norm of tokens against their
    count if it is known.

    A line is a label, a style, and what ``evaluation/matrix_geometry.py`` keeps of a matrix.
    """
    counted = [
        (label, style, detail["norm_frequency"])
        for label, style, detail in lines
        if "norm_frequency" in detail
    ]
    figure, (spectrum, *others) = panels(2 if counted or not lines else 1)
    for label, style, detail in lines:
        singular = detail["singular_values"]
        if singular and singular[0] > 0:  # neither NaN nor all zero
            shares = [
                (place, value / singular[0]) for place, value in enumerate(singular, 1) if value > 0
            ]
            curve(spectrum, shares, plain(label), **thin(style))
    spectrum.set(xscale="log", yscale="log", title=title)
    spectrum.set(xlabel="number of the singular value", ylabel="singular value / largest")
    for norms in others:
        for label, style, by_count in counted:
            points = zip(by_count["count"], by_count["mean_norm"], strict=True)
            curve(norms, [point for point in points if point[0] > 0], plain(label), **thin(style))
        norms.set(
            xscale="log",
            title=title,
            xlabel="occurrences of the token in the text",
            ylabel=r"mean $\|e\|$",
        )
    say_no_data(figure.axes)
    add_legend(figure)
    return figure


def spectrum(material: Material) -> Figure:
    """Draw the embeddings of the largest size; a cell that is not measured, or diverged, has no
    line."""
    shown, styles = largest_size(material.study.layout), optimizer_styles(material.plan)
    found = details(material, shown.cells, "embeddings", "matrices")
    matrices = [
        (cell.optimizer, detail["embeddings"]) for cell, detail in found if "embeddings" in detail
    ]
    return _draw_spectra(
        [(each.label, styles[each.key], detail) for each, detail in matrices], shown.title
    )


def write_spectra(details: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """Draw matrices by their labels into a file, whose ending says its format: png, svg or pdf."""
    lines = [
        (label, STYLES[index % len(STYLES)], detail)
        for index, (label, detail) in enumerate(details.items())
    ]
    with drawing_with(RC):
        save(_draw_spectra(lines), path, path.suffix.removeprefix("."), dpi=150)


_PARTS = 5  # of the pairs, by their rating: the scatter of single pairs hides the trend


def means_by_rating(ratings_P: NDArray[np.float64], cosines_SP: NDArray[np.float64]) -> Points:
    """Return mean rating and mean cosine of equally many pairs, in the order of their ratings.

    Sets of few different ratings have a part for each. Cosines that are NaN are left out, and parts
    without any other. S: seeds, P: pairs.
    """
    values = np.unique(ratings_P)
    if len(values) <= _PARTS:
        parts = [np.flatnonzero(ratings_P == value) for value in values]
    else:
        parts = np.array_split(np.argsort(ratings_P, kind="stable"), min(_PARTS, len(ratings_P)))
    known = [(part, cosines_SP[:, part][np.isfinite(cosines_SP[:, part])]) for part in parts]
    return [
        (float(ratings_P[part].mean()), float(cosines.mean()))
        for part, cosines in known
        if len(cosines)
    ]


def similarity(material: Material) -> Figure:
    """Draw a panel for each set of pairs; a cell that is not measured, or has no pairs on file, is
    left out."""
    shown, styles = largest_size(material.study.layout), optimizer_styles(material.plan)
    by_set: dict[str, dict[str, list[PairSimilarities]]] = {}
    for cell, measurement in measured(material, shown.cells, "embeddings"):
        for found in read_pair_similarities(measurement, cell.id):
            by_set.setdefault(found.name, {}).setdefault(cell.optimizer.key, []).append(found)
    figure, axes = panels(max(len(by_set), 1), columns=3)
    for ax, (name, by_optimizer) in zip(axes, by_set.items(), strict=False):
        for key, seeds in by_optimizer.items():
            dots = {"color": styles[key]["color"], "marker": styles[key]["marker"], "linestyle": ""}
            # There are thousands of dots, so they become an image inside the figure.
            cloud = {
                "markersize": 2,
                "alpha": 0.2,
                "markeredgewidth": 0,
                "rasterized": True,
            }
            ax.plot(seeds[0].ratings, seeds[0].cosines, **cloud, **dots)
            means = means_by_rating(seeds[0].ratings, np.array([found.cosines for found in seeds]))
            curve(ax, means, shown.labels[key], **{"markersize": 4, **styles[key]})
        n_pairs = len(next(iter(by_optimizer.values()))[0].ratings)
        place = f"{n_pairs:,} pairs" if len(by_set) > 1 else shown.title
        ax.set(title=f"{plain(name)}, {place}", xlabel="human rating", ylabel="cosine")
    signs: dict[str, Style] = {
        "a pair": {"marker": "o", "linestyle": ""},
        "mean of a fifth": {"linewidth": 1},
    }
    add_legend(figure, signs=signs)
    return figure
