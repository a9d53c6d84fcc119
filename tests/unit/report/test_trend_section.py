import re
from typing import Any

from research.plugins.trend import Growth
from sections import html_of, tables_of, texts_of

from coupled_adam_bench.statistics.plug_ins import declared_as

STATISTIC = declared_as("trend", Growth())
MINUS = "\u2212"


def test_the_section_answers_the_papers_claim(fake: Any) -> None:
    material = fake.material
    page = html_of(STATISTIC, material)
    texts = [text for text in texts_of(STATISTIC, material) if "SGD" not in text]
    _, first, *others = (text for text in texts if not text.startswith("The fitted losses"))
    assert (
        "The fitted losses of Coupled Adam and Adam at N = 124M are not seen to cross (no crossing"
        " in the range)." in texts
    )
    # The drawn gain grows by 0.04 per tenfold, 0.012 per doubling.
    answer = re.fullmatch(
        r"The gain of Coupled Adam over Adam in loss grows with D: each doubling changes the"
        r" difference by -0\.01\d+ "
        r"\[-0\.01\d+, -0\.0\d+\] nat/token \(p = 0\.\d+\)\.",
        first.replace(MINUS, "-"),
    )
    assert answer is not None
    assert answer[0] in page.replace("&lt;", "<").replace(MINUS, "-")
    # Two sizes with one run each.
    assert "cannot be told" in others[0]
    # A run of SGD at f = 500 diverged, and all of f = 600.
    *_, third = tables_of(STATISTIC, material)
    remarks = {line[1]: line[-1] for line in reversed(third)}  # of the first metric, the loss
    assert remarks["SGD, f = 500"] == "2 of 6 pairs missing"
    assert remarks["SGD, f = 600"] == "no pair has both values; 6 of 6 pairs missing"
