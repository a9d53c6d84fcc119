import math
from typing import Any

import pandas as pd
import pytest

from coupled_adam_bench.report.formats import interval
from coupled_adam_bench.report.statistics import StatisticsSection, statistics_section
from coupled_adam_bench.results.study_results import load_results
from coupled_adam_bench.statistics import paired_text, summary


@pytest.fixture(scope="module")
def tests(fake: Any) -> pd.DataFrame:
    found = load_results(fake.plan, fake.study_dir / "results.csv", fake.study_dir / "tests.csv").tests
    assert found is not None
    return found


@pytest.fixture(scope="module")
def section(fake: Any) -> StatisticsSection:
    study = load_results(fake.plan, fake.study_dir / "results.csv", fake.study_dir / "tests.csv")
    files = (each.STATISTIC.read(fake.study_dir / each.STATISTIC.file) for each in (paired_text, summary))
    return statistics_section(study, *files)


def test_survivors_by_recount(section: StatisticsSection, tests: pd.DataFrame) -> None:
    assert [each.table.name for each in section.survivors] == ["table1", "table7"]  # table 2 has no test
    one = section.survivors[0]
    rows = tests[tests["table"] == "table1"]
    assert one.n_bold == rows["bold"].sum()
    assert one.n_bold_holm == (rows["bold"] & (rows["p_holm"] < 0.05)).sum()
    assert one.n_bold_bh == (rows["bold"] & (rows["p_bh"] < 0.05)).sum()
    assert len(one.lost) == one.n_bold - one.n_bold_holm > 0
    by_label = dict(one.counts)
    losses = rows[rows["metric"] == "loss"]
    assert by_label["paired t-test"][0] == (losses["p_paired"] < 0.05).sum()
    assert sum(by_label["the same, two-sided, after Holm"]) == (rows["p_holm"] < 0.05).sum()


def test_equivalence_is_shown_for_metrics_with_a_margin(section: StatisticsSection, tests: pd.DataFrame) -> None:
    assert {each.metric.name for each in section.equivalence} == {"loss"}
    assert len(section.equivalence) == tests["margin"].notna().sum() == 9 + 2 * 7


def test_the_same_text_and_its_gaps(section: StatisticsSection) -> None:
    assert set(section.text) == {"table1", "table2", "table7"}
    for pair in section.text["table1"]:
        assert pair.loss is not None
        assert (pair.loss["seed"], pair.loss["n"], pair.agreeing[-4:]) == ("all", 50, "of 3")
        assert [row["task"] for row in pair.tasks] == ["race", "arc_<easy>"]
    assert {pair.agreeing for pair in section.text["table2"]} == {"1 of 1"}
    diverged = next(pair for pair in section.text["table7"] if pair.optimizers[0] == "SGD, f = 600")
    assert diverged.documents is not None
    assert math.isnan(diverged.documents["difference"])
    assert any("has diverged" in gap for gap in section.gaps)


def test_summaries_have_all_optimizers(section: StatisticsSection) -> None:
    large = next(each for each in section.summaries if each.table.name == "table7")
    assert (large.reference, len(large.optimizers)) == ("Adam", 7)
    assert all(len(improvements) == 8 for _, improvements in large.optimizers)
    assert [each.has_intervals for each in section.summaries] == [True, False, True]


def test_the_page_shows_it_escaped(fake: Any) -> None:
    page = (fake.study_dir / "report" / "index.html").read_text()
    shown = page[page.index('<section id="statistics">') : page.index('id="cost"')]
    assert "arc_&lt;easy&gt;" in shown
    assert "<easy>" not in shown
    for text in ("what survives a correction", "Equivalence", "0.02", "McNemar", "better than Adam", "Holm"):
        assert text in shown
    assert 'href="#statistics"' in page


def test_intervals_in_print() -> None:
    assert interval(-0.12345, 12.0) == "[\u22120.123, 12]"
    assert interval(1.23456, 1.24567, 4) == "[1.235, 1.246]"
    assert interval(math.nan, 1.0) == "-"
