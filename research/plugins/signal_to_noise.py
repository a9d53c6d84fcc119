"""Plug-ins (docs/plugins.md): how far Adam's second moment may be averaged along tokens, where
Coupled Adam averages, and along width.

    execution:
      measurements:
        - {name: snr, path: research.plugins.signal_to_noise.SignalToNoise}
    statistics:
      figures:
        - {name: signal_to_noise, path: research.plugins.signal_to_noise.Figure}

V: rows, one per token of the vocabulary; D: the width
"""

from typing import Any, ClassVar

from matplotlib import figure as drawing
from torch import Tensor

from coupled_adam_bench.report.figures import largest_size
from coupled_adam_bench.report.figures.histories import draw_mean
from coupled_adam_bench.report.figures.style import add_legend, optimizer_styles, panels
from coupled_adam_bench.report.plug_ins import FigurePlugIn
from coupled_adam_bench.statistics.declared import Material
from coupled_adam_bench.store.runs import run_history
from coupled_adam_bench.training.distributed import whole
from coupled_adam_bench.training.plug_ins import MeasurementPlugIn

AXES = {"tokens": 0, "width": 1}
"""The dimension of the matrix (V, D) along which the moment is averaged, by its name."""


def signal_to_noise(moment_VD: Tensor, dim: int) -> float:
    """Return the mean over the other dimension of (mean along ``dim``)^2 / (variance along it).

    This is what SlimAdam looks at (arXiv 2503.01843): below 1, the mean says little of the single
    values. The variance is divided by the number of values. Rows or columns without a variance are
    left out; NaN if there are no others.
    """
    mean, variance = moment_VD.mean(dim), moment_VD.var(dim, correction=0)
    varies = variance > 0
    return (mean[varies].square() / variance[varies]).mean().item()


class SignalToNoise(MeasurementPlugIn):
    """The signal to noise of the second moment of the head and, if it is untied, of the embedding;
    nothing for a rule that keeps no second moment of each weight."""

    contract = 1

    def after(self, step: int) -> dict[str, float]:  # noqa: ARG002 - it is that of the moment now
        """Return it by matrix and axis."""
        trainer = self.trainer
        weights = trainer.model.embedding_parameters()
        optimizers = {"embedding": trainer.optimizers.embedding, "head": trainer.optimizers.head}
        matrices = dict(zip(optimizers, weights, strict=False))
        found = {}
        for name, weight in matrices.items():
            moment = optimizers[name].state[weight].get("exp_avg_sq")
            if moment is None or moment.shape != weight.shape:
                continue
            moment_VD = whole(moment).double()
            for axis, dim in AXES.items():
                found[f"{name}_{axis}"] = signal_to_noise(moment_VD, dim)
        return found


class Figure(FigurePlugIn):
    """The signal to noise of one ``matrix``, embedding or head, along a run, in a panel for each
    axis."""

    contract = 1
    caption: ClassVar[str] = (
        "Signal to noise of Adam's second moment (mean squared over variance) along tokens, where"
        " Coupled Adam averages, and along width; bands: standard deviation over seeds."
    )

    def __init__(self, matrix: str = "embedding", name: str = "snr") -> None:
        if matrix not in ("embedding", "head"):
            raise ValueError(f"matrix: must be embedding or head, not {matrix!r}")
        self.matrix, self.name = matrix, name

    def draw(self, material: Material) -> drawing.Figure:
        """Return the figure for the largest size of the study."""
        shown, styles = largest_size(material.study.layout), optimizer_styles(material.plan)
        histories: dict[str, list[list[dict[str, Any]]]] = {}
        for cell in shown.cells:
            rows = [dict(row) for row in run_history(material.runs / cell.id)]
            histories.setdefault(cell.optimizer.key, []).append(rows)
        figure, axes = panels(2)
        for ax, axis in zip(axes, AXES, strict=True):
            column = f"{self.name}.{self.matrix}_{axis}"
            for key, of_seeds in histories.items():
                style = {**styles[key], "markersize": 3, "linewidth": 0.8}
                draw_mean(ax, of_seeds, column, shown.labels[key], style)
            ax.set(xlabel="step", ylabel=f"signal to noise along {axis}", title=shown.title)
            if ax.has_data():
                ax.set_xscale("log")
                ax.set_yscale("log")
        add_legend(figure)
        return figure
