import math
import re
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sections import tables_of, texts_of
from statsmodels.stats.weightstats import ttost_paired

from coupled_adam_bench.page.formats import interval, p_value
from coupled_adam_bench.report.contents import statistics_of
from coupled_adam_bench.report.corrections import SECTION
from coupled_adam_bench.results.facts import Outcome
from coupled_adam_bench.results.tidy import read_csv
from coupled_adam_bench.statistics import power
from coupled_adam_bench.statistics.compare import compare
from coupled_adam_bench.statistics.decisions import decide
from coupled_adam_bench.statistics.declared import Material
from coupled_adam_bench.study.plan import make_plan
from coupled_adam_bench.study.settings import parse_study

PAIR = ("adamw", "coupled_adam")


def test_survivors_by_recount(fake):
    material, tests = fake.material, compare(fake.study)
    # Table 2 has no test.
    one, seven = (
        text
        for text in texts_of(SECTION, material)
        if re.search("of the table (is|are) bold", text)
    )
    rows = tests[tests["table"] == "table1"]
    # Twice the one-sided p is the two-sided one, in the direction of the better mean.
    two_sided = 2 * rows["p_paired"]
    counts = [
        rows["bold"].sum(),
        (rows["bold"] & (two_sided < 0.05)).sum(),
        (rows["bold"] & (rows["p_paired_holm"] < 0.05)).sum(),
    ]
    assert (
        list(map(int, re.findall(r"(\d+) (?:values|of them)|Holm's (\d+)", one)[0][:1]))
        == counts[:1]
    )
    assert f"paired by seed: {counts[1]} of {counts[0]}, and" in one
    assert one.endswith(f"after Holm's correction: {counts[2]}.")
    assert seven == "No value of the table is bold."
    by_label = {line[0]: line[1:] for line in tables_of(SECTION, material)[0]}
    losses = rows[rows["metric"] == "loss"]
    assert by_label["paired t-test, two-sided"][0] == str((2 * losses["p_paired"] < 0.05).sum())
    assert by_label["the same, two-sided, after Holm"][-1] == str((rows["p_holm"] < 0.05).sum())


def test_a_bold_value_of_counts_that_differ_alike_has_survived_no_test(
    tiny_study, results_of, tmp_path
):
    """Each seed of Coupled Adam has two items of 24 more right: no spread, so no paired test."""
    counts = {1: 10, 2: 10, 3: 11}
    untested = results_of(
        make_plan(parse_study(tiny_study())),
        lambda cell, metric: (
            (counts[cell.seed] + 2 * (cell.optimizer.key != "adamw")) / 24
            if metric.name == "acc"
            else math.nan
        ),
    )
    assert compare(untested)["bold"].sum() == 1
    (said,) = (
        text for text in texts_of(SECTION, Material(decide(untested))) if "table is bold" in text
    )
    assert said.endswith("0 of 1, and after Holm's correction: 0.")
    # A comparison that is not tested has its reason beside it.
    every = tables_of(SECTION, Material(decide(untested)))[-1]
    (line,) = (line for line in every if line[3] == "Acc")
    assert "not tested" in line and line[-1] == "no spread, so no test"


def test_margins_add_the_tests_of_equivalence(fake):
    *_, every = tables_of(SECTION, fake.material)
    tests = compare(fake.study)
    # Table 7 has the runs of Adam and Coupled Adam at two places of Table 1, which stand there.
    pair = tests["optimizer"].isin(PAIR) & tests["reference"].isin(PAIR)
    shown = tests[(tests["table"] != "table7") | ~pair]
    assert len(every) == len(shown) < len(tests)
    assert tests["margin"].notna().sum() == 9 + 2 * 7
    assert sum(line[-3] == "0.02" for line in every) == shown["margin"].notna().sum()
    first = tests.iloc[0]
    assert every[0][-2:] == [
        p_value(first["p_equivalence"]),
        p_value(first["p_equivalence_paired"]),
    ]


def test_a_bold_value_without_a_paired_test_has_not_survived_one(fake):
    """A comparison that was not tested is none that a bold value has passed."""
    material, study = fake.material, fake.study
    comparisons = {}
    for place, found in study.decided.comparisons.items():
        comparisons[place] = [replace(each, outcome=Outcome.UNTESTED) for each in found]
    material.study = replace(study, decided=replace(study.decided, comparisons=comparisons))
    said = next(text for text in texts_of(SECTION, material) if "of the table are bold" in text)
    assert re.search(r" 0 of \d+, and after Holm's correction: 0\.$", said)


def values(fact: Any) -> Any:
    return np.array(list(fact.by_seed.values()))


def test_equal_is_said_where_both_one_sided_tests_hold(fake):
    said = [text for text in texts_of(SECTION, fake.material) if "is equal within" in text]
    loss, expected = fake.study.layout.metrics["loss"], []
    for group in (group for groups in fake.study.layout.groups.values() for group in groups):
        for (one, ours), (other, theirs) in combinations(fake.study.at(group, loss).items(), 2):
            if (
                ours.sample.n == theirs.sample.n > 1
                and ttost_paired(values(ours), values(theirs), -0.02, 0.02)[0] < 0.05
            ):
                expected.append(
                    f"{group.optimizer_labels[one]} and {group.optimizer_labels[other]}: "
                )
    assert len(said) == len(expected) > 0
    assert all(
        text.startswith(begin) and "is equal within 0.02" in text
        for text, begin in zip(said, expected, strict=True)
    )


def test_the_same_text(fake):
    small, large, rivals = tables_of(SECTION, fake.material)[2:5]
    assert [(line[4], line[7][-4:]) for line in small] == [("50", "of 3")] * 9
    assert {line[7] for line in large} == {"1 of 1"}
    assert next(line for line in rivals if line[2] == "SGD, f = 600")[9] == "-"  # it has diverged


def test_every_file_is_read_back_bit_for_bit(fake):
    for statistic in statistics_of(fake.plan):
        frame = fake.material.frame(statistic)
        again = read_csv(fake.study_dir / statistic.file, statistic.columns, statistic.key)
        pd.testing.assert_frame_equal(again, frame, check_exact=True, check_dtype=not frame.empty)


def test_power_shows_the_rows_of_its_file(fake):
    shown = [line for table in tables_of(power.STATISTIC, fake.material) for line in table]
    for line, row in zip(shown, fake.material.rows(power.STATISTIC), strict=True):
        assert line[5:7] == [row["design"], str(row["n"])]
        assert line[9:] == ["-" if row["reason"] else f"{row['seeds']:,.0f}", row["reason"]]
    assert "1 of 3 seeds without both values" in {
        line[10] for line in shown
    }  # a diverged run of SGD


def test_intervals_in_print():
    assert interval(-0.12345, 12.0) == "[\u22120.123, 12]"
    assert interval(1.23456, 1.24567, 4) == "[1.235, 1.246]"
    assert interval(math.nan, 1.0) == "-"


@pytest.mark.parametrize(
    ("training", "seeds", "shared"),
    [
        ({"data_order": "per_rank"}, [1, 2, 3], "75 %"),
        ({"data_order": "per_rank"}, [1, 4], "25 %"),
        ({"data_order": "per_rank"}, [1, 5], None),
        ({"data_order": "with_replacement"}, [1, 2, 3], None),
    ],
)
def test_seeds_that_read_the_same_text_are_warned_of(
    training,
    seeds,
    shared,
    tiny_study,
    results_of,
    tmp_path,
):
    settings = tiny_study()
    settings["training"] |= training
    settings["grid"][0]["seeds"] = seeds
    study = results_of(make_plan(parse_study(settings)), lambda *_: 1.0)
    said = [
        text
        for text in texts_of(SECTION, Material(study, tmp_path, tmp_path))
        if "read the same text" in text
    ]
    assert len(said) == (shared is not None)
    assert all(f"share {shared} of the windows" in text for text in said)
