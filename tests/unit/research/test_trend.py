"""How differences grow with tokens and parameters: the file, the section and the figure."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from matplotlib import rc_context
from pandas import DataFrame
from research.plugins.trend import Growth
from research.plugins.trend_figure import GrowthFigure
from research.plugins.trend_lines import crossing, predicted, trends
from scipy import stats

from coupled_adam_bench.report.figures.style import RC
from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.statistics.declared import Material
from coupled_adam_bench.statistics.plug_ins import declared_as
from coupled_adam_bench.statistics.student import NO_INTERVAL, NO_SPREAD
from coupled_adam_bench.study.catalogue.metrics import METRICS
from coupled_adam_bench.study.plan import make_plan
from coupled_adam_bench.study.settings import parse_study

STATISTIC = declared_as("trend", Growth())
NAN = math.nan


def trend_frame(results: StudyResults) -> DataFrame:
    return Material(results).frame(STATISTIC)


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
    study,
):
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


def test_what_is_predicted_is_the_line_with_its_interval(study):
    results = study(noisy_line)
    line = next(
        t
        for t in trends(results, "table1", results.layout.columns["table1"])
        if t.metric.name == "loss"
    )
    n_params = line.groups[0].setup.n_params
    low, middle, high = (predicted(line, n_params, 64.0 * steps)[0] for steps in (40, 80, 160))
    assert [middle - low, high - middle] == pytest.approx([line.fit.estimates[1]] * 2)
    # At the centre the interval is that of the mean over seeds.
    centre = 2.0 ** line.fit.centre[::-1]
    assert predicted(line, *centre) == pytest.approx(
        (line.fit.estimates[0], stats.t.ppf(0.975, 2) * line.fit.standard_error(0))
    )


def test_equal_lines_of_all_seeds_have_no_test_and_no_interval(
    study,
):
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
    tokens_at_0, low, high, reason = crossing(line, n_params)
    assert tokens_at_0 == pytest.approx(80 * 64)
    assert (math.isnan(low), math.isnan(high), reason) == (True, True, NO_INTERVAL)
    assert math.isnan(predicted(line, n_params, 64.0 * 80)[1])


def test_the_crossing_is_where_the_line_and_its_interval_hold_zero(
    study,
):
    results = study(noisy_line)
    line = next(
        t
        for t in trends(results, "table1", results.layout.columns["table1"])
        if t.metric.name == "loss"
    )
    n_params = line.groups[0].setup.n_params
    tokens, low, high, reason = crossing(line, n_params)
    assert reason == ""
    assert low < tokens < high
    assert predicted(line, n_params, tokens)[0] == pytest.approx(0, abs=1e-12)
    for end in (low, high):
        difference, half = predicted(line, n_params, end)
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
def test_no_crossing_is_said(study, at, slope, reason):
    rows = trend_frame(
        study(lambda cell: noisy_line(cell, at, slope) - 0.02 * (cell.optimizer.key != "adamw"))
    )
    crossings = rows[(rows["metric"] == "loss") & rows["term"].str.startswith("tokens at 0")]
    assert len(crossings) == 2
    assert crossings["low"].isna().all()
    assert crossings["reason"].str.contains(reason).all()


def test_a_missing_pair_is_left_out_and_counted(study):
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
    study,
):
    results = study(noisy_line, steps=(160,))
    rows = trend_frame(results)
    found = rows[rows["metric"] == "loss"].set_index("term")
    assert math.isnan(found.loc["tokens"]["estimate"])
    assert found.loc["tokens"]["reason"] == "one number of tokens"
    assert math.isfinite(found.loc["parameters"]["estimate"])


def test_one_place_has_no_trend(study):
    results = study(noisy_line, steps=(160,), models=["nano"])
    assert trend_frame(results).empty


def test_the_figure_has_the_fitted_line_of_each_size_with_its_interval(study):
    results = study(noisy_line)
    line = trends(results, "table1", [METRICS["loss"]])[0]
    with rc_context(RC):
        axes = GrowthFigure().draw(Material(results)).axes
    sizes = sorted({group.setup.n_params for group in line.groups})
    for ax, n_params in zip(axes, sizes, strict=True):
        # Among the lines are the zero and the means, each a point of its own.
        (fitted,) = [one for one in ax.lines if len(one.get_xdata()) > 2]
        for tokens, value in zip(fitted.get_xdata(), fitted.get_ydata(), strict=True):
            assert predicted(line, n_params, tokens)[0] == pytest.approx(value)
        assert len(ax.containers) == 3  # a bar for each number of tokens
    assert axes[0].get_ylabel() == "loss minus that of Adam (nat/token)"


def test_the_figure_of_a_study_of_one_place_is_refused(tiny_plan):
    with pytest.raises(ValueError, match="no table has several numbers of tokens"):
        GrowthFigure().check(tiny_plan)
