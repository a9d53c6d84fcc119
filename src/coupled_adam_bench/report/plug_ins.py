"""Figures that a study brings: its own classes, whose figures the section "More figures" shows."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from coupled_adam_bench.study.plan import Plan
from coupled_adam_bench.study.plan.plug_ins import PlanContract

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


def own_figures(plan: Plan) -> dict[str, FigurePlugIn]:
    """Return the figures that the study brings by name; ``ValueError`` names the field of one that
    breaks the contract."""
    found = {}
    for index, entry in enumerate(plan.statistics.figures):
        found[entry.name] = FigurePlugIn.made_for(plan, f"statistics.figures.{index}", entry)
    return found
