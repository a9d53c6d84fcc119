"""The fonts of PDF files, cut once for all forks of a run of tests.

A PDF has the glyphs that it shows and no others. To cut them out of a font takes most of the time
of a report, and the reports of the tests show the same ones again and again.
"""

import hashlib
import os
import pickle
from collections.abc import Iterable
from contextlib import AbstractContextManager
from functools import wraps
from io import BytesIO
from pathlib import Path
from typing import Any

from fontTools.ttLib import TTFont
from matplotlib.backends import _backend_pdf_ps as backend

from coupled_adam_bench.store.files import write_bytes


def keep_cuts() -> None:
    """Have matplotlib take from a file what this process or another one has cut before."""
    cut = backend.get_glyphs_subset
    folder = Path(os.environ["CAB_FORKS"]) / "fonts"
    folder.mkdir(exist_ok=True)

    @wraps(cut)
    def kept(font: Any, glyphs: Iterable[int]) -> AbstractContextManager[Any]:
        wanted = sorted({*glyphs})
        named = repr((str(font), font.face_index, wanted))
        file = folder / hashlib.sha256(named.encode()).hexdigest()
        if not file.exists():
            with cut(font, wanted) as subset:
                made = backend.font_as_file(subset.font).getvalue(), subset.glyph_index_map
            write_bytes(file, pickle.dumps(made))
        contents, numbers = pickle.loads(file.read_bytes())
        again = TTFont(BytesIO(contents), recalcTimestamp=False)
        return backend.SubsetResults(again, numbers)._as_cm()

    backend.get_glyphs_subset = kept
