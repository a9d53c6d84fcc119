from typing import Any

from sections import tables_of

from coupled_adam_bench.results.study_results import load_results
from coupled_adam_bench.statistics.declared import Material
from coupled_adam_bench.statistics.power import STATISTIC


def test_the_section_shows_the_rows_of_the_file(fake: Any) -> None:
    study = load_results(fake.plan, fake.study_dir / "results.csv", fake.study_dir / "tests.csv")
    rows = STATISTIC.read(fake.study_dir / "power.csv").to_dict("records")
    shown = [
        line for table in tables_of(STATISTIC, Material(study, fake.root / "runs", fake.study_dir)) for line in table
    ]
    assert len(shown) == len(rows)
    for line, row in zip(shown, rows, strict=True):
        assert line[5:7] == [row["design"], str(row["n"])]
        assert line[9:] == ["-" if row["reason"] else f"{row['seeds']:,.0f}", row["reason"]]
    assert "1 of 3 seeds without both values" in {line[10] for line in shown}  # a diverged run of SGD
