import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from pandas import DataFrame
from scipy import stats

from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.statistics.declared import Material
from coupled_adam_bench.statistics.hypotheses import (
    CONFIRMED,
    NOT_CONFIRMED,
    OPEN,
    STATISTIC,
    hypothesis_outcome,
)
from coupled_adam_bench.statistics.lines import trend_of
from coupled_adam_bench.statistics.student import NO_SPREAD
from coupled_adam_bench.study.plan import make_plan
from coupled_adam_bench.study.plan.preregistration import Hypothesis
from coupled_adam_bench.study.settings import parse_study

NAN = math.nan
LOSS = {
    "name": "loss",
    "table": "table1",
    "metric": "loss",
    "better": "coupled_adam",
    "than": "adamw",
}
ACC = LOSS | {"name": "acc", "metric": "acc"}


@pytest.fixture
def study(
    tiny_study: Callable[..., dict[str, Any]], results_of: Any, tmp_path: Path
) -> Callable[..., StudyResults]:
    """A study of the seeds that have values, and a stated plan; acc has the values of the loss with
    the other sign."""

    def build(
        values: dict[str, list[float]],
        *hypotheses: dict[str, Any],
        n_sizes: int = 1,
        slope_spread: float = 0.01,
        **plan: Any,
    ) -> StudyResults:
        n_seeds = len(next(iter(values.values())))
        text = {"hypotheses": list(hypotheses), "seeds": list(range(1, n_seeds + 1))} | plan
        (tmp_path / "plan.yaml").write_text(yaml.safe_dump(text))
        tokens = [{"steps": 60 * (1 + size), "label": f"D{size}"} for size in range(n_sizes)]
        block = {
            "table": "table1",
            "models": ["nano"],
            "tokens": tokens,
            "optimizers": list(values),
            "seeds": list(range(1, n_seeds + 1)),
        }
        settings = tiny_study(grid=[block], stated=str(tmp_path / "plan.yaml"))
        sign = {"loss": 1, "acc": -1}
        return results_of(
            make_plan(parse_study(settings)),
            lambda cell, metric: (
                sign.get(metric.name, NAN) * values[cell.optimizer.key][cell.seed - 1]
                + (cell.steps > 60)
                * (cell.optimizer.key == "coupled_adam")
                * sign.get(metric.name, NAN)
                * (1 + slope_spread * (cell.seed - (n_seeds + 1) / 2))
            ),
        )

    return build


def stated_rows(study: StudyResults) -> DataFrame:
    return Material(study).frame(STATISTIC)


def outcomes(study: StudyResults) -> dict[str, str]:
    rows = stated_rows(study)
    assert all(len(of_one["outcome"].unique()) == 1 for _, of_one in rows.groupby("hypothesis"))
    return dict(zip(rows["hypothesis"], rows["outcome"], strict=True))


BETTER = {"adamw": [3.00, 3.05, 3.10], "coupled_adam": [2.90, 2.94, 3.01]}


@pytest.mark.parametrize("test", ["t-test", "paired"])
def test_a_hypothesis_is_tested_in_its_direction(study, test):
    function = stats.ttest_ind if test == "t-test" else stats.ttest_rel
    for one in (LOSS, ACC):
        (row,) = stated_rows(study(BETTER, one | {"test": test})).to_dict("records")
        expected = function(BETTER["coupled_adam"], BETTER["adamw"], alternative="less")
        assert row["p_value"] == row["p_hypothesis"] == pytest.approx(expected.pvalue, rel=1e-9)
        assert abs(row["t"]) == pytest.approx(abs(expected.statistic), rel=1e-9)
        assert (row["seeds"], row["level"], row["df"]) == (3, 0.05, 4 if test == "t-test" else 2)
        assert row["outcome"] == CONFIRMED
        swapped = one | {"better": "adamw", "than": "coupled_adam", "test": test}
        (other,) = stated_rows(study(BETTER, swapped)).to_dict("records")
        assert other["p_value"] == pytest.approx(1 - row["p_value"])
        assert other["outcome"] == NOT_CONFIRMED


@pytest.mark.parametrize("one", [LOSS, ACC], ids=["loss", "acc"])
def test_margins_of_equivalence_and_of_a_difference(study, one):
    gain = np.subtract(BETTER["adamw"], BETTER["coupled_adam"])

    def p_of(test: str, margin: float, **changes: Any) -> float:
        (row,) = stated_rows(
            study(BETTER, one | {"test": test, "margin": margin} | changes)
        ).to_dict("records")
        assert abs(row["difference"]) == pytest.approx(gain.mean())
        return float(row["p_value"])

    above = stats.ttest_1samp(gain, 0.05, alternative="greater").pvalue
    below = stats.ttest_1samp(gain, 0.15, alternative="less").pvalue
    assert p_of("paired", 0.05) == pytest.approx(above)
    assert p_of("equivalence", 0.15) == pytest.approx(below)
    assert p_of("equivalence", 0.15, better="adamw", than="coupled_adam") == pytest.approx(below)
    assert p_of("equivalence", 0.05) == pytest.approx(1 - above)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"test": "equivalence"}, "margin: missing"),
        ({"test": "t-test", "margin": 1}, "margin: a t-test has none"),
        (
            {"test": "paired", "margin": 1, "difference": 1, "spread": 1},
            "difference: the power of a test with a margin",
        ),
    ],
)
def test_margins_that_say_nothing(changes, message):
    with pytest.raises(ValueError, match=message):
        Hypothesis(**LOSS | changes)


def test_a_hypothesis_must_hold_at_each_of_its_places(study):
    # At the second number of tokens Coupled Adam is worse by 1.
    everywhere = study(BETTER, LOSS, n_sizes=2)
    rows = stated_rows(everywhere)
    assert len(rows) == 2
    assert set(rows["p_hypothesis"]) == {rows["p_value"].max()}
    assert outcomes(everywhere) == {"loss": NOT_CONFIRMED}
    assert outcomes(study(BETTER, LOSS | {"tokens": "D0"}, n_sizes=2)) == {"loss": CONFIRMED}


def test_holm_and_bonferroni_share_the_level(study):
    values = {"adamw": [3.00, 3.05, 3.10], "coupled_adam": [2.90, 2.96, 2.97]}
    p_value = stats.ttest_ind(values["coupled_adam"], values["adamw"], alternative="less").pvalue
    assert 0.025 / 2 < p_value < 0.025
    wrong = {"better": "adamw", "than": "coupled_adam"}
    one, other = LOSS, ACC | wrong
    assert outcomes(study(values, one, other)) == {"loss": CONFIRMED, "acc": NOT_CONFIRMED}
    rows = stated_rows(study(values, one, other))
    assert rows["p_hypothesis"][0] == pytest.approx(2 * p_value)
    third = LOSS | wrong | {"name": "third"}
    assert outcomes(study(values, one, other, third))["loss"] == NOT_CONFIRMED
    assert outcomes(study(values, one, other, third, correction="none"))["loss"] == CONFIRMED
    bonferroni = study(values, one, other, third, correction="bonferroni")
    assert stated_rows(bonferroni)["level"][0] == pytest.approx(0.05 / 3)
    assert outcomes(bonferroni)["loss"] == NOT_CONFIRMED


def test_a_hypothesis_that_is_not_tested_counts_for_holm(
    study,
):
    """Among two hypotheses p = 0.03 is too large, whether or not the other one is tested yet."""
    values = {"adamw": [3.00, 3.05, 3.10], "coupled_adam": [2.93, 2.98, 3.00]}
    p_value = stats.ttest_ind(values["coupled_adam"], values["adamw"], alternative="less").pvalue
    assert 0.025 < p_value < 0.05
    rows = stated_rows(study(values, LOSS, LOSS | {"name": "r", "metric": "r_bar"}))
    rows = rows.set_index("hypothesis")
    assert rows.loc["loss"]["p_hypothesis"] == pytest.approx(2 * p_value)
    assert set(rows["outcome"]) == {OPEN}
    assert outcomes(study(values, LOSS)) == {"loss": CONFIRMED}


def test_a_hypothesis_that_is_not_tested_keeps_holm_open(
    study,
):
    one = study(
        {"adamw": [3.0, 3.1], "coupled_adam": [3.1, 3.0]},
        LOSS,
        LOSS | {"name": "r", "metric": "r_bar"},
    )
    assert outcomes(one) == {"loss": OPEN, "r": OPEN}
    rows = stated_rows(one).set_index("hypothesis")
    assert (
        rows.loc["r"]["reason"]
        == "coupled_adam: no value of seed 1, 2; adamw: no value of seed 1, 2"
    )


def test_a_trend_is_that_of_the_stated_seeds(study):
    values = {"adamw": [3.00, 3.05, 3.10, 3.02], "coupled_adam": [2.90, 2.94, 3.02, 2.95]}
    grows = LOSS | {"test": "trend", "better": "adamw", "than": "coupled_adam"}
    # Coupled Adam loses by 1 with each doubling, so Adam's gain grows.
    results = study(values, grows, n_sizes=2)
    rows = stated_rows(results)
    assert set(rows["outcome"]) == {CONFIRMED}
    assert list(rows["difference"]) == pytest.approx([-1.0] * 2)
    groups, loss = results.layout.groups["table1"], results.layout.metrics["loss"]
    whole = trend_of(results, groups, loss, "coupled_adam", "adamw")
    assert set(rows["df"]) == {whole.fit.df}
    assert outcomes(study(values, LOSS | {"test": "trend"}, n_sizes=2)) == {"loss": NOT_CONFIRMED}
    lost = stated_rows(study(values, grows, n_sizes=2, seeds=[1, 2, 3, 4, 5]))
    assert set(lost["reason"]) == {"2 of 10 pairs missing"}
    assert set(lost["outcome"]) == {OPEN}


def test_what_is_not_tested_is_open():
    assert [hypothesis_outcome(p, 0.04) for p in (0.03, 0.045, NAN)] == [
        CONFIRMED,
        NOT_CONFIRMED,
        OPEN,
    ]
    assert hypothesis_outcome(0.5, 0.05, others_open=True) == OPEN


@pytest.mark.parametrize(
    "changes", [{"test": "t-test"}, {"test": "paired"}, {"test": "equivalence", "margin": 2}]
)
@pytest.mark.parametrize("coupled_adam", [2.0, 3.0])
def test_values_without_any_spread_are_decided_and_confirm_nothing(study, changes, coupled_adam):
    """All seeds are there, so the hypothesis does not wait, and it keeps no other one open."""
    values = {"adamw": [3.0, 3.0], "coupled_adam": [coupled_adam] * 2}
    rows = stated_rows(study(values, LOSS | changes, ACC | changes))
    assert set(rows["outcome"]) == {NOT_CONFIRMED}
    assert set(rows["p_hypothesis"]) == {1}
    assert all(rows["reason"])
    if coupled_adam == 2.0:
        assert rows["p_value"].isna().all()
        assert set(rows["reason"]) == {NO_SPREAD}


def test_a_trend_without_any_spread_confirms_nothing(
    study,
):
    grows = LOSS | {"test": "trend", "better": "adamw", "than": "coupled_adam"}
    results = study(
        {"adamw": [3.0, 3.5], "coupled_adam": [2.0, 2.5]}, grows, n_sizes=2, slope_spread=0
    )
    rows = stated_rows(results)
    assert set(rows["outcome"]) == {NOT_CONFIRMED}
    assert set(rows["reason"]) == {NO_SPREAD}
