import math
import re
from typing import Any

import pandas as pd
import pytest
from sections import tables_of, texts_of

from coupled_adam_bench.report.formats import interval
from coupled_adam_bench.report.statistics import SECTION
from coupled_adam_bench.results.study_results import load_results
from coupled_adam_bench.statistics.declared import Material


@pytest.fixture(scope="module")
def tests(fake: Any) -> pd.DataFrame:
    found = load_results(fake.plan, fake.study_dir / "results.csv", fake.study_dir / "tests.csv").tests
    assert found is not None
    return found


@pytest.fixture(scope="module")
def material(fake: Any) -> Material:
    study = load_results(fake.plan, fake.study_dir / "results.csv", fake.study_dir / "tests.csv")
    return Material(study, fake.root / "runs", fake.study_dir)


def test_survivors_by_recount(material: Material, tests: pd.DataFrame) -> None:
    one, seven = (text for text in texts_of(SECTION, material) if "of the table" in text)  # table 2 has no test
    rows = tests[tests["table"] == "table1"]
    counts = [rows["bold"].sum(), *((rows["bold"] & (rows[name] < 0.05)).sum() for name in ("p_bh", "p_holm"))]
    assert list(map(int, re.findall(r"(\d+) (?:values|of them)|Holm's (\d+)", one)[0][:1])) == counts[:1]
    assert f"{counts[1]} of them are still significant, after Holm's {counts[2]}." in one
    assert seven == "No value of the table is bold."
    by_label = {line[0]: line[1:] for line in tables_of(SECTION, material)[0]}
    losses = rows[rows["metric"] == "loss"]
    assert by_label["paired t-test"][0] == str((losses["p_paired"] < 0.05).sum())
    assert by_label["the same, two-sided, after Holm"][-1] == str((rows["p_holm"] < 0.05).sum())


def test_equivalence_is_shown_for_metrics_with_a_margin(material: Material, tests: pd.DataFrame) -> None:
    equivalence = tables_of(SECTION, material)[2]
    assert len(equivalence) == tests["margin"].notna().sum() == 9 + 2 * 7
    assert {line[7] for line in equivalence} == {"0.02"}


def test_the_same_text(material: Material) -> None:
    small, large, rivals = tables_of(SECTION, material)[3:6]
    assert [(line[4], line[7][-4:]) for line in small] == [("50", "of 3")] * 9
    assert {line[7] for line in large} == {"1 of 1"}
    assert next(line for line in rivals if line[2] == "SGD, f = 600")[9] == "-"  # it has diverged


def test_the_page_shows_it_escaped(fake: Any) -> None:
    page = (fake.study_dir / "report" / "index.html").read_text()
    shown = page[page.index('<section id="statistics">') : page.index('id="cost"')]
    for text in ("what survives a correction", "Equivalence", "0.02", "Holm"):
        assert text in shown
    assert 'href="#statistics"' in page


def test_intervals_in_print() -> None:
    assert interval(-0.12345, 12.0) == "[\u22120.123, 12]"
    assert interval(1.23456, 1.24567, 4) == "[1.235, 1.246]"
    assert interval(math.nan, 1.0) == "-"
