"""What makes saving figures fast, without a change of how they look."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_POINTS = 72  # of an inch: the resolution at which matplotlib draws SVG and PDF
# matplotlib places each glyph of a PDF by its number, so that a viewer never reads these tables: of the layout of text,
# and of the characters and the names of glyphs. In DejaVu they are large: fontTools would take most of its time to cut
# them to the few glyphs of a figure.
_UNREAD_TABLES = ("GDEF", "GPOS", "GSUB", "MATH", "OS/2", "cmap", "kern", "post")


@contextmanager
def fonts_of_outlines() -> Iterator[None]:
    """Let matplotlib embed fonts in PDF files without the tables that no viewer of a PDF reads."""
    from fontTools import subset

    load_font = subset.load_font

    def load_without(*arguments: Any, **options: Any) -> Any:
        font = load_font(*arguments, **options)
        for table in _UNREAD_TABLES:
            if table in font:
                del font[table]
        return font

    subset.load_font = load_without
    try:
        yield
    finally:
        subset.load_font = load_font


def lay_out(figure: "Figure", kind: str) -> None:
    """Place the parts of a figure for good, by the sizes that its texts have in the format ``kind``: svg or pdf.

    ``savefig`` would do it anew for each format, and draw the figure twice for that.
    """
    from matplotlib.backend_bases import get_registered_canvas_class

    dpi, layout_engine = figure.dpi, figure.get_layout_engine()
    assert layout_engine is not None
    get_registered_canvas_class(kind)(figure)
    figure.dpi = _POINTS
    layout_engine.execute(figure)
    figure.set_layout_engine(None)
    figure.dpi = dpi
