"""A plug-in (docs/plugins.md): the shape of Adam's second moment at the end of training against
B p, how often a batch has a token.

    statistics:
      figures:
        - {name: moment_exponent, path: research.plugins.moment_exponent.MomentExponent}
"""

from typing import ClassVar

from matplotlib.figure import Figure

from coupled_adam_bench.report.figures.style import add_legend, panels
from coupled_adam_bench.report.plug_ins import FigurePlugIn
from coupled_adam_bench.statistics.declared import Material
from coupled_adam_bench.store.runs import run_history


class MomentExponent(FigurePlugIn):
    """Exponent and R² of a straight line, in ranges of B p."""

    contract = 1
    caption: ClassVar[str] = (
        "Exponent of Adam's own second moment against the probability of tokens, and R² of a"
        " straight line, at the end of training in ranges of B p; a dot for each run of Adam."
    )

    def draw(self, material: Material) -> Figure:
        """Return the figure, a colour for each number of tokens in a batch, B."""
        points: dict[int, list[list[float]]] = {}
        for cell in material.plan.cells.values():
            ranges: dict[str, list[float]] = {}
            rows = [row for row in run_history(material.runs / cell.id) if "rate_sum" in row]
            for what in ("occupancy", "exponent", "r_squared"):
                start = f"moment_{what}_"
                for name, value in rows[-1].items() if rows else ():
                    if name.startswith(start):
                        ranges.setdefault(name.removeprefix(start), []).append(value)
            batch_tokens = cell.training.batch_sequences * cell.training.seq_len
            points.setdefault(batch_tokens, []).extend(
                found for found in ranges.values() if len(found) == 3
            )
        # How often a batch has a token decides what its second moment is, so B is a colour.
        figure, axes = panels(2)
        for ax, index, label in zip(
            axes, (1, 2), ("exponent of the second moment", "R²"), strict=True
        ):
            for batch_tokens, found in sorted(points.items()):
                if found:
                    places = [point[0] for point in found]
                    values = [point[index] for point in found]
                    ax.plot(places, values, ".", alpha=0.6, label=f"B = {batch_tokens:,}")
            ax.set(xlabel="B p, how often a batch has the token", ylabel=label)
            if ax.has_data():
                ax.set_xscale("log")
        add_legend(figure)
        return figure
