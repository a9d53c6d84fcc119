"""The figure of Coupled Adam with a scaled second moment, Sec. 6.1 of the paper."""

from typing import TYPE_CHECKING

from coupled_adam_bench.report.style import STYLES, add_legend, axis_label, panels, plain
from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.statistics.t_test import summarize
from coupled_adam_bench.study.catalog.names import COUPLED_ADAM
from coupled_adam_bench.study.cells import Cell
from coupled_adam_bench.study.config.optimizers import CoupledAdamSettings
from coupled_adam_bench.study.plan import Plan

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SHOWN = ("loss", "isotropy")

Place = tuple[str, str, int]
"""Data, name of the model, and tokens: cells that differ in optimizer and seed only have it in common."""


def scaled_places(plan: Plan) -> dict[Place, dict[int, list[Cell]]]:
    """Return by place the cells of Coupled Adam by their exponent n, where there are at least two exponents."""
    places: dict[Place, dict[int, list[Cell]]] = {}
    for cell in plan.cells.values():
        optimizer = cell.optimizer
        if cell.tuning is not None:  # its exponent is not known before the choice
            continue
        # The exponent is all that sets these cells apart.
        is_scaled = optimizer.names(leave_out=["scale_exponent"])[0] == COUPLED_ADAM
        if is_scaled and isinstance(optimizer, CoupledAdamSettings):
            exponents = places.setdefault((cell.data_id, cell.model.name, cell.n_tokens), {})
            exponents.setdefault(optimizer.scale_exponent, []).append(cell)
    return {place: dict(sorted(exponents.items())) for place, exponents in places.items() if len(exponents) > 1}


def scale(study: StudyResults) -> "Figure":
    """Draw loss and isotropy against the exponent n, a line for each place; a cell without a value leaves a gap."""
    figure, axes = panels(1, 2)
    layout = study.layout
    for index, exponents in enumerate(scaled_places(study.plan).values()):
        first = next(iter(exponents.values()))[0]
        tokens = first.tokens_label or f"{first.n_tokens:,}"
        label = f"N = {layout.labels[layout.setups[first.id]]}, D = {tokens}"
        for ax, name in zip(axes, _SHOWN, strict=True):
            values = [
                [study.values.get((cell.id, name), float("nan")) for cell in cells] for cells in exponents.values()
            ]
            samples = [summarize(of_exponent) for of_exponent in values]
            ax.errorbar(
                list(exponents),
                [sample.mean for sample in samples],
                yerr=[sample.sd for sample in samples],
                label=plain(label),
                markersize=4,
                capsize=2,
                **STYLES[index % len(STYLES)],
            )
    for ax, name in zip(axes, _SHOWN, strict=True):
        metric = layout.metrics[name]
        arrow = r"$\uparrow$" if metric.higher_is_better else r"$\downarrow$"
        ax.set_ylabel(f"{axis_label(metric)} {arrow}")
        ax.set_xlabel(r"exponent $n$ of the scale $2^{-n}$")
        ax.xaxis.get_major_locator().set_params(integer=True)
    add_legend(figure)
    return figure
