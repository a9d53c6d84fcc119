import hashlib
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coupled_adam_bench.records.kept import PAIRS, PairSimilarities, pack_pairs, unpack_pairs
from coupled_adam_bench.records.stored import beside
from coupled_adam_bench.report.figures.curves import means_by_rating, similarity
from coupled_adam_bench.study.plan import make_plan
from coupled_adam_bench.study.settings import parse_study

NAN = math.nan


def pairs(name: str, ratings: list[float], cosines: list[float]) -> PairSimilarities:
    return PairSimilarities(name, np.arange(len(ratings)), np.array(ratings), np.array(cosines))


@given(
    st.lists(
        st.tuples(st.integers(0, 2**40), st.floats(allow_nan=False), st.floats(width=64)),
        max_size=9,
    )
)
def test_pairs_are_read_back_bit_for_bit(rows):
    places, ratings, cosines = zip(*rows, strict=True) if rows else ((), (), ())
    kept = PairSimilarities(
        "set-1.a", np.array(places, np.int64), np.array(ratings), np.array(cosines)
    )
    packed = pack_pairs([kept, pairs("other", [1.0], [NAN])])
    again = unpack_pairs(packed, Path("pairs"))
    assert [found.name for found in again] == ["set-1.a", "other"][
        not rows :
    ]  # a set without pairs has no row
    assert pack_pairs(again) == packed
    if rows:
        for name in ("places", "ratings", "cosines"):
            np.testing.assert_array_equal(getattr(again[0], name), getattr(kept, name))


def test_what_is_no_file_of_pairs_is_named():
    for contents in (b"", b"set", pack_pairs([pairs("s", [1.0], [0.5])])[:-9]):
        with pytest.raises(ValueError, match=r"f\.gz: not the similarities of word pairs"):
            unpack_pairs(contents, Path("f.gz"))


def test_means_by_rating_by_hand():
    few = means_by_rating(
        np.array([1.0, 0.0, 1.0, 2.0]), np.array([[0.2, 0.5, 0.4, NAN], [NAN, 0.7, 0.6, NAN]])
    )
    assert few == [
        (0.0, pytest.approx(0.6)),
        (1.0, pytest.approx(0.4)),
    ]  # no cosine has the rating 2
    many = means_by_rating(np.array([9.0, 0, 1, 2, 3, 4, 5, 6, 7, 8]), np.arange(10.0)[None])
    assert many == [(0.5, 1.5), (2.5, 3.5), (4.5, 5.5), (6.5, 7.5), (8.5, 4.5)]
    assert means_by_rating(np.empty(0), np.empty((2, 0))) == []


def test_a_panel_for_each_set_with_the_cells_that_have_pairs(
    tiny_study, tmp_path, stored, drawn_from
):
    plan = make_plan(parse_study(tiny_study()))
    adam = [cell for cell in plan.cells.values() if cell.optimizer.key == "adamw"]
    files = stored(plan, tmp_path / "runs")
    for cell, shift in zip(adam[:2], (0.0, 0.5), strict=True):
        files.run(cell.id)
        contents = pack_pairs(
            [pairs("a$", [1.0, 2.0], [0.0 + shift, 0.25 + shift]), pairs("b", [1.0], [NAN])]
        )
        path = files.evaluation(
            cell.id, "embeddings", [], files={PAIRS: hashlib.sha256(contents).hexdigest()}
        )
        beside(path, PAIRS).write_bytes(contents)
    files.run(adam[2].id)
    files.evaluation(adam[2].id, "embeddings", [])  # of a version that kept no pairs
    figure = similarity(drawn_from(plan, tmp_path / "runs"))
    first, second = figure.axes
    assert first.get_title() == r"a\$, 2 pairs"
    dots, line = first.get_lines()
    assert dots.get_ydata().tolist() == [0.0, 0.25]  # of the first seed
    assert (line.get_xdata().tolist(), line.get_ydata().tolist()) == (
        [1.0, 2.0],
        [0.25, 0.5],
    )  # of both
    assert len(second.get_lines()) == 1  # dots alone: no cosine is known
    assert not similarity(drawn_from(plan, tmp_path / "none")).axes[0].has_data()
