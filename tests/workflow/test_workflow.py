"""The study as Snakemake runs it."""

from pathlib import Path


def test_a_study_ends_in_a_report(finished: Path) -> None:
    assert (finished / "results/tiny/report/index.html").stat().st_size > 1000
