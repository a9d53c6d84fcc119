"""Figures of a study, as SVG and PDF, the same bytes for the same results."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coupled_adam_bench.cells import Cell, readable_count
from coupled_adam_bench.files import atomic_path
from coupled_adam_bench.plan import Plan
from coupled_adam_bench.report.style import RC, add_legend, optimizer_styles, plain
from coupled_adam_bench.report.theory import theory_cells
from coupled_adam_bench.report.theory_figures import THEORY_FIGURES, theory_figures
from coupled_adam_bench.results.collect import read_results
from coupled_adam_bench.results.groups import PAIRWISE, UNTESTED, Group, Values, table_groups, table_values
from coupled_adam_bench.results.schema import METRICS
from coupled_adam_bench.statistics.t_test import summarize

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FIGURES = {
    "loss_accuracy": "Loss and mean accuracy against training tokens (App. G.1); bars: standard deviation over seeds.",
    "embeddings": "Isotropy and mean embedding against training tokens; bars: standard deviation over seeds.",
    "training": "Training loss (up to 1.5 times that of guessing) and mean embedding at each step; a line per seed.",
}
"""Names and captions of the figures of every study."""


def figures_of(plan: Plan) -> dict[str, str]:
    """Return names and captions of the figures of a plan: those of the theory only if it is checked."""
    return FIGURES | (THEORY_FIGURES if theory_cells(plan) else {})


def _axis_label(name: str) -> str:
    metric = METRICS[name]
    return metric.latex if metric.unit == "1" else f"{metric.latex} ({metric.unit})"


def _tokens_axis(ax: "Axes", groups: Sequence[Group]) -> None:
    ticks = {group.n_tokens: group.tokens_label for group in groups}
    ax.set_xscale("log")
    ax.set_xticks(list(ticks), labels=[plain(label) for label in ticks.values()])
    ax.minorticks_off()
    ax.set_xlim(min(ticks) / 1.5, max(ticks) * 1.5)


def _against_tokens(plan: Plan, values: Values, names: tuple[str, str], shared_scale: bool) -> "Figure":
    """Draw two metrics (rows) against tokens for each number of parameters (columns)."""
    from matplotlib.figure import Figure

    tables = table_groups(plan)
    # Table 7 compares optimizers at one place and would squeeze the others; a study of nothing else shows it.
    names_shown = [name for name in (PAIRWISE, UNTESTED) if name in tables] or list(tables)
    # Two tables may share a place: the first one, with more seeds, is drawn.
    places = {(g.n_params, g.n_tokens): g for name in reversed(names_shown) for g in tables[name]}
    shown = list(places.values())
    sizes = {group.n_params: group.model_label for group in sorted(shown, key=lambda group: group.n_params)}
    figure = Figure(figsize=(0.8 + 2.6 * max(len(sizes), 1), 4.6), layout="constrained")
    axes = figure.subplots(2, max(len(sizes), 1), squeeze=False, sharex="col", sharey="row" if shared_scale else "none")
    for column, (n_params, model_label) in enumerate(sizes.items()):
        groups = sorted((group for group in shown if group.n_params == n_params), key=lambda group: group.n_tokens)
        axes[0][column].set_title(f"N = {plain(model_label)}")
        axes[1][column].set_xlabel("D (tokens)")
        for row, name in enumerate(names):
            _tokens_axis(axes[row][column], groups)
            for key, style in optimizer_styles(plan).items():
                samples = [(g, summarize(g.samples(values, METRICS[name])[key])) for g in groups if key in g.cells]
                if not samples:
                    continue
                axes[row][column].errorbar(
                    [group.n_tokens for group, _ in samples],
                    [sample.mean for _, sample in samples],
                    yerr=[sample.sd for _, sample in samples],
                    label=samples[0][0].cells[key][0].optimizer.label,
                    markersize=4,
                    capsize=2,
                    **style,
                )
    for row, name in enumerate(names):
        arrow = r"$\uparrow$" if METRICS[name].higher_is_better else r"$\downarrow$"
        axes[row][0].set_ylabel(f"{_axis_label(name)} {arrow}")
    add_legend(figure)
    return figure


def read_history(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a ``history.jsonl``; ``ValueError`` with the line that is not one.

    A last line without its end is left out: its run is being trained or was killed.
    """
    rows = []
    text = path.read_text(encoding="utf-8")
    for number, line in enumerate(text[: text.rfind("\n") + 1].splitlines(), start=1):
        try:
            row = json.loads(line)
            rows.append({"step": row["step"], "loss": row["loss"], **row})
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path}:{number}: not a row of a training history ({error!r})") from None
    return rows


def _training(plan: Plan, runs: Path) -> "Figure":
    """Draw loss and mean-norm ratio against the step for the largest size at most tokens."""
    from matplotlib.figure import Figure

    n_params, n_tokens = max((cell.n_params, cell.n_tokens) for cell in plan.cells.values())
    cells: list[Cell] = [c for c in plan.cells.values() if (c.n_params, c.n_tokens) == (n_params, n_tokens)]
    figure = Figure(figsize=(7.2, 3.2), layout="constrained")
    axes = figure.subplots(1, 2)
    styles = optimizer_styles(plan)
    for cell in cells:
        history = runs / cell.id / "history.jsonl"
        # In partial results a cell may not be trained yet: it has no line, and the report's list of runs says why.
        rows = read_history(history) if history.is_file() else []
        style = {name: value for name, value in styles[cell.optimizer.key].items() if name != "marker"}
        for ax, name in zip(axes, ("loss", "mean_norm_ratio"), strict=True):
            points = [(row["step"], row[name]) for row in rows if name in row and math.isfinite(row[name])]
            if points:
                ax.plot(*zip(*points, strict=True), label=cell.optimizer.label, linewidth=0.8, **style)
    low, high = axes[0].dataLim.intervaly
    guessing = math.log(cells[0].vocab_size)
    if low < guessing and high > 1.5 * guessing:  # a run that blows up would squeeze the others
        axes[0].set_ylim(0.97 * low, 1.5 * guessing)
    axes[0].set_ylabel("training loss (nat/token)")
    axes[1].set_ylabel(_axis_label("mean_norm_ratio"))
    model = cells[0].model.label or readable_count(n_params)
    tokens = cells[0].tokens_label or readable_count(n_tokens)
    for ax in axes:
        ax.set_xlabel("step")
        ax.set_title(f"N = {plain(model)}, D = {plain(tokens)}")
    add_legend(figure)
    return figure


def write_figures(plan: Plan, results_csv: Path, runs: Path, out_dir: Path) -> None:
    """Write ``<name>.svg`` and ``<name>.pdf`` of every name in :func:`figures_of`, atomically."""
    from matplotlib import rc_context

    values = table_values(plan, read_results(results_csv))
    with rc_context(RC):
        figures = {
            "loss_accuracy": _against_tokens(plan, values, ("loss", "acc"), shared_scale=False),
            "embeddings": _against_tokens(plan, values, ("isotropy", "mean_norm_ratio"), shared_scale=True),
            "training": _training(plan, runs),
        }
        if theory_cells(plan):
            figures |= theory_figures(plan, runs)
        for name in figures_of(plan):
            for ax in figures[name].axes:
                if not ax.has_data():
                    ax.text(0.5, 0.5, "no data", transform=ax.transAxes, ha="center")
            for kind, date in (("svg", "Date"), ("pdf", "CreationDate")):
                with atomic_path(out_dir / f"{name}.{kind}") as temporary:
                    figures[name].savefig(temporary, format=kind, metadata={date: None})
