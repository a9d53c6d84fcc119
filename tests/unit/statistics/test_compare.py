import math
from collections.abc import Callable
from itertools import combinations
from typing import Any

import pandas as pd
import pytest
from scipy import stats
from statsmodels.stats.multitest import multipletests

from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.results.tidy import read_csv
from coupled_adam_bench.statistics.compare import STATISTIC, TEST_COLUMNS, compare
from coupled_adam_bench.statistics.declared import Material
from coupled_adam_bench.statistics.student import NO_SPREAD, holm
from coupled_adam_bench.study.catalogue.metrics import METRICS
from coupled_adam_bench.study.catalogue.tables import PAPER_COLUMNS
from coupled_adam_bench.study.plan import make_plan
from coupled_adam_bench.study.settings import parse_study

PAPER = {name: METRICS[name] for name in PAPER_COLUMNS}


SGD = {"name": "sgd", "lr_factor": 100}
NAN = math.nan
Study = Callable[..., StudyResults]


@pytest.fixture
def study(tiny_study: Callable[..., dict[str, Any]], results_of: Any) -> Study:
    """A study of one block, and results: for the metrics named below the given values by optimizer,
    else NaN."""

    def build(
        table: str, optimizers: list[Any], samples: dict[str, list[float]], **statistics: Any
    ) -> StudyResults:
        seeds = list(range(1, 1 + len(next(iter(samples.values())))))
        block = {
            "table": table,
            "models": ["nano"],
            "tokens": [{"steps": 60}],
            "optimizers": optimizers,
        }
        plan = make_plan(
            parse_study(tiny_study(grid=[block | {"seeds": seeds}], statistics=statistics))
        )
        return results_of(
            plan,
            lambda cell, metric: (
                samples[cell.optimizer.key][cell.seed - 1]
                if metric.name in ("loss", "acc")
                else NAN
            ),
        )

    return build


def bold(tests: pd.DataFrame) -> dict[str, str | None]:
    """Return by metric the optimizer that is bold, or None."""
    return {
        str(metric): next(
            (row["optimizer"] for row in rows.to_dict("records") if row["bold"]), None
        )
        for metric, rows in tests.groupby("metric", sort=False)
    }


def test_table_1_tests_the_better_of_two_against_the_other(study):
    low, high = [1.0, 1.1, 1.2], [1.3, 1.4, 1.55]
    tests = compare(
        study("table1", ["adamw", "coupled_adam"], {"adamw": low, "coupled_adam": high})
    )
    assert list(tests.columns) == list(TEST_COLUMNS)
    assert list(tests["metric"]) == list(PAPER)
    loss, acc = tests.to_dict("records")[:2]
    assert (loss["optimizer"], loss["reference"]) == ("adamw", "coupled_adam")
    assert (acc["optimizer"], acc["reference"]) == ("coupled_adam", "adamw")
    expected = stats.ttest_ind(high, low, alternative="greater")
    for row in (loss, acc):
        assert row["p_value"] == pytest.approx(expected.pvalue, rel=1e-9)
        assert (row["n"], row["n_reference"], row["df"], row["rule"], row["reason"]) == (
            3,
            3,
            4,
            "t-test",
            "",
        )
        assert row["significant"] is True
        # Two metrics, each with a test of both directions; the others have no test.
        assert row["p_holm"] == pytest.approx(2 * 2 * expected.pvalue, rel=1e-9)
    assert acc["t"] == pytest.approx(expected.statistic, rel=1e-9)
    assert loss["difference"] == pytest.approx(-acc["difference"])
    found = bold(tests)
    assert (found["loss"], found["acc"]) == ("adamw", "coupled_adam")
    assert {found[name] for name in PAPER if name not in ("loss", "acc")} == {None}


@pytest.mark.parametrize("rule", ["paper", "paired", "holm"])
@pytest.mark.parametrize("n_seeds", [2, 3])
def test_values_that_no_seed_changes_are_not_bold(study, rule, n_seeds):
    """Equal counts of right items over a few seeds come by chance, and are no certainty."""
    samples = {"adamw": [6 / 24] * n_seeds, "coupled_adam": [7 / 24] * n_seeds}
    tests = compare(
        study("table1", ["adamw", "coupled_adam"], samples, bold=rule, margins={"acc": 0.5})
    )
    acc = tests.set_index("metric").loc["acc"]
    assert (acc["optimizer"], acc["bold"], acc["significant"]) == ("coupled_adam", False, False)
    assert (acc["reason"], acc["paired_reason"]) == (NO_SPREAD, NO_SPREAD)
    assert acc["difference"] == pytest.approx(1 / 24)
    assert acc["p_permutation"] == 2.0**-n_seeds
    unsure = [name for name in tests.columns if name.startswith("p_") and "permutation" not in name]
    ends = ["low", "high", "paired_low", "paired_high", "bootstrap_low", "bootstrap_high"]
    assert acc[[*unsure, *ends, "t", "t_paired", "hedges_g"]].isna().all()


def test_the_unrounded_difference_decides(study):
    first = [3.001, 3.0011, 3.0012]
    second = [3.002, 3.0021, 3.0022]  # both print as 3.00 (0)
    found = bold(
        compare(
            study("table1", ["adamw", "coupled_adam"], {"adamw": first, "coupled_adam": second})
        )
    )
    assert (found["loss"], found["acc"]) == ("adamw", "coupled_adam")


def test_no_bold_without_significance_or_with_a_tie(study):
    for second in ([1.05, 1.15, 1.25], [1.0, 1.1, 1.2]):
        samples = {"adamw": [1.0, 1.1, 1.2], "coupled_adam": second}
        assert set(bold(compare(study("table1", ["adamw", "coupled_adam"], samples))).values()) == {
            None
        }


def test_table_2_prints_the_better_value_bold_without_a_test(study):
    tests = compare(
        study("table2", ["adamw", "coupled_adam"], {"adamw": [2.46], "coupled_adam": [2.44]})
    )
    row = tests.to_dict("records")[0]
    assert (row["optimizer"], row["rule"], row["significant"]) == ("coupled_adam", "better", False)
    assert row["difference"] == pytest.approx(-0.02)
    assert all(
        math.isnan(row[name])
        for name in ("t", "df", "p_value", "p_holm", "hedges_g", "p_welch", "sd")
    )
    assert (bold(tests)["loss"], bold(tests)["acc"]) == ("coupled_adam", "adamw")
    equal = compare(
        study("table2", ["adamw", "coupled_adam"], {"adamw": [2.4], "coupled_adam": [2.4]})
    )
    assert set(bold(equal).values()) == {None}
    missing = compare(
        study("table2", ["adamw", "coupled_adam"], {"adamw": [2.4], "coupled_adam": [NAN]})
    )
    assert set(bold(missing).values()) == {None}
    assert missing["reason"][0] == "coupled_adam: missing"


def test_table_7_needs_significance_against_all_others(study):
    optimizers = ["adamw", "coupled_adam", SGD]
    samples = {
        "adamw": [3.0, 3.1, 3.2],
        "coupled_adam": [2.0, 2.1, 2.2],
        "sgd_f100": [2.5, 2.6, 2.7],
    }
    tests = compare(study("table7", optimizers, samples))
    loss = tests[tests["metric"] == "loss"]
    assert list(loss["reference"]) == ["adamw", "sgd_f100"]
    assert bold(tests)["loss"] == "coupled_adam"
    samples["sgd_f100"] = [2.05, 2.15, 2.3]
    tests = compare(study("table7", optimizers, samples))
    loss = tests[tests["metric"] == "loss"]
    assert list(loss["significant"]) == [True, False]
    assert bold(tests)["loss"] is None
    assert bold(tests)["acc"] == "adamw"


def test_some_seeds_missing_keep_others_from_being_bold_and_no_value_does_not(study):
    optimizers = ["adamw", "coupled_adam", SGD]
    samples = {
        "adamw": [3.0, 3.1, 3.2],
        "coupled_adam": [2.0, 2.1, 2.2],
        "sgd_f100": [9.0, NAN, 9.0],
    }
    tests = compare(study("table7", optimizers, samples))
    row = tests[(tests["metric"] == "loss") & (tests["reference"] == "sgd_f100")].to_dict(
        "records"
    )[0]
    assert row["reason"] == "sgd_f100: 1 of 3 values missing"
    assert (row["n_reference"], row["significant"]) == (2, False)
    assert math.isnan(row["mean_reference"])
    assert math.isnan(row["p_value"])
    assert bold(tests)["loss"] is None
    samples["sgd_f100"] = [NAN] * 3
    tests = compare(study("table7", optimizers, samples))
    assert bold(tests)["loss"] == "coupled_adam"
    samples["adamw"] = [NAN] * 3  # nothing left to be better than
    assert bold(compare(study("table7", optimizers, samples)))["loss"] is None


def test_holm_is_within_a_table(tiny_study, results_of):
    block = {
        "models": ["nano"],
        "tokens": [{"steps": 60}],
        "optimizers": ["adamw", "coupled_adam"],
        "seeds": [1, 2],
    }
    plan = make_plan(
        parse_study(tiny_study(grid=[block | {"table": "table1"}, block | {"table": "table7"}]))
    )
    places = {name: place for place, name in enumerate(PAPER)}
    tests = compare(
        results_of(
            plan, lambda cell, m: cell.seed * 0.1 + (cell.optimizer.key == "adamw") * places[m.name]
        )
    )
    for _, table in tests.groupby("table"):
        assert len(table) == len(PAPER)
        assert list(table["p_holm"]) == holm([min(1, 2 * p) for p in table["p_value"]])


def test_file_has_every_bit(study, tmp_path):
    samples = {"adamw": [3.0, 3.1, 3.2], "coupled_adam": [2.0, NAN, 2.2]}
    results = study("table1", ["adamw", "coupled_adam"], samples)
    Material(results, tmp_path, tmp_path).write(STATISTIC)
    again = read_csv(tmp_path / "tests.csv", STATISTIC.columns, STATISTIC.key)
    pd.testing.assert_frame_equal(again, compare(results), check_exact=True)


PAIR = ["adamw", "coupled_adam"]
# Seeds that are far apart, and an optimizer that is a little better in each.
NOISY = {"adamw": [3.0, 4.0, 5.0], "coupled_adam": [2.9, 3.88, 4.91]}


def test_other_tests_stand_beside_the_papers(study):
    row = compare(study("table1", PAIR, NOISY, margins={"loss": 0.2})).to_dict("records")[0]
    expected = stats.ttest_rel(NOISY["coupled_adam"], NOISY["adamw"], alternative="less")
    assert (row["optimizer"], row["significant"], row["bold"], row["rule"]) == (
        "coupled_adam",
        False,
        False,
        "t-test",
    )
    assert (row["n_pairs"], row["paired_reason"], row["margin"]) == (3, "", 0.2)
    assert row["p_paired"] == pytest.approx(expected.pvalue, rel=1e-9)
    assert row["p_paired_holm"] == pytest.approx(
        2 * 2 * expected.pvalue, rel=1e-9
    )  # loss and acc are tested
    assert (row["p_permutation"], row["p_permutation_min"]) == (1 / 8, 1 / 8)
    interval = stats.ttest_ind(NOISY["coupled_adam"], NOISY["adamw"]).confidence_interval()
    assert (row["low"], row["high"]) == pytest.approx((interval.low, interval.high), rel=1e-9)
    assert (row["bootstrap_low"], row["bootstrap_high"]) == pytest.approx((-0.12, -0.09))
    assert row["p_equivalence_paired"] < 0.05 < row["p_equivalence"]
    acc = compare(study("table1", PAIR, NOISY, margins={"loss": 0.2})).to_dict("records")[1]
    assert math.isnan(acc["margin"])
    assert math.isnan(acc["p_equivalence"])


def test_the_study_says_which_test_makes_bold(study):
    assert bold(compare(study("table1", PAIR, NOISY)))["loss"] is None
    tests = compare(study("table1", PAIR, NOISY, bold="paired"))
    assert bold(tests)["loss"] == "coupled_adam"
    assert set(tests["rule"]) == {"paired t-test"}
    near = {"adamw": [3.0, 3.1, 3.2], "coupled_adam": [2.88, 3.02, 2.77]}  # p = 0.04, by pairs 0.1
    assert 0.025 < compare(study("table1", PAIR, near))["p_value"][0] < 0.05
    assert bold(compare(study("table1", PAIR, near)))["loss"] == "coupled_adam"
    tests = compare(study("table1", PAIR, near, bold="holm"))
    assert (bold(tests)["loss"], tests["significant"][0], tests["rule"][0]) == (
        None,
        False,
        "paired t-test, Holm",
    )
    single = compare(study("table2", PAIR, {"adamw": [2.46], "coupled_adam": [2.44]}, bold="holm"))
    assert (bold(single)["loss"], single["rule"][0]) == ("coupled_adam", "better")


@pytest.mark.parametrize("rule", ["paired", "holm"])
def test_missing_seeds_keep_others_from_being_bold_by_any_rule(study, rule):
    samples = {
        "adamw": [3.0, 3.1, 3.2],
        "coupled_adam": [2.0, 2.1, 2.25],
        "sgd_f100": [9.0, NAN, 9.0],
    }
    tests = compare(study("table7", [*PAIR, SGD], samples, bold=rule))
    row = tests[(tests["metric"] == "loss") & (tests["reference"] == "sgd_f100")].to_dict(
        "records"
    )[0]
    assert row["paired_reason"] == "1 of 3 pairs of a seed have a missing value"
    assert math.isnan(row["p_paired"])
    assert bold(tests)["loss"] is None
    samples["sgd_f100"] = [NAN] * 3
    assert (
        bold(compare(study("table7", [*PAIR, SGD], samples, bold=rule)))["loss"] == "coupled_adam"
    )


def test_corrections_are_over_the_two_sided_tests_of_all_pairs_of_a_table(study):
    samples = {
        "adamw": [3.0, 3.1, 3.2],
        "coupled_adam": [2.0, 2.13, 2.18],
        "sgd_f100": [2.05, 2.15, 2.3],
    }
    tests = compare(study("table7", [*PAIR, SGD], samples))
    tested = tests[tests["p_value"].notna()]
    pairs = list(combinations(samples, 2))
    shown = [
        pairs.index(tuple(key for key in samples if key in both))
        for both in zip(tested["optimizer"], tested["reference"], strict=True)
    ]
    assert len(shown) == 4  # the best loss and the best acc against two others each, of three pairs
    for column, function, method in (
        ("p_holm", stats.ttest_ind, "holm"),
        ("p_bh", stats.ttest_ind, "fdr_bh"),
        ("p_paired_holm", stats.ttest_rel, "holm"),
    ):
        family = 2 * [
            function(samples[one], samples[other]).pvalue for one, other in pairs
        ]  # of loss and of acc
        corrected = multipletests(family, method=method)[1]
        assert list(tested[column]) == pytest.approx(corrected[shown].tolist(), rel=1e-9)
