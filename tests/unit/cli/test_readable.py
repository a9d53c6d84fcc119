"""A results folder that is away is named before anything is made beside it."""

import pytest

from coupled_adam_bench.cli.guard import check_readable


@pytest.mark.fault(
    "results",
    "`results` is a link to a disk that is not mounted.",
    "A sentence names it; nothing is made anew beside it.",
)
def test_results_on_a_disk_that_is_away(tmp_path):
    (tmp_path / "results").symlink_to(tmp_path / "disk")
    with pytest.raises(
        ValueError, match="results: this is a link to a folder that is not there; mount that"
    ):
        check_readable([tmp_path / "results"])
