import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import statsmodels.api as sm
from pandas import DataFrame
from scipy import stats

from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.statistics.declared import Material
from coupled_adam_bench.statistics.lines import fit_line, trends, upper_tail
from coupled_adam_bench.statistics.student import NO_INTERVAL, NO_SPREAD
from coupled_adam_bench.statistics.trend import STATISTIC
from coupled_adam_bench.study.catalogue.metrics import METRICS
from coupled_adam_bench.study.plan import make_plan
from coupled_adam_bench.study.settings import parse_study

NAN = math.nan
GRID = [(x, z) for x in (1.0, 2.0, 3.0) for z in (5.0, 6.5)]


def trend_frame(results: StudyResults) -> DataFrame:
    return Material(results).frame(STATISTIC)


def drawn(seed_sd: float, n_seeds: int = 3, noise: float = 0.01) -> tuple[Any, Any, Any]:
    """A full grid of two covariates and seeds: values, covariates, seeds."""
    rng = np.random.default_rng(7)
    effects = seed_sd * rng.normal(size=n_seeds)
    rows = [
        (0.3 - 0.2 * x + 0.05 * z + effects[s] + noise * rng.normal(), (x, z), s)
        for s in range(n_seeds)
        for x, z in GRID
    ]
    return tuple(zip(*rows, strict=True))


def test_estimates_are_those_of_least_squares_and_their_errors_the_spread_of_the_seeds() -> None:
    values, covariates, seeds = drawn(seed_sd=0.1)
    fit = fit_line(values, covariates, seeds)
    x, y = np.array(covariates), np.array(values).reshape(3, -1)
    everything = sm.OLS(y.ravel(), sm.add_constant(x - x.mean(axis=0))).fit()
    assert fit.estimates == pytest.approx(everything.params.tolist(), rel=1e-9)
    of_seeds = np.array(
        [sm.OLS(own, sm.add_constant(x[:6] - x.mean(axis=0))).fit().params for own in y]
    )
    for index in range(3):
        expected = stats.ttest_1samp(of_seeds[:, index], 0, alternative="greater")
        error, df = fit.standard_error(index), fit.df
        assert fit.estimates[index] / error == pytest.approx(expected.statistic, rel=1e-9)
        assert upper_tail(fit.estimates[index], error, df) == pytest.approx(
            expected.pvalue, rel=1e-9
        )
    assert (fit.df, fit.n_seeds, fit.centre) == (2, 3, pytest.approx((2.0, 5.75)))


def test_the_centre_has_the_degrees_of_freedom_of_the_seeds_also_where_they_do_not_differ() -> None:
    values = np.array(drawn(seed_sd=0.0)[0]).reshape(3, -1)
    means = np.array([1.0, 1.001, 0.999])  # less than the noise explains
    values += means[:, None] - values.mean(axis=1, keepdims=True)
    fit = fit_line(values.ravel().tolist(), *drawn(seed_sd=0.0)[1:])
    assert (fit.estimates[0], fit.df) == (pytest.approx(1.0), 2)
    assert fit.standard_error(0) == pytest.approx(0.001 / math.sqrt(3), rel=1e-9)


def test_a_seed_without_a_line_is_left_out() -> None:
    values, covariates, seeds = drawn(seed_sd=0.1)
    kept = [index for index in range(18) if not (seeds[index] == 1 and covariates[index][0] > 1)]
    fit = fit_line(*([column[index] for index in kept] for column in (values, covariates, seeds)))
    assert (fit.n_seeds, fit.df, fit.reason) == (2, 1, "")
    alone = fit_line(values[:6], covariates[:6], seeds[:6])
    assert (alone.n_seeds, alone.reason) == (
        1,
        "1 seed(s) with places enough for a line, their spread needs 2",
    )


def test_what_cannot_be_fitted_says_why() -> None:
    apart = fit_line([1.0, 2.0], [(1.0,), (2.0,)], [1, 2])
    assert apart.reason == "0 seed(s) with places enough for a line, their spread needs 2"
    together = fit_line(
        [1.0, 2.0, 2.5, 4.0], [(1.0, 1.0), (2.0, 2.0), (3.0, 3.0), (4.0, 4.0)], [1, 1, 2, 2]
    )
    assert together.reason == "tokens and parameters vary together only"
    assert all(map(math.isnan, together.estimates))


def test_values_without_any_spread_have_a_slope_of_zero_and_no_error() -> None:
    fit = fit_line([0.0] * 6, [(float(x),) for x in range(6)], [1, 1, 1, 2, 2, 2])
    assert list(fit.estimates) == [0.0, 0.0]
    assert fit.standard_error(1) == 0.0
    assert upper_tail(0.0, 0.0, 4.0) == 1.0
    assert math.isnan(upper_tail(1.0, 0.0, 4.0))


@pytest.fixture
def study(
    tiny_study: Callable[..., dict[str, Any]], results_of: Any
) -> Callable[..., StudyResults]:
    """Two sizes, three numbers of tokens, three seeds, and results whose loss and accuracy are
    ``value(cell)``."""

    def build(
        value: Callable[..., float], steps: tuple[int, ...] = (40, 80, 160), **changes: Any
    ) -> StudyResults:
        models = [
            {"name": name, "n_layer": 1, "n_head": 2, "d_model": d, "learning_rate": 0.01}
            for name, d in (("nano", 8), ("micro", 16))
        ]
        block = {
            "table": "table1",
            "models": ["nano", "micro"],
            "tokens": [{"steps": n} for n in steps],
            "optimizers": ["adamw", "coupled_adam"],
            "seeds": [1, 2, 3],
        }
        plan = make_plan(parse_study(tiny_study(models=models, grid=[block | changes])))
        return results_of(
            plan, lambda cell, metric: value(cell) if metric.name in ("loss", "acc") else NAN
        )

    return build


def noisy_line(cell: Any, at: float = 80.0, slope: float = -0.1) -> float:
    """0 for Adam; for the other a line in log2 D through 0 at ``at`` steps, and noise."""
    if cell.optimizer.key == "adamw":
        return 3.0
    noise = np.random.default_rng([cell.seed, cell.steps, cell.model.d_model]).normal()
    return 3.0 + slope * math.log2(cell.steps / at) + 0.01 * cell.seed + 0.004 * noise


def test_the_test_of_growth_follows_the_direction_of_the_metric(
    study: Callable[..., StudyResults],
) -> None:
    rows = trend_frame(study(noisy_line))
    found = rows.set_index(["metric", "term"])
    loss, acc = found.loc[("loss", "tokens")], found.loc[("acc", "tokens")]
    assert loss["estimate"] == pytest.approx(-0.1, abs=0.01) == acc["estimate"]
    assert (loss["n"], loss["n_missing"], loss["n_seeds"], loss["df"]) == (18, 0, 3, 2)
    assert loss["p_value"] == pytest.approx(
        stats.t.cdf(loss["estimate"] / loss["se"], loss["df"]), rel=1e-9
    )
    assert loss["p_value"] < 0.001
    assert acc["p_value"] == pytest.approx(1 - loss["p_value"])
    half = stats.t.ppf(0.975, loss["df"]) * loss["se"]
    assert (loss["low"], loss["high"]) == pytest.approx(
        (loss["estimate"] - half, loss["estimate"] + half)
    )
    assert loss["p_holm"] == pytest.approx(2 * loss["p_value"])  # the other metrics have no test
    assert (
        found.loc[("isotropy", "tokens")]["reason"]
        == "no pair has both values; 18 of 18 pairs missing"
    )


def test_what_is_predicted_is_the_line_with_its_interval(study: Any) -> None:
    results = study(noisy_line)
    line = next(
        t
        for t in trends(results, "table1", results.layout.columns("table1"))
        if t.metric.name == "loss"
    )
    n_params = line.groups[0].setup.n_params
    low, middle, high = (line.predicted(n_params, 64.0 * steps)[0] for steps in (40, 80, 160))
    assert [middle - low, high - middle] == pytest.approx([line.fit.estimates[1]] * 2)
    # At the centre the interval is that of the mean over seeds.
    centre = 2.0 ** line.fit.centre[::-1]
    assert line.predicted(*centre) == pytest.approx(
        (line.fit.estimates[0], stats.t.ppf(0.975, 2) * line.fit.standard_error(0))
    )


def test_equal_lines_of_all_seeds_have_no_test_and_no_interval(
    study: Callable[..., StudyResults],
) -> None:
    results = study(
        lambda cell: (
            3.0 + cell.seed - 0.1 * math.log2(cell.steps / 80) * (cell.optimizer.key != "adamw")
        )
    )
    rows = trend_frame(results).set_index(["metric", "term"])
    tokens = rows.loc[("loss", "tokens")]
    assert tokens["estimate"] == pytest.approx(-0.1)
    assert (tokens["se"], tokens["reason"]) == (0, NO_SPREAD)
    assert all(map(math.isnan, tokens[["p_value", "low", "high"]]))
    # What differs in no place has p = 1: nothing speaks against it.
    parameters = rows.loc[("loss", "parameters")]
    assert (parameters["p_value"], parameters["reason"]) == (1, "nothing varies")
    line = trends(results, "table1", [METRICS["loss"]])[0]
    n_params = line.groups[0].setup.n_params
    crossing, low, high, reason = line.crossing(n_params)
    assert crossing == pytest.approx(80 * 64)
    assert (math.isnan(low), math.isnan(high), reason) == (True, True, NO_INTERVAL)
    assert math.isnan(line.predicted(n_params, 64.0 * 80)[1])


def test_the_crossing_is_where_the_line_and_its_interval_hold_zero(
    study: Callable[..., StudyResults],
) -> None:
    results = study(noisy_line)
    line = next(
        t
        for t in trends(results, "table1", results.layout.columns("table1"))
        if t.metric.name == "loss"
    )
    n_params = line.groups[0].setup.n_params
    tokens, low, high, reason = line.crossing(n_params)
    assert reason == ""
    assert low < tokens < high
    assert line.predicted(n_params, tokens)[0] == pytest.approx(0, abs=1e-12)
    for end in (low, high):
        difference, half = line.predicted(n_params, end)
        assert abs(difference) == pytest.approx(half, rel=1e-6)
    # The steps of the crossing are those of the line that was drawn, apart from the noise and the
    # seeds' 0.02.
    assert tokens / (16 * 4) == pytest.approx(80 * 2**0.2, rel=0.1)
    found = (
        trend_frame(results)
        .set_index(["metric", "term"])
        .loc[("loss", f"tokens at 0, N = {n_params}")]
    )
    assert (found["estimate"], found["low"], found["high"]) == (tokens, low, high)


@pytest.mark.parametrize(
    ("at", "slope", "reason"),
    [
        (1e6, -0.1, "no crossing in the range"),
        (80, 1e-5, "no crossing in the range|the slope does not differ from 0"),
    ],
)
def test_no_crossing_is_said(
    study: Callable[..., StudyResults], at: float, slope: float, reason: str
) -> None:
    rows = trend_frame(
        study(lambda cell: noisy_line(cell, at, slope) - 0.02 * (cell.optimizer.key != "adamw"))
    )
    crossings = rows[(rows["metric"] == "loss") & rows["term"].str.startswith("tokens at 0")]
    assert len(crossings) == 2
    assert crossings["low"].isna().all()
    assert crossings["reason"].str.contains(reason).all()


def test_a_missing_pair_is_left_out_and_counted(study: Callable[..., StudyResults]) -> None:
    lost = (3, 160, 16)
    rows = trend_frame(
        study(
            lambda cell: (
                NAN if (cell.seed, cell.steps, cell.model.d_model) == lost else noisy_line(cell)
            )
        )
    )
    row = rows.set_index(["metric", "term"]).loc[("loss", "tokens")]
    assert (row["n"], row["n_missing"], row["reason"]) == (17, 1, "1 of 18 pairs missing")
    assert row["estimate"] == pytest.approx(-0.1, abs=0.01)


def test_one_number_of_tokens_has_a_trend_with_size_only(
    study: Callable[..., StudyResults],
) -> None:
    results = study(noisy_line, steps=(160,))
    rows = trend_frame(results)
    found = rows[rows["metric"] == "loss"].set_index("term")
    assert math.isnan(found.loc["tokens"]["estimate"])
    assert found.loc["tokens"]["reason"] == "one number of tokens"
    assert math.isfinite(found.loc["parameters"]["estimate"])


def test_one_place_has_no_trend(study: Callable[..., StudyResults]) -> None:
    results = study(noisy_line, steps=(160,), models=["nano"])
    assert trend_frame(results).empty
