"""The figure of the test loss by the frequency of the predicted token."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from coupled_adam_bench.report.history_figures import largest_size
from coupled_adam_bench.report.style import add_legend, optimizer_styles, panels, plain
from coupled_adam_bench.results.groups import Values
from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.statistics.t_test import summarize
from coupled_adam_bench.study.catalog.bands import BANDS
from coupled_adam_bench.study.catalog.metrics import METRICS
from coupled_adam_bench.study.cells import Cell

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Seeds = tuple[int, int]
"""The seed of the initial weights and that of the order of the data."""
_BESIDE = 0.12  # distance of the optimizers' points in a band


def _by_band(cells: Sequence[Cell], values: Values) -> dict[str, dict[Seeds, list[float]]]:
    """Return by the optimizer's key and the seeds a cell's loss in each band; NaN where there is none."""
    losses: dict[str, dict[Seeds, list[float]]] = {}
    for cell in cells:
        found = [values.get((cell.id, band.metric), math.nan) for band in BANDS]
        losses.setdefault(cell.optimizer.key, {})[cell.seed, cell.data_seed] = found
    return losses


def differences(
    losses: Mapping[Seeds, Sequence[float]], reference: Mapping[Seeds, Sequence[float]]
) -> dict[Seeds, list[float]]:
    """Return each seed's losses minus those of the same seed of the ``reference``; seeds that it lacks have none."""
    return {
        seed: [ours - theirs for ours, theirs in zip(found, reference[seed], strict=True)]
        for seed, found in losses.items()
        if seed in reference
    }


def _draw(ax: "Axes", by_seed: Mapping[Seeds, Sequence[float]], offset: float, label: str, style: Any) -> None:
    samples = [summarize(of_band) for of_band in zip(*by_seed.values(), strict=True)]
    ax.errorbar(
        [number + offset for number in range(len(samples))],
        [sample.mean for sample in samples],
        yerr=[sample.sd for sample in samples],
        label=label,
        markersize=4,
        capsize=2,
        **{**style, "linestyle": ""},
    )


def loss_by_frequency(study: StudyResults) -> "Figure":
    """Draw the loss of each band, and its difference to the first optimizer's, for the largest size at most tokens."""
    shown = largest_size(study.layout)
    losses = _by_band(shown.cells, study.values_of({band.metric: METRICS[band.metric].task for band in BANDS}))
    labels = {cell.optimizer.key: plain(cell.optimizer.label) for cell in shown.cells}
    reference = next(iter(losses))
    styles = optimizer_styles(study.plan)
    figure, (whole, difference) = panels(1, 2)
    for index, (key, by_seed) in enumerate(losses.items()):
        offset = _BESIDE * (index - (len(losses) - 1) / 2)
        _draw(whole, by_seed, offset, labels[key], styles[key])
        _draw(difference, differences(by_seed, losses[reference]), offset, labels[key], styles[key])
    difference.axhline(0, color="0.7", linewidth=0.8, zorder=0)
    whole.set_ylabel("test loss (nat/token)")
    difference.set_ylabel(f"difference to {labels[reference]} (nat/token)")
    for ax in (whole, difference):
        ax.set_xticks(range(len(BANDS)), labels=[band.label for band in BANDS], fontsize=8)
        ax.set_xlabel("share of the text, rarest tokens first")
        ax.set_title(plain(shown.title))
    add_legend(figure)
    return figure
