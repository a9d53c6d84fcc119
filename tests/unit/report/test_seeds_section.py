import math
from pathlib import Path
from typing import Any

import pytest
from sections import html_of

from coupled_adam_bench.statistics.declared import Material
from coupled_adam_bench.statistics.seeds import STATISTIC


def pair(seed: int, other: int, share: float, **changes: Any) -> dict[str, Any]:
    return {
        "data": "d_&%<script>", "data_order": "per_rank", "streams": 4, "batch_sequences": 96, "seq_len": 1024,
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


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (OFFICIAL, "two of them share up to 75.00 % of the windows of a step"),
        ([pair(1, 2, 0.0)], "they are independent, as the tests assume"),
        ([pair(1, 2, math.nan, reason="not prepared")], "The data are not prepared"),
        ([], ""),
    ],
)
def test_the_section_says_whether_seeds_are_independent(material: Any, rows: list[Any], says: str) -> None:
    html = html_of(STATISTIC, material(rows))
    assert says in html if says else html == ""


def test_a_pair_of_seeds_stands_once(material: Any) -> None:
    with pytest.raises(ValueError, match=r"seeds\.csv: two rows of"):
        material([OFFICIAL[0], OFFICIAL[0]]).frame(STATISTIC)
