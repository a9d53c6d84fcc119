"""The plug-ins that draw where differences in loss lie, and the shape of Adam's second moment."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from matplotlib import rc_context
from research.plugins.loss_shares import LossShares
from research.plugins.moment_exponent import MomentExponent

from coupled_adam_bench.report.figures.style import RC
from coupled_adam_bench.statistics.declared import Material
from coupled_adam_bench.statistics.shares import LABELS, STATISTIC, WHOLE


def test_the_parts_of_a_difference_lie_end_to_end_and_sum_to_the_whole(
    tiny_plan, stored, results_of, tmp_path
):
    files = stored(tiny_plan, tmp_path)
    for cell in tiny_plan.cells.values():
        gain = cell.optimizer.key == "coupled_adam"
        losses = {
            band: 4.0 + 0.01 * cell.seed - gain * (place - 1) for place, band in enumerate(LABELS)
        }
        bands = [{"band": band, "targets": 200, "loss": loss} for band, loss in losses.items()]
        mean = sum(losses.values()) / len(losses)
        files.run(cell.id)
        files.evaluation(cell.id, "test_loss", [("test", "loss", mean, "nat/token")], bands=bands)
    material = Material(results_of(tiny_plan, lambda *_: 1.0), tmp_path, tmp_path)
    with rc_context(RC):
        (ax,) = LossShares().draw(material).axes
    (whole,) = [row for row in material.rows(STATISTIC) if row["band"] == WHOLE]
    widths = [bar.get_width() for bar in ax.patches]
    assert sum(widths) == pytest.approx(whole["difference"])
    # To each side of 0 a bar begins where the one before it ends.
    for sign in (-1, 1):
        bars = [bar for bar in ax.patches if sign * bar.get_width() > 0]
        ends = [bar.get_x() + bar.get_width() for bar in bars]
        assert [bar.get_x() for bar in bars] == pytest.approx([0.0, *ends[:-1]])


def test_a_run_has_a_dot_for_each_range_at_its_last_measured_step(tiny_plan, tmp_path):
    folder = tmp_path / next(iter(tiny_plan.cells))
    folder.mkdir()
    rows: list[dict[str, float]] = [{"step": 1, "loss": 4.0, "rate_sum": 0.1}]
    last = {"step": 9, "loss": 4.0, "rate_sum": 0.9}
    for name, (occupancy, exponent) in {"below_1": (0.5, 0.7), "above_10": (20.0, 1.1)}.items():
        last |= {
            f"moment_occupancy_{name}": occupancy,
            f"moment_exponent_{name}": exponent,
            f"moment_r_squared_{name}": 0.9,
        }
    rows += [last | {"moment_occupancy_1_to_10": 5.0}, {"step": 10, "loss": 4.0}]
    (folder / "history.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    material: Any = SimpleNamespace(plan=tiny_plan, runs=tmp_path)
    with rc_context(RC):
        exponents, r_squared = MomentExponent().draw(material).axes
    for ax, values in ((exponents, [0.7, 1.1]), (r_squared, [0.9, 0.9])):
        (dots,) = ax.lines
        assert list(dots.get_xdata()) == [0.5, 20.0] and list(dots.get_ydata()) == values
        assert ax.get_xscale() == "log"
