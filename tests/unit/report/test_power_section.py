from typing import Any

import pytest

from coupled_adam_bench.results.groups import Layout, layout_of
from coupled_adam_bench.statistics.power import STATISTIC, UNPAIRED, compared, describe_power, hours_per_seed
from coupled_adam_bench.tools.estimate.study import Estimate, estimate_study


@pytest.fixture(scope="module")
def estimate(fake: Any) -> Estimate:
    return estimate_study(fake.plan, fake.root)


@pytest.fixture(scope="module")
def layout(fake: Any) -> Layout:
    return layout_of(fake.plan)


def test_rows_are_those_of_the_file_with_their_cost(fake: Any, layout: Layout, estimate: Estimate) -> None:
    rows = STATISTIC.read(fake.study_dir / "power.csv")
    tables = compared(layout, rows.to_dict("records"), estimate)
    row = next(row for row in tables["table1"] if row.metric.name == "loss")
    written = rows[(rows["metric"] == "loss") & (rows["design"] == UNPAIRED)].iloc[0]
    assert row.needed(UNPAIRED) == f"{written['seeds']:.0f} ({written['seeds_cautious']:.0f})"
    hours = {each.cell.id: each.hours for each in estimate.cells}
    of_one_seed = sum(hours[cells[0].id] for cells in row.group.cells.values())
    assert hours_per_seed(estimate, row.group, row.group.cells) == pytest.approx(of_one_seed)
    assert float(row.cost(UNPAIRED).replace(",", "")) == pytest.approx(written["seeds"] * of_one_seed, rel=5e-3)


def test_the_page_has_the_section(fake: Any) -> None:
    page = (fake.study_dir / "report" / "index.html").read_text()
    assert '<section id="power">' in page
    assert "1 of 3 seeds without both values" in page  # a diverged run of SGD


def test_plan_says_it_of_the_loss(fake: Any, layout: Layout, estimate: Estimate) -> None:
    text = describe_power(layout, STATISTIC.read(fake.study_dir / "power.csv").to_dict("records"), estimate)
    lines = text.splitlines()
    assert lines[4].split()[:4] == ["table", "D", "N", "optimizer"]
    assert len(lines) == 5 + 9 + 2 + 2 * 7
    assert lines[5].startswith("Table 1  5B    125M  Coupled Adam  Adam")
    assert all(len(line) <= 122 for line in lines)
