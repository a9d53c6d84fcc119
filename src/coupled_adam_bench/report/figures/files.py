"""How a figure becomes a file: what it says without data, its layout, and the bytes."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backend_bases import get_registered_canvas_class
from matplotlib.figure import Figure

from coupled_adam_bench.store.files import atomic_path


def say_no_data(axes: Sequence[Axes]) -> None:
    """Say in axes without data that there are none."""
    for ax in axes:
        if not ax.has_data():
            ax.text(0.5, 0.5, "no data", transform=ax.transAxes, ha="center")


def lay_out(figure: Figure, kind: str) -> None:
    """Place what a figure shows, by the widths that its letters have in a file of this ``kind``.

    Else matplotlib does so for each file, with one more draw of all that the figure shows.
    """
    engine = figure.get_layout_engine()
    if engine is not None:
        get_registered_canvas_class(kind)(figure)
        engine.execute(figure)
        if break_labels(figure):
            engine.execute(figure)
        figure.set_layout_engine(None)


def break_labels(figure: Figure) -> bool:
    """Break each label of a y axis that is longer than its axis into two lines; tell whether there
    was one."""
    is_broken = False
    for ax in figure.axes:
        label = ax.yaxis.label
        text = label.get_text()
        # A formula between dollar signs stays whole.
        places = [
            at for at, sign in enumerate(text) if sign == " " and text[:at].count("$") % 2 == 0
        ]
        if places and label.get_window_extent().height > ax.get_window_extent().height:
            middle = min(places, key=lambda at: abs(at - len(text) / 2))
            label.set(text=f"{text[:middle]}\n{text[middle + 1 :]}", multialignment="center")
            is_broken = True
    return is_broken


_DATES = {"svg": "Date", "pdf": "CreationDate"}


def save(figure: Figure, path: Path, kind: str, dpi: int = 200) -> None:
    """Write a figure as a file of this kind (svg, pdf, png), atomically and without a date."""
    no_date = {_DATES[kind]: None} if kind in _DATES else {}
    fonts = _outlines_alone() if kind == "pdf" else nullcontext()
    with fonts, atomic_path(path) as temporary:
        figure.savefig(temporary, format=kind, dpi=dpi, metadata=no_date)


_OF_LAYOUT = ["GDEF", "GPOS", "GSUB"]
"""The tables of a font that choose and place letters, as has been done where a PDF is written."""


@contextmanager
def _outlines_alone() -> Iterator[None]:
    """Leave the tables of layout out of the fonts in PDF files: to cut them takes most of the time.

    A font in a PDF needs outlines and widths (ISO 32000-1, 9.9). matplotlib leaves out what
    fontTools does by default, and has no setting for more.
    """
    from fontTools.subset import Options  # as matplotlib does where it writes a PDF

    usual = Options._drop_tables_default
    Options._drop_tables_default = [*usual, *_OF_LAYOUT]
    try:
        yield
    finally:
        Options._drop_tables_default = usual
