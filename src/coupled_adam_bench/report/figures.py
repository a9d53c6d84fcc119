"""Figures of a study, as SVG and PDF, the same bytes for the same results."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coupled_adam_bench.report.band_figure import loss_by_frequency
from coupled_adam_bench.report.calibration_figure import calibration_by_frequency
from coupled_adam_bench.report.history_figures import geometry, largest_size, row_steps, training
from coupled_adam_bench.report.noise_figure import noise_figure
from coupled_adam_bench.report.plane_figure import plane
from coupled_adam_bench.report.saving import fonts_of_outlines, lay_out
from coupled_adam_bench.report.scale_figure import scale, scaled_places
from coupled_adam_bench.report.similarity_figure import SIMILARITY_FIGURE, similarity_figure
from coupled_adam_bench.report.spectrum_figure import spectrum_of_study
from coupled_adam_bench.report.style import (
    IN_COLUMN,
    RC,
    add_legend,
    axis_label,
    is_narrow,
    optimizer_styles,
    page_width,
    plain,
)
from coupled_adam_bench.report.theory.figures import THEORY_FIGURES, theory_figures
from coupled_adam_bench.report.theory.records import theory_cells
from coupled_adam_bench.report.trend_figure import trend_figure, trend_table
from coupled_adam_bench.report.tuning_figure import TUNING_FIGURE, tuning_figure
from coupled_adam_bench.results.groups import Group, layout_of
from coupled_adam_bench.results.study_results import StudyResults, load_results
from coupled_adam_bench.results.tuning import read_tuning
from coupled_adam_bench.statistics import noise
from coupled_adam_bench.statistics.t_test import summarize
from coupled_adam_bench.store.files import atomic_path
from coupled_adam_bench.store.paths import TUNING_CSV
from coupled_adam_bench.study.plan import Plan

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pandas import DataFrame

FIGURES = {
    "loss_accuracy": "Loss and mean accuracy against training tokens (App. G.1); bars: standard deviation over seeds.",
    "embeddings": "Isotropy and mean embedding against training tokens; bars: standard deviation over seeds.",
    "loss_by_frequency": "Test loss by frequency of the predicted token, and its difference to that of the first "
    "optimizer with the same seed; bars: standard deviation over seeds.",
    "calibration": "Log of how probable tokens are over how often they are there, by their count in the training text: "
    "all tokens of a count together, and the mean over tokens minus that of the first optimizer; a line per seed.",
    "noise": "Standard deviation of a run's numbers by where it comes from; bars: 95 % intervals of seeds.",
    "spectrum": "Singular values of the embeddings, and their norms against the frequency of tokens; a line per seed.",
    "training": "Training loss (up to 1.5 times that of guessing), validation loss (points) and mean embedding at each "
    "step; bands: standard deviation over seeds.",
    "plane": "The runs of the study in the plane of training tokens and parameters (Fig. 6); the line is N = D/20.",
}
"""Names and captions of the figures of every study."""
GEOMETRY_FIGURE = {
    "geometry": "Isotropy and mean embedding at steps that are evenly spaced on a log scale; bands: standard "
    "deviation over seeds.",
    "row_steps": "How far one step moves the embeddings of the rarest tokens, over their norms, and how many times as "
    "far as the most frequent ones; bands: standard deviation over seeds.",
}

TREND_FIGURE = {
    "trend": "Difference in loss, paired by seed, against training tokens; bars: 95 % intervals over seeds; lines: "
    "the mean of the lines of the seeds, each over all sizes, with 95 % intervals.",
}


SCALE_FIGURE = {
    "scale": "Loss and isotropy of Coupled Adam against the exponent n, its second moment times 2^-n (Sec. 6.1); bars: "
    "standard deviation over seeds.",
}
FIGURE_ENDINGS = ("svg", "pdf", "column.pdf")
"""The files of a figure: for both columns of an article and for the report, and for one column."""
_WIDTHS = ((RC, FIGURE_ENDINGS[:2]), (IN_COLUMN, FIGURE_ENDINGS[2:]))
_DATES = {"svg": "Date", "pdf": "CreationDate"}
_MAX_INCHES = 8.5
"""The height that a page of an article leaves to a figure."""


def figures_of(plan: Plan) -> dict[str, str]:
    """Return names and captions of the figures of a plan; with those of what only it has."""
    optional = (
        (GEOMETRY_FIGURE, any(study.execution.geometry_per_decade for study in plan.studies.values())),
        (TREND_FIGURE, trend_table(layout_of(plan)) is not None),
        (SCALE_FIGURE, bool(scaled_places(plan))),
        (SIMILARITY_FIGURE, any(study.evaluation.word_similarity for study in plan.studies.values())),
        (TUNING_FIGURE, bool(plan.tunings)),
        (THEORY_FIGURES, bool(theory_cells(plan))),
    )
    return FIGURES | {name: caption for figures, shown in optional if shown for name, caption in figures.items()}


def _tokens_axis(ax: "Axes", groups: Sequence[Group]) -> None:
    ticks = {group.n_tokens: group.tokens_label for group in groups}
    ax.set_xscale("log")
    ax.set_xticks(list(ticks), labels=[plain(label) for label in ticks.values()])
    ax.minorticks_off()
    ax.set_xlim(min(ticks) / 1.5, max(ticks) * 1.5)


def _drawn_groups(study: StudyResults) -> list[Group]:
    """Return the groups to draw against tokens, each place once: from the first of the tables that have it.

    A table of many optimizers at one place would squeeze the others; a study of nothing else shows it.
    """
    of_few = [name for name, table in study.tables.items() if table.comparison != "each_other"]
    places: dict[tuple[Any, ...], Group] = {}
    for name in of_few or study.tables:
        for group in study.groups[name]:
            places.setdefault((group.setup, group.n_tokens), group)
    return list(places.values())


def _against_tokens(study: StudyResults, names: tuple[str, str], shared_scale: bool) -> "Figure":
    """Draw two metrics (rows) against tokens for each model, data and recipe (columns)."""
    from matplotlib.figure import Figure

    shown = sorted(_drawn_groups(study), key=lambda group: group.setup.n_params)
    setups = {group.setup: group.model_label for group in shown}
    metrics = [study.layout.metrics[name] for name in names]
    n_setups, height = max(len(setups), 1), 2.1
    # Where the sizes do not fit beside each other they stand below each other: the same panels, rows for columns.
    below = n_setups > (1 if is_narrow() else 4)
    inches = 0.5 + (0.75 if is_narrow() else 1) * height * (n_setups if below else 2)
    figure = Figure(figsize=(page_width(), min(inches, _MAX_INCHES)), layout="constrained")
    if below:
        shared: dict[str, Any] = {"sharex": "row", "sharey": "col" if shared_scale else "none"}
        axes = figure.subplots(n_setups, 2, squeeze=False, **shared).T
    else:
        shared = {"sharex": "col", "sharey": "row" if shared_scale else "none"}
        axes = figure.subplots(2, n_setups, squeeze=False, **shared)
    for column, (setup, model_label) in enumerate(setups.items()):
        groups = sorted((group for group in shown if group.setup == setup), key=lambda group: group.n_tokens)
        for row, ax in enumerate(axes[:, column]):
            if below or row == 0:
                ax.set_title(f"N = {plain(model_label)}")
            if (column == n_setups - 1) if below else row == 1:
                ax.set_xlabel("D (tokens)")
        for row, metric in enumerate(metrics):
            _tokens_axis(axes[row][column], groups)
            for key, style in optimizer_styles(study.plan).items():
                samples = [(g, summarize(study.samples(g, metric)[key])) for g in groups if key in g.cells]
                if not samples:
                    continue
                axes[row][column].errorbar(
                    [group.n_tokens for group, _ in samples],
                    [sample.mean for _, sample in samples],
                    yerr=[sample.sd for _, sample in samples],
                    label=plain(samples[0][0].optimizer_labels[key]),
                    markersize=4,
                    capsize=2,
                    **style,
                )
    for row, metric in enumerate(metrics):
        arrow = r"$\uparrow$" if metric.higher_is_better else r"$\downarrow$"
        for ax in axes[row] if below else axes[row][:1]:
            ax.set_ylabel(f"{axis_label(metric)} {arrow}")
    add_legend(figure)
    return figure


def _drawn(
    study: StudyResults, runs: Path, noise_csv: Path | None = None, tried: "DataFrame | None" = None
) -> "dict[str, Figure]":
    """Return the figures of a study by name, in the width of matplotlib's current settings.

    ``tried`` are the rows of ``tuning.csv`` of a study that tunes.
    """
    layout = study.layout
    figures = {
        "loss_accuracy": _against_tokens(study, ("loss", "acc"), shared_scale=False),
        "embeddings": _against_tokens(study, ("isotropy", "mean_norm_ratio"), shared_scale=True),
        "loss_by_frequency": loss_by_frequency(study),
        "calibration": calibration_by_frequency(layout, runs, largest_size(layout)),
        "noise": noise_figure(study, noise.STATISTIC.read_rows(noise_csv) if noise_csv else []),
        "spectrum": spectrum_of_study(layout, runs, largest_size(layout)),
        "training": training(layout, runs),
        "plane": plane(layout),
        "geometry": geometry(layout, runs),
        "row_steps": row_steps(layout, runs),
        "scale": scale(study),
        "similarity": similarity_figure(layout, runs, largest_size(layout)),
    }
    if tried is not None:
        figures["tuning"] = tuning_figure(study.plan, tried)
    if (table := trend_table(layout)) is not None:
        figures["trend"] = trend_figure(study, table)
    if theory_cells(study.plan):
        figures |= theory_figures(layout, runs)
    return {name: figures[name] for name in figures_of(study.plan)}


def write_figures(
    plan: Plan,
    results_csv: Path,
    runs: Path,
    out_dir: Path,
    noise_csv: Path | None = None,
    wanted: Collection[str] = FIGURE_ENDINGS,
) -> None:
    """Write every name in :func:`figures_of` with each ending that is ``wanted``, atomically and without a date.

    Without ``noise.csv`` its figure says that there is no data.
    """
    from matplotlib import rc_context

    study = load_results(plan, results_csv)
    tried = read_tuning(results_csv.with_name(TUNING_CSV)) if plan.tunings else None
    for settings, all_endings in _WIDTHS:
        if not (endings := [ending for ending in all_endings if ending in wanted]):
            continue
        with rc_context(settings), fonts_of_outlines():
            for name, figure in _drawn(study, runs, noise_csv, tried).items():
                for ax in figure.axes:
                    if not ax.has_data():
                        ax.text(0.5, 0.5, "no data", transform=ax.transAxes, ha="center")
                kinds = {ending: ending.rpartition(".")[2] for ending in endings}
                lay_out(figure, kinds[endings[0]])
                for ending, kind in kinds.items():
                    with atomic_path(out_dir / f"{name}.{ending}") as temporary:
                        figure.savefig(temporary, format=kind, metadata={_DATES[kind]: None})
