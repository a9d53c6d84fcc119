import html
import re

from research.plugins.trend import Growth, _answer
from sections import grids, html_of, tables_of, texts_of

from coupled_adam_bench.statistics.plug_ins import declared_as

STATISTIC = declared_as("trend", Growth())
MINUS = "\u2212"


def test_the_section_answers_the_papers_claim(fake):
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
        r"The gain of Coupled Adam over Adam in loss grows, but not after the correction, with"
        r" D: each doubling changes the difference by -0\.01\d+ "
        r"\[-0\.01\d+, -0\.0\d+\] nat/token \(p = 0\.\d+, and one-sided after Holm's correction"
        r" = 0\.\d+\)\.",
        first.replace(MINUS, "-"),
    )
    assert answer is not None
    assert answer[0] in html.unescape(page).replace(MINUS, "-")
    # Two sizes with one run each.
    assert "cannot be told" in others[0]
    # A run of SGD at f = 500 diverged, and all of f = 600.
    *_, third = tables_of(STATISTIC, material)
    remarks = {line[1]: line[-1] for line in reversed(third)}  # of the first metric, the loss
    assert remarks["SGD, f = 500"] == "2 of 6 pairs missing"
    assert remarks["SGD, f = 600"] == "no pair has both values; 6 of 6 pairs missing"


def test_growth_is_told_by_the_corrected_test():
    """The front page and the table beside it correct; a sentence that does not would say more."""
    row = {
        "estimate": -0.02,
        "se": 0.001,
        "df": 1.0,
        "low": -0.033,
        "high": -0.007,
        "p_value": 0.016,
        "p_holm": 0.13,
    }
    said = _answer(row, "gain", "")
    assert said.startswith("The gain in loss grows, but not after the correction, with D:")
    assert "one-sided after Holm's correction = 0.1300" in said
    said = _answer(row | {"p_holm": 0.03}, "gain", "")
    assert said.startswith("The gain in loss grows with D: each doubling")
    said = _answer(row | {"estimate": 0.02, "p_value": 0.984}, "gain", "")
    assert said.startswith("The gain in loss shrinks with D:") and "before any correction" in said


def test_every_p_stands_beside_the_difference_that_it_is_of(fake):
    """The corrected p of growth with D stood behind the interval of a doubling of N."""
    heads = [
        str(column.heading)
        for column in next(grids(Growth().blocks(fake.material, STATISTIC))).columns
    ]
    assert heads[3:7] == [
        "doubling of <i>D</i>",
        "<i>p</i>",
        "<i>p</i> of growth with <i>D</i>, one-sided, Holm",
        "doubling of <i>N</i>",
    ]
