"""Every column of tests.csv, bold, outcomes, the verdict and the printed cell of drawn studies, against
scipy and statsmodels called directly."""

import math
import warnings
from fractions import Fraction
from functools import cache
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from drawn import METRICS, Study, draw_study
from scipy import stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import TTestPower

from coupled_adam_bench.report.tables import lines_of
from coupled_adam_bench.results.values import PLACE
from coupled_adam_bench.statistics import tests as statistics
from coupled_adam_bench.statistics.tests import COLUMNS, against
from coupled_adam_bench.statistics.verdict import CLAIMS, verdict
from coupled_adam_bench.study.catalogue.metrics import METRICS as DECLARED

NAN = math.nan
LOWER_WINS = {"loss", "mean_norm_ratio"}
Key = tuple[Any, ...]


@cache
def detectable(n: int) -> float:
    return TTestPower().solve_power(nobs=n, alpha=0.05, power=0.8, alternative="two-sided")


def exact_values(study: Study) -> dict[Key, dict[str, dict[int, Fraction | None]]]:
    """Return the values of each place and metric by optimizer and seed."""
    found: dict[Key, dict[str, dict[int, Fraction | None]]] = {}
    for row in study.values.itertuples():
        place = (row.table, row.n_tokens, row.n_params, row.metric)
        by_seed = found.setdefault(place, {}).setdefault(row.optimizer, {})
        by_seed[row.seed] = study.exact[row.cell, row.metric]
    return found


def mean(values: list[Fraction]) -> Fraction:
    return sum(values, Fraction(0)) / len(values)


def of_pair(first: dict, second: dict, higher: bool) -> SimpleNamespace:
    """Test two optimizers directly; whether anything varies is decided by exact arithmetic."""
    found = SimpleNamespace(p_value=NAN, p_welch=NAN, t=NAN, p_paired=NAN, low=NAN, high=NAN)
    found.paired_difference = found.paired_sd = found.detectable = found.difference = NAN
    values = [list(each.values()) for each in (first, second)]
    seeds = [seed for seed in first if seed in second]
    pairs = [None if None in (first[s], second[s]) else first[s] - second[s] for s in seeds]
    floats = [[NAN if value is None else float(value) for value in each] for each in values]
    if None not in values[0] + values[1]:
        found.difference = mean(values[0]) - mean(values[1])
        varies = any(len(set(each)) > 1 for each in values)
        if varies and min(map(len, values)) > 1:
            side = "greater" if higher else "less"
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of samples without spread
                student = stats.ttest_ind(*floats, alternative=side)
                welch = stats.ttest_ind(*floats, alternative=side, equal_var=False)
            found.t, found.p_value, found.p_welch = student.statistic, student.pvalue, welch.pvalue
    if None not in pairs and pairs:
        found.paired_difference = mean(pairs)
        if len(pairs) > 1:
            found.paired_sd = np.std([float(pair) for pair in pairs], ddof=1)
            if len(set(pairs)) > 1:
                test = stats.ttest_rel(
                    *([float(each[s]) for s in seeds] for each in (first, second))
                )
                found.p_paired = test.pvalue
                found.low, found.high = test.confidence_interval()
                found.detectable = detectable(len(pairs)) * found.paired_sd
            elif pairs[0] == 0:
                found.p_paired = 1.0
    return found


def expected(study: Study) -> dict[Key, SimpleNamespace]:
    """Return every ordered comparison by place, metric, optimizer and reference."""
    found: dict[Key, SimpleNamespace] = {}
    for table, declared in study.tables.items():
        family = {}
        for place, by_key in exact_values(study).items():
            if place[0] != table:
                continue
            for a, b in combinations(by_key, 2):
                for first, second in ((a, b), (b, a)):
                    test = of_pair(by_key[first], by_key[second], place[-1] not in LOWER_WINS)
                    if not declared.rules.tested:
                        test.p_value = test.p_welch = test.p_paired = test.t = NAN
                    found[(*place, first, second)] = test
                if not math.isnan(test.p_paired):
                    family[*place, a, b] = test.p_paired
        _, corrected, _, _ = multipletests([*family.values()], method="holm")
        for (*place, a, b), p in zip(family, corrected, strict=True):
            found[(*place, a, b)].p_holm = found[(*place, b, a)].p_holm = p
    return found


def cells_of(study: Study) -> dict[Key, set[str]]:
    """Return the cells of each optimizer at a place, in a metric."""
    cells: dict[Key, set[str]] = {}
    for row in study.values.itertuples():
        place = (row.table, row.n_tokens, row.n_params, row.metric)
        cells.setdefault((place, row.optimizer), set()).add(row.cell)
    return cells


def decided(study: Study, cells: dict, found: dict[Key, SimpleNamespace], key: Key) -> float:
    """Return the corrected p of the first table that tests the very same runs."""
    _, n_tokens, n_params, metric, first, second = key
    mine = [cells[key[:4], each] for each in (first, second)]
    for table in study.tables:
        place = (table, n_tokens, n_params, metric)
        p = getattr(found.get((*place, first, second)), "p_holm", NAN)
        if not math.isnan(p) and [cells.get((place, each)) for each in (first, second)] == mine:
            return p
    return NAN


def outcome(test: SimpleNamespace, p_decided: float, higher: bool) -> str:
    if math.isnan(test.p_paired):
        return "not tested"
    if test.p_paired >= 0.05:
        return "not clearly different"
    word = "better" if (test.paired_difference > 0) == higher else "worse"
    return word + ("" if p_decided < 0.05 else ", but not after the correction")


def is_bold(
    by_key: dict, tests: dict[str, SimpleNamespace], key: str, tested: bool, sign: int
) -> bool:
    """The paper's rule: significantly better than every other value there is, or without a test better."""
    rivals = [
        other
        for other in by_key
        if other != key and any(v is not None for v in by_key[other].values())
    ]
    beaten = []
    for other in rivals:
        test = tests[other]
        beaten.append(test.p_value < 0.05 if tested else sign * test.difference > 0)
    return bool(beaten) and all(beaten)


@pytest.mark.parametrize("number", range(3))
def test_every_column_bold_outcome_and_printed_cell(number: int) -> None:
    study = draw_study(np.random.default_rng(number))
    tests = statistics.tests_of(study.values, study.tables)
    reference, exact = expected(study), exact_values(study)
    assert set(COLUMNS) <= set(tests.columns)
    assert len(tests) == len(reference) / 2
    assert tests["detectable"].notna().sum() > 20
    names = [*PLACE[:3], "metric", "optimizer", "reference"]
    both = [against(tests, key) for key in tests["reference"].unique()]
    seen_from_both = [row for each in both for row in each.to_dict("records")]
    bold, cells = set(), cells_of(study)
    for row in [*tests.to_dict("records"), *seen_from_both]:
        key = tuple(row[name] for name in names)
        test, higher = reference[key], row["metric"] not in LOWER_WINS
        mine, theirs = (exact[key[:4]][each] for each in key[4:])
        for end, values in (("", mine), ("_reference", theirs)):
            floats = [NAN if value is None else float(value) for value in values.values()]
            assert row["n" + end] == np.isfinite(floats).sum()
            assert row["mean" + end] == pytest.approx(np.mean(floats), nan_ok=True)
            sd = np.std(floats, ddof=1) if len(floats) > 1 else NAN
            assert row["sd" + end] == pytest.approx(sd, nan_ok=True, abs=1e-12)
        for name in ("difference", "paired_difference", "paired_sd", "low", "high", "detectable"):
            if row["reason"] == "single runs" and name not in ("difference", "paired_difference"):
                continue
            exactness = 1e-6 if name == "detectable" else 1e-8  # as far as statsmodels solves
            expectation = float(getattr(test, name))
            close = pytest.approx(expectation, rel=exactness, abs=1e-9, nan_ok=True)
            assert row[name] == close, (name, key)
        for name in ("t", "p_value", "p_welch", "p_paired"):
            close = pytest.approx(getattr(test, name), rel=1e-7, abs=1e-12, nan_ok=True)
            assert row[name] == close, (name, key)
        assert math.isnan(row["df"]) or row["df"] == len(mine) + len(theirs) - 2
        assert row["n_pairs"] == sum(
            None not in (mine[s], theirs.get(s)) for s in mine if s in theirs
        )
        close = pytest.approx(getattr(test, "p_holm", NAN), rel=1e-7, nan_ok=True)
        assert row["p_holm"] == close
        p_decided = decided(study, cells, reference, key)
        assert row["p_decided"] == pytest.approx(p_decided, rel=1e-7, nan_ok=True)
        assert row["outcome"] == outcome(test, p_decided, higher), key
        no_test = math.isnan(row["p_paired"])
        assert (row["reason"] in ("", "all values are equal")) != no_test
        if row.get("bold"):
            bold.add(key[:5])
    wanted = set()
    for place, by_key in exact.items():
        for key in by_key:
            to_others = {other: reference[(*place, key, other)] for other in by_key if other != key}
            sign = -1 if place[-1] in LOWER_WINS else 1
            tested = study.tables[place[0]].rules.tested
            if is_bold(by_key, to_others, key, tested, sign):
                wanted.add((*place, key))
    assert bold == wanted
    assert_printed(study, tests, exact, bold)
    assert_verdict(study, tests, reference)


def assert_printed(study: Study, tests: Any, exact: Any, bold: set[Key]) -> None:
    """Each printed number is within half a unit of its last digit, and bold where the rule says so."""
    columns = [DECLARED[name] for name in METRICS]
    for table in study.tables:
        own, own_tests = (frame[frame["table"] == table] for frame in (study.values, tests))
        for line in lines_of(own, own_tests, columns):
            for metric, entry in zip(columns, line.entries, strict=True):
                place = (table, int(line.tokens), int(line.size), metric.name)
                values = list(exact[place][line.label].values())
                unit = 10.0**-metric.digits
                assert entry.bold == ((*place, line.label) in bold)
                if None in values:
                    assert entry.number.text == "-"
                    continue
                printed = float(entry.number.mean.replace("−", "-"))
                assert abs(printed - float(mean(values))) <= 0.5000001 * unit
                assert ("-0" not in entry.number.mean) and ("−" in entry.number.mean) == (
                    printed < 0
                )
                if len(values) > 1:
                    sd = np.std([float(value) for value in values], ddof=1)
                    assert abs(int(entry.number.spread[1:-1]) * unit - sd) <= 0.5000001 * unit


def assert_verdict(study: Study, tests: Any, reference: dict[Key, SimpleNamespace]) -> None:
    """Each claim holds where Coupled Adam beats Adam, and that of the loss where Adam does not."""
    found = verdict(study.values, tests, study.tables)
    assert found is not None
    # An only optimizer of its kind may have settings of its own.
    other = study.values.replace({"optimizer": {"adamw": "adamw_f4"}})
    again = verdict(other, statistics.tests_of(other, study.tables), study.tables)
    assert again is not None
    assert again.holds["table1"].equals(found.holds["table1"])
    words = {"better": 0, "worse": 0}
    for table, declared in study.tables.items():
        for claim in CLAIMS:
            pairs = {
                key: test for key, test in reference.items() if key[0] == table and key[3] == claim
            }
            ours = [test for key, test in pairs.items() if key[4:] == ("coupled_adam", "adamw")]
            theirs = [test for key, test in pairs.items() if key[4:] == ("adamw", "coupled_adam")]
            sign = -1 if claim in LOWER_WINS else 1
            wins, loses = (
                [
                    each.p_value < 0.05 if declared.rules.tested else sign * each.difference > 0
                    for each in side
                ]
                for side in (ours, theirs)
            )
            if claim == "loss":
                there = [not math.isnan(each.difference) for each in ours]
                wins = [is_there and not lost for is_there, lost in zip(there, loses, strict=True)]
            says = found.holds.loc[claim, table]
            if all(math.isnan(each.difference) for each in ours):
                assert says != says  # nothing was measured
            else:
                assert says == f"{sum(wins)} of {len(ours)}"
    rows = against(tests, "adamw")
    rows = rows[(rows["optimizer"] == "coupled_adam") & rows["metric"].isin(CLAIMS)]
    for row in rows.drop_duplicates(["cells", "metric"]).itertuples():
        if row.outcome in words:
            words[row.outcome] += 1
    assert (found.better, found.worse) == (words["better"], words["worse"])
