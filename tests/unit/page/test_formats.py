import math

import pytest

from coupled_adam_bench.page.formats import (
    Shorthand,
    aligned,
    difference_with_interval,
    fixed,
    grouped,
    p_value,
    plural,
    shorthand,
    significant,
    with_interval,
)
from coupled_adam_bench.results.sample import Sample

NAN = math.nan


@pytest.mark.parametrize(
    ("mean", "sd", "n", "digits", "text"),
    [
        (0.1234, 0.0041, 3, 3, "0.123 (4)"),  # the paper's example
        (2.974, 0.12, 3, 2, "2.97 (12)"),
        (2.974, 0.0049, 3, 2, "2.97 (0)"),
        (2.974, 0.0051, 3, 2, "2.97 (1)"),
        (2.974, 0.0, 3, 2, "2.97 (0)"),
        (2.974, 0.1, 3, 2, "2.97 (10)"),
        (2.974, 3.2, 3, 2, "2.97 (320)"),
        (57.4, 1.6, 3, 0, "57 (2)"),
        (57.4, 12.0, 3, 0, "57 (12)"),
        (2.974, NAN, 1, 2, "2.97"),
        (-0.3512, 0.02, 3, 2, "\u22120.35 (2)"),
        (-0.001, 0.02, 3, 2, "0.00 (2)"),
        (-0.4, 0.2, 3, 0, "0 (0)"),
        (NAN, NAN, 2, 2, "-"),
        (math.inf, NAN, 3, 2, "-"),
        (1.23456e50, 2.1e48, 3, 2, "1.235e+50 (2.1e+48)"),
        (-1e70, 0.0, 2, 3, "\u22121e+70 (0)"),
        (0.25, 3e50, 2, 3, "0.25 (3e+50)"),
        (1e304, NAN, 1, 3, "1e+304"),
        (123456789012.25, 0.5, 2, 1, "123456789012.2 (5)"),
    ],
)
def test_shorthand(mean, sd, n, digits, text):
    assert str(shorthand(Sample(n, mean, sd), digits)) == text


def test_one_difference_is_printed_in_one_way():
    """Two sums of the same accuracies, which differ in their last bit at the middle of two
    decimals."""
    up, down = 0.11750000000000005, 0.11749999999999994
    assert {fixed(each, 3) for each in (up, down, 0.1175)} == {fixed(0.1175, 3)}
    assert {significant(each) for each in (up, down, 0.1175)} == {fixed(0.1175, 3)}
    spreads = {str(shorthand(Sample(3, 0.5, each), 3)) for each in (up, down)}
    assert len(spreads) == 1


def test_every_minus_is_a_minus_sign():
    assert significant(-2.44e-5) == "\u22122.44e\u221205"
    assert grouped(-0.0721) == "\u22120.0721" and grouped(97_656.25) == "97,700"
    assert grouped(1_331_712.0) == "1,330,000"  # as the paper's stands beside it


def test_an_interval_that_is_not_there_has_no_brackets():
    for print_it in (with_interval, difference_with_interval):
        assert print_it(0.5, NAN, NAN, 2) == "0.50"
        assert print_it(0.5, 0.25, 0.75, 2) == "0.50 [0.25, 0.75]"


def test_paddings_align_the_means():
    column = [
        Shorthand("2.97", "(12)"),
        Shorthand("3.03", "(4)"),
        Shorthand("2.95"),
        Shorthand("-"),
    ]
    assert [number.padding for number in aligned(column)] == [0, 1, 4, 0]
    assert list(map(str, aligned(column))) == list(map(str, column))
    assert aligned([]) == []


def test_other_numbers():
    assert fixed(1.005, 0) == "1"
    assert significant(-0.00012345) == "\u22120.000123"
    assert significant(1.5e-7) == "1.5e\u221207"
    assert significant(math.inf) == significant(NAN) == p_value(NAN) == "-"
    assert (p_value(0.04321), p_value(1.0), p_value(0.0), p_value(0.0001)) == (
        "0.0432",
        "1.0000",
        "< 0.0001",
        "0.0001",
    )
    assert (plural(1, "run"), plural(2, "run"), plural(0, "run")) == ("1 run", "2 runs", "0 runs")
