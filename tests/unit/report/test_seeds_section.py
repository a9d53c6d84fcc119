import math
from pathlib import Path
from typing import Any

import pytest
from sections import html_of, tables_of

from coupled_adam_bench.statistics.declared import Material
from coupled_adam_bench.statistics.seeds import STATISTIC, verdict

HOSTILE = "d_&%<script>alert(1)</script>é-0123456789"


def pair(seed: int, other: int, share: float, **changes: Any) -> dict[str, Any]:
    return {
        "data": HOSTILE, "data_order": "per_rank", "streams": 4, "batch_sequences": 96, "seq_len": 1024,
        "n_tokens": 19_999_948_800, "steps": 203_450, "seed": seed, "other_seed": other, "shared_in_step": share,
        "shared_anywhere": share, "correlation": share, "steps_read": 1024, "reason": "",
    } | changes  # fmt: skip


OFFICIAL = [pair(1, 2, 0.75), pair(1, 3, 0.5), pair(2, 3, 0.75)]


@pytest.fixture
def material(results_of: Any, tiny_plan: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What the section is made of if the audit finds these rows."""

    def build(rows: list[dict[str, Any]]) -> Material:
        monkeypatch.setattr("coupled_adam_bench.statistics.seeds.audit", lambda *_: rows)
        return Material(results_of(tiny_plan, lambda *_: 1.0), tmp_path / "runs", tmp_path)

    return build


def test_seeds_that_share_text(material: Any) -> None:
    assert "two of them share up to 75.00 % of the windows of a step" in verdict(OFFICIAL)
    pairs, (whole, half) = tables_of(STATISTIC, material(OFFICIAL))
    assert [(row[0], row[1], row[3]) for row in pairs] == [
        ("1 and 2", "75.00 %", "0.750"), ("1 and 3", "50.00 %", "0.500"), ("2 and 3", "75.00 %", "0.750"),
    ]  # fmt: skip
    assert whole[:2] == ["100%", "0.577"]  # the root of 1 - 2/3
    assert half[:2] == ["50%", "0.816"]  # the root of 1 - 1/3
    assert "counted over 1,024 evenly spaced steps" in html_of(STATISTIC, material(OFFICIAL))


def test_independent_seeds(material: Any) -> None:
    rows = [pair(1, 2, 0.0, steps_read=203_450)]
    assert "they are independent" in verdict(rows)
    assert tables_of(STATISTIC, material(rows))[1][0][1] == "1.000"
    assert "counted over all steps" in html_of(STATISTIC, material(rows))


def test_no_pairs_no_section(material: Any) -> None:
    assert html_of(STATISTIC, material([])) == ""


def test_the_file_is_read_back_as_it_was_written(material: Any, tmp_path: Path) -> None:
    material(OFFICIAL).write(STATISTIC)
    assert STATISTIC.read(tmp_path / "seeds.csv").to_dict("records") == OFFICIAL
    with pytest.raises(ValueError, match=r"seeds\.csv: two rows of"):
        material([OFFICIAL[0], OFFICIAL[0]]).write(STATISTIC)


def test_the_page_escapes_names_and_says_what_is_missing(material: Any) -> None:
    lost = [pair(1, 2, math.nan, steps_read=0, reason="not prepared")]
    assert verdict(lost) == "The data are not prepared, so it is not known what the seeds share."
    html = html_of(STATISTIC, material([*OFFICIAL, pair(1, 2, math.nan, data="other", reason="not prepared")]))
    assert "<script>" not in html
    assert "d_&amp;%&lt;script&gt;" in html
    assert "Not known: not prepared." in html
