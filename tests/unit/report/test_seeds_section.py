import math
from pathlib import Path
from typing import Any

import pytest

from coupled_adam_bench.report.render import html_environment
from coupled_adam_bench.report.seeds import SeedsSection, seeds_section
from coupled_adam_bench.statistics.seeds import read_seeds, write_seeds

TEMPLATES = Path(__file__).parents[3] / "templates"
HOSTILE = "d_&%<script>alert(1)</script>é-0123456789"


def pair(seed: int, other: int, share: float, **changes: Any) -> dict[str, Any]:
    return {
        "data": HOSTILE, "data_order": "per_rank", "streams": 4, "batch_sequences": 96, "seq_len": 1024,
        "n_tokens": 19_999_948_800, "steps": 203_450, "seed": seed, "other_seed": other, "shared_in_step": share,
        "shared_anywhere": share, "correlation": share, "steps_read": 1024, "reason": "",
    } | changes  # fmt: skip


OFFICIAL = [pair(1, 2, 0.75), pair(1, 3, 0.5), pair(2, 3, 0.75)]


def section_of(rows: list[dict[str, Any]], folder: Path) -> SeedsSection:
    write_seeds(rows, folder / "seeds.csv")
    found = seeds_section(folder / "seeds.csv")
    assert found is not None
    return found


def test_seeds_that_share_text(tmp_path: Path) -> None:
    found = section_of(OFFICIAL, tmp_path)
    assert "two of them share up to 75.00 % of the windows of a step" in found.verdict
    (place,) = found.places
    assert place.how.startswith("counted over 1,024 evenly spaced steps")
    assert [(row.seeds, row.in_step, row.correlation) for row in place.pairs] == [
        ("1 and 2", "75.00 %", "0.750"), ("1 and 3", "50.00 %", "0.500"), ("2 and 3", "75.00 %", "0.750"),
    ]  # fmt: skip
    whole, half = place.consequences
    assert (whole.of_data, whole.sd) == ("100%", "0.577")  # the root of 1 - 2/3
    assert (half.of_data, half.sd) == ("50%", "0.816")  # the root of 1 - 1/3


def test_independent_seeds(tmp_path: Path) -> None:
    found = section_of([pair(1, 2, 0.0, steps_read=203_450)], tmp_path)
    assert "they are independent" in found.verdict
    assert found.places[0].how == "counted over all steps"
    assert found.places[0].consequences[0].sd == "1.000"


def test_data_that_are_not_prepared_are_visible(tmp_path: Path) -> None:
    found = section_of([pair(1, 2, math.nan, steps_read=0, reason="not prepared")], tmp_path)
    assert found.verdict == "The data are not prepared, so it is not known what the seeds share."
    assert (found.places[0].reason, found.places[0].consequences) == ("not prepared", ())


def test_no_pairs_no_section(tmp_path: Path) -> None:
    assert seeds_section(tmp_path / "seeds.csv") is None
    write_seeds([], tmp_path / "seeds.csv")
    assert seeds_section(tmp_path / "seeds.csv") is None


def test_the_file_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    write_seeds(OFFICIAL, tmp_path / "seeds.csv")
    assert read_seeds(tmp_path / "seeds.csv").to_dict("records") == OFFICIAL
    write_seeds([OFFICIAL[0], OFFICIAL[0]], tmp_path / "seeds.csv")
    with pytest.raises(ValueError, match="two rows with data="):
        read_seeds(tmp_path / "seeds.csv")


def test_the_page_escapes_names_and_says_what_is_missing(tmp_path: Path) -> None:
    rows = [*OFFICIAL, pair(1, 2, math.nan, data="other", reason="not prepared")]
    html = html_environment(TEMPLATES).get_template("seeds.html.j2").render(seeds=section_of(rows, tmp_path))
    assert "<script>" not in html
    assert "d_&amp;%&lt;script&gt;" in html
    assert "Not known: not prepared." in html
