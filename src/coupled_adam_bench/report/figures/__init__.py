"""The figures of a study, each declared here once: its name, the function that draws it, its
caption and who has it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from coupled_adam_bench.report.plug_ins import own_figures
from coupled_adam_bench.results.groups import Layout
from coupled_adam_bench.study.catalogue.names import ADAM, COUPLED_ADAM
from coupled_adam_bench.study.plan import Plan
from coupled_adam_bench.study.plan.cells import Cell
from coupled_adam_bench.study.settings.optimizers import CoupledAdamSettings

FIGURE_ENDINGS = ("svg", "pdf", "column.pdf")
"""The files of a figure: for both columns of an article and for the report, and for one column."""


@dataclass(frozen=True)
class Drawn:
    """A figure: the function ``module:function`` of this package that draws it, and its caption.

    A study has the figure unless ``is_of`` refuses the plan. ``section`` is the id of the section
    of the report that shows it, if it is not the one of all other figures.
    """

    draw: str
    caption: str
    is_of: Callable[[Plan], bool] = lambda plan: True  # noqa: ARG005
    section: str = ""


def plain(text: str) -> str:
    """Return a study's label so that matplotlib prints it and does not read formulas in it."""
    return text.replace("$", r"\$")


@dataclass(frozen=True)
class Shown:
    """The cells of the largest size at most tokens; of several sizes alike, those of the first."""

    cells: Sequence[Cell]
    title: str

    @property
    def labels(self) -> dict[str, str]:
        """The labels of the optimizers by their key."""
        return {cell.optimizer.key: plain(cell.optimizer.label) for cell in self.cells}


def largest_size(layout: Layout) -> Shown:
    """Return the cells that figures of single runs show."""
    plan, setups = layout.plan, layout.setups
    largest = max(plan.cells.values(), key=lambda cell: (cell.n_params, cell.n_tokens))
    place = (setups[largest.id], largest.n_tokens)
    cells = [cell for cell in plan.cells.values() if (setups[cell.id], cell.n_tokens) == place]
    size = layout.labels[setups[largest.id]]
    return Shown(cells, plain(f"N = {size}, D = {largest.length_label}"))


def scaled_places(plan: Plan) -> list[dict[int, list[Cell]]]:
    """Return for each place with at least two exponents n its cells of Coupled Adam by their
    exponent.

    A place is data, model and tokens: cells that differ in optimizer and seed only have it in
    common.
    """
    places: dict[tuple[str, str, int], dict[int, list[Cell]]] = {}
    for cell in plan.cells.values():
        optimizer = cell.optimizer
        if cell.tuning is not None:  # its exponent is not known before the choice
            continue
        # The exponent is all that sets these cells apart.
        is_scaled = optimizer.names(leave_out=["scale_exponent"])[0] == COUPLED_ADAM
        if is_scaled and isinstance(optimizer, CoupledAdamSettings):
            exponents = places.setdefault((cell.data_id, cell.model.name, cell.n_tokens), {})
            exponents.setdefault(optimizer.scale_exponent, []).append(cell)
    return [dict(sorted(exponents.items())) for exponents in places.values() if len(exponents) > 1]


def _has_geometry(plan: Plan) -> bool:
    return any(study.execution.geometry_per_decade for study in plan.studies.values())


def _has_moments(plan: Plan) -> bool:
    return _has_geometry(plan) and any(cell.optimizer.key == ADAM for cell in plan.cells.values())


FIGURES = {
    "loss_accuracy": Drawn(
        "report.figures.sizes:loss_accuracy",
        "Loss and mean accuracy, or without downstream tasks the loss of the rarest tokens, against"
        " training tokens (App. G.1), or by optimizer where a size has one number of tokens; bars:"
        " standard deviation over seeds.",
    ),
    "embeddings": Drawn(
        "report.figures.sizes:embeddings",
        "Isotropy and mean embedding against training tokens, or by optimizer where a size has one"
        " number of tokens; bars: standard deviation over seeds.",
    ),
    "loss_by_frequency": Drawn(
        "report.figures.curves:loss_by_frequency",
        "Test loss by frequency of the predicted token, and its difference to that of the first"
        " optimizer with the same seed; bars: standard deviation over seeds.",
    ),
    "spectrum": Drawn(
        "report.figures.curves:spectrum",
        "Singular values of the embeddings, and their norms against the frequency of tokens; a line"
        " per seed.",
    ),
    "training": Drawn(
        "report.figures.histories:training",
        "Training loss (up to 1.5 times that of guessing), validation loss (points) and mean"
        " embedding at each step; bands: standard deviation over seeds.",
        section="overview",
    ),
    "plane": Drawn(
        "report.figures.sizes:plane",
        "The runs of the study in the plane of training tokens and parameters (Fig. 6); the line is"
        " N = D/20.",
    ),
    "geometry": Drawn(
        "report.figures.histories:geometry",
        "Isotropy and mean embedding at steps that are evenly spaced on a log scale; bands:"
        " standard deviation over seeds.",
        _has_geometry,
    ),
    "second_moment": Drawn(
        "report.figures.histories:second_moment",
        "The line of Adam's own second moment against the probability of tokens (Fig. 4 and 5), as"
        " a run goes on: its slope A, the slope of the line through logarithms, and R²; the longest"
        " runs of Adam of each model, bands: standard deviation over seeds.",
        _has_moments,
    ),
    "scale": Drawn(
        "report.figures.sizes:scale",
        "Loss and isotropy of Coupled Adam against the exponent n, its second moment times 2^-n"
        " (Sec. 6.1); bars: standard deviation over seeds.",
        lambda plan: bool(scaled_places(plan)),
    ),
    "similarity": Drawn(
        "report.figures.curves:similarity",
        "Cosine of each word pair against its human rating, a dot per pair of the first seed;"
        " lines: mean over all seeds, in fifths of the pairs.",
        lambda plan: any(study.evaluation.word_similarity for study in plan.studies.values()),
    ),
    "tuning": Drawn(
        "report.figures.sizes:tuning",
        "Mean validation loss of each candidate (up to 1.5 times that of guessing) against the peak"
        " learning rate of the embedding; the line joins the best of each learning rate, a ring is"
        " what was chosen, and a cross at the top is a candidate of which a seed has diverged;"
        " bars: standard deviation over seeds.",
        lambda plan: bool(plan.tunings),
        section="tuning",
    ),
}
"""The figures by name, in the order of the report."""


def figure_names(plan: Plan) -> list[str]:
    """Return the names of the figures of a plan, those that the study brings last; nothing is
    imported."""
    built_in = [name for name, figure in FIGURES.items() if figure.is_of(plan)]
    return [*built_in, *(entry.name for entry in plan.statistics.figures)]


def figures_of(plan: Plan) -> dict[str, str]:
    """Return names and captions of the figures of a plan."""
    captions = {name: figure.caption for name, figure in FIGURES.items()}
    captions |= {name: figure.caption for name, figure in own_figures(plan).items()}
    return {name: captions[name] for name in figure_names(plan)}
