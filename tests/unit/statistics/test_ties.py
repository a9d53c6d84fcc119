"""A difference below the rounding of its own computation is none, wherever two optimizers are
compared."""

import math
from itertools import permutations, product

import numpy as np
import pytest

from coupled_adam_bench.results.choices import Tried, choose
from coupled_adam_bench.results.sample import difference, summarize
from coupled_adam_bench.statistics.compare import _decide
from coupled_adam_bench.statistics.lines import fit_line, upper_tail
from coupled_adam_bench.statistics.paired import paired_test
from coupled_adam_bench.statistics.pairs import compare_all, correct
from coupled_adam_bench.statistics.student import equivalence_p, t_test
from coupled_adam_bench.statistics.units import average, of_documents
from coupled_adam_bench.study.catalogue.metrics import METRICS

ACC = METRICS["acc"]
ITEMS = 12


def acc(*n_right: int) -> float:
    """Return the accuracy as the stage writes it: the mean over tasks of the shares of right
    items."""
    return math.fsum(n / ITEMS for n in n_right) / len(n_right)


def ties() -> list[tuple[float, float]]:
    """Return the accuracies of all pairs of models with as many right items, of two tasks."""
    by_sum: dict[int, list[float]] = {}
    for counts in product(range(ITEMS + 1), repeat=2):
        by_sum.setdefault(sum(counts), []).append(acc(*counts))
    return [pair for values in by_sum.values() for pair in product(values, repeat=2)]


TIE = next((first, second) for first, second in ties() if first != second)


def test_no_tie_of_two_tasks_differs():
    pairs = ties()
    assert np.mean([first != second for first, second in pairs]) > 0.2  # as floats
    assert not any(difference(first, second) for first, second in pairs)
    assert all(
        difference(acc(a, b), acc(c, d))
        for (a, b), (c, d) in product(product(range(ITEMS + 1), repeat=2), repeat=2)
        if a + b != c + d
    )


def test_what_is_missing_or_infinite_stays():
    assert math.isnan(difference(math.nan, 1.0))
    assert math.isnan(difference(1.0, math.nan))
    assert difference(math.inf, 1.0) == math.inf
    assert difference(1e300, -1e300) == 2e300
    assert difference(0.0, 0.0) == 0.0
    assert difference(1e-9, 0.0) == 1e-9


@pytest.mark.parametrize(("first", "second"), [TIE, TIE[::-1]])
def test_three_seeds_of_equal_accuracies_are_no_finding(first, second):
    assert first != second
    for higher in (True, False):
        test = t_test([first] * 3, [second] * 3, higher)
        assert (test.difference, test.p_value, test.p_welch, test.reason) == (
            0,
            1,
            1,
            "all values are equal",
        )
        pairs = paired_test(dict.fromkeys(range(3), first), dict.fromkeys(range(3), second), higher)
        assert (pairs.difference, pairs.p_value, pairs.p_permutation) == (0, 1, 1)
        assert (math.isnan(pairs.low), pairs.reason) == (True, "all differences are zero")
    for mixed in permutations(
        (first, first, second)
    ):  # some seeds have the one rounding, some the other
        test = t_test(mixed, [second] * 3, True)
        assert (test.difference, test.p_value, test.first.sd) == (0, 1, 0)


def test_differences_that_cancel_have_a_mean_of_zero():
    first, second = ([acc(1, 6), acc(3, 5), acc(2, 2)], [acc(0, 8), acc(2, 5), acc(0, 4)])
    pairs = paired_test(dict(enumerate(first)), dict(enumerate(second)), True)
    assert pairs.difference == 0
    assert pairs.p_value == 0.5
    assert pairs.p_permutation == 6 / 8  # 0 is a tie with the two sums of zero


@pytest.mark.parametrize("tested", [True, False])
def test_the_best_mean_is_the_first_of_equal_ones_and_never_bold(tested):
    for values in permutations((*TIE, TIE[0])):
        found = {
            f"optimizer {index}": dict.fromkeys(range(3), value)
            for index, value in enumerate(values)
        }
        rows = compare_all(found, ACC, tested, math.nan)
        correct(rows)
        of_best = [row for row in rows if row["optimizer"] == rows[0]["optimizer"]]
        _decide(of_best, "t-test")
        assert {row["optimizer"] for row in of_best} == {"optimizer 0"}
        assert [row["difference"] for row in rows] == [0, 0, 0]
        assert not any(row["bold"] for row in of_best)


def test_a_spread_of_rounding_is_none():
    assert summarize([*TIE, TIE[0]]).sd == 0
    assert summarize([1e-3, -1e-3 + 1e-19]).mean == 0


def test_a_difference_of_just_the_margin_is_not_within_it():
    assert 0.1 + 0.2 != 0.3
    # The difference is at the margin, so one of the two tests has t = 0.
    assert equivalence_p(0.1 + 0.2, 0.01, 2, margin=0.3) == 0.5


def test_equal_differences_have_no_slope():
    gap = acc(5, 4) - acc(2, 2)
    fit = fit_line([gap] * 9, [[x] for x in (20.1, 21.2, 22.7)] * 3, [1] * 3 + [2] * 3 + [3] * 3)
    assert fit.estimates.tolist() == pytest.approx([gap, 0])
    assert fit.estimates[1] == fit.standard_error(1) == 0


def test_equal_slopes_of_counts_have_no_spread_of_rounding():
    """One item more with each number of tokens, in seeds with other counts: equal but for their
    last bits."""
    values, places, seeds = [], [], []
    for seed, count in enumerate((7, 11, 5)):
        for step, place in enumerate((20.1, 21.2, 22.7)):
            values.append((count + step + 1) / ITEMS - count / ITEMS)
            places.append([place])
            seeds.append(seed)
    assert len(set(values)) > 3
    fit = fit_line(values, places, seeds)
    assert (fit.standard_error(0), fit.standard_error(1)) == (0, 0)
    assert math.isnan(upper_tail(fit.estimates[1], fit.standard_error(1), fit.df))


def test_documents_and_tasks_that_cancel_have_no_difference():
    cancelling = of_documents(np.array([1 / 3, 1 / 3, -1 / 3, -1 / 3 + 1e-17]))
    assert cancelling.difference == 0
    thirds = [of_documents(np.full(4, value)) for value in (0.1, 0.2, -0.3)]
    assert sum(each.difference for each in thirds) != 0
    assert average(thirds).difference == 0


class Rates:
    def __init__(self, embedding_lr: float, model_lr: float):
        self.embedding_lr, self.model_lr = embedding_lr, model_lr


def test_of_candidates_that_differ_by_rounding_the_smaller_rate_is_chosen():
    third = (0.1, 0.2, 0.3)
    tried = [
        Tried(Rates(2e-3, 1e-3), third, (None,) * 3),
        Tried(
            Rates(1e-3, 1e-3),
            tuple(value + 1e-17 for value in (0.3, 0.2, 0.1 + 1e-16)),
            (None,) * 3,
        ),
    ]
    assert tried[0].mean < tried[1].mean
    assert choose(None, tried) == 1
