import re
import zlib
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from fontTools import subset
from fontTools.pens.recordingPen import DecomposingRecordingPen
from fontTools.ttLib import TTFont
from matplotlib import get_data_path, rc_context
from matplotlib.figure import Figure

from coupled_adam_bench.report.figures.style import RC, fonts_of_outlines, lay_out


def draw() -> Figure:
    figure = Figure(figsize=(4, 3), layout="constrained")
    ax, image = figure.subplots(1, 2)
    ax.plot([1, 1000], [-2, 3])
    ax.set_xscale("log")
    ax.set_title("Difference, office, \u00e9, \u0142 \u2192 $\\Delta \\hat{x}^2$")
    figure.colorbar(image.imshow([[1, 2], [3, 4]]))
    return figure


def embedded_fonts(pdf: bytes) -> Iterator[TTFont]:
    for number in re.findall(rb"/FontFile2 (\d+) 0 R", pdf):
        stream = re.search(rb"\n%s 0 obj\n<<.*?>>\nstream\n" % number, pdf, re.DOTALL)
        assert stream is not None
        yield TTFont(BytesIO(zlib.decompressobj().decompress(pdf[stream.end() :])))


def outline(font: TTFont, glyph: str) -> tuple[Any, int]:
    glyphs = font.getGlyphSet()
    pen = DecomposingRecordingPen(glyphs)
    glyphs[glyph].draw(pen)
    return pen.value, font["hmtx"][glyph][0]


def test_embedded_fonts_have_their_glyphs_and_no_table_that_nothing_reads() -> None:
    file = BytesIO()
    load_font = subset.load_font
    with rc_context(RC), fonts_of_outlines():
        draw().savefig(file, format="pdf")
    assert subset.load_font is load_font
    drawn: dict[str, list[Any]] = {}
    for font in embedded_fonts(file.getvalue()):
        assert not {"GDEF", "GPOS", "GSUB", "MATH", "OS/2", "cmap", "kern", "post"} & set(font.keys())
        outlines = [outline(font, glyph) for glyph in font.getGlyphOrder()[1:]]  # the first is .notdef
        drawn.setdefault(font["name"].getDebugName(6), []).extend(outlines)
    assert set(drawn) == {"DejaVuSans", "DejaVuSans-Oblique"}
    # Glyphs have other numbers in a part of the font, and no names: so outlines are compared.
    for name, outlines in drawn.items():
        whole = TTFont(Path(get_data_path(), "fonts", "ttf", f"{name}.ttf"))
        known = [outline(whole, glyph) for glyph in whole.getGlyphOrder()]
        assert all(found in known for found in outlines)
        letters = "Dernc, o\u00e9\u0142\u2192"  # without those that the layout of text joins
        if name == "DejaVuSans":
            assert all(outline(whole, whole.getBestCmap()[ord(letter)]) in outlines for letter in letters)


@pytest.mark.parametrize("first", ["svg", "pdf"])
def test_a_layout_that_is_found_once_is_that_of_matplotlib(first: str) -> None:
    def saved(figure: Figure, kind: str) -> bytes:
        file = BytesIO()
        figure.savefig(file, format=kind, metadata={"Date" if kind == "svg" else "CreationDate": None})
        return file.getvalue()

    with rc_context(RC):
        ours, theirs = draw(), draw()
        lay_out(ours, first)
        assert ours.get_layout_engine() is None and ours.dpi == theirs.dpi
        assert saved(ours, first) == saved(theirs, first)
        theirs.set_layout_engine("none")
        second = {"svg": "pdf", "pdf": "svg"}[first]
        assert saved(ours, second) == saved(theirs, second)
