"""The plug-in that draws calibration against how often tokens are in the training text."""

import pytest
from matplotlib import rc_context
from research.plugins.calibration import Calibration, seen

from coupled_adam_bench.report.figures.curves import differences
from coupled_adam_bench.report.figures.style import RC
from coupled_adam_bench.study.catalogue.metrics import of_text

CURVE = {
    "count": [0.0, 2.0, 30.0, 400.0],
    "mean_log_ratio": [None, -1.0, None, 0.25],
    "pooled_log_ratio": [None, -0.5, 0.0, 0.125],
}


def test_points_of_the_curve_leave_out_what_is_not_there():
    assert seen(CURVE, "pooled_log_ratio") == [(2.0, -0.5), (30.0, 0.0), (400.0, 0.125)]
    other = CURVE | {"mean_log_ratio": [None, -1.5, 3.0, None]}
    assert differences(seen(CURVE, "mean_log_ratio"), seen(other, "mean_log_ratio")) == [(2.0, 0.5)]


@pytest.mark.parametrize("measured", [True, False])
def test_the_figure_has_a_line_for_each_seed(tiny_plan, stored, tmp_path, measured, drawn_from):
    files = stored(tiny_plan, tmp_path)
    for cell in tiny_plan.cells:
        files.run(cell)
        files.evaluation(cell, "test_loss", [], **({"calibration": CURVE} if measured else {}))
    whole, difference = Calibration().draw(drawn_from(tiny_plan, tmp_path)).axes
    lines = [
        [line for line in ax.lines if str(line.get_label())[0] != "_"] for ax in (whole, difference)
    ]
    assert [len(found) for found in lines] == ([6, 6] if measured else [0, 0])
    if measured:
        assert list(lines[0][0].get_ydata()) == [-0.5, 0.0, 0.125]
        assert list(lines[1][3].get_ydata()) == [0.0, 0.0]


def test_the_calibration_has_a_line_for_the_text_s_own(
    tiny_plan, tmp_path, stored, results_of, drawn_from
):
    first = next(iter(tiny_plan.cells))
    files = stored(tiny_plan, tmp_path / "runs")
    files.run(first)
    files.evaluation(
        first,
        "test_loss",
        [],
        calibration={"count": [1, 9], "pooled_log_ratio": [0.2, 0.1], "mean_log_ratio": [0.2, 0.1]},
        bands=[
            {"band": "never_seen", "training_counts": [0, 0]},
            {"band": "rarest", "training_counts": [1, 4]},
            {"band": "rare", "training_counts": None},
        ],
    )
    study = results_of(tiny_plan, lambda cell, metric: 0.5)
    study.measured[first, "test", of_text("pooled_calibration_rarest")] = 0.3
    with rc_context(RC):
        pooled, _ = Calibration().draw(drawn_from(tiny_plan, tmp_path / "runs", study)).axes
    own = [line for line in pooled.lines if line.get_label().startswith("the training text")]
    assert [list(line.get_xdata()) for line in own] == [[1, 4]]
    assert [list(line.get_ydata()) for line in own] == [[0.3, 0.3]]
