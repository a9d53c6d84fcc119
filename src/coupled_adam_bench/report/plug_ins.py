"""Figures that a study brings: its own classes, whose figures the section "More figures" shows."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from coupled_adam_bench.study.plan import Plan
from coupled_adam_bench.study.plan.plug_ins import PlanContract, failing

if TYPE_CHECKING:  # matplotlib and pandas, which rules do without
    from matplotlib.figure import Figure

    from coupled_adam_bench.statistics.declared import Material


class FigurePlugIn(PlanContract, ABC):
    """A figure of a study's own; it is called with the arguments that the study gives."""

    caption: ClassVar[str]
    """What stands under the figure."""

    @abstractmethod
    def draw(self, material: "Material") -> "Figure":
        """Return the figure in the width of matplotlib's current settings."""


def draw_own(name: str, plug_in: FigurePlugIn, material: "Material") -> "Figure":
    """Return the figure of a plug-in; ``ValueError`` names its field if it fails or gives none."""
    from matplotlib.figure import Figure

    names = [entry.name for entry in material.plan.statistics.figures]
    entry = material.plan.statistics.figures[names.index(name)]
    said = f"statistics.figures.{names.index(name)}.path: draw() of {entry.path}"
    with failing(f"{said} fails"):
        figure = plug_in.draw(material)
    if not isinstance(figure, Figure):
        raise ValueError(
            f"{said} must return a Figure of matplotlib, not {type(figure).__name__}; let it end in"
            " `return figure`"
        )
    return figure


def own_figures(plan: Plan) -> dict[str, FigurePlugIn]:
    """Return the figures that the study brings by name; ``ValueError`` names the field of one that
    breaks the contract."""
    found = {}
    for index, entry in enumerate(plan.statistics.figures):
        found[entry.name] = FigurePlugIn.made_for(plan, f"statistics.figures.{index}", entry)
    return found
